-- name: measure_tools
-- Return calls, errors, unknown outcomes and seconds of each tool from spans, the most called first. A call whose
-- process died has no duration, and is no error if the tool ledger says that the call succeeded.
SELECT s.name, count(*), count(*) FILTER (WHERE s.ended_at IS NULL AND NOT s.is_unknown),
    count(*) FILTER (WHERE s.status = 'error' AND NOT s.is_unknown AND NOT s.is_found),
    count(*) FILTER (WHERE s.is_unknown),
    count(*) FILTER (WHERE s.status = 'error' AND NOT s.is_unknown AND NOT s.is_found)::double precision
        / nullif(count(s.ended_at) FILTER (WHERE NOT s.is_unknown), 0::bigint)::double precision,
    avg(s.seconds), percentile_cont(0.5) WITHIN GROUP (ORDER BY s.seconds),
    percentile_cont(0.95) WITHIN GROUP (ORDER BY s.seconds), max(s.started_at)
FROM (
    SELECT n.name, n.status, n.started_at, n.ended_at,
        CASE WHEN n.error_type IS NULL OR n.error_type NOT IN ('ProcessDied', 'WorkerDied')
            THEN extract(epoch FROM n.ended_at - n.started_at)::double precision END AS seconds,
        CASE WHEN n.error_type IN ('ProcessDied', 'WorkerDied') THEN coalesce((
            SELECT e.status FROM /*schema*/tool_executions e
            WHERE e.thread_id = n.thread_id AND e.tool_call_id = n.tool_call_id AND e.alive_until IS NULL
            LIMIT 1
        ) = 'success', false) ELSE false END AS is_found, ((n.thread_id, n.tool_call_id) IN (
        SELECT e.thread_id, e.tool_call_id FROM /*schema*/tool_executions e
        WHERE e.status <> 'success' AND e.status IN ('timeout', 'unknown')
    )) IS TRUE AS is_unknown
    FROM /*schema*/spans n
    WHERE n.kind = 'tool' AND n.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
        AND (:until::timestamptz IS NULL OR n.started_at < :until)
        AND (:agent::text IS NULL OR n.agent = :agent)
    ORDER BY n.started_at DESC LIMIT :newest::bigint
) AS s
GROUP BY s.name
ORDER BY count(*) DESC, s.name
LIMIT :page_size;

-- name: measure_executions
-- Return actions, errors, unknown outcomes and seconds of each tool from the tool ledger, the most called first. Copies
-- of actions in forks are left out. An action has no duration if another process or a person has settled the outcome.
SELECT e.tool, count(*), count(*) FILTER (WHERE e.status IN ('pending', 'running')),
    count(*) FILTER (WHERE e.status = 'error'), count(*) FILTER (WHERE e.status IN ('unknown', 'timeout')),
    count(*) FILTER (WHERE e.status = 'error')::double precision
        / nullif(count(*) FILTER (WHERE e.status IN ('success', 'error')), 0::bigint)::double precision,
    avg(e.seconds), percentile_cont(0.5) WITHIN GROUP (ORDER BY e.seconds),
    percentile_cont(0.95) WITHIN GROUP (ORDER BY e.seconds),
    max(e.started_at), count(e.compensated_at)
FROM (
    SELECT n.tool, n.status, n.started_at, n.compensated_at,
        CASE WHEN n.alive_until IS NOT NULL THEN extract(epoch FROM n.ended_at - n.started_at)::double precision END
            AS seconds
    FROM /*schema*/tool_executions n
    WHERE NOT n.is_copy AND n.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
        AND (:until::timestamptz IS NULL OR n.started_at < :until)
        AND (:agent::text IS NULL OR n.agent = :agent)
    ORDER BY n.started_at DESC LIMIT :newest::bigint
) AS e
GROUP BY e.tool
ORDER BY count(*) DESC, e.tool
LIMIT :page_size;

-- name: sum_usage
-- Return calls, tokens and cost of models, grouped by the keys in `:by`, the most expensive group first.
SELECT
    CASE WHEN 'agent' = ANY(:by::text[]) THEN u.agent END,
    CASE WHEN 'model' = ANY(:by) THEN u.provider END,
    CASE WHEN 'model' = ANY(:by) THEN u.model END,
    CASE WHEN 'tenant' = ANY(:by) THEN u.tenant_id END,
    CASE WHEN 'user' = ANY(:by) THEN u.user_id END,
    CASE WHEN 'day' = ANY(:by) THEN u.day END,
    count(*), coalesce(sum(u.input_tokens), 0)::bigint, coalesce(sum(u.output_tokens), 0)::bigint,
    coalesce(sum(u.cache_read_tokens), 0)::bigint, coalesce(sum(u.reasoning_tokens), 0)::bigint,
    coalesce(sum(u.cost), 0), count(*) FILTER (WHERE u.cost IS NULL)
