-- An index for searches by metadata other than source, step and run_id over many threads. It slows every put.
CREATE INDEX IF NOT EXISTS checkpoints_metadata_idx ON /*schema*/checkpoints USING gin (metadata jsonb_path_ops);
