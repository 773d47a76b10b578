-- name: list_spans
-- Return a page of the spans of a thread, or of one of its runs, by start time, after a cursor.
-- opens: spans.input
-- opens: spans.output
-- opens: spans.error_message
-- opens: spans.attributes
SELECT s.thread_id, s.run_id, s.span_id, s.parent_span_id, s.kind, s.name, s.status, s.started_at, s.ended_at,
    s.checkpoint_ns, s.checkpoint_id, s.step, s.node, s.task_id, s.agent, s.provider, s.model, s.input_tokens,
    s.output_tokens, s.cache_read_tokens, s.reasoning_tokens, s.cost, s.tool_call_id, s.error_type, s.error_message,
    s.input, s.output, s.attributes
FROM /*schema*/spans s
WHERE s.thread_id = :thread_id::text
    AND (s.started_at, s.span_id) > (:cursor_started_at::timestamptz, :cursor_span::text)
    AND (:run_id::text IS NULL OR s.run_id = :run_id)
    AND (:kind::text IS NULL OR s.kind = :kind)
    AND (:name::text IS NULL OR s.name = :name)
    AND (:status::text IS NULL OR s.status = :status)
ORDER BY s.started_at, s.span_id
LIMIT :page_size;

-- name: list_spans_of_run
-- Return a page of one run's spans, by start time, after a cursor.
-- opens: spans.input
-- opens: spans.output
-- opens: spans.error_message
-- opens: spans.attributes
SELECT s.thread_id, s.run_id, s.span_id, s.parent_span_id, s.kind, s.name, s.status, s.started_at, s.ended_at,
    s.checkpoint_ns, s.checkpoint_id, s.step, s.node, s.task_id, s.agent, s.provider, s.model, s.input_tokens,
    s.output_tokens, s.cache_read_tokens, s.reasoning_tokens, s.cost, s.tool_call_id, s.error_type, s.error_message,
    s.input, s.output, s.attributes
FROM /*schema*/spans s
WHERE s.thread_id = :thread_id::text AND s.run_id = :run_id::text
    AND (s.started_at, s.span_id) > (:cursor_started_at::timestamptz, :cursor_span::text)
ORDER BY s.started_at, s.span_id
LIMIT :page_size;

-- name: list_superstep_spans
-- Return the spans of one superstep of a run, including nested spans, by start time.
-- opens: spans.input
-- opens: spans.output
-- opens: spans.error_message
-- opens: spans.attributes
WITH RECURSIVE inside AS (
    SELECT s.span_id FROM /*schema*/spans s
    WHERE s.thread_id = :thread_id::text AND s.run_id = :run_id::text
        AND (
            s.checkpoint_id = :parent_id::text
            OR s.checkpoint_id IS NULL AND s.step = :step::integer
                AND coalesce(s.checkpoint_ns, '') = :checkpoint_ns::text
        )
        AND (s.kind <> 'graph' OR s.parent_span_id IS NOT NULL)
    UNION
    SELECT s.span_id FROM inside i JOIN /*schema*/spans s
        ON s.thread_id = :thread_id AND s.run_id = :run_id AND s.parent_span_id = i.span_id
)
SELECT s.thread_id, s.run_id, s.span_id, s.parent_span_id, s.kind, s.name, s.status, s.started_at, s.ended_at,
    s.checkpoint_ns, s.checkpoint_id, s.step, s.node, s.task_id, s.agent, s.provider, s.model, s.input_tokens,
    s.output_tokens, s.cache_read_tokens, s.reasoning_tokens, s.cost, s.tool_call_id, s.error_type, s.error_message,
    s.input, s.output, s.attributes
FROM /*schema*/spans s
WHERE s.thread_id = :thread_id AND s.run_id = :run_id AND s.span_id IN (SELECT span_id FROM inside)
ORDER BY s.started_at, s.span_id;

-- name: list_superstep_executions
-- Return the tool executions of one superstep of a run. Each execution began from the checkpoint at which the superstep
-- started, or belongs to a tool call in `:tool_call_ids`.
-- opens: tool_executions.arguments
-- opens: tool_executions.preview
-- opens: tool_executions.error_message
SELECT e.thread_id, e.idempotency_key, e.tool, e.status, e.attempt, e.agent, e.tool_call_id, e.run_id, e.task_id,
    e.checkpoint_ns, e.checkpoint_id, e.step, e.holder_id, e.alive_until, e.started_at, e.ended_at, e.arguments,
    e.preview, e.error_type, e.error_message, e.compensates, e.compensated_at,
    e.origin_thread_id
FROM /*schema*/tool_executions e
WHERE e.thread_id = :thread_id::text AND e.run_id = :run_id::text
    AND (e.checkpoint_id = :parent_id::text OR e.tool_call_id = ANY(:tool_call_ids::text[]))
ORDER BY e.started_at, e.idempotency_key;

