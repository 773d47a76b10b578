-- Serves searches for metadata other than source, step and run_id over many threads; slows every put.
CREATE INDEX IF NOT EXISTS checkpoints_metadata_idx ON /*schema*/checkpoints USING gin (metadata jsonb_path_ops);
