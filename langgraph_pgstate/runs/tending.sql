-- name: put_worker
-- Store a worker that was not asked to drain.
INSERT INTO /*schema*/workers (worker_id, queues, graphs, concurrency, versions)
VALUES (:worker_id::text, :queues::text[], :graphs::text[], :concurrency::integer, :versions::jsonb)
ON CONFLICT (worker_id) DO UPDATE SET
    queues = excluded.queues, graphs = excluded.graphs, concurrency = excluded.concurrency,
    versions = excluded.versions, seen_at = excluded.seen_at, drain_asked_at = NULL;

-- name: delete_worker
-- Delete a worker.
DELETE FROM /*schema*/workers WHERE worker_id = :worker_id::text;

-- name: ask_drain
-- Ask a worker to drain, unless the worker was asked before.
UPDATE /*schema*/workers SET drain_asked_at = now() WHERE worker_id = :worker_id::text AND drain_asked_at IS NULL;

-- name: find_drain
-- Return whether a worker was asked to drain.
SELECT 1 FROM /*schema*/workers WHERE worker_id = :worker_id::text AND drain_asked_at IS NOT NULL;

-- name: sweep_workers
-- Delete workers that have not been seen for a day.
DELETE FROM /*schema*/workers WHERE seen_at < now() - interval '1 day';

-- name: tend_runs
-- Renew the leases of a worker's runs, except locked leases, and store that the worker is alive. Return the running
-- runs of the worker: how each run must be cancelled, whether the worker holds the lease, whether the parameters name
-- the run, and whether the lease was renewed.
WITH mine AS (
    SELECT * FROM unnest(:thread_ids::text[], :fencing_tokens::bigint[]) AS m (thread_id, fencing_token)
), free AS MATERIALIZED (
    SELECT l.thread_id FROM /*schema*/leases l JOIN mine m
        ON m.thread_id = l.thread_id AND m.fencing_token = l.fencing_token
    WHERE l.thread_id = ANY(:thread_ids) AND l.holder_id = :worker_id::text
    FOR NO KEY UPDATE OF l SKIP LOCKED
), renewed AS (
    UPDATE /*schema*/leases SET renewed_at = now(), expires_at = now() + make_interval(secs => :ttl::double precision)
    FROM free f WHERE leases.thread_id = f.thread_id AND leases.thread_id = ANY(:thread_ids)
), seen AS (
    UPDATE /*schema*/workers SET seen_at = now() WHERE worker_id = :worker_id
)
SELECT q.thread_id, q.run_id, q.fencing_token, q.cancel, l.thread_id IS NOT NULL, m.thread_id IS NOT NULL,
    m.thread_id IN (SELECT f.thread_id FROM free f)
FROM /*schema*/queue q
    LEFT JOIN mine m ON m.thread_id = q.thread_id AND m.fencing_token = q.fencing_token
    LEFT JOIN /*schema*/leases l ON l.thread_id = q.thread_id AND l.fencing_token = q.fencing_token
        AND l.holder_id = :worker_id
WHERE q.status = 'running' AND q.worker_id = :worker_id;

-- name: find_running_workers
-- Return the workers that have running runs.
SELECT DISTINCT worker_id FROM /*schema*/queue WHERE status = 'running';

-- name: find_lost
-- Return running runs whose lease has expired or was taken over, and the running runs of the given dead workers.
SELECT q.thread_id, q.run_id, q.fencing_token, q.worker_id
FROM /*schema*/queue q LEFT JOIN /*schema*/leases l ON l.thread_id = q.thread_id AND l.fencing_token = q.fencing_token
WHERE q.status = 'running'
    AND (l.holder_id IS NULL OR l.expires_at <= now() OR q.worker_id = ANY(:dead_worker_ids::text[]))
LIMIT :page_size;

