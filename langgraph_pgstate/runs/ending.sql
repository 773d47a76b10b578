-- name: release_leases
-- Lock and release the leases with the given fencing tokens. The rows keep the tokens, so that later leases have
-- greater tokens.
UPDATE /*schema*/leases SET holder_id = NULL, expires_at = now()
FROM (
    SELECT l.thread_id FROM unnest(:thread_ids::text[], :fencing_tokens::bigint[]) AS g (thread_id, fencing_token)
        JOIN /*schema*/leases l ON l.thread_id = g.thread_id AND l.fencing_token = g.fencing_token
    ORDER BY l.thread_id FOR UPDATE OF l
) AS held
WHERE leases.thread_id = held.thread_id;

-- name: end_runs
-- End runs under the current leases of their threads. Runs whose lease was lost are skipped. Without `rolls_back`, runs
-- that must be rolled back are skipped. If the runs succeeded, the requests of these runs and of the threads'
-- interrupted runs are deleted. A default answer becomes due when `answer_after` has passed since the oldest interrupt.
-- Execute the query after `release_leases` and `lock_threads_for_no_key_update`.
-- seals: runs.error_message with thread_id = thread_ids, run_id = run_ids
-- seals: runs.error_traceback with thread_id = thread_ids, run_id = run_ids
-- leaves: runs.metadata
WITH mine AS MATERIALIZED (
    SELECT q.thread_id, q.run_id, q.last_event, now() AS at
    FROM unnest(:thread_ids::text[], :run_ids::text[], :fencing_tokens::bigint[]) AS g (
        thread_id, run_id, fencing_token
    )
        JOIN /*schema*/queue q ON q.thread_id = g.thread_id AND q.run_id = g.run_id
            AND q.fencing_token = g.fencing_token
        JOIN /*schema*/leases l ON l.thread_id = g.thread_id AND l.fencing_token = g.fencing_token
    WHERE q.status = 'running' AND (:rolls_back::boolean OR q.cancel IS DISTINCT FROM 'rollback')
), ended AS (
    UPDATE /*schema*/runs SET
        status = :status::text, ended_at = now(), alive_until = NULL, error_type = :error_type::text,
        error_message = :error_message::text, error_traceback = :error_traceback::text,
        last_event = coalesce(nullif(mine.last_event, 0), runs.last_event)
    FROM mine WHERE runs.thread_id = mine.thread_id AND runs.run_id = mine.run_id
    RETURNING runs.thread_id, runs.run_id, runs.status, runs.agent, runs.metadata, runs.multitask_strategy,
        runs.enqueued_at, runs.started_at, runs.ended_at, runs.error_type, runs.error_message, runs.webhook
), told AS MATERIALIZED (
    SELECT e.thread_id, e.run_id, e.webhook, to_jsonb(e) - 'webhook'::text, e.ended_at, e.ended_at AS deliver_after
    FROM ended e WHERE e.webhook IS NOT NULL
), new_webhooks AS (
    INSERT INTO /*schema*/webhooks (thread_id, run_id, url, run, ended_at, deliver_after) SELECT t.* FROM told t
), idle AS (
    UPDATE /*schema*/threads SET status = CASE
        WHEN :status IN ('interrupted', 'error') THEN :status WHEN :status = 'timeout' THEN 'error' ELSE 'idle' END
    FROM mine
    WHERE threads.thread_id = mine.thread_id AND NOT EXISTS (
        SELECT 1 FROM /*schema*/queue o WHERE o.thread_id = mine.thread_id AND o.run_id <> mine.run_id
    )
), waiting AS (
    UPDATE /*schema*/run_requests AS d
    -- An invalid `answer_after` counts as 0, so that the sweep of default answers soon reports the invalid value.
    SET answer_at = make_interval(secs => coalesce((
        jsonb_path_query_first(d.options, '$.answer_after ? (@ > 0 && @ < 100000000000)'::jsonpath) #>> '{}'::text[]
    )::double precision, 0)) + coalesce((
        SELECT min(w.created_at) FROM /*schema*/writes w
        WHERE w.thread_id = mine.thread_id AND w.checkpoint_ns = '' AND w.idx = -3 AND w.run_id = mine.run_id
            AND w.checkpoint_id = (
                SELECT max(k.checkpoint_id) FROM /*schema*/checkpoints k
                WHERE k.thread_id = mine.thread_id AND k.checkpoint_ns = ''
            )
    ), mine.at)
    FROM mine
    WHERE d.thread_id = mine.thread_id AND d.run_id = mine.run_id AND :status = 'interrupted'
        AND d.options ->> 'answer_after' IS NOT NULL
), done AS (
    DELETE FROM /*schema*/run_requests AS d USING mine
    WHERE d.thread_id = mine.thread_id AND :status = 'success' AND (d.run_id = mine.run_id OR EXISTS (
        -- `OFFSET 0` makes the planner look up this run instead of hashing all interrupted runs.
        SELECT 1 FROM /*schema*/runs r
        WHERE r.thread_id = mine.thread_id AND r.run_id = d.run_id AND r.status = 'interrupted' OFFSET 0
    ))
)
DELETE FROM /*schema*/queue USING mine WHERE queue.thread_id = mine.thread_id AND queue.run_id = mine.run_id;

