-- name: list_queue
-- Return a page of the runs in the queue, oldest first, after a cursor.
-- matches: threads.metadata from scope
SELECT q.thread_id, q.run_id, q.queue, q.graph, q.status, q.is_ready, q.priority, q.key, q.run_after, q.enqueued_at,
    q.attempt, q.crashes, q.cancel, q.worker_id, q.claimed_at, q.timeout_at, q.version, q.is_limited, EXISTS (
        SELECT 1 FROM /*schema*/workers w
        WHERE w.seen_at > now() - interval '30 seconds' AND q.queue = ANY(w.queues) AND q.graph = ANY(w.graphs)
            AND (q.version = '' OR w.versions -> q.graph ? q.version)
    )
FROM /*schema*/queue q
WHERE (q.enqueued_at, q.thread_id, q.run_id)
        > (:cursor_at::timestamptz, :cursor_thread::text COLLATE "C", :cursor_run::text COLLATE "C")
    AND (:thread_id::text IS NULL OR q.thread_id = :thread_id)
    AND (:queue::text IS NULL OR q.queue = :queue)
    AND (:graph::text IS NULL OR q.graph = :graph)
    AND (:status::text IS NULL OR q.status = :status)
    AND (:scope::text[] IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = q.thread_id
            AND t.metadata @> ANY(:scope::text[]::jsonb[])
    ))
ORDER BY q.enqueued_at, q.thread_id, q.run_id
LIMIT :page_size;

-- name: count_queue
-- Count the runs in the queue by queue, graph, version and status. A row also has the number of ready runs, the time at
-- which the oldest run was enqueued, and whether a living worker accepts these runs.
SELECT q.queue, q.graph, q.status, count(*) FILTER (WHERE q.is_ready), count(*), min(q.enqueued_at), EXISTS (
    SELECT 1 FROM /*schema*/workers w
    WHERE w.seen_at > now() - interval '30 seconds' AND q.queue = ANY(w.queues) AND q.graph = ANY(w.graphs)
        AND (q.version = '' OR w.versions -> q.graph ? q.version)
), q.version
FROM /*schema*/queue q
GROUP BY q.queue, q.graph, q.version, q.status
ORDER BY q.queue, q.graph, q.version, q.status;

-- name: list_dead_letters
-- Return a page of runs that failed for good and can be retried, newest first, below a cursor.
-- opens: runs.input
-- opens: runs.output
-- opens: runs.error_message
-- opens: runs.error_traceback
-- opens: runs.metadata
-- matches: threads.metadata from scope
SELECT r.thread_id, r.run_id, r.attempt, r.status, r.error_type IS NOT DISTINCT FROM 'WorkerDied', r.agent,
    r.tenant_id, r.user_id, r.started_at, r.ended_at, r.first_checkpoint_id, r.last_checkpoint_id, r.steps, r.input_tokens, r.output_tokens, r.cost, r.error_type,
    r.error_message, r.error_traceback, r.input, r.output, r.enqueued_at, r.multitask_strategy, r.metadata, r.release
FROM /*schema*/runs r
WHERE r.status <> 'success' AND r.status IN ('error', 'timeout') AND r.queue IS NOT NULL
    AND r.started_at <= :cursor_at::timestamptz
    AND (r.started_at < :cursor_at OR (r.thread_id, r.run_id) > (:cursor_thread::text, :cursor_run::text))
    AND (:queue::text IS NULL OR r.queue = :queue)
    AND EXISTS (
        SELECT 1 FROM /*schema*/run_requests d
        WHERE d.thread_id = r.thread_id AND d.run_id = r.run_id
            AND (:graph::text IS NULL OR d.options ->> 'graph' = :graph)
    )
    AND (:scope::text[] IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = r.thread_id
            AND t.metadata @> ANY(:scope::text[]::jsonb[])
    ))
ORDER BY r.started_at DESC, r.thread_id, r.run_id
LIMIT :page_size;

-- name: get_run_request
-- Return the request of a run.
-- opens: run_requests.data
SELECT r.queue, d.options::text, d.data
FROM /*schema*/run_requests d JOIN /*schema*/runs r ON r.thread_id = d.thread_id AND r.run_id = d.run_id
WHERE d.thread_id = :thread_id::text AND d.run_id = :run_id::text AND r.thread_id = :thread_id AND r.queue IS NOT NULL;

