-- Goes by the spans alone again.

CREATE OR REPLACE VIEW /*schema*/tool_statistics AS
SELECT c.tool, count(*) AS calls, count(*) FILTER (WHERE c.status = 'error' AND NOT c.is_unknown) AS errors,
    count(*) FILTER (WHERE c.is_unknown) AS unknown,
    count(*) FILTER (WHERE c.status = 'error' AND NOT c.is_unknown)::double precision
        / nullif(count(c.ended_at) FILTER (WHERE NOT c.is_unknown), 0) AS error_rate,
    avg(c.seconds) AS mean, percentile_cont(0.5) WITHIN GROUP (ORDER BY c.seconds) AS p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY c.seconds) AS p95, max(c.started_at) AS last_at
FROM (
    SELECT t.*, ((t.thread_id, t.tool_call_id) IN (
        SELECT e.thread_id, e.tool_call_id FROM /*schema*/tool_executions e WHERE e.status IN ('timeout', 'unknown')
    )) IS TRUE AS is_unknown
    FROM /*schema*/tool_calls t
) AS c
GROUP BY c.tool;