FROM /*schema*/model_calls u
WHERE u.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
    AND (:until::timestamptz IS NULL OR u.started_at < :until)
GROUP BY 1, 2, 3, 4, 5, 6
ORDER BY 12 DESC, 7 DESC, 1, 2, 3, 4, 5, 6
LIMIT :page_size;

-- name: sum_costs
-- Return calls, tokens and cost of models in total, by day and by model; `part` names the grouping. Only the most
-- expensive models are returned. Each day is summed separately, so that no sort is needed.
SELECT g.part, g.provider, g.model, g.day, g.calls, g.input_tokens, g.output_tokens, g.cache_read_tokens,
    g.reasoning_tokens, g.cost, g.unpriced
FROM (
    SELECT p.part, u.*, row_number() OVER (
        PARTITION BY p.part ORDER BY u.cost DESC, u.calls DESC, u.provider, u.model
    ) AS place
    FROM (
        SELECT s.provider, s.model, s.day, grouping(s.model, s.day) AS level,
            coalesce(sum(s.calls), 0)::bigint AS calls, coalesce(sum(s.input_tokens), 0)::bigint AS input_tokens,
            coalesce(sum(s.output_tokens), 0)::bigint AS output_tokens,
            coalesce(sum(s.cache_read_tokens), 0)::bigint AS cache_read_tokens,
            coalesce(sum(s.reasoning_tokens), 0)::bigint AS reasoning_tokens, coalesce(sum(s.cost), 0) AS cost,
            coalesce(sum(s.unpriced), 0)::bigint AS unpriced
        FROM (
            SELECT d.day::date AS day, o.*
            FROM (
                SELECT
                    greatest(coalesce(:since::timestamptz, now() - :age::interval, '-infinity'), b.first_at)
                        AS first_at,
                    least(coalesce(:until::timestamptz, 'infinity'), b.last_at) AS last_at
                FROM (
                    SELECT (SELECT min(m.started_at) FROM /*schema*/spans m WHERE m.kind = 'llm') AS first_at, (
                        SELECT max(m.started_at) + interval '1 us' FROM /*schema*/spans m WHERE m.kind = 'llm'
                    ) AS last_at
                ) AS b WHERE b.first_at IS NOT NULL
            ) AS t CROSS JOIN LATERAL generate_series(
                date_trunc('day', t.first_at AT TIME ZONE 'UTC'), t.last_at AT TIME ZONE 'UTC', interval '1 day'
            ) AS d (day) CROSS JOIN LATERAL (
                SELECT n.provider, n.model,
                    count(*) AS calls, sum(n.input_tokens) AS input_tokens, sum(n.output_tokens) AS output_tokens,
                    sum(n.cache_read_tokens) AS cache_read_tokens, sum(n.reasoning_tokens) AS reasoning_tokens,
                    sum(n.cost) AS cost, count(*) FILTER (WHERE n.cost IS NULL) AS unpriced
                FROM /*schema*/spans n
                WHERE n.kind = 'llm'
                    AND n.started_at >= greatest(t.first_at, d.day AT TIME ZONE 'UTC')
                    AND n.started_at < least(t.last_at, (d.day + interval '1 day') AT TIME ZONE 'UTC')
                    AND (:model::text IS NULL OR n.model = :model)
                GROUP BY n.provider, n.model
            ) AS o
        ) AS s
        GROUP BY GROUPING SETS ((s.provider, s.model), (s.day), ())
    ) AS u CROSS JOIN LATERAL (
        SELECT CASE u.level WHEN 1 THEN 'model' WHEN 2 THEN 'day' ELSE 'all' END AS part
    ) AS p
) AS g
WHERE g.part = 'day' OR g.place <= :page_size::bigint
ORDER BY g.part, g.day, g.place;

-- name: sum_costs_of_owner
-- Return the columns of `sum_costs` for the runs of an agent, a user or a tenant.
SELECT g.part, g.provider, g.model, g.day, g.calls, g.input_tokens, g.output_tokens, g.cache_read_tokens,
    g.reasoning_tokens, g.cost, g.unpriced