-- name: fence_lease
-- Take a lease from its holder if the lease has expired or the holder is dead, so that late writes of the holder are
-- refused. A locked lease is skipped.
WITH free AS MATERIALIZED (
    SELECT l.thread_id FROM /*schema*/leases l
    WHERE l.thread_id = :thread_id::text AND l.fencing_token = :fencing_token::bigint
        AND (l.expires_at <= now() OR :is_dead::boolean OR l.holder_id IS NULL)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE /*schema*/leases SET holder_id = NULL, fencing_token = leases.fencing_token + 1, expires_at = now()
FROM free WHERE leases.thread_id = :thread_id AND leases.thread_id = free.thread_id;

-- name: recover_run
-- Requeue a run whose lease was lost, ahead of other runs. A run without a new checkpoint will be claimed alone. If the
-- run was already claimed alone, and there were too many deaths or attempts, end the run instead. A run that must be
-- cancelled is always requeued. Return the number of deaths, whether the run was ended, and how the run must be
-- cancelled. Execute the query after `fence_lease` and `lock_free_threads`.
-- leaves: runs.error_message
-- leaves: runs.error_traceback
-- leaves: runs.metadata
-- leaves: spans.error_message
WITH found AS MATERIALIZED (
    SELECT q.cancel, q.attempt, q.is_suspect, CASE WHEN EXISTS (
        SELECT 1 FROM /*schema*/checkpoints k
        WHERE k.thread_id = :thread_id AND k.checkpoint_ns = '' AND k.run_id = :run_id
            AND k.checkpoint_id > coalesce(q.claimed_checkpoint_id, '')
    ) THEN 0 ELSE q.crashes + 1 END AS crashes, greatest(:max_attempts::integer, (
        SELECT (
            jsonb_path_query_first(r.options, '$.max_attempts ? (@ >= 1 && @ <= 2147483647)'::jsonpath) #>> '{}'::text[]
        )::numeric::integer FROM /*schema*/run_requests r
        WHERE r.thread_id = :thread_id AND r.run_id = :run_id
    )) AS most_attempts
    FROM /*schema*/queue q
    WHERE q.thread_id = :thread_id AND q.run_id = :run_id AND q.status = 'running'
        AND q.fencing_token = :fencing_token::bigint AND NOT EXISTS (
            SELECT 1 FROM /*schema*/leases l WHERE l.thread_id = :thread_id AND l.fencing_token = :fencing_token
        )
), mine AS MATERIALIZED (
    SELECT now() AS at, f.cancel, f.crashes, f.attempt, f.crashes > 0 OR f.attempt + 1 >= f.most_attempts AS is_suspect,
        f.cancel IS NULL AND f.is_suspect AND (
            f.crashes >= :max_crashes::integer OR f.attempt >= f.most_attempts
        ) AS is_last
    FROM found f
), changed AS (
    UPDATE /*schema*/runs SET
        status = CASE WHEN mine.is_last THEN 'error' ELSE 'pending' END,
        ended_at = CASE WHEN mine.is_last THEN mine.at END,
        alive_until = NULL,
        error_type = CASE WHEN mine.is_last THEN 'WorkerDied' END,
        error_message = CASE
            WHEN mine.is_last AND mine.crashes >= :max_crashes THEN 'its worker died ' || mine.crashes || ' times without a new checkpoint'
            WHEN mine.is_last THEN 'its worker died in attempt ' || mine.attempt END,
        error_traceback = NULL,
        last_event = coalesce((
            SELECT max(b.last_seq) FROM /*schema*/stream_batches b
            WHERE b.thread_id = :thread_id AND b.run_id = :run_id
        ), runs.last_event)
    FROM mine WHERE runs.thread_id = :thread_id AND runs.run_id = :run_id
    RETURNING runs.thread_id, runs.run_id, runs.status, runs.agent, runs.metadata, runs.multitask_strategy,
        runs.enqueued_at, runs.started_at, runs.ended_at, runs.error_type, runs.error_message, runs.webhook
), told AS MATERIALIZED (
    SELECT e.thread_id, e.run_id, e.webhook, to_jsonb(e) - 'webhook'::text, e.ended_at, e.ended_at AS deliver_after
    FROM changed e WHERE e.webhook IS NOT NULL AND e.ended_at IS NOT NULL
), new_webhooks AS (
    INSERT INTO /*schema*/webhooks (thread_id, run_id, url, run, ended_at, deliver_after) SELECT t.* FROM told t
), ended AS (
    UPDATE /*schema*/spans SET
        status = 'error', ended_at = greatest(spans.started_at, now()), error_type = 'WorkerDied',
        error_message = 'the worker that ran it has died'
    FROM mine
    WHERE spans.thread_id = :thread_id AND spans.run_id = :run_id AND spans.ended_at IS NULL AND mine.is_last
    RETURNING spans.run_id, spans.span_id, spans.started_at
), batches AS MATERIALIZED (
    SELECT gen_random_uuid()::text, e.run_id, array_agg(e.span_id), array_agg(e.started_at), now()
    FROM ended e WHERE EXISTS (SELECT 1 FROM /*schema*/exporters) GROUP BY e.run_id
), exported AS (
    INSERT INTO /*schema*/span_exports (thread_id, export_id, run_id, span_ids, started_ats, created_at)
    SELECT :thread_id, b.* FROM batches b
), idle AS (
    UPDATE /*schema*/threads SET status = 'error' FROM mine
    WHERE threads.thread_id = :thread_id AND mine.is_last AND NOT EXISTS (
        SELECT 1 FROM /*schema*/queue o WHERE o.thread_id = :thread_id AND o.run_id <> :run_id
    )
), gone AS (
    DELETE FROM /*schema*/queue USING mine
    WHERE queue.thread_id = :thread_id AND queue.run_id = :run_id AND mine.is_last
), back AS (
    UPDATE /*schema*/queue SET
        status = 'pending', worker_id = NULL, fencing_token = NULL, claimed_at = NULL, crashes = mine.crashes,
        is_suspect = mine.is_suspect,
        position = least(queue.position, (
            SELECT min(o.position) - 1 FROM /*schema*/queue o
            WHERE o.queue = queue.queue AND o.is_ready AND o.status = 'pending' AND NOT o.is_limited
        ))
    FROM mine
    WHERE queue.thread_id = :thread_id::text AND queue.run_id = :run_id::text AND NOT mine.is_last
)
SELECT mine.crashes, mine.is_last, mine.cancel FROM mine;

-- name: find_due
-- Return the threads of delayed runs that are due.
SELECT DISTINCT thread_id FROM (
    SELECT q.thread_id FROM /*schema*/queue q WHERE q.run_after <= now() ORDER BY q.run_after LIMIT :page_size
) AS due;

-- name: make_due
-- Move due runs behind the other runs of their threads. The due time becomes the time of enqueueing. Execute the query
-- after the lock of the threads' rows.
UPDATE /*schema*/queue SET
    run_after = NULL, number = due.number, enqueued_at = greatest(queue.enqueued_at, queue.run_after)
FROM (
    SELECT q.thread_id, q.run_id, coalesce(q.number, coalesce((
        SELECT max(o.number) FROM /*schema*/queue o WHERE o.thread_id = q.thread_id AND o.number IS NOT NULL
    ), 0) + row_number() OVER (
        PARTITION BY q.thread_id, q.number IS NULL ORDER BY q.run_after, q.enqueued_at, q.run_id
    )) AS number
    FROM /*schema*/queue q WHERE q.thread_id = ANY(:thread_ids::text[]) AND q.run_after <= now()
) AS due
WHERE queue.thread_id = due.thread_id AND queue.run_id = due.run_id AND queue.thread_id = ANY(:thread_ids);

-- name: find_stranded
-- Return threads that have due runs but no ready run.
SELECT DISTINCT q.thread_id FROM /*schema*/queue q
WHERE NOT q.is_ready AND q.run_after IS NULL AND NOT EXISTS (
    SELECT 1 FROM /*schema*/queue o WHERE o.thread_id = q.thread_id AND o.is_ready
) AND NOT EXISTS (
    SELECT 1 FROM /*schema*/queue o WHERE o.thread_id = q.thread_id AND o.number < q.number AND o.number IS NOT NULL
) LIMIT :page_size;
