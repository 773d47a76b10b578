-- name: list_tool_executions
-- Return a page of a thread's tool executions, newest first, without their results; or only those whose outcome is
-- unknown.
-- opens: tool_executions.arguments
-- opens: tool_executions.preview
-- opens: tool_executions.error_message
SELECT thread_id, idempotency_key, tool, status, attempt, agent, tool_call_id, run_id, task_id, checkpoint_ns,
    checkpoint_id, step, holder_id, alive_until, started_at, ended_at, arguments::text, preview, error_type,
    error_message, compensates, compensated_at, origin_thread_id
FROM /*schema*/tool_executions
WHERE thread_id = :thread_id
    AND (:run_id::text IS NULL OR run_id = :run_id)
    AND (NOT :unknown::boolean OR status IN ('unknown', 'timeout') OR (status = 'running' AND alive_until < now()))
    AND (:cursor_key::text IS NULL
        OR (started_at, idempotency_key) < (:cursor_started_at::timestamptz, :cursor_key))
ORDER BY started_at DESC, idempotency_key DESC
LIMIT :page_size::integer;

-- name: list_recent_executions
-- Return a page of the tool executions of all threads that a caller may see, newest first, below a cursor.
-- matches: threads.metadata from scope
-- opens: tool_executions.arguments
-- opens: tool_executions.preview
-- opens: tool_executions.error_message
-- plan: at each call
SELECT e.thread_id, e.idempotency_key, e.tool, e.status, e.attempt, e.agent, e.tool_call_id, e.run_id, e.task_id,
    e.checkpoint_ns, e.checkpoint_id, e.step, e.holder_id, e.alive_until, e.started_at, e.ended_at, e.arguments::text,
    e.preview, e.error_type, e.error_message, e.compensates, e.compensated_at,
    e.origin_thread_id
FROM /*schema*/tool_executions e
WHERE e.started_at <= :cursor_at::timestamptz
    AND (e.started_at < :cursor_at OR (e.thread_id, e.idempotency_key) > (:cursor_thread::text, :cursor_key::text))
    AND (:tool::text IS NULL OR e.tool = :tool)
    AND (:scope::text[] IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = e.thread_id
            AND t.metadata @> ANY(:scope::text[]::jsonb[])
    ))
ORDER BY e.started_at DESC, e.thread_id, e.idempotency_key
LIMIT :page_size;

-- name: list_unknown_executions
-- Return the rows of `list_recent_executions` whose outcome is unknown. The statuses are read one by one, because the
-- index is ordered by status first.
-- matches: threads.metadata from scope
-- opens: tool_executions.arguments
-- opens: tool_executions.preview
-- opens: tool_executions.error_message
SELECT e.thread_id, e.idempotency_key, e.tool, e.status, e.attempt, e.agent, e.tool_call_id, e.run_id, e.task_id,
    e.checkpoint_ns, e.checkpoint_id, e.step, e.holder_id, e.alive_until, e.started_at, e.ended_at, e.arguments::text,
    e.preview, e.error_type, e.error_message, e.compensates, e.compensated_at,
    e.origin_thread_id
FROM unnest(ARRAY['unknown', 'timeout', 'running']::text[]) AS k (status) CROSS JOIN LATERAL (
    SELECT x.* FROM /*schema*/tool_executions x
    WHERE x.status <> 'success' AND x.status = k.status AND (x.status <> 'running' OR x.alive_until < now())
        AND x.started_at <= :cursor_at::timestamptz
        AND (x.started_at < :cursor_at OR (x.thread_id, x.idempotency_key) > (:cursor_thread::text, :cursor_key::text))
        AND (:tool::text IS NULL OR x.tool = :tool)
        AND (:scope::text[] IS NULL OR EXISTS (
            SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = x.thread_id
                AND t.metadata @> ANY(:scope::text[]::jsonb[])
        ))
    ORDER BY x.started_at DESC, x.thread_id, x.idempotency_key
    LIMIT :page_size::bigint
) AS e
ORDER BY e.started_at DESC, e.thread_id, e.idempotency_key
LIMIT :page_size;