FROM (
    SELECT p.part, u.*, row_number() OVER (
        PARTITION BY p.part ORDER BY u.cost DESC, u.calls DESC, u.provider, u.model
    ) AS place
    FROM (
        SELECT s.provider, s.model, s.day, grouping(s.model, s.day) AS level,
            coalesce(sum(s.calls), 0)::bigint AS calls, coalesce(sum(s.input_tokens), 0)::bigint AS input_tokens,
            coalesce(sum(s.output_tokens), 0)::bigint AS output_tokens,
            coalesce(sum(s.cache_read_tokens), 0)::bigint AS cache_read_tokens,
            coalesce(sum(s.reasoning_tokens), 0)::bigint AS reasoning_tokens, coalesce(sum(s.cost), 0) AS cost,
            coalesce(sum(s.unpriced), 0)::bigint AS unpriced
        FROM (
            SELECT (n.started_at AT TIME ZONE 'UTC')::date AS day, n.provider, n.model,
                    count(*) AS calls, sum(n.input_tokens) AS input_tokens, sum(n.output_tokens) AS output_tokens,
                    sum(n.cache_read_tokens) AS cache_read_tokens, sum(n.reasoning_tokens) AS reasoning_tokens,
                    sum(n.cost) AS cost, count(*) FILTER (WHERE n.cost IS NULL) AS unpriced
                FROM /*schema*/spans n
                JOIN /*schema*/runs r ON r.thread_id = n.thread_id AND r.run_id = n.run_id
                WHERE n.kind = 'llm'
                    AND n.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
                    AND (:until::timestamptz IS NULL OR n.started_at < :until)
                    AND (:user_id::text IS NULL OR r.user_id = :user_id)
                    AND (:tenant_id::text IS NULL OR r.tenant_id = :tenant_id)
                    AND (:agent::text IS NULL OR r.agent = :agent)
                    AND (:model::text IS NULL OR n.model = :model)
            GROUP BY 1, n.provider, n.model
        ) AS s
        GROUP BY GROUPING SETS ((s.provider, s.model), (s.day), ())
    ) AS u CROSS JOIN LATERAL (
        SELECT CASE u.level WHEN 1 THEN 'model' WHEN 2 THEN 'day' ELSE 'all' END AS part
    ) AS p
) AS g
WHERE g.part = 'day' OR g.place <= :page_size::bigint
ORDER BY g.part, g.day, g.place;

-- name: sum_costs_with_scope
-- Return the columns of `sum_costs` for the runs of threads that a caller may see.
-- matches: threads.metadata from scope
SELECT g.part, g.provider, g.model, g.day, g.calls, g.input_tokens, g.output_tokens, g.cache_read_tokens,
    g.reasoning_tokens, g.cost, g.unpriced
FROM (
    SELECT p.part, u.*, row_number() OVER (
        PARTITION BY p.part ORDER BY u.cost DESC, u.calls DESC, u.provider, u.model
    ) AS place
    FROM (
        SELECT s.provider, s.model, s.day, grouping(s.model, s.day) AS level,
            coalesce(sum(s.calls), 0)::bigint AS calls, coalesce(sum(s.input_tokens), 0)::bigint AS input_tokens,
            coalesce(sum(s.output_tokens), 0)::bigint AS output_tokens,
            coalesce(sum(s.cache_read_tokens), 0)::bigint AS cache_read_tokens,
            coalesce(sum(s.reasoning_tokens), 0)::bigint AS reasoning_tokens, coalesce(sum(s.cost), 0) AS cost,
            coalesce(sum(s.unpriced), 0)::bigint AS unpriced
        FROM (
            SELECT (n.started_at AT TIME ZONE 'UTC')::date AS day, n.provider, n.model,
                    count(*) AS calls, sum(n.input_tokens) AS input_tokens, sum(n.output_tokens) AS output_tokens,
                    sum(n.cache_read_tokens) AS cache_read_tokens, sum(n.reasoning_tokens) AS reasoning_tokens,
                    sum(n.cost) AS cost, count(*) FILTER (WHERE n.cost IS NULL) AS unpriced
                FROM /*schema*/spans n
                JOIN /*schema*/runs r ON r.thread_id = n.thread_id AND r.run_id = n.run_id
                JOIN /*schema*/threads h ON h.thread_id = n.thread_id
                    AND h.metadata @> ANY(:scope::text[]::jsonb[])
                WHERE n.kind = 'llm'
                    AND n.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
                    AND (:until::timestamptz IS NULL OR n.started_at < :until)
                    AND (:user_id::text IS NULL OR r.user_id = :user_id)
                    AND (:tenant_id::text IS NULL OR r.tenant_id = :tenant_id)
                    AND (:agent::text IS NULL OR r.agent = :agent)
                    AND (:model::text IS NULL OR n.model = :model)
            GROUP BY 1, n.provider, n.model
        ) AS s
        GROUP BY GROUPING SETS ((s.provider, s.model), (s.day), ())
    ) AS u CROSS JOIN LATERAL (
        SELECT CASE u.level WHEN 1 THEN 'model' WHEN 2 THEN 'day' ELSE 'all' END AS part
    ) AS p
) AS g
WHERE g.part = 'day' OR g.place <= :page_size::bigint
ORDER BY g.part, g.day, g.place;

