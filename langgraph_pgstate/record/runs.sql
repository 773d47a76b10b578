-- name: list_runs
-- Return a page of runs, newest first, below a cursor. A run whose end deleted its thread is left out, because a new
-- thread may have the same id.
-- opens: runs.input
-- opens: runs.output
-- opens: runs.error_message
-- opens: runs.error_traceback
-- opens: runs.metadata
-- matches: threads.metadata from scope
-- plan: at each call
SELECT r.thread_id, r.run_id, r.attempt, r.status,
    coalesce(
        r.status = 'running' AND r.alive_until < now()
            OR r.status = 'error' AND r.error_type IN ('ProcessDied', 'WorkerDied'), false
    ),
    r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at, r.first_checkpoint_id, r.last_checkpoint_id, r.steps,
    r.input_tokens, r.output_tokens, r.cost, r.error_type, r.error_message, r.error_traceback, r.input, r.output,
    r.enqueued_at, r.multitask_strategy, r.metadata, r.release
FROM /*schema*/runs r
WHERE r.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
    AND (:thread_id::text IS NULL OR r.thread_id = :thread_id)
    AND r.started_at <= :cursor_started_at::timestamptz AND r.delete_at IS NULL
    AND (r.started_at < :cursor_started_at OR (r.thread_id, r.run_id) > (:cursor_thread::text, :cursor_run::text))
    AND (:until::timestamptz IS NULL OR r.started_at < :until)
    AND (:agent::text IS NULL OR r.agent = :agent)
    AND (:user_id::text IS NULL OR r.user_id = :user_id)
    AND (:tenant_id::text IS NULL OR r.tenant_id = :tenant_id)
    AND (:status::text IS NULL OR r.status = :status)
    AND (NOT :only_failed::boolean OR r.status IN ('error', 'timeout')
        OR r.status = 'running' AND r.alive_until < now())
    AND (:min_steps::integer IS NULL OR r.steps >= :min_steps)
    AND (:scope::text[] IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = r.thread_id
            AND t.metadata @> ANY(:scope::text[]::jsonb[])
    ))
ORDER BY r.started_at DESC, r.thread_id, r.run_id
LIMIT :page_size OFFSET :offset;

-- name: rank_runs
-- Return a page of the newest runs that pass filters, the greatest first by cost, duration or tokens, below a cursor.
-- Only the first runs in this order are filtered by model. All pages count durations until the time of the first page,
-- which the last column returns. Otherwise runs in progress would pass the cursor between two pages, and be on neither.
-- opens: runs.input
-- opens: runs.output
-- opens: runs.error_message
-- opens: runs.error_traceback
-- opens: runs.metadata
-- matches: threads.metadata from scope
WITH newest AS MATERIALIZED (
    SELECT r.thread_id, r.run_id,
        CASE :by::text
            WHEN 'cost' THEN r.cost::double precision
            WHEN 'tokens' THEN (r.input_tokens + r.output_tokens)::double precision
            WHEN 'duration' THEN CASE WHEN r.status = 'pending' THEN 0 ELSE extract(
                epoch FROM least(coalesce(r.ended_at, r.alive_until), now(), :measured_at::timestamptz) - r.started_at
            )::double precision END
        END AS value
    FROM /*schema*/runs r
    WHERE r.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity') AND r.delete_at IS NULL
        AND (:until::timestamptz IS NULL OR r.started_at < :until)
        AND (:thread_id::text IS NULL OR r.thread_id = :thread_id)
        AND (:agent::text IS NULL OR r.agent = :agent)
        AND (:user_id::text IS NULL OR r.user_id = :user_id)
        AND (:tenant_id::text IS NULL OR r.tenant_id = :tenant_id)
        AND (:status::text IS NULL OR r.status = :status)
        AND (NOT :only_failed::boolean OR r.status IN ('error', 'timeout')
            OR r.status = 'running' AND r.alive_until < now())
        AND (:min_steps::integer IS NULL OR r.steps >= :min_steps)
        AND (:scope::text[] IS NULL OR EXISTS (
            SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = r.thread_id
                AND t.metadata @> ANY(:scope::text[]::jsonb[])
        ))
    ORDER BY r.started_at DESC, r.thread_id, r.run_id
    LIMIT :newest
), ranked AS MATERIALIZED (
    SELECT n.thread_id, n.run_id, n.value FROM newest n
    WHERE n.value <= :cursor_value::double precision
        AND (n.value < :cursor_value OR (n.thread_id, n.run_id) > (:cursor_thread::text, :cursor_run::text))
    ORDER BY n.value DESC, n.thread_id, n.run_id
    LIMIT :most
)
SELECT r.thread_id, r.run_id, r.attempt, r.status,
    coalesce(
        r.status = 'running' AND r.alive_until < now()
            OR r.status = 'error' AND r.error_type IN ('ProcessDied', 'WorkerDied'), false
    ),
    r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at, r.first_checkpoint_id, r.last_checkpoint_id, r.steps,
    r.input_tokens, r.output_tokens, r.cost, r.error_type, r.error_message, r.error_traceback, r.input, r.output,
    r.enqueued_at, r.multitask_strategy, r.metadata, r.release, k.value, least(now(), :measured_at::timestamptz)
