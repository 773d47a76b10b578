-- Removes the queue. Runs that wait in it are not run any more.

DROP TABLE /*schema*/queue;
DROP TABLE /*schema*/run_requests;
DROP TABLE /*schema*/workers;
ALTER TABLE /*schema*/runs DROP COLUMN queue;

COMMENT ON COLUMN /*schema*/threads.status IS
    'idle, busy (a run is on it), interrupted (its last run waits) or error (its last run failed); always idle '
    'without the record';
COMMENT ON COLUMN /*schema*/runs.status IS 'pending, running, success, interrupted, error or cancelled';
COMMENT ON COLUMN /*schema*/runs.started_at IS 'start of the last attempt';

CREATE OR REPLACE VIEW /*schema*/failed_runs AS
SELECT r.thread_id, r.run_id, r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at,
    r.ended_at - r.started_at AS duration,
    r.status = 'running' OR r.error_type IS NOT DISTINCT FROM 'ProcessDied' AS is_crashed, r.error_type,
    r.error_message, r.steps, r.cost
FROM /*schema*/runs r
WHERE r.status = 'error' OR r.status = 'running' AND r.alive_until < now() AND NOT EXISTS (
    -- Its end is in the journal, and not in this table yet.
    SELECT 1 FROM /*schema*/journal j WHERE j.thread_id = r.thread_id AND j.run_id = r.run_id AND j.is_alone
);

COMMENT ON COLUMN /*schema*/runs.error_type IS 'exception; ProcessDied: its process was killed';
COMMENT ON COLUMN /*schema*/failed_runs.error_type IS 'exception; ProcessDied: its process was killed';
COMMENT ON VIEW /*schema*/failed_runs IS 'Runs that ended with an error, and runs whose process died.';
