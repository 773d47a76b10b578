-- name: claim_runs
-- Claim ready runs of some graphs with the leases of their threads, by priority and position, and return them with what
-- they are to do. A run whose thread's lease is held by somebody else is put off for a second, and returned without a
-- graph.
WITH candidates AS MATERIALIZED (
    SELECT c.* FROM unnest(:graphs::text[]) AS g (graph) CROSS JOIN LATERAL (
        SELECT q.thread_id, q.run_id, q.priority, q.position FROM /*schema*/queue q
        WHERE q.queue = :queue::text AND q.graph = g.graph AND q.is_ready AND q.status = 'pending'
        ORDER BY q.priority DESC, q.position LIMIT :limit::integer
        FOR UPDATE SKIP LOCKED
    ) AS c
), chosen AS MATERIALIZED (
    SELECT c.* FROM candidates c CROSS JOIN (SELECT set_config('lock_timeout', :lock_timeout::text, true)) AS waits
    ORDER BY c.priority DESC, c.position LIMIT :limit
), taken AS (
    INSERT INTO /*schema*/leases AS held (thread_id, holder_id, fencing_token, acquired_at, renewed_at, expires_at)
    SELECT c.thread_id, :worker_id::text, (extract(epoch FROM now()) * 1000000)::bigint, now(), now(),
        now() + make_interval(secs => :ttl::double precision)
    FROM chosen c ORDER BY c.thread_id
    ON CONFLICT (thread_id) DO UPDATE SET
        holder_id = excluded.holder_id,
        fencing_token = held.fencing_token + 1,
        acquired_at = excluded.acquired_at,
        renewed_at = excluded.renewed_at,
        expires_at = excluded.expires_at
    WHERE held.holder_id IS NULL OR held.expires_at <= excluded.acquired_at
    RETURNING thread_id, fencing_token, acquired_at, renewed_at, expires_at
), heads AS MATERIALIZED (
    SELECT c.thread_id, c.run_id, (
        SELECT k.checkpoint_id FROM /*schema*/checkpoints k WHERE k.thread_id = c.thread_id AND k.checkpoint_ns = ''
        ORDER BY k.checkpoint_id DESC LIMIT 1
    ) AS head_id
    FROM chosen c
), claimed AS (
    UPDATE /*schema*/queue SET
        status = 'running', attempt = queue.attempt + 1, worker_id = :worker_id, fencing_token = t.fencing_token,
        claimed_at = now(), claimed_checkpoint_id = h.head_id,
        timeout_at = coalesce(
            queue.timeout_at, now() + make_interval(secs => (r.options ->> 'timeout')::double precision)
        )
    FROM taken t
        JOIN heads h ON h.thread_id = t.thread_id
        LEFT JOIN /*schema*/run_requests r ON r.thread_id = h.thread_id AND r.run_id = h.run_id
    WHERE queue.thread_id = h.thread_id AND queue.run_id = h.run_id AND queue.is_ready
    RETURNING queue.thread_id, queue.run_id, queue.graph, queue.attempt, queue.crashes, queue.fencing_token,
        t.acquired_at, t.renewed_at, t.expires_at, queue.cancel, queue.timeout_at, queue.priority, queue.position,
        h.head_id, r.options, r.data
), put_off AS (
    UPDATE /*schema*/queue SET is_ready = false, run_after = now() + interval '1 second'
    FROM chosen c
    WHERE queue.thread_id = c.thread_id AND queue.run_id = c.run_id AND queue.is_ready
        AND NOT EXISTS (SELECT 1 FROM taken t WHERE t.thread_id = c.thread_id)
    RETURNING queue.thread_id, queue.run_id
), begun AS (
    UPDATE /*schema*/runs SET status = 'running', attempt = c.attempt FROM claimed c
    WHERE runs.thread_id = c.thread_id AND runs.run_id = c.run_id
)
SELECT c.thread_id, c.run_id, c.graph, c.attempt, c.crashes, c.fencing_token, c.acquired_at, c.renewed_at, c.expires_at,
    c.cancel, c.timeout_at, c.head_id, c.options::text, c.data, (
        -- As a group, so that the planner compares the run's checkpoints with the thread's.
        SELECT max(own.checkpoint_id) FROM (
            SELECT k.checkpoint_id FROM /*schema*/checkpoints k
            WHERE k.thread_id = c.thread_id AND k.checkpoint_ns = '' AND k.run_id = c.run_id OFFSET 0
        ) AS own
    ), c.priority, c.position
FROM claimed c
UNION ALL
SELECT p.thread_id, p.run_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM put_off p
ORDER BY priority DESC, position;