FROM ranked k JOIN /*schema*/runs r ON r.thread_id = k.thread_id AND r.run_id = k.run_id
WHERE :model::text IS NULL OR (
    SELECT true FROM /*schema*/spans s
    WHERE s.thread_id = k.thread_id AND s.run_id = k.run_id AND s.kind = 'llm' AND s.model = :model LIMIT 1
)
ORDER BY k.value DESC, k.thread_id, k.run_id
LIMIT :page_size OFFSET :offset;

-- name: sum_runs
-- Sum the model calls of the newest runs that pass filters, in total, by thread and by model; `part` names the
-- grouping. Only the most expensive threads and models are returned. The last column is the number of summed runs.
-- matches: threads.metadata from scope
WITH newest AS MATERIALIZED (
    SELECT r.thread_id, r.run_id, least(r.first_started_at, r.started_at) AS first_at
    FROM /*schema*/runs r
    WHERE r.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity') AND r.delete_at IS NULL
        AND (:until::timestamptz IS NULL OR r.started_at < :until)
        AND (:thread_id::text IS NULL OR r.thread_id = :thread_id)
        AND (:agent::text IS NULL OR r.agent = :agent)
        AND (:user_id::text IS NULL OR r.user_id = :user_id)
        AND (:tenant_id::text IS NULL OR r.tenant_id = :tenant_id)
        AND (:status::text IS NULL OR r.status = :status)
        AND (NOT :only_failed::boolean OR r.status IN ('error', 'timeout')
            OR r.status = 'running' AND r.alive_until < now())
        AND (:min_steps::integer IS NULL OR r.steps >= :min_steps)
        AND (:scope::text[] IS NULL OR EXISTS (
            SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = r.thread_id
                AND t.metadata @> ANY(:scope::text[]::jsonb[])
        ))
    ORDER BY r.started_at DESC, r.thread_id, r.run_id
    LIMIT :newest
), calls AS (
    SELECT s.thread_id, s.run_id, s.model, s.input_tokens, s.output_tokens, s.cost
    FROM newest n JOIN /*schema*/spans s ON s.thread_id = n.thread_id AND s.run_id = n.run_id
    WHERE s.kind = 'llm' AND s.started_at >= n.first_at AND (:model::text IS NULL OR s.model = :model)
        -- Exclude partitions from before the first run.
        AND s.started_at >= (SELECT min(m.first_at) FROM newest m)
), sums AS (
    SELECT CASE grouping(c.thread_id, c.model) WHEN 1 THEN 'thread' WHEN 2 THEN 'model' ELSE 'all' END AS part,
        coalesce(c.thread_id, c.model) AS name, count(DISTINCT (c.thread_id, c.run_id)) AS runs,
        coalesce(sum(c.input_tokens), 0)::bigint AS input_tokens,
        coalesce(sum(c.output_tokens), 0)::bigint AS output_tokens, coalesce(sum(c.cost), 0) AS cost
    FROM calls c GROUP BY GROUPING SETS ((c.thread_id), (c.model), ())
)
SELECT g.part, g.name, g.runs, g.input_tokens, g.output_tokens, g.cost, (SELECT count(*) FROM newest) FROM (
    SELECT u.*, row_number() OVER (PARTITION BY u.part ORDER BY u.cost DESC, u.runs DESC, u.name) AS place FROM sums u
) AS g
WHERE g.place <= :page_size::bigint
ORDER BY g.part, g.place;

-- name: get_run
-- Return one run, if the caller may see its thread. A run whose end deleted its thread is left out.
-- opens: runs.input
-- opens: runs.output
-- opens: runs.error_message
-- opens: runs.error_traceback
-- opens: runs.metadata
-- matches: threads.metadata from scope
SELECT r.thread_id, r.run_id, r.attempt, r.status,
    coalesce(
        r.status = 'running' AND r.alive_until < now()
            OR r.status = 'error' AND r.error_type IN ('ProcessDied', 'WorkerDied'), false
    ),
    r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at, r.first_checkpoint_id, r.last_checkpoint_id, r.steps,
    r.input_tokens, r.output_tokens, r.cost, r.error_type, r.error_message, r.error_traceback, r.input, r.output,
    r.enqueued_at, r.multitask_strategy, r.metadata, r.release
FROM /*schema*/runs r
WHERE r.thread_id = :thread_id::text AND r.run_id = :run_id::text AND r.delete_at IS NULL
    AND (:scope::text[] IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = :thread_id AND t.metadata @> ANY(:scope::text[]::jsonb[])
    ));

-- name: list_runaway_threads
-- Return a page of threads with runs of more than a number of supersteps, at least 25, longest first, below a cursor.
SELECT r.thread_id, (array_agg(r.agent ORDER BY r.steps DESC, r.run_id))[1],
    (array_agg(r.user_id ORDER BY r.steps DESC, r.run_id))[1], (array_agg(r.run_id ORDER BY r.steps DESC, r.run_id))[1],
    count(*), max(r.steps), max(r.started_at), sum(r.cost)
FROM /*schema*/runs r
WHERE r.steps > 25 AND r.steps > :steps::integer
    AND r.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
GROUP BY r.thread_id
HAVING (max(r.steps) < :cursor_steps::integer OR max(r.steps) = :cursor_steps AND r.thread_id > :cursor_thread::text)
ORDER BY max(r.steps) DESC, r.thread_id
LIMIT :page_size;
