-- Brings back the views of before; messages stay where they are.

DROP VIEW /*schema*/conversations;
CREATE VIEW /*schema*/conversations AS
SELECT t.thread_id, t.tenant_id, t.user_id, m.number, m.channel, m.message_id, m.role, m.agent, m.content, m.tool_calls,
    m.tool_call_id, m.created_at, m.run_id
FROM /*schema*/threads t CROSS JOIN LATERAL (
    WITH RECURSIVE lineage AS (
        (
            SELECT h.checkpoint_id, h.parent_checkpoint_id FROM /*schema*/checkpoints h
            WHERE h.thread_id = t.thread_id AND h.checkpoint_ns = ''
            ORDER BY h.checkpoint_id DESC LIMIT 1
        )
        UNION ALL
        SELECT c.checkpoint_id, c.parent_checkpoint_id
        FROM lineage l JOIN /*schema*/checkpoints c
            ON c.thread_id = t.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = l.parent_checkpoint_id
    ), changes AS (
        SELECT e.*,
            first_value(e.checkpoint_id) OVER whole AS since, first_value(e.position) OVER whole AS place,
            row_number() OVER (PARTITION BY e.channel, e.message_id ORDER BY e.checkpoint_id DESC) AS age
        FROM /*schema*/messages e
        WHERE e.thread_id = t.thread_id AND e.checkpoint_ns = '' AND (
            e.checkpoint_id IN (SELECT l.checkpoint_id FROM lineage l)
            OR e.checkpoint_id <= (
                SELECT min(l.parent_checkpoint_id) FROM lineage l
                HAVING bool_and(l.parent_checkpoint_id IS NOT NULL)
            ) AND NOT EXISTS (
                SELECT 1 FROM /*schema*/checkpoints c
                WHERE c.thread_id = t.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = e.checkpoint_id
            )
        )
        WINDOW whole AS (PARTITION BY e.channel, e.message_id ORDER BY e.checkpoint_id)
    )
    SELECT row_number() OVER (ORDER BY n.since, n.place) AS number, n.channel, n.message_id, n.role, n.agent, n.content,
        n.tool_calls, n.tool_call_id, n.created_at, n.run_id
    FROM changes n
    WHERE n.age = 1 AND n.change <> 'removed'
) AS m;

DROP VIEW /*schema*/tool_statistics;
CREATE VIEW /*schema*/tool_statistics AS
SELECT c.tool, count(*) AS calls, count(*) FILTER (WHERE c.status = 'error') AS errors,
    count(*) FILTER (WHERE c.status = 'error')::double precision / nullif(count(c.ended_at), 0) AS error_rate,
    avg(c.seconds) AS mean, percentile_cont(0.5) WITHIN GROUP (ORDER BY c.seconds) AS p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY c.seconds) AS p95, max(c.started_at) AS last_at
FROM /*schema*/tool_calls c
GROUP BY c.tool;

DROP VIEW /*schema*/failed_runs;
CREATE VIEW /*schema*/failed_runs AS
SELECT r.thread_id, r.run_id, r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at,
    r.ended_at - r.started_at AS duration,
    r.status = 'running' OR r.error_type IS NOT DISTINCT FROM 'ProcessDied' AS is_crashed, r.error_type,
    r.error_message, r.steps, r.cost
FROM /*schema*/runs r
WHERE r.status = 'error' OR r.status = 'running' AND r.alive_until < now();
