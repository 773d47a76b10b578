-- For searching metadata other than source, step and run_id over many threads; costs every put some time.
CREATE INDEX IF NOT EXISTS checkpoints_metadata_idx ON /*schema*/checkpoints USING gin (metadata jsonb_path_ops);