-- name: sum_owner_costs
-- Return number, tokens and cost of runs by agent and by user (see `part`), for the most expensive agents and users.
-- matches: threads.metadata from scope
SELECT g.part, CASE g.part WHEN 'agent' THEN g.agent ELSE g.user_id END, g.runs, g.input_tokens, g.output_tokens, g.cost
FROM (
    SELECT s.*, p.part, row_number() OVER (
        PARTITION BY p.part ORDER BY s.cost DESC, s.runs DESC, s.agent, s.user_id
    ) AS place
    FROM (
        SELECT r.agent, r.user_id, grouping(r.user_id) AS level, count(*) AS runs,
            sum(r.input_tokens)::bigint AS input_tokens, sum(r.output_tokens)::bigint AS output_tokens,
            sum(r.cost) AS cost
        FROM /*schema*/runs r
        WHERE r.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
            AND (:until::timestamptz IS NULL OR r.started_at < :until)
            AND (:agent::text IS NULL OR r.agent = :agent)
            AND (:user_id::text IS NULL OR r.user_id = :user_id)
            AND (:tenant_id::text IS NULL OR r.tenant_id = :tenant_id)
            AND (:scope::text[] IS NULL OR EXISTS (
                SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = r.thread_id
                    AND t.metadata @> ANY(:scope::text[]::jsonb[])
            ))
        GROUP BY GROUPING SETS ((r.agent), (r.user_id))
    ) AS s CROSS JOIN LATERAL (
        SELECT CASE s.level WHEN 1 THEN 'agent' ELSE 'user' END AS part
    ) AS p
) AS g
WHERE g.place <= :page_size::bigint
ORDER BY g.part, g.place;

-- name: count_threads_by_status
-- Return the number and mean duration of threads that were active in a period, by agent and status, in descending order
-- of the number. Reads at most `:most` of the newest threads. The last column is the number of threads that were read.
-- matches: threads.metadata from scope
SELECT t.agent, t.status, count(*), avg(extract(epoch FROM t.updated_at - t.created_at))::double precision,
    max(t.updated_at), (sum(count(*)) OVER ())::bigint
FROM (
    SELECT s.agent, s.status, s.created_at, s.updated_at FROM /*schema*/threads s
    WHERE s.updated_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
        AND (:until::timestamptz IS NULL OR s.updated_at < :until)
        AND (:agent::text IS NULL OR s.agent = :agent)
        AND (:user_id::text IS NULL OR s.user_id = :user_id)
        AND (:tenant_id::text IS NULL OR s.tenant_id = :tenant_id)
        AND (:scope::text[] IS NULL OR s.metadata @> ANY(:scope::text[]::jsonb[]))
    ORDER BY s.updated_at DESC LIMIT :most
) AS t
GROUP BY t.agent, t.status
ORDER BY 3 DESC, 1, 2
LIMIT :page_size;

-- name: measure_runs
-- Return outcomes, durations, supersteps, tokens and cost of runs that began in a period, grouped by the keys in `:by`,
-- the largest group first. Reads at most `:most` of the newest runs. The last column is the number of runs that were
-- read.
SELECT
    CASE WHEN 'agent' = ANY(:by::text[]) THEN r.agent END,
    CASE WHEN 'release' = ANY(:by) THEN r.release END,
    CASE WHEN 'tenant' = ANY(:by) THEN r.tenant_id END,
    CASE WHEN 'user' = ANY(:by) THEN r.user_id END,
    CASE WHEN 'day' = ANY(:by) THEN (r.started_at AT TIME ZONE 'UTC')::date END,
    count(*), count(DISTINCT r.thread_id),
    count(*) FILTER (WHERE r.status = 'success'),
    count(*) FILTER (WHERE r.status = 'error'),
    count(*) FILTER (WHERE r.status = 'timeout'),
    count(*) FILTER (WHERE r.status = 'interrupted'),
    count(*) FILTER (WHERE r.status = 'cancelled'),
    count(*) FILTER (WHERE r.status IN ('pending', 'running')),
    count(*) FILTER (WHERE r.status IN ('error', 'timeout'))::double precision
        / nullif(count(*) FILTER (WHERE r.status IN ('success', 'error', 'timeout')), 0::bigint)::double precision,
    avg(extract(epoch FROM r.ended_at - r.started_at))::double precision,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM r.ended_at - r.started_at)::double precision),
    percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM r.ended_at - r.started_at)::double precision),
    sum(r.steps)::bigint, sum(r.input_tokens)::bigint, sum(r.output_tokens)::bigint, sum(r.cost),
    (sum(count(*)) OVER ())::bigint