-- name: get_provenance
-- Return a checkpoint, or the newest of its namespace, with the run that made it. Also return the depth of the branch
-- that ends there, its nearest fork, its runs, and their cost.
-- opens: runs.input
-- opens: runs.output
-- opens: runs.error_message
-- opens: runs.error_traceback
-- opens: runs.metadata
WITH RECURSIVE lineage AS (
    SELECT c.checkpoint_id, c.parent_checkpoint_id, c.run_id, 0 AS depth FROM /*schema*/checkpoints c
    WHERE c.thread_id = :thread_id::text AND c.checkpoint_ns = :checkpoint_ns::text
        AND c.checkpoint_id = coalesce(:checkpoint_id::text, (
            SELECT h.checkpoint_id FROM /*schema*/checkpoints h
            WHERE h.thread_id = :thread_id AND h.checkpoint_ns = :checkpoint_ns
            ORDER BY h.checkpoint_id DESC LIMIT 1
        ))
    UNION ALL
    SELECT c.checkpoint_id, c.parent_checkpoint_id, c.run_id, l.depth + 1
    FROM lineage l JOIN /*schema*/checkpoints c
        ON c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = l.parent_checkpoint_id
    -- Damaged checkpoints can be their own ancestors.
    WHERE l.depth < (
        SELECT count(*) FROM /*schema*/checkpoints k WHERE k.thread_id = :thread_id AND k.checkpoint_ns = :checkpoint_ns
    )
), forks AS (
    SELECT c.parent_checkpoint_id FROM /*schema*/checkpoints c
    WHERE c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.parent_checkpoint_id IS NOT NULL
    GROUP BY c.parent_checkpoint_id HAVING count(*) > 1
), made_by AS (
    SELECT l.run_id, max(l.depth) AS first_depth FROM lineage l WHERE l.run_id IS NOT NULL GROUP BY l.run_id
)
SELECT c.checkpoint_id, c.parent_checkpoint_id, c.source, c.step, c.created_at, c.run_id,
    (SELECT max(l.depth) FROM lineage l),
    (
        SELECT l.checkpoint_id FROM lineage l JOIN forks f ON f.parent_checkpoint_id = l.checkpoint_id
        WHERE l.depth > 0 ORDER BY l.depth LIMIT 1
    ),
    (SELECT array_agg(m.run_id ORDER BY m.first_depth DESC) FROM made_by m),
    (
        SELECT coalesce(sum(r.cost), 0) FROM /*schema*/runs r
        WHERE r.thread_id = :thread_id AND r.run_id = ANY(ARRAY(SELECT m.run_id FROM made_by m))
    ),
    r.thread_id, r.run_id, r.attempt, r.status,
    coalesce(
        r.status = 'running' AND r.alive_until < now()
            OR r.status = 'error' AND r.error_type IN ('ProcessDied', 'WorkerDied'), false
    ),
    r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at, r.first_checkpoint_id, r.last_checkpoint_id, r.steps,
    r.input_tokens, r.output_tokens, r.cost, r.error_type, r.error_message, r.error_traceback, r.input, r.output,
    r.enqueued_at, r.multitask_strategy, r.metadata, r.release
FROM lineage h JOIN /*schema*/checkpoints c
    ON c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = h.checkpoint_id
    LEFT JOIN /*schema*/runs r ON r.thread_id = :thread_id AND r.run_id = c.run_id
WHERE h.depth = 0;

-- name: outline_spans
-- Return id, parent, times, status and usage of the spans of a run that started at a time or later, oldest first.
SELECT s.span_id, s.parent_span_id, s.started_at, s.ended_at, s.kind, s.status, s.input_tokens, s.output_tokens, s.cost
FROM /*schema*/spans s
WHERE s.thread_id = :thread_id::text AND s.run_id = :run_id::text AND s.started_at >= :since::timestamptz
ORDER BY s.started_at, s.span_id
LIMIT :page_size;

-- name: describe_spans
-- Return name, node, checkpoint, model and error of some spans of a run, without their contents.
-- opens: spans.error_message
SELECT s.span_id, s.started_at, s.name, s.node, s.step, s.checkpoint_ns, s.checkpoint_id, s.agent, s.provider, s.model,
    s.tool_call_id, s.error_type,
    CASE WHEN starts_with(s.error_message, 'pgs1:') THEN s.error_message ELSE left(s.error_message, 400) END AS error_message
FROM /*schema*/spans s
WHERE s.thread_id = :thread_id::text AND s.run_id = :run_id::text AND s.span_id = ANY(:span_ids::text[])
    AND s.started_at BETWEEN :first_at::timestamptz AND :last_at::timestamptz;

-- name: get_span
-- Return one span. If several attempts have a span of this id, return the newest.
-- opens: spans.input
-- opens: spans.output
-- opens: spans.error_message
-- opens: spans.attributes
SELECT s.thread_id, s.run_id, s.span_id, s.parent_span_id, s.kind, s.name, s.status, s.started_at, s.ended_at,
    s.checkpoint_ns, s.checkpoint_id, s.step, s.node, s.task_id, s.agent, s.provider, s.model, s.input_tokens,
    s.output_tokens, s.cache_read_tokens, s.reasoning_tokens, s.cost, s.tool_call_id, s.error_type, s.error_message,
    s.input, s.output, s.attributes
FROM /*schema*/spans s
WHERE s.thread_id = :thread_id::text AND s.run_id = :run_id::text AND s.span_id = :span_id::text
ORDER BY s.started_at DESC LIMIT 1;
