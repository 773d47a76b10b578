-- name: claim_runs
-- Claim ready runs of some graphs with the leases of their threads, 100 at most, by priority and position. The first
-- column of a row is the row's kind:
--   claimed: a claimed run with its request.
--   held: a run that is put off for a second, because another process holds or has locked the thread's lease.
--   limits: the queue has limits. No run is claimed; see `claim_limited_runs`.
--   waiting: the queue has runs that wait for a limit, perhaps for a limit that was removed.
--   suspects: the queue has runs that must be alone in their worker.
-- opens: run_requests.data if intact
-- leaves: stream_batches.data
WITH
candidates AS MATERIALIZED (
    SELECT c.* FROM unnest(:graphs::text[], :versions::text[]) AS g (graph, version) CROSS JOIN LATERAL (
        SELECT q.thread_id, q.run_id, q.key, q.priority, q.position, q.last_event FROM /*schema*/queue q
        WHERE q.queue = :queue::text AND q.graph = g.graph AND q.version = g.version
            AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
            AND (:suspects::boolean IS NULL OR q.is_suspect = :suspects)
            AND NOT EXISTS (SELECT 1 FROM /*schema*/queue_limits l WHERE l.queue = :queue)
        ORDER BY q.priority DESC, q.position
        LIMIT :limit::integer
        FOR UPDATE SKIP LOCKED
    ) AS c
), chosen AS MATERIALIZED (
    SELECT o.* FROM (
        SELECT c.* FROM candidates c
        ORDER BY c.priority DESC, c.position
        LIMIT :limit
    ) AS o
    -- No caller asks for more runs. The constant makes the planner look up each row instead of reading all ready runs.
    LIMIT 100
), unheld AS MATERIALIZED (
    SELECT f.thread_id FROM chosen c CROSS JOIN LATERAL (
        SELECT l.thread_id FROM /*schema*/leases l
        WHERE l.thread_id = c.thread_id AND (l.holder_id IS NULL OR l.expires_at <= now())
        FOR UPDATE SKIP LOCKED
    ) AS f
), occupied AS MATERIALIZED (
    -- Runs whose lease another process holds or has locked.
    SELECT c.thread_id, c.run_id FROM chosen c
    WHERE NOT EXISTS (SELECT 1 FROM unheld u WHERE u.thread_id = c.thread_id)
        AND EXISTS (SELECT 1 FROM /*schema*/leases l WHERE l.thread_id = c.thread_id OFFSET 0)
), term AS MATERIALIZED (
    SELECT (extract(epoch FROM now()) * 1000000::numeric)::bigint, now(), now(),
        now() + make_interval(secs => :ttl::double precision)
), taken AS (
    INSERT INTO /*schema*/leases AS held (thread_id, holder_id, fencing_token, acquired_at, renewed_at, expires_at)
    SELECT c.thread_id, :worker_id::text, t.*
    FROM chosen c CROSS JOIN term t WHERE NOT EXISTS (SELECT 1 FROM occupied o WHERE o.thread_id = c.thread_id)
    ORDER BY c.thread_id
    ON CONFLICT (thread_id) DO UPDATE SET
        holder_id = excluded.holder_id,
        -- Use at least the clock's time, because a server crash may have undone a claim whose worker still uses its
        -- token.
        fencing_token = greatest(held.fencing_token + 1, excluded.fencing_token),
        acquired_at = excluded.acquired_at,
        renewed_at = excluded.renewed_at,
        expires_at = excluded.expires_at
    WHERE held.holder_id IS NULL OR held.expires_at <= excluded.acquired_at
    RETURNING thread_id, fencing_token, acquired_at, renewed_at, expires_at
), heads AS MATERIALIZED (
    SELECT t.*, c.run_id, c.last_event, (
        SELECT k.checkpoint_id FROM /*schema*/checkpoints k WHERE k.thread_id = t.thread_id AND k.checkpoint_ns = ''
        ORDER BY k.checkpoint_id DESC LIMIT 1
    ) AS head_id
    FROM taken t
        JOIN chosen c ON c.thread_id = t.thread_id
), claimed AS (
    UPDATE /*schema*/queue SET
        status = 'running', attempt = least(queue.attempt, 2147483646) + 1, worker_id = :worker_id, fencing_token = h.fencing_token,
        claimed_at = now(), claimed_checkpoint_id = h.head_id, streamed = 0, replayed_step = b.step,
        last_event = greatest(queue.last_event, p.last_event, b.last_seq),
        -- Ignore a corrupted timeout, so that the claim does not fail. The run fails when its options are read.
        timeout_at = CASE WHEN isfinite(queue.timeout_at) THEN queue.timeout_at
            -- Use UTC, because Citus requires immutable functions here.
            ELSE (h.acquired_at AT TIME ZONE 'UTC' + make_interval(secs => (
                jsonb_path_query_first(r.options, '$.timeout ? (@ > 0 && @ < 1000000000)'::jsonpath) #>> '{}'::text[]
            )::double precision)) AT TIME ZONE 'UTC' END
    FROM heads h
        LEFT JOIN /*schema*/run_requests r ON r.thread_id = h.thread_id AND r.run_id = h.run_id
        LEFT JOIN /*schema*/runs p ON p.thread_id = h.thread_id AND p.run_id = h.run_id
        LEFT JOIN LATERAL (
            SELECT n.last_seq, greatest(n.step, n.replayed_step) AS step FROM /*schema*/stream_batches n
            WHERE n.thread_id = h.thread_id AND n.run_id = h.run_id AND (h.last_event > 0 OR p.last_event > 0)
            ORDER BY n.last_seq DESC LIMIT 1
        ) AS b ON true
    WHERE queue.thread_id = h.thread_id AND queue.run_id = h.run_id AND queue.is_ready
    RETURNING queue.thread_id, queue.run_id, queue.graph, queue.key, queue.attempt, queue.crashes, queue.fencing_token,
        h.acquired_at, h.renewed_at, h.expires_at, queue.cancel, queue.timeout_at, queue.priority, queue.position,
        h.head_id, r.options, r.data, queue.is_suspect
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
SELECT 'claimed', c.key, c.thread_id, c.run_id, c.graph, c.attempt, c.crashes, c.fencing_token, c.acquired_at,
    c.renewed_at, c.expires_at, c.cancel, c.timeout_at, c.head_id, c.options::text, c.data, (
        -- Without `OFFSET 0`, the planner might search all checkpoints of the thread for the run's newest.
        SELECT max(own.checkpoint_id) FROM (
            SELECT k.checkpoint_id FROM /*schema*/checkpoints k
            WHERE k.thread_id = c.thread_id AND k.checkpoint_ns = '' AND k.run_id = c.run_id OFFSET 0
        ) AS own
    ), c.is_suspect, c.priority, c.position
FROM claimed c
UNION ALL
SELECT other.what, other.key, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL
FROM (
    SELECT 'held' AS what, NULL::text AS key FROM put_off
    UNION ALL
    SELECT 'limits', NULL WHERE EXISTS (SELECT 1 FROM /*schema*/queue_limits l WHERE l.queue = :queue)
    UNION ALL
    SELECT 'waiting', NULL WHERE EXISTS (SELECT 1 FROM /*schema*/queue o WHERE o.queue = :queue AND o.is_limited)
    UNION ALL
    SELECT 'suspects', NULL WHERE EXISTS (
        SELECT 1 FROM /*schema*/queue o
        WHERE o.queue = :queue AND o.is_suspect AND o.is_ready AND o.status = 'pending' AND NOT o.is_limited
    )
) AS other
ORDER BY priority DESC, position;

-- name: claim_limited_runs
-- Claim runs as `claim_runs` does, within the limits of the queue. Further kinds of rows:
--   full: a key that is at its limit.
--   busy: another worker was claiming, so some runs were not claimed.
-- opens: run_requests.data if intact
-- leaves: stream_batches.data
WITH
whole AS MATERIALIZED (
    -- `abs` ends a window that seems to begin in the future, because the clock was set back.
    SELECT u.revision, abs(extract(epoch FROM now() - u.window_started_at)::double precision) < l.rate_seconds
            AS is_same_window, u.window_claims, least(
            :limit::integer,
            l.concurrency - (
                SELECT count(*) FROM /*schema*/queue q WHERE q.queue = :queue::text AND q.status = 'running'
            ),
            CASE WHEN abs(extract(epoch FROM now() - u.window_started_at)::double precision) < l.rate_seconds
                THEN l.rate - u.window_claims ELSE l.rate END
        ) AS free
    FROM /*schema*/queue_limits l LEFT JOIN /*schema*/queue_keys u ON u.queue = l.queue AND u.key = ''
    WHERE l.queue = :queue AND l.key = ''
),
candidates AS MATERIALIZED (
    SELECT c.* FROM unnest(:graphs::text[], :versions::text[]) AS g (graph, version) CROSS JOIN LATERAL (
        SELECT q.thread_id, q.run_id, q.key, q.priority, q.position, q.last_event FROM /*schema*/queue q
        WHERE q.queue = :queue::text AND q.graph = g.graph AND q.version = g.version
            AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
            AND (:suspects::boolean IS NULL OR q.is_suspect = :suspects)
        ORDER BY q.priority DESC, q.position
        LIMIT coalesce((SELECT greatest(w.free, 0) FROM whole w), :limit)
        FOR UPDATE SKIP LOCKED
    ) AS c
), chosen AS MATERIALIZED (
    SELECT o.* FROM (
        SELECT c.* FROM candidates c
        ORDER BY c.priority DESC, c.position
        LIMIT coalesce((SELECT greatest(w.free, 0) FROM whole w), :limit)
    ) AS o
    -- No caller asks for more runs. The constant makes the planner look up each row instead of reading all ready runs.
    LIMIT 100
), unheld AS MATERIALIZED (
    SELECT f.thread_id FROM chosen c CROSS JOIN LATERAL (
        SELECT l.thread_id FROM /*schema*/leases l
        WHERE l.thread_id = c.thread_id AND (l.holder_id IS NULL OR l.expires_at <= now())
        FOR UPDATE SKIP LOCKED
    ) AS f
), occupied AS MATERIALIZED (
    -- Runs whose lease another process holds or has locked. They must not count toward the rate.
    SELECT c.thread_id, c.run_id FROM chosen c
    WHERE NOT EXISTS (SELECT 1 FROM unheld u WHERE u.thread_id = c.thread_id)
        AND EXISTS (SELECT 1 FROM /*schema*/leases l WHERE l.thread_id = c.thread_id OFFSET 0)
), keys AS MATERIALIZED (
    SELECT k.key, u.revision, abs(extract(epoch FROM now() - u.window_started_at)::double precision) < l.rate_seconds
            AS is_same_window, u.window_claims, least(
            l.concurrency - (
                SELECT count(*) FROM /*schema*/queue q
                WHERE q.queue = :queue AND q.key = k.key AND q.status = 'running'
            ),
            CASE WHEN abs(extract(epoch FROM now() - u.window_started_at)::double precision) < l.rate_seconds
                THEN l.rate - u.window_claims ELSE l.rate END
        ) AS free
    FROM (SELECT DISTINCT key FROM chosen WHERE key <> '') AS k CROSS JOIN LATERAL (
        SELECT o.* FROM /*schema*/queue_limits o WHERE o.queue = :queue AND o.key IN (k.key, '*')
        ORDER BY o.key = '*' LIMIT 1
    ) AS l LEFT JOIN /*schema*/queue_keys u ON u.queue = :queue AND u.key = k.key
), ranked AS MATERIALIZED (
    SELECT c.*, k.key IS NOT NULL AS is_limited, coalesce(
        row_number() OVER (PARTITION BY c.key ORDER BY c.priority DESC, c.position) <= k.free, true
    ) AS is_free
    FROM chosen c LEFT JOIN keys k ON k.key = c.key
    WHERE NOT EXISTS (SELECT 1 FROM occupied o WHERE o.thread_id = c.thread_id)
), seen AS MATERIALIZED (
    SELECT k.*, f.claims, now() AS at FROM keys k
        JOIN (SELECT key, count(*) AS claims FROM ranked WHERE is_free AND is_limited GROUP BY key) AS f
        ON f.key = k.key
    UNION ALL
    SELECT '', w.*, (SELECT count(*) FROM ranked WHERE is_free), now() FROM whole w WHERE w.free > 0
), locked AS MATERIALIZED (
    -- Lock the current rows of the keys in `seen`. A new revision shows that another claim was committed after this
    -- statement's snapshot, so that `seen` does not count that claim.
    SELECT u.key, u.revision FROM /*schema*/queue_keys u
    WHERE u.queue = :queue AND u.key IN (SELECT s.key FROM seen s WHERE s.claims > 0)
    FOR UPDATE SKIP LOCKED
), used AS (
    INSERT INTO /*schema*/queue_keys AS stored (queue, key, revision, window_started_at, window_claims)
    SELECT :queue, s.key, coalesce(s.revision, 0) + 1, s.at,
        CASE WHEN s.is_same_window THEN s.window_claims ELSE 0 END + s.claims
    FROM seen s LEFT JOIN locked o ON o.key = s.key
    WHERE s.claims > 0 AND s.revision IS NOT DISTINCT FROM o.revision
    ORDER BY s.key
    ON CONFLICT (queue, key) DO UPDATE SET
        revision = excluded.revision, window_claims = excluded.window_claims,
        window_started_at = CASE
            WHEN EXISTS (SELECT 1 FROM seen s WHERE s.key = excluded.key AND s.is_same_window)
            THEN stored.window_started_at ELSE excluded.window_started_at END
    WHERE stored.revision = excluded.revision - 1
    RETURNING key
), granted AS MATERIALIZED (
    SELECT r.* FROM ranked r
    WHERE r.is_free AND (NOT r.is_limited OR r.key IN (SELECT u.key FROM used u))
        AND (NOT EXISTS (SELECT 1 FROM whole) OR EXISTS (SELECT 1 FROM used u WHERE u.key = ''))
), full_keys AS (
    UPDATE /*schema*/queue SET is_limited = true FROM ranked r
    WHERE queue.thread_id = r.thread_id AND queue.run_id = r.run_id AND queue.is_ready AND NOT r.is_free
    RETURNING queue.key
), term AS MATERIALIZED (
    SELECT (extract(epoch FROM now()) * 1000000::numeric)::bigint, now(), now(),
        now() + make_interval(secs => :ttl::double precision)
), taken AS (
    INSERT INTO /*schema*/leases AS held (thread_id, holder_id, fencing_token, acquired_at, renewed_at, expires_at)
    SELECT c.thread_id, :worker_id::text, t.*
    FROM granted c CROSS JOIN term t
    ORDER BY c.thread_id
    ON CONFLICT (thread_id) DO UPDATE SET
        holder_id = excluded.holder_id,
        -- Use at least the clock's time, because a server crash may have undone a claim whose worker still uses its
        -- token.
        fencing_token = greatest(held.fencing_token + 1, excluded.fencing_token),
        acquired_at = excluded.acquired_at,
        renewed_at = excluded.renewed_at,
        expires_at = excluded.expires_at
    WHERE held.holder_id IS NULL OR held.expires_at <= excluded.acquired_at
    RETURNING thread_id, fencing_token, acquired_at, renewed_at, expires_at
), heads AS MATERIALIZED (
    SELECT t.*, c.run_id, c.last_event, (
        SELECT k.checkpoint_id FROM /*schema*/checkpoints k WHERE k.thread_id = t.thread_id AND k.checkpoint_ns = ''
        ORDER BY k.checkpoint_id DESC LIMIT 1
    ) AS head_id
    FROM taken t
        JOIN granted c ON c.thread_id = t.thread_id
), claimed AS (
    UPDATE /*schema*/queue SET
        status = 'running', attempt = least(queue.attempt, 2147483646) + 1, worker_id = :worker_id, fencing_token = h.fencing_token,
        claimed_at = now(), claimed_checkpoint_id = h.head_id, streamed = 0, replayed_step = b.step,
        last_event = greatest(queue.last_event, p.last_event, b.last_seq),
        -- Ignore a corrupted timeout, so that the claim does not fail. The run fails when its options are read.
        timeout_at = CASE WHEN isfinite(queue.timeout_at) THEN queue.timeout_at
            -- Use UTC, because Citus requires immutable functions here.
            ELSE (h.acquired_at AT TIME ZONE 'UTC' + make_interval(secs => (
                jsonb_path_query_first(r.options, '$.timeout ? (@ > 0 && @ < 1000000000)'::jsonpath) #>> '{}'::text[]
            )::double precision)) AT TIME ZONE 'UTC' END
    FROM heads h
        LEFT JOIN /*schema*/run_requests r ON r.thread_id = h.thread_id AND r.run_id = h.run_id
        LEFT JOIN /*schema*/runs p ON p.thread_id = h.thread_id AND p.run_id = h.run_id
        LEFT JOIN LATERAL (
            SELECT n.last_seq, greatest(n.step, n.replayed_step) AS step FROM /*schema*/stream_batches n
            WHERE n.thread_id = h.thread_id AND n.run_id = h.run_id AND (h.last_event > 0 OR p.last_event > 0)
            ORDER BY n.last_seq DESC LIMIT 1
        ) AS b ON true
    WHERE queue.thread_id = h.thread_id AND queue.run_id = h.run_id AND queue.is_ready
    RETURNING queue.thread_id, queue.run_id, queue.graph, queue.key, queue.attempt, queue.crashes, queue.fencing_token,
        h.acquired_at, h.renewed_at, h.expires_at, queue.cancel, queue.timeout_at, queue.priority, queue.position,
        h.head_id, r.options, r.data, queue.is_suspect
), put_off AS (
    UPDATE /*schema*/queue SET is_ready = false, run_after = now() + interval '1 second'
    FROM (SELECT thread_id, run_id FROM granted UNION ALL SELECT thread_id, run_id FROM occupied) AS c
    WHERE queue.thread_id = c.thread_id AND queue.run_id = c.run_id AND queue.is_ready
        AND NOT EXISTS (SELECT 1 FROM taken t WHERE t.thread_id = c.thread_id)
    RETURNING queue.thread_id, queue.run_id
), begun AS (
    UPDATE /*schema*/runs SET status = 'running', attempt = c.attempt FROM claimed c
    WHERE runs.thread_id = c.thread_id AND runs.run_id = c.run_id
)
SELECT 'claimed', c.key, c.thread_id, c.run_id, c.graph, c.attempt, c.crashes, c.fencing_token, c.acquired_at,
    c.renewed_at, c.expires_at, c.cancel, c.timeout_at, c.head_id, c.options::text, c.data, (
        -- Without `OFFSET 0`, the planner might search all checkpoints of the thread for the run's newest.
        SELECT max(own.checkpoint_id) FROM (
            SELECT k.checkpoint_id FROM /*schema*/checkpoints k
            WHERE k.thread_id = c.thread_id AND k.checkpoint_ns = '' AND k.run_id = c.run_id OFFSET 0
        ) AS own
    ), c.is_suspect, c.priority, c.position
FROM claimed c
UNION ALL
SELECT other.what, other.key, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL
FROM (
    SELECT 'held' AS what, NULL::text AS key FROM put_off
    UNION ALL
    SELECT 'limits', NULL WHERE EXISTS (SELECT 1 FROM /*schema*/queue_limits l WHERE l.queue = :queue)
    UNION ALL
    SELECT 'waiting', NULL WHERE EXISTS (SELECT 1 FROM /*schema*/queue o WHERE o.queue = :queue AND o.is_limited)
    UNION ALL
    SELECT 'suspects', NULL WHERE EXISTS (
        SELECT 1 FROM /*schema*/queue o
        WHERE o.queue = :queue AND o.is_suspect AND o.is_ready AND o.status = 'pending' AND NOT o.is_limited
    )
    UNION ALL
    SELECT DISTINCT 'full', f.key FROM full_keys f
    UNION ALL
    SELECT 'busy', NULL WHERE (SELECT count(*) FROM granted) < (SELECT count(*) FROM ranked WHERE is_free)
) AS other
ORDER BY priority DESC, position;

-- name: list_isolated_workers
-- Find the first run of a queue that must be claimed alone. Return the living workers that accept the run, the workers
-- with the fewest runs first. Return none if the queue is paused, because the worker would wait for its runs in vain.
SELECT w.worker_id FROM (
    SELECT q.graph, q.version FROM /*schema*/queue q
    WHERE q.queue = :queue::text AND q.is_suspect AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
        AND EXISTS (
            SELECT 1 FROM unnest(:graphs::text[], :versions::text[]) AS g (graph, version)
            WHERE g.graph = q.graph AND g.version = q.version
        )
        AND NOT EXISTS (
            SELECT 1 FROM /*schema*/queue_limits l WHERE l.queue = :queue AND l.key = '' AND l.concurrency = 0
        )
    ORDER BY q.priority DESC, q.position LIMIT 1
) AS s JOIN /*schema*/workers w ON :queue = ANY(w.queues) AND s.graph = ANY(w.graphs)
    AND (s.version = '' OR (w.versions -> s.graph) @> to_jsonb(s.version))
WHERE w.seen_at > now() - interval '10 seconds' AND w.drain_asked_at IS NULL
ORDER BY (
    SELECT count(*) FROM /*schema*/queue r WHERE r.status = 'running' AND r.worker_id = w.worker_id
), w.worker_id;

-- name: limit_keys
-- Exclude ready runs of keys that are at their limits from claims. Locked runs are skipped.
UPDATE /*schema*/queue SET is_limited = true
FROM (
    SELECT c.* FROM unnest(:keys::text[]) AS k (key) CROSS JOIN LATERAL (
        SELECT q.thread_id, q.run_id FROM /*schema*/queue q
        WHERE q.queue = :queue::text AND q.key = k.key AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
        ORDER BY q.position LIMIT :page_size::integer
        FOR UPDATE SKIP LOCKED
    ) AS c
) AS waiting
WHERE queue.thread_id = waiting.thread_id AND queue.run_id = waiting.run_id AND queue.is_ready;

-- name: find_limited_keys
-- Return a page of the queue keys whose runs wait for a limit, after a cursor.
WITH RECURSIVE keys AS (
    SELECT (
        SELECT q.key FROM /*schema*/queue q WHERE q.queue = :queue::text AND q.is_limited AND q.key > :cursor_key::text
        ORDER BY q.key LIMIT 1
    ) AS key
    UNION ALL
    SELECT (
        SELECT q.key FROM /*schema*/queue q WHERE q.queue = :queue AND q.is_limited AND q.key > k.key
        ORDER BY q.key LIMIT 1
    ) FROM keys k WHERE k.key IS NOT NULL
)
SELECT key FROM keys WHERE key IS NOT NULL LIMIT :page_size::integer;

-- name: open_keys
-- Make runs of some keys claimable, by priority and position, as many as the limits of the keys allow. Runs that this
-- worker does not accept are skipped, because a run that no worker claims would block the other runs of its key. Locked
-- runs are skipped.
WITH accepted AS MATERIALIZED (
    SELECT * FROM unnest(:graphs::text[], :versions::text[]) AS g (graph, version)
)
UPDATE /*schema*/queue SET is_limited = false, position = opened.position
FROM (
    SELECT c.thread_id, c.run_id, coalesce((
        SELECT max(q.position) + 1 FROM /*schema*/queue q
        WHERE q.queue = :queue AND q.key = k.key AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
    ), (
        SELECT min(q.position) FROM /*schema*/queue q
        WHERE q.queue = :queue AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
    ), 1) + row_number() OVER (PARTITION BY k.key ORDER BY c.priority DESC, c.position) - 1 AS position
    FROM (
        SELECT g.key, CASE WHEN l.key IS NULL THEN :page_size::integer ELSE least(:page_size, greatest(0, least(
            l.concurrency - (
                SELECT count(*) FROM /*schema*/queue q
                WHERE q.queue = :queue::text AND q.key = g.key AND q.status = 'running'
            ),
            CASE WHEN abs(extract(epoch FROM now() - u.window_started_at)::double precision) < l.rate_seconds
                THEN l.rate - u.window_claims ELSE l.rate END
        ) - (
            SELECT count(*) FROM /*schema*/queue q
            WHERE q.queue = :queue AND q.key = g.key AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
                AND EXISTS (SELECT 1 FROM accepted a WHERE a.graph = q.graph AND a.version = q.version OFFSET 0)
        ))) END AS free
        FROM unnest(:keys::text[]) AS g (key)
            LEFT JOIN LATERAL (
                SELECT o.* FROM /*schema*/queue_limits o WHERE o.queue = :queue AND o.key IN (g.key, '*')
                ORDER BY o.key = '*' LIMIT 1
            ) AS l ON true
            LEFT JOIN /*schema*/queue_keys u ON u.queue = :queue AND u.key = g.key
    ) AS k CROSS JOIN LATERAL (
        SELECT q.thread_id, q.run_id, q.priority, q.position FROM /*schema*/queue q
        WHERE q.queue = :queue AND q.key = k.key AND q.is_limited
            AND EXISTS (SELECT 1 FROM accepted a WHERE a.graph = q.graph AND a.version = q.version OFFSET 0)
        ORDER BY q.priority DESC, q.position LIMIT k.free
        FOR UPDATE SKIP LOCKED
    ) AS c
) AS opened
WHERE queue.thread_id = opened.thread_id AND queue.run_id = opened.run_id AND queue.is_limited;
