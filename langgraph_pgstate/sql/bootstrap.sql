-- What a setup makes before its first migration: the table that records migrations.
CREATE TABLE IF NOT EXISTS /*schema*/migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);