-- name: requeue_run
-- Requeue a run under the current lease of its thread, ahead of the other runs of its thread and its queue. With
-- `delay`, the run becomes ready after this many seconds. No row is affected if the lease was lost, or the run must be
-- cancelled. Execute the query after `release_leases` and `lock_threads_for_no_key_update`.
-- seals: runs.error_message
-- seals: runs.error_traceback
WITH mine AS MATERIALIZED (
    SELECT q.last_event, now() + make_interval(secs => :delay::double precision) AS due_at FROM /*schema*/queue q JOIN /*schema*/leases l ON l.thread_id = q.thread_id
    WHERE q.thread_id = :thread_id AND q.run_id = :run_id AND q.status = 'running'
        AND q.fencing_token = :fencing_token::bigint AND q.cancel IS NULL
        AND l.thread_id = :thread_id AND l.fencing_token = :fencing_token
), waiting AS (
    UPDATE /*schema*/runs SET
        status = 'pending', attempt = runs.attempt - :unused::integer, alive_until = NULL,
        error_type = :error_type::text, error_message = :error_message::text,
        error_traceback = :error_traceback::text,
        last_event = coalesce(nullif(mine.last_event, 0), runs.last_event)
    FROM mine WHERE runs.thread_id = :thread_id AND runs.run_id = :run_id
)
UPDATE /*schema*/queue SET
    status = 'pending', attempt = queue.attempt - :unused, worker_id = NULL, fencing_token = NULL, claimed_at = NULL,
    is_ready = :delay IS NULL,
    run_after = mine.due_at,
    position = least(queue.position, (
        SELECT min(o.position) - 1 FROM /*schema*/queue o
        WHERE o.queue = queue.queue AND o.is_ready AND o.status = 'pending' AND NOT o.is_limited
    ))
FROM mine WHERE queue.thread_id = :thread_id::text AND queue.run_id = :run_id::text;

-- name: get_cancel
-- Return how a running run must be cancelled; no row if it must not, or another worker has claimed it.
SELECT q.cancel FROM /*schema*/queue q
WHERE q.thread_id = :thread_id::text AND q.run_id = :run_id::text AND q.status = 'running'
    AND q.fencing_token = :fencing_token::bigint AND q.cancel IS NOT NULL;

-- name: is_queued
-- Return whether a thread has a run in the queue.
SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = :thread_id::text LIMIT 1;

-- name: delete_run_later
-- Keep a run that deletes its thread, and the run's events, for some seconds. Execute the query before the thread is
-- deleted.
UPDATE /*schema*/runs SET delete_at = now() + make_interval(secs => :seconds::double precision)
WHERE thread_id = :thread_id::text AND run_id = :run_id::text;

-- name: find_outlived
-- Return runs that have deleted their threads and must be deleted now.
SELECT r.thread_id, r.run_id FROM /*schema*/runs r
WHERE r.delete_at <= now() AND NOT EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = r.thread_id)
ORDER BY r.delete_at LIMIT :page_size;

-- name: hold_outlived
-- Lock a run that must be deleted now. Return no row if another transaction has locked the run.
SELECT 1 FROM /*schema*/runs r
WHERE r.thread_id = :thread_id::text AND r.run_id = :run_id::text AND r.delete_at <= now()
FOR UPDATE SKIP LOCKED;

-- name: is_ended
-- Return a row if a run has ended with the given status and is no longer in the queue.
SELECT 1 FROM /*schema*/runs r
WHERE r.thread_id = :thread_id::text AND r.run_id = :run_id::text AND r.status = :status::text AND NOT EXISTS (
    SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = :thread_id AND q.run_id = :run_id
);

-- name: notify_ended
-- Wake callers that wait for ended runs, once the transaction commits. The payload has the id of one run in each line.
SELECT pg_notify('pgstate_ended', :run_ids::text);
