-- Takes forks' origins, labels, leases, tombstones, answers and versions of the state away; the checkpoints stay.

DROP TABLE /*schema*/journal;
DROP TABLE /*schema*/answers;
DROP TABLE /*schema*/tombstones;
DROP TABLE /*schema*/leases;
DROP TABLE /*schema*/labels;
DROP INDEX /*schema*/writes_interrupts_idx;
ALTER TABLE /*schema*/checkpoints
    DROP COLUMN next_checkpoint_id,
    DROP COLUMN state_version;
ALTER TABLE /*schema*/threads
    DROP COLUMN forked_from_thread_id,
    DROP COLUMN forked_from_checkpoint_id;

CREATE OR REPLACE VIEW /*schema*/failed_runs AS
SELECT r.thread_id, r.run_id, r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at,
    r.ended_at - r.started_at AS duration, r.status = 'running' AS is_crashed, r.error_type, r.error_message, r.steps,
    r.cost
FROM /*schema*/runs r
WHERE r.status = 'error' OR r.status = 'running' AND r.alive_until < now();
