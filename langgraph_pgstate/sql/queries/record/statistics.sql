-- name: measure_tools
-- Return calls, errors, unknown outcomes and seconds of each tool, by its spans, with outcomes from the ledger where it
-- has them; most called first.
SELECT s.name, count(*), count(*) FILTER (WHERE s.ended_at IS NULL AND NOT s.is_unknown),
    count(*) FILTER (WHERE s.status = 'error' AND NOT s.is_unknown), count(*) FILTER (WHERE s.is_unknown),
    count(*) FILTER (WHERE s.status = 'error' AND NOT s.is_unknown)::double precision
        / nullif(count(s.ended_at) FILTER (WHERE NOT s.is_unknown), 0),
    avg(extract(epoch FROM s.ended_at - s.started_at))::double precision,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM s.ended_at - s.started_at)::double precision),
    percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM s.ended_at - s.started_at)::double precision),
    max(s.started_at)
FROM (
    SELECT n.*, ((n.thread_id, n.tool_call_id) IN (
        SELECT e.thread_id, e.tool_call_id FROM /*schema*/tool_executions e WHERE e.status IN ('timeout', 'unknown')
    )) IS TRUE AS is_unknown
    FROM /*schema*/spans n
) AS s
WHERE s.kind = 'tool' AND s.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
    AND (:until::timestamptz IS NULL OR s.started_at < :until)
    AND (:agent::text IS NULL OR s.agent = :agent)
GROUP BY s.name
ORDER BY count(*) DESC, s.name
LIMIT :page_size;

-- name: measure_executions
-- Return actions, errors, unknown outcomes and seconds of each tool, by the ledger; most called first.
SELECT e.tool, count(*), count(*) FILTER (WHERE e.status IN ('pending', 'running')),
    count(*) FILTER (WHERE e.status = 'error'), count(*) FILTER (WHERE e.status IN ('unknown', 'timeout')),
    count(*) FILTER (WHERE e.status = 'error')::double precision
        / nullif(count(*) FILTER (WHERE e.status IN ('success', 'error')), 0),
    avg(extract(epoch FROM e.ended_at - e.started_at))::double precision,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM e.ended_at - e.started_at)::double precision),
    percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM e.ended_at - e.started_at)::double precision),
    max(e.started_at)
FROM /*schema*/tool_executions e
WHERE e.started_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
    AND (:until::timestamptz IS NULL OR e.started_at < :until)
    AND (:agent::text IS NULL OR e.agent = :agent)
GROUP BY e.tool
ORDER BY count(*) DESC, e.tool
LIMIT :page_size;

-- name: sum_usage
-- Return calls, tokens and cost of models, by the keys that `by` names; most expensive first.
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
