-- The table of the store of langgraph-checkpoint-postgres, as the migrations of version 3.2 create it, so that the
-- store's own setup() has nothing left to do.
CREATE TABLE IF NOT EXISTS /*schema*/store (
    prefix text NOT NULL,
    key text NOT NULL,
    value jsonb NOT NULL,
    created_at timestamptz DEFAULT CURRENT_TIMESTAMP,
    updated_at timestamptz DEFAULT CURRENT_TIMESTAMP,
    expires_at timestamptz,
    ttl_minutes integer,
    PRIMARY KEY (prefix, key)
);
CREATE INDEX IF NOT EXISTS store_prefix_idx ON /*schema*/store USING btree (prefix text_pattern_ops);
CREATE INDEX IF NOT EXISTS idx_store_expires_at ON /*schema*/store (expires_at) WHERE expires_at IS NOT NULL;