-- name: get_last_checkpoint
-- Return the newest checkpoint of a run in the root namespace. For a run without checkpoints, return the checkpoint for
-- which the run's tasks have stored writes, if any. A successful run without either had nothing to do: return the
-- checkpoint that was the thread's newest when the run ended.
SELECT coalesce(greatest((
    SELECT max(own.checkpoint_id) FROM (
        SELECT k.checkpoint_id FROM /*schema*/checkpoints k
        WHERE k.thread_id = :thread_id::text AND k.checkpoint_ns = '' AND k.run_id = :run_id::text OFFSET 0
    ) AS own
), (
    SELECT max(w.checkpoint_id) FROM /*schema*/writes w
    WHERE w.thread_id = :thread_id AND w.checkpoint_ns = '' AND w.run_id = :run_id
)), (
    SELECT k.checkpoint_id FROM /*schema*/runs r JOIN /*schema*/checkpoints k ON k.thread_id = r.thread_id
    WHERE r.thread_id = :thread_id AND r.run_id = :run_id AND r.status = 'success' AND k.thread_id = :thread_id
        AND k.checkpoint_ns = '' AND k.created_at <= r.ended_at
    ORDER BY k.checkpoint_id DESC LIMIT 1
));

-- name: list_workers
-- Return the workers, the last seen first, each with the number of running runs.
SELECT w.worker_id, w.started_at, w.seen_at, w.seen_at > now() - interval '30 seconds', w.queues, w.graphs,
    w.concurrency, w.versions, (
        SELECT count(*) FROM /*schema*/queue q WHERE q.status = 'running' AND q.worker_id = w.worker_id
    ), w.drain_asked_at
FROM /*schema*/workers w
ORDER BY w.seen_at DESC, w.worker_id
LIMIT :page_size;

-- name: put_limit
-- Store the limit of a queue, of each of its keys, or of one key.
INSERT INTO /*schema*/queue_limits (queue, key, concurrency, rate, rate_seconds)
VALUES (:queue::text, :key::text, :concurrency::integer, :rate::integer, :rate_seconds::double precision)
ON CONFLICT (queue, key) DO UPDATE SET
    concurrency = excluded.concurrency, rate = excluded.rate, rate_seconds = excluded.rate_seconds;

-- name: delete_limit
-- Delete a limit. The next claim finds the runs that waited for the limit.
DELETE FROM /*schema*/queue_limits WHERE queue = :queue::text AND key = :key::text;

-- name: list_limits
-- Return the limits, each with the numbers of running and waiting runs.
SELECT l.queue, l.key, l.concurrency, l.rate, l.rate_seconds, (
    SELECT count(*) FROM /*schema*/queue q
    WHERE q.queue = l.queue AND q.status = 'running' AND (
        l.key IN ('', q.key) OR l.key = '*' AND q.key <> '' AND NOT EXISTS (
            SELECT 1 FROM /*schema*/queue_limits o WHERE o.queue = l.queue AND o.key = q.key
        )
    )
), (
    SELECT count(*) FROM /*schema*/queue q
    WHERE q.queue = l.queue AND q.is_limited AND (
        l.key = q.key OR l.key = '*' AND NOT EXISTS (
            SELECT 1 FROM /*schema*/queue_limits o WHERE o.queue = l.queue AND o.key = q.key
        )
    )
)
FROM /*schema*/queue_limits l
ORDER BY l.queue, l.key;

-- name: sweep_keys
-- Delete the rows of queue keys whose rate window began more than a day ago and has ended.
DELETE FROM /*schema*/queue_keys
WHERE queue_keys.window_started_at < now() - interval '1 day' AND NOT EXISTS (
    SELECT 1 FROM /*schema*/queue_limits l
    WHERE l.queue = queue_keys.queue AND (l.key = queue_keys.key OR l.key = '*' AND queue_keys.key <> '')
        AND extract(epoch FROM now() - queue_keys.window_started_at)::double precision < l.rate_seconds
);
