-- The table of embeddings of the store of langgraph-checkpoint-postgres, as version 3.2 creates it. The store's own
-- setup() makes the approximate index.
CREATE TABLE IF NOT EXISTS /*schema*/store_vectors (
    prefix text NOT NULL,
    key text NOT NULL,
    field_name text NOT NULL,
    embedding vector (3),
    created_at timestamptz DEFAULT CURRENT_TIMESTAMP,
    updated_at timestamptz DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (prefix, key, field_name),
    FOREIGN KEY (prefix, key) REFERENCES /*schema*/store (prefix, key) ON DELETE CASCADE
);
