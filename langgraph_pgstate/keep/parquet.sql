-- name: list_months
-- Return the months in UTC, like `2026_01`, from the month of the first run, message, span or tool execution to the
-- current month.
SELECT to_char(m.month, 'YYYY_MM')
FROM (
    SELECT least(
        (SELECT min(r.started_at) FROM /*schema*/runs r), (SELECT min(s.started_at) FROM /*schema*/spans s),
        (SELECT min(g.created_at) FROM /*schema*/messages g), (SELECT min(x.started_at) FROM /*schema*/tool_executions x)
    ) AS at
) AS f CROSS JOIN LATERAL generate_series(
    date_trunc('month', f.at AT TIME ZONE 'UTC'), date_trunc('month', now() AT TIME ZONE 'UTC'), interval '1 month'
) AS m (month)
ORDER BY 1;

-- name: export_runs
-- Return the next runs that began in a month, by thread and run.
-- opens: runs.input
-- opens: runs.output
-- opens: runs.error_message
-- opens: runs.metadata
-- plan: at each call
SELECT r.thread_id, r.run_id, r.attempt, r.status, r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at, r.steps,
    r.input_tokens, r.output_tokens, r.cost, r.error_type, r.queue, r.enqueued_at, r.release, r.metadata::text,
    CASE WHEN :content::boolean THEN r.error_message END AS error_message,
    CASE WHEN :content THEN r.input::text END AS input, CASE WHEN :content THEN r.output::text END AS output
FROM /*schema*/runs r
WHERE r.started_at >= :first_at::timestamptz AND r.started_at < :last_at::timestamptz
    AND (r.thread_id, r.run_id) > (:cursor_thread::text, :cursor_id::text)
ORDER BY r.thread_id, r.run_id LIMIT :page_size;

-- name: export_spans
-- Return the next spans that began in a month, by thread and span.
-- opens: spans.input
-- opens: spans.output
-- opens: spans.error_message
-- opens: spans.attributes
-- plan: at each call
SELECT s.thread_id, s.span_id, s.run_id, s.parent_span_id, s.kind, s.name, s.status, s.started_at, s.ended_at, s.agent,
    s.node, s.step, s.checkpoint_ns, s.checkpoint_id, s.provider, s.model, s.input_tokens, s.output_tokens,
    s.cache_read_tokens, s.reasoning_tokens, s.cost, s.tool_call_id, s.error_type,
    CASE WHEN :content::boolean THEN s.error_message END AS error_message,
    CASE WHEN :content THEN s.input::text END AS input, CASE WHEN :content THEN s.output::text END AS output,
    CASE WHEN :content THEN s.attributes::text END AS attributes
FROM /*schema*/spans s
WHERE s.started_at >= :first_at::timestamptz AND s.started_at < :last_at::timestamptz
    AND (s.thread_id, s.run_id, s.span_id) > (:cursor_thread::text, :cursor_run::text, :cursor_id::text)
ORDER BY s.thread_id, s.run_id, s.span_id LIMIT :page_size;

-- name: export_messages
-- Return the next messages that were stored in a month, by thread and message.
-- opens: messages.content
-- opens: messages.tool_calls
-- plan: at each call
SELECT m.thread_id, m.message_id, m.checkpoint_id, m.channel, m.checkpoint_ns, m.position, m.change, m.created_at,
    m.run_id, m.role, m.agent, m.tool_call_id, m.input_tokens, m.output_tokens,
    CASE WHEN :content::boolean THEN m.content END AS content, CASE WHEN :content THEN m.tool_calls::text END AS tool_calls
FROM /*schema*/messages m
WHERE m.created_at >= :first_at::timestamptz AND m.created_at < :last_at::timestamptz
    AND (m.thread_id, m.message_id, m.checkpoint_id, m.channel)
        > (:cursor_thread::text, :cursor_id::text, :cursor_checkpoint::text, :cursor_channel::text)
ORDER BY m.thread_id, m.message_id, m.checkpoint_id, m.channel LIMIT :page_size;

-- name: export_tool_executions
-- Return the next tool executions that began in a month, by thread and key.
-- opens: tool_executions.error_message
-- opens: tool_executions.arguments
-- opens: tool_executions.preview
-- plan: at each call
SELECT x.thread_id, x.idempotency_key, x.tool, x.status, x.attempt, x.agent, x.tool_call_id, x.run_id, x.checkpoint_ns,
    x.checkpoint_id, x.step, x.started_at, x.ended_at, x.error_type, x.compensates, x.compensated_at, x.is_copy,
    CASE WHEN :content::boolean THEN x.error_message END AS error_message,
    CASE WHEN :content THEN x.arguments::text END AS arguments, CASE WHEN :content THEN x.preview END AS preview
FROM /*schema*/tool_executions x
WHERE x.started_at >= :first_at::timestamptz AND x.started_at < :last_at::timestamptz
    AND (x.thread_id, x.idempotency_key) > (:cursor_thread::text, :cursor_id::text)
ORDER BY x.thread_id, x.idempotency_key LIMIT :page_size;

-- name: export_usage
-- Return model calls, tokens and costs of a month by day, agent, provider, model, tenant and user.
-- plan: at each call
SELECT c.day, c.agent, c.provider, c.model, c.tenant_id, c.user_id, count(*), sum(c.input_tokens)::bigint,
    sum(c.output_tokens)::bigint, sum(c.cache_read_tokens)::bigint, sum(c.reasoning_tokens)::bigint, sum(c.cost),
    count(*) FILTER (WHERE c.cost IS NULL)
FROM /*schema*/model_calls c
WHERE c.started_at >= :first_at::timestamptz AND c.started_at < :last_at::timestamptz
GROUP BY c.day, c.agent, c.provider, c.model, c.tenant_id, c.user_id
ORDER BY c.day, c.agent, c.provider, c.model, c.tenant_id, c.user_id;

-- name: digest_spans_of_month
-- Return the number of spans of a month, and the sum of the spans' hashes, which shows whether spans have changed. The
-- month has the form `2026_01`.
SELECT count(*), coalesce(sum(hash_record_extended(s, 0)), 0)::text
FROM (
    SELECT to_date(:month::text, 'YYYY_MM')::timestamp AT TIME ZONE 'UTC' AS first_at,
        (to_date(:month, 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC' AS last_at
) AS m, /*schema*/spans s
WHERE s.started_at >= m.first_at AND s.started_at < m.last_at;
