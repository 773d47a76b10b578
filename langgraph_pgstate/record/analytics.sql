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
