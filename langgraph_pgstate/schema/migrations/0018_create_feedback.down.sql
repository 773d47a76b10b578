-- Removes feedback, and the release of runs.

DROP TABLE /*schema*/feedback;
ALTER TABLE /*schema*/runs DROP COLUMN release;
COMMENT ON COLUMN /*schema*/queue.enqueued_at IS 'time it was enqueued, or retried by hand';
