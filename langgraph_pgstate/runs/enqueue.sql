-- name: make_threads
-- Lock the rows of some threads until the transaction ends, so that one transaction at a time decides which run of a
-- thread is ready. Insert missing rows. `rows` are the rows of the runs to enqueue.
INSERT INTO /*schema*/threads (thread_id, agent, user_id, tenant_id, status)
SELECT DISTINCT ON (s.thread_id COLLATE "C") s.thread_id, s.agent, s.user_id, s.tenant_id, 'busy'
FROM jsonb_to_recordset(:rows::jsonb) AS s (thread_id text, agent text, user_id text, tenant_id text)
ORDER BY s.thread_id COLLATE "C"
ON CONFLICT (thread_id) DO UPDATE SET updated_at = excluded.updated_at WHERE false;

-- name: lock_threads_for_no_key_update
-- Lock the rows of some threads until the transaction ends, as `make_threads` does. Lock the thread's row before any
-- other row, except the lease in a transaction that ends or recovers a run.
SELECT 1 FROM /*schema*/threads WHERE thread_id = ANY(:thread_ids::text[]) ORDER BY thread_id FOR NO KEY UPDATE;

-- name: lock_free_threads
-- Lock the given threads that no other transaction has locked. Return the locked threads, and threads without a row.
WITH free AS MATERIALIZED (
    SELECT thread_id FROM /*schema*/threads WHERE thread_id = ANY(:thread_ids::text[]) ORDER BY thread_id
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT t.thread_id FROM unnest(:thread_ids) AS t (thread_id)
WHERE t.thread_id IN (SELECT f.thread_id FROM free f)
    OR NOT EXISTS (SELECT 1 FROM /*schema*/threads o WHERE o.thread_id = t.thread_id);

-- name: check_threads
-- Fail if one of the threads was deleted or is archived. Execute the query after `make_threads`, because only a later
-- statement sees rows that were committed while `make_threads` waited. The cast raises an error with the text as its
-- message, because SQL has no statement that raises an error.
SELECT ('pgstate-queue:' || jsonb_build_array(f.reason, f.thread_id, f.archive_id, extract(epoch FROM f.since))::text)::integer
FROM (
    SELECT 'deleted' AS reason, d.thread_id, NULL::text AS archive_id, d.deleted_at AS since
    FROM /*schema*/tombstones d WHERE d.thread_id = ANY(:thread_ids::text[]) AND d.expires_at > now()
    UNION ALL
    SELECT 'archived', t.thread_id, t.archive_id, t.archived_at
    FROM /*schema*/threads t WHERE t.thread_id = ANY(:thread_ids) AND t.archived_at IS NOT NULL
) AS f LIMIT 1;

-- name: check_enqueue
-- Check runs that are not enqueued already. Fail if another run has the id, or made checkpoints that the thread has from
-- another thread; if the checkpoint from which the run starts does not exist; if the strategy is `reject` and the thread
-- has another run; or if the thread's newest checkpoint is not `expected_head`.
WITH given AS (
    SELECT s.* FROM jsonb_to_recordset(:rows::jsonb) AS s (
        thread_id text, run_id text, rejects boolean, adopts boolean, checkpoint_ns text, checkpoint_id text,
        expected_head text
    )
    -- `OFFSET 0` makes the planner look up each row instead of hashing all rows.
    WHERE NOT EXISTS (
        SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = s.thread_id AND q.run_id = s.run_id OFFSET 0
    ) AND NOT EXISTS (
        SELECT 1 FROM /*schema*/runs r
        WHERE r.thread_id = s.thread_id AND r.run_id = s.run_id AND r.queue IS NOT NULL OFFSET 0
    )
)
SELECT ('pgstate-queue:' || jsonb_build_array(reason, thread_id, run_id, extract(epoch FROM since))::text)::integer
FROM (
    SELECT 1 AS place, 'elsewhere' AS reason, r.thread_id, r.run_id, NULL::timestamptz AS since
    FROM given g JOIN /*schema*/runs r ON r.run_id = g.run_id AND r.thread_id <> g.thread_id
    UNION ALL
    SELECT 1, 'recorded', r.thread_id, r.run_id, NULL
    FROM given g JOIN /*schema*/runs r ON r.thread_id = g.thread_id AND r.run_id = g.run_id
    WHERE NOT g.adopts
    UNION ALL
    -- LangGraph would resume the run of these checkpoints, and ignore the input.
    SELECT 1, 'inherited', g.thread_id, g.run_id, NULL
    FROM given g
    WHERE EXISTS (
        SELECT 1 FROM /*schema*/checkpoints c
        WHERE c.thread_id = g.thread_id AND c.checkpoint_ns = '' AND c.run_id = g.run_id AND c.is_copy OFFSET 0
    )
    UNION ALL
    SELECT 1, 'checkpoint', g.thread_id, g.checkpoint_id, NULL
    FROM given g
    WHERE g.checkpoint_id IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints c
        WHERE c.thread_id = g.thread_id AND c.checkpoint_ns = g.checkpoint_ns AND c.checkpoint_id = g.checkpoint_id
    )
    UNION ALL
    SELECT 2, 'busy', q.thread_id, q.run_id, coalesce(q.claimed_at, q.enqueued_at)
    FROM given g JOIN /*schema*/queue q ON q.thread_id = g.thread_id AND q.number IS NOT NULL
    WHERE g.rejects
    UNION ALL
    SELECT 3, 'busy', l.thread_id, NULL, l.acquired_at
    FROM given g JOIN /*schema*/leases l ON l.thread_id = g.thread_id
    WHERE g.rejects AND l.holder_id IS NOT NULL AND l.expires_at > now()
    UNION ALL
    SELECT 4, 'moved', g.thread_id, jsonb_build_array(g.expected_head, h.checkpoint_id)::text, NULL
    FROM given g LEFT JOIN LATERAL (
        SELECT c.checkpoint_id FROM /*schema*/checkpoints c
        WHERE c.thread_id = g.thread_id AND c.checkpoint_ns = '' ORDER BY c.checkpoint_id DESC LIMIT 1
    ) AS h ON true
    WHERE g.expected_head IS NOT NULL AND g.expected_head IS DISTINCT FROM h.checkpoint_id
) AS found
ORDER BY place, since LIMIT 1;

