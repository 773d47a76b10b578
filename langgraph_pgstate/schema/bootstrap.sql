-- The table that records migrations; setup creates it before the first migration.
CREATE TABLE IF NOT EXISTS /*schema*/migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    is_additive boolean NOT NULL DEFAULT false
);