FROM (
    SELECT n.thread_id, n.agent, n.release, n.tenant_id, n.user_id, n.status, n.started_at, n.ended_at, n.steps,
        n.input_tokens, n.output_tokens, n.cost
    FROM /*schema*/runs n
    WHERE n.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
        AND (:until::timestamptz IS NULL OR n.started_at < :until)
        AND (:agent::text IS NULL OR n.agent = :agent)
        AND (:user_id::text IS NULL OR n.user_id = :user_id)
        AND (:tenant_id::text IS NULL OR n.tenant_id = :tenant_id)
    ORDER BY n.started_at DESC LIMIT :most
) AS r
GROUP BY 1, 2, 3, 4, 5
ORDER BY 6 DESC, 1, 2, 3, 4, 5
LIMIT :page_size;

-- name: measure_runs_with_scope
-- Return the columns of `measure_runs` for runs of threads that a caller may see. Reads at most `:most` of these
-- threads, the last updated ones.
-- matches: threads.metadata from scope
SELECT
    CASE WHEN 'agent' = ANY(:by::text[]) THEN r.agent END,
    CASE WHEN 'release' = ANY(:by) THEN r.release END,
    CASE WHEN 'tenant' = ANY(:by) THEN r.tenant_id END,
    CASE WHEN 'user' = ANY(:by) THEN r.user_id END,
    CASE WHEN 'day' = ANY(:by) THEN (r.started_at AT TIME ZONE 'UTC')::date END,
    count(*), count(DISTINCT r.thread_id),
    count(*) FILTER (WHERE r.status = 'success'),
    count(*) FILTER (WHERE r.status = 'error'),
    count(*) FILTER (WHERE r.status = 'timeout'),
    count(*) FILTER (WHERE r.status = 'interrupted'),
    count(*) FILTER (WHERE r.status = 'cancelled'),
    count(*) FILTER (WHERE r.status IN ('pending', 'running')),
    count(*) FILTER (WHERE r.status IN ('error', 'timeout'))::double precision
        / nullif(count(*) FILTER (WHERE r.status IN ('success', 'error', 'timeout')), 0::bigint)::double precision,
    avg(extract(epoch FROM r.ended_at - r.started_at))::double precision,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM r.ended_at - r.started_at)::double precision),
    percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM r.ended_at - r.started_at)::double precision),
    sum(r.steps)::bigint, sum(r.input_tokens)::bigint, sum(r.output_tokens)::bigint, sum(r.cost),
    (sum(count(*)) OVER ())::bigint
FROM (
    SELECT n.thread_id, n.agent, n.release, n.tenant_id, n.user_id, n.status, n.started_at, n.ended_at, n.steps,
        n.input_tokens, n.output_tokens, n.cost
    FROM (
        SELECT o.thread_id FROM (
            SELECT t.thread_id, t.updated_at FROM /*schema*/threads t
            WHERE t.metadata @> ANY(:scope::text[]::jsonb[]) OFFSET 0
        ) AS o ORDER BY o.updated_at DESC LIMIT :most
    ) AS seen JOIN /*schema*/runs n ON n.thread_id = seen.thread_id
    WHERE n.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
        AND (:until::timestamptz IS NULL OR n.started_at < :until)
        AND (:agent::text IS NULL OR n.agent = :agent)
        AND (:user_id::text IS NULL OR n.user_id = :user_id)
        AND (:tenant_id::text IS NULL OR n.tenant_id = :tenant_id)
    ORDER BY n.started_at DESC LIMIT :most
) AS r
GROUP BY 1, 2, 3, 4, 5
ORDER BY 6 DESC, 1, 2, 3, 4, 5
LIMIT :page_size;