-- name: enqueue_runs
-- Enqueue runs that are not enqueued already, and return these runs. With `adopts`, a run may have a row that was
-- recorded without the queue. Execute the query after `make_threads`, because only a later statement sees rows that
-- were committed while `make_threads` waited.
-- seals: runs.metadata from rows.metadata
-- seals: run_requests.data with thread_id = thread_ids, run_id = run_ids
-- leaves: runs.error_message
-- leaves: runs.error_traceback
-- leaves: threads.metadata
WITH given AS MATERIALIZED (
    SELECT s.*, now() AS at, coalesce(to_timestamp(s.run_at), now() + make_interval(secs => s.delay)) AS due_at
    FROM ROWS FROM (jsonb_to_recordset(:rows::jsonb) AS (
        thread_id text, run_id text, queue text, graph text, version text, priority integer, key text,
        run_at double precision, delay double precision, options jsonb, agent text, user_id text, tenant_id text,
        adopts boolean, strategy text, metadata jsonb, traceparent text
    ), unnest(:data::bytea[])) WITH ORDINALITY AS s (
        thread_id, run_id, queue, graph, version, priority, key, run_at, delay, options, agent, user_id, tenant_id,
        adopts, strategy, metadata, traceparent, data, place
    )
    WHERE NOT EXISTS (
        SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = s.thread_id AND q.run_id = s.run_id OFFSET 0
    ) AND NOT EXISTS (
        SELECT 1 FROM /*schema*/runs r
        WHERE r.thread_id = s.thread_id AND r.run_id = s.run_id AND (r.queue IS NOT NULL OR NOT s.adopts) OFFSET 0
    )
), numbered AS (
    SELECT g.*, (g.due_at > g.at) IS TRUE AS is_later, (
        SELECT max(q.number) FROM /*schema*/queue q WHERE q.thread_id = g.thread_id AND q.number IS NOT NULL
    ) AS last_number, row_number() OVER (PARTITION BY g.thread_id, (g.due_at > g.at) IS TRUE ORDER BY g.place) AS nth
    FROM given g
), keys AS MATERIALIZED (
    -- For each key, the position in the queue of the next run. If runs of the key wait for a limit, the position is the
    -- current time, which is behind these runs.
    SELECT k.queue, k.key, w.has_limit, CASE
        WHEN w.has_limit THEN (extract(epoch FROM now()) * 1000000::numeric)::bigint
        ELSE coalesce((
            SELECT max(q.position) + 1 FROM /*schema*/queue q
            WHERE q.queue = k.queue AND q.key = k.key AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
        ), (
            SELECT min(q.position) FROM /*schema*/queue q
            WHERE q.queue = k.queue AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
        ), 1) END AS position
    FROM (SELECT DISTINCT g.queue, g.key FROM given g) AS k CROSS JOIN LATERAL (
        SELECT EXISTS (
            SELECT 1 FROM /*schema*/queue q WHERE q.queue = k.queue AND q.key = k.key AND q.is_limited
        ) AS has_limit
    ) AS w
), placed AS (
    SELECT n.*, NOT n.is_later AND n.last_number IS NULL AND n.nth = 1 AS is_ready FROM numbered n
), queued AS (
    INSERT INTO /*schema*/queue (
        thread_id, run_id, queue, graph, version, is_ready, is_limited, number, priority, position, key, run_after,
        enqueued_at
    )
    SELECT p.thread_id, p.run_id, p.queue, p.graph, p.version, p.is_ready, p.is_ready AND k.has_limit,
        CASE WHEN NOT p.is_later THEN coalesce(p.last_number, -1) + p.nth END, p.priority,
        CASE WHEN p.is_ready THEN k.position ELSE 0 END
            + row_number() OVER (PARTITION BY p.queue, p.key, p.is_ready ORDER BY p.place) - 1,
        p.key, CASE WHEN p.is_later THEN p.due_at END, p.at
    FROM placed p JOIN keys k ON k.queue = p.queue AND k.key = p.key
), requested AS (
    INSERT INTO /*schema*/run_requests (thread_id, run_id, options, data)
    SELECT g.thread_id, g.run_id, g.options, g.data FROM given g
    ON CONFLICT (thread_id, run_id) DO UPDATE SET options = excluded.options, data = excluded.data
), busy AS (
    UPDATE /*schema*/threads SET status = 'busy' FROM given g
    WHERE threads.thread_id = g.thread_id AND threads.status <> 'busy'
)
INSERT INTO /*schema*/runs AS stored (
    thread_id, run_id, attempt, status, agent, user_id, tenant_id, started_at, queue, key, enqueued_at,
    multitask_strategy, metadata, webhook, traceparent
)
SELECT g.thread_id, g.run_id, 0, 'pending', g.agent, g.user_id, g.tenant_id, g.at, g.queue, nullif(g.key, ''), g.at,
    g.strategy, g.metadata, g.options ->> 'webhook', g.traceparent
