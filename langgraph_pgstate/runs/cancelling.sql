-- name: lock_queued
-- Lock one run of a thread in the queue, so that no worker claims the run. Without `run_id`, lock all runs of the
-- thread that are not enqueued for later. Return the locked runs.
SELECT q.run_id, q.status, q.cancel FROM /*schema*/queue q
WHERE q.thread_id = :thread_id::text
    AND (q.run_id = :run_id::text OR :run_id::text IS NULL AND q.number IS NOT NULL)
ORDER BY q.run_id FOR UPDATE;

-- name: find_retry
-- Return the newest event of a retry of a run by a person, after a given time. Execute the query after
-- `lock_threads_for_no_key_update`.
-- opens: events.payload with kind = 'action'
SELECT v.created_at, v.payload FROM /*schema*/events v
WHERE v.thread_id = :thread_id::text
    AND v.event_id > to_char(:after::timestamptz AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS')
    AND v.created_at > :after AND v.run_id = :run_id::text AND v.kind = 'action' AND v.payload ->> 'action' = 'retry'
ORDER BY v.event_id DESC
LIMIT 1;

-- name: ask_cancel
-- Ask the workers of running runs to end the runs. Only a rollback replaces an earlier action. Execute the query after
-- `lock_queued`.
UPDATE /*schema*/queue SET cancel = :cancel::text
WHERE thread_id = :thread_id::text AND run_id = ANY(:run_ids::text[]) AND (cancel IS NULL OR :cancel = 'rollback');

-- name: end_pending
-- End pending runs of a thread. Execute the query after `lock_queued`.
-- leaves: runs.error_message
-- leaves: runs.metadata
WITH gone AS (
    DELETE FROM /*schema*/queue
    WHERE thread_id = :thread_id AND run_id = ANY(:run_ids)
    RETURNING run_id
), ended AS (
    UPDATE /*schema*/runs SET status = :status::text, ended_at = now(), alive_until = NULL FROM gone
    WHERE runs.thread_id = :thread_id::text AND runs.run_id = gone.run_id AND runs.run_id = ANY(:run_ids::text[])
    RETURNING runs.thread_id, runs.run_id, runs.status, runs.agent, runs.metadata, runs.multitask_strategy,
        runs.enqueued_at, runs.started_at, runs.ended_at, runs.error_type, runs.error_message, runs.webhook
), told AS MATERIALIZED (
    SELECT e.thread_id, e.run_id, e.webhook, to_jsonb(e) - 'webhook'::text, e.ended_at, e.ended_at AS deliver_after
    FROM ended e WHERE e.webhook IS NOT NULL
)
INSERT INTO /*schema*/webhooks (thread_id, run_id, url, run, ended_at, deliver_after) SELECT t.* FROM told t;

-- name: put_webhooks
-- Make the webhooks of some cancelled runs of a thread due, before the runs are deleted.
-- leaves: runs.error_message
-- leaves: runs.metadata
WITH told AS MATERIALIZED (
    SELECT e.thread_id, e.run_id, e.webhook, to_jsonb(e) - 'webhook'::text, e.ended_at, e.ended_at AS deliver_after FROM (
        SELECT r.thread_id, r.run_id, 'cancelled' AS status, r.agent, r.metadata, r.multitask_strategy, r.enqueued_at,
            r.started_at, now() AS ended_at, r.error_type, r.error_message, r.webhook
        FROM /*schema*/runs r
        WHERE r.thread_id = :thread_id::text AND r.run_id = ANY(:run_ids::text[]) AND r.webhook IS NOT NULL
    ) AS e
)
INSERT INTO /*schema*/webhooks (thread_id, run_id, url, run, ended_at, deliver_after) SELECT t.* FROM told t;

-- name: delete_queued
-- Delete some or all of a thread's runs from the queue, with their requests. Increase the fencing token of the thread's
-- lease, so that late writes of the runs' workers are refused.
WITH gone AS (
    DELETE FROM /*schema*/queue
    WHERE thread_id = :thread_id AND (:run_ids::text[] IS NULL OR run_id = ANY(:run_ids))
    RETURNING fencing_token
), fenced AS (
    UPDATE /*schema*/leases SET holder_id = NULL, fencing_token = leases.fencing_token + 1, expires_at = now()
    FROM gone
    WHERE leases.thread_id = :thread_id AND (
        leases.fencing_token = gone.fencing_token OR leases.holder_id IS NULL AND NOT EXISTS (
            SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = :thread_id AND q.status = 'running'
        )
    )
)
DELETE FROM /*schema*/run_requests
WHERE thread_id = :thread_id::text AND (:run_ids IS NULL OR run_id = ANY(:run_ids));

-- name: set_thread_status
-- Set the status of a thread whose queue has changed. The thread is busy while it has runs in the queue. Otherwise the
-- status follows from the newest run that has begun.
UPDATE /*schema*/threads SET status = found.status
FROM (
    SELECT CASE
        WHEN EXISTS (SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = :thread_id) THEN 'busy'
        ELSE coalesce((
            SELECT CASE
                WHEN r.status IN ('interrupted', 'error') THEN r.status WHEN r.status = 'timeout' THEN 'error'
                WHEN r.status IN ('pending', 'running') THEN 'busy' ELSE 'idle' END
            FROM /*schema*/runs r WHERE r.thread_id = :thread_id AND r.attempt > 0
            ORDER BY r.started_at DESC LIMIT 1
        ), 'idle')
    END AS status
) AS found
WHERE threads.thread_id = :thread_id::text AND threads.status <> found.status;

-- name: get_run_status
-- Return the status of a run and its error.
-- opens: runs.error_message
SELECT r.status, r.error_type, r.error_message, r.queue IS NOT NULL FROM /*schema*/runs r
WHERE r.thread_id = :thread_id::text AND r.run_id = :run_id::text;

-- name: retry_run
-- Enqueue an ended run again behind the other runs of its thread, if its request is still stored. A run with
-- checkpoints is enqueued only if no other run has continued the thread or is in the queue. With `within`, a run is
-- enqueued only if no other run of the thread was enqueued or began within this time. Execute the query after
-- `lock_threads_for_no_key_update`.
-- leaves: runs.error_message
-- leaves: runs.error_traceback
WITH given AS MATERIALIZED (
    SELECT now() AS at, r.thread_id, r.run_id, r.queue, d.options ->> 'graph' AS graph,
        coalesce(d.options ->> 'version', '') AS version, coalesce((
            jsonb_path_query_first(d.options, '$.priority ? (@ >= -2147483647 && @ <= 2147483647)'::jsonpath)
                #>> '{}'::text[]
        )::numeric::integer, 0) AS priority, coalesce(d.options ->> 'key', '') AS key
    FROM /*schema*/runs r JOIN /*schema*/run_requests d ON d.thread_id = r.thread_id AND d.run_id = r.run_id
    WHERE r.thread_id = :thread_id AND r.run_id = :run_id AND d.thread_id = :thread_id AND r.queue IS NOT NULL
        AND r.status IN ('error', 'timeout', 'cancelled', 'interrupted')
        AND NOT EXISTS (SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = :thread_id AND q.run_id = :run_id)
        AND (
            NOT EXISTS (
                SELECT 1 FROM /*schema*/checkpoints c
                WHERE c.thread_id = :thread_id AND c.checkpoint_ns = '' AND c.run_id = :run_id
            )
            OR NOT EXISTS (SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = :thread_id) AND (
                SELECT c.run_id FROM /*schema*/checkpoints c
                WHERE c.thread_id = :thread_id AND c.checkpoint_ns = '' ORDER BY c.checkpoint_id DESC LIMIT 1
            ) = :run_id
        )
        AND (:within::interval IS NULL OR NOT EXISTS (
            SELECT 1 FROM /*schema*/runs o
            WHERE o.thread_id = :thread_id AND o.run_id <> :run_id
                AND coalesce(o.enqueued_at, o.started_at) > now() - :within
        ))
), queued AS (
    INSERT INTO /*schema*/queue (thread_id, run_id, queue, graph, version, number, priority, key, enqueued_at)
    SELECT g.thread_id, g.run_id, g.queue, g.graph, g.version, coalesce((
        SELECT max(q.number) FROM /*schema*/queue q WHERE q.thread_id = :thread_id AND q.number IS NOT NULL
    ), 0) + 1, g.priority, g.key, g.at
    FROM given g
)
UPDATE /*schema*/runs SET
    status = 'pending', attempt = 0, ended_at = NULL, error_type = NULL, error_message = NULL, error_traceback = NULL
FROM given g WHERE runs.thread_id = :thread_id::text AND runs.run_id = :run_id::text;

-- name: discard_request
-- Delete the request of a run that failed, exceeded its timeout or was cancelled. Execute the query after
-- `lock_threads_for_no_key_update`, so that no transaction retries the run at the same time.
DELETE FROM /*schema*/run_requests
WHERE thread_id = :thread_id::text AND run_id = :run_id::text AND EXISTS (
    SELECT 1 FROM /*schema*/runs r
    WHERE r.thread_id = :thread_id AND r.run_id = :run_id AND r.status IN ('error', 'timeout', 'cancelled')
);
