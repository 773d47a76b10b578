-- Counts a call whose process died, and that took effect as was found out later, as no error, and leaves out how long it
-- took, as `spans.tools()` does.

CREATE OR REPLACE VIEW /*schema*/tool_statistics AS
SELECT c.tool, count(*) AS calls,
    count(*) FILTER (WHERE c.status = 'error' AND NOT c.is_unknown AND NOT c.is_found) AS errors,
    count(*) FILTER (WHERE c.is_unknown) AS unknown,
    count(*) FILTER (WHERE c.status = 'error' AND NOT c.is_unknown AND NOT c.is_found)::double precision
        / nullif(count(c.ended_at) FILTER (WHERE NOT c.is_unknown), 0) AS error_rate,
    avg(c.seconds) AS mean, percentile_cont(0.5) WITHIN GROUP (ORDER BY c.seconds) AS p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY c.seconds) AS p95, max(c.started_at) AS last_at
FROM (
    SELECT t.tool, t.status, t.started_at, t.ended_at,
        CASE WHEN t.error_type IS NULL OR t.error_type NOT IN ('ProcessDied', 'WorkerDied') THEN t.seconds END
            AS seconds,
        CASE WHEN t.error_type IN ('ProcessDied', 'WorkerDied') THEN coalesce((
            SELECT e.status FROM /*schema*/tool_executions e
            WHERE e.thread_id = t.thread_id AND e.tool_call_id = t.tool_call_id AND e.alive_until IS NULL
            LIMIT 1
        ) = 'success', false) ELSE false END AS is_found, ((t.thread_id, t.tool_call_id) IN (
        SELECT e.thread_id, e.tool_call_id FROM /*schema*/tool_executions e WHERE e.status IN ('timeout', 'unknown')
    )) IS TRUE AS is_unknown
    FROM /*schema*/tool_calls t
) AS c
GROUP BY c.tool;
