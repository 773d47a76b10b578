-- Removes the queue. Runs that wait in it are not run any more.

DROP TABLE /*schema*/queue;
DROP TABLE /*schema*/run_requests;
DROP TABLE /*schema*/workers;
ALTER TABLE /*schema*/runs DROP COLUMN queue;

COMMENT ON COLUMN /*schema*/runs.status IS 'pending, running, success, interrupted, error or cancelled';
COMMENT ON COLUMN /*schema*/runs.started_at IS 'start of the last attempt';