FROM given g
ON CONFLICT (thread_id, run_id) DO UPDATE SET
    queue = excluded.queue, key = excluded.key, enqueued_at = excluded.enqueued_at,
    multitask_strategy = excluded.multitask_strategy, metadata = coalesce(excluded.metadata, stored.metadata),
    webhook = excluded.webhook,
    status = 'pending', attempt = 0,
    alive_until = NULL, ended_at = NULL, error_type = NULL,
    error_message = NULL, error_traceback = NULL
RETURNING run_id;

-- name: promote_next
-- Make the first run of each given thread ready, if the run is due and the thread has no ready run. Execute the query
-- after `lock_threads_for_no_key_update`.
UPDATE /*schema*/queue SET is_ready = true, number = 0, is_limited = next.is_limited, position = next.position
FROM (
    SELECT h.thread_id, h.run_id, l.has_limit AS is_limited, CASE
        WHEN l.has_limit THEN (extract(epoch FROM now()) * 1000000::numeric)::bigint
        ELSE coalesce((
            -- No run of this key is limited. `NOT is_limited` is for the partial index.
            SELECT max(q.position) + 1 FROM /*schema*/queue q
            WHERE q.queue = h.queue AND q.key = h.key AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
        ), (
            SELECT min(q.position) FROM /*schema*/queue q
            WHERE q.queue = h.queue AND q.is_ready AND q.status = 'pending' AND NOT q.is_limited
        ), 1) END + row_number() OVER (PARTITION BY h.queue, h.key) - 1 AS position
    FROM unnest(:thread_ids::text[]) AS t (thread_id) CROSS JOIN LATERAL (
        SELECT q.* FROM /*schema*/queue q WHERE q.thread_id = t.thread_id AND q.number IS NOT NULL
        ORDER BY q.number LIMIT 1
    ) AS h CROSS JOIN LATERAL (
        SELECT EXISTS (
            SELECT 1 FROM /*schema*/queue q WHERE q.queue = h.queue AND q.key = h.key AND q.is_limited
        ) AS has_limit
    ) AS l
    WHERE NOT h.is_ready AND h.run_after IS NULL
) AS next
WHERE queue.thread_id = next.thread_id AND queue.run_id = next.run_id;

-- name: get_enqueued
-- Return which of the given runs were enqueued.
SELECT r.run_id FROM /*schema*/runs r
JOIN unnest(:thread_ids::text[], :run_ids::text[]) AS g (thread_id, run_id)
    ON r.thread_id = g.thread_id AND r.run_id = g.run_id
WHERE r.thread_id = ANY(:thread_ids) AND r.queue IS NOT NULL;

-- name: notify_queue
-- Wake listening workers, once the transaction commits. The key stands for the tenant.
SELECT pg_notify('pgstate_queue', :key::text);

-- name: find_adoptable
-- Return a page of runs that were not enqueued, may have lost their process, and made the newest checkpoint of their
-- thread. A row has the run's process, and whether the process no longer renews the run's liveness.
SELECT r.thread_id, r.run_id, r.agent, r.holder_id, coalesce(r.status = 'error' OR r.alive_until < now(), true)
FROM /*schema*/runs r
WHERE r.queue IS NULL AND (r.status = 'running' OR r.status = 'error' AND r.error_type = 'ProcessDied')
    AND (:graphs::text[] IS NULL OR r.agent = ANY(:graphs))
    AND (r.thread_id, r.run_id) > (:cursor_thread_id::text, :cursor_run_id::text)
    AND r.run_id = (
        SELECT k.run_id FROM /*schema*/checkpoints k WHERE k.thread_id = r.thread_id AND k.checkpoint_ns = ''
        ORDER BY k.checkpoint_id DESC LIMIT 1
    )
ORDER BY r.thread_id, r.run_id LIMIT :page_size;
