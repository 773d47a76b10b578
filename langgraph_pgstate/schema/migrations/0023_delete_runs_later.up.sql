-- Keeps a run that deletes its thread for its readers, with its events, for a time.

ALTER TABLE /*schema*/runs ADD COLUMN delete_at timestamptz;
CREATE INDEX runs_delete_at_idx ON /*schema*/runs (delete_at) WHERE delete_at IS NOT NULL;

COMMENT ON COLUMN /*schema*/runs.delete_at IS
    'time at which it is deleted with its events, because it has deleted its thread; null: it is deleted with its thread';
