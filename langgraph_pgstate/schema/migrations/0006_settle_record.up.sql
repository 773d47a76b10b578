-- A conversation is made of the rows of the checkpoints that are there: what stands at pruned ones goes to those that
-- were made from them. A call in doubt is no error, and a run whose end is in the journal has not crashed. `schema.sql`
-- tells how.

INSERT INTO /*schema*/messages (
    thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role, agent,
    content, tool_calls, tool_call_id, input_tokens, output_tokens
)
WITH roots AS (
    SELECT c.thread_id, c.checkpoint_id, c.parent_checkpoint_id FROM /*schema*/checkpoints c
    WHERE c.checkpoint_ns = '' AND c.parent_checkpoint_id IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints p
        WHERE p.thread_id = c.thread_id AND p.checkpoint_ns = '' AND p.checkpoint_id = c.parent_checkpoint_id
    )
), changes AS (
    SELECT r.checkpoint_id AS base_id, m.*,
        first_value(m.change) OVER (
            PARTITION BY r.thread_id, r.checkpoint_id, m.channel, m.message_id ORDER BY m.checkpoint_id DESC
        ) AS last_change,
        first_value(m.checkpoint_id) OVER additions AS since, first_value(m.position) OVER additions AS place,
        row_number() OVER (
            PARTITION BY r.thread_id, r.checkpoint_id, m.channel, m.message_id
            ORDER BY m.change = 'removed', m.checkpoint_id DESC
        ) AS age
    FROM roots r JOIN /*schema*/messages m ON m.thread_id = r.thread_id AND m.checkpoint_ns = '' AND (
        m.checkpoint_id = r.checkpoint_id
        OR m.checkpoint_id <= r.parent_checkpoint_id AND NOT EXISTS (
            SELECT 1 FROM /*schema*/checkpoints c
            WHERE c.thread_id = m.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = m.checkpoint_id
        )
    )
    WINDOW additions AS (
        PARTITION BY r.thread_id, r.checkpoint_id, m.channel, m.message_id
        ORDER BY m.change <> 'added', m.checkpoint_id DESC
    )
)
SELECT n.thread_id, n.message_id, n.base_id, '', n.channel,
    row_number() OVER (
        PARTITION BY n.thread_id, n.base_id, n.channel ORDER BY n.last_change = 'removed', n.since, n.place
    ) - 1,
    CASE n.last_change WHEN 'removed' THEN 'removed' ELSE 'added' END,
    n.created_at, n.run_id, n.role, n.agent, n.content, n.tool_calls, n.tool_call_id, n.input_tokens, n.output_tokens
FROM changes n
WHERE n.age = 1
ON CONFLICT (thread_id, message_id, checkpoint_id, channel) DO UPDATE SET
    position = excluded.position,
    change = excluded.change,
    created_at = excluded.created_at,
    run_id = excluded.run_id,
    role = excluded.role,
    agent = excluded.agent,
    content = excluded.content,
    tool_calls = excluded.tool_calls,
    tool_call_id = excluded.tool_call_id,
    input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens;

DELETE FROM /*schema*/messages m WHERE m.checkpoint_ns = '' AND NOT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints c
    WHERE c.thread_id = m.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = m.checkpoint_id
);

DROP VIEW /*schema*/conversations;
CREATE VIEW /*schema*/conversations AS
SELECT t.thread_id, t.tenant_id, t.user_id, m.number, m.channel, m.message_id, m.role, m.agent, m.content, m.tool_calls,
    m.tool_call_id, m.created_at, m.run_id
FROM /*schema*/threads t CROSS JOIN LATERAL (
    WITH RECURSIVE lineage AS (
        (
            SELECT h.checkpoint_id, h.parent_checkpoint_id, 0 AS depth FROM /*schema*/checkpoints h
            WHERE h.thread_id = t.thread_id AND h.checkpoint_ns = ''
            ORDER BY h.checkpoint_id DESC LIMIT 1
        )
        UNION ALL
        SELECT c.checkpoint_id, c.parent_checkpoint_id, l.depth + 1
        FROM lineage l JOIN /*schema*/checkpoints c
            ON c.thread_id = t.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = l.parent_checkpoint_id
    ), changes AS (
        SELECT e.*,
            first_value(l.depth) OVER additions AS since, first_value(e.position) OVER additions AS place,
            row_number() OVER (PARTITION BY e.channel, e.message_id ORDER BY l.depth) AS age
        FROM lineage l JOIN /*schema*/messages e
            ON e.thread_id = t.thread_id AND e.checkpoint_ns = '' AND e.checkpoint_id = l.checkpoint_id
        WINDOW additions AS (PARTITION BY e.channel, e.message_id ORDER BY e.change <> 'added', l.depth)
    )
    SELECT row_number() OVER (ORDER BY n.since DESC, n.place, n.message_id) AS number, n.channel, n.message_id, n.role,
        n.agent, n.content, n.tool_calls, n.tool_call_id, n.created_at, n.run_id
    FROM changes n
    WHERE n.age = 1 AND n.change <> 'removed'
) AS m;

DROP VIEW /*schema*/tool_statistics;
CREATE VIEW /*schema*/tool_statistics AS
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

DROP VIEW /*schema*/failed_runs;
CREATE VIEW /*schema*/failed_runs AS
SELECT r.thread_id, r.run_id, r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at,
    r.ended_at - r.started_at AS duration,
    r.status = 'running' OR r.error_type IS NOT DISTINCT FROM 'ProcessDied' AS is_crashed, r.error_type,
    r.error_message, r.steps, r.cost
FROM /*schema*/runs r
WHERE r.status = 'error' OR r.status = 'running' AND r.alive_until < now() AND NOT EXISTS (
    -- How it ended is known, but not in the tables yet.
    SELECT 1 FROM /*schema*/journal j WHERE j.thread_id = r.thread_id AND j.run_id = r.run_id AND j.is_alone
);
