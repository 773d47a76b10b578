-- name: is_thread_used
-- Return the reason why a thread is in use: its lease is held, or a run or a tool of it is running; no row if it is not
-- in use.
SELECT 'its lease is held' FROM /*schema*/leases l
WHERE l.thread_id = :thread_id::text AND l.holder_id IS NOT NULL AND l.expires_at > now()
UNION ALL
SELECT 'a run of it is running' FROM /*schema*/runs r
WHERE r.thread_id = :thread_id AND r.status = 'running' AND r.alive_until > now()
UNION ALL
SELECT 'a worker runs it' FROM /*schema*/queue q WHERE q.thread_id = :thread_id AND q.status = 'running'
UNION ALL
-- A tool may outlive its run. Its result is stored when it ends.
SELECT 'a tool of it is running' FROM /*schema*/tool_executions e
WHERE e.thread_id = :thread_id AND e.status = 'running' AND e.alive_until > now()
LIMIT 1;

-- name: lock_all_checkpoints
-- Lock all checkpoints of a thread until the transaction ends. Wait until puts that inherit from the checkpoints end.
SELECT 1 FROM /*schema*/checkpoints c WHERE c.thread_id = :thread_id::text
ORDER BY c.checkpoint_ns, c.checkpoint_id
FOR UPDATE;

-- name: redact_checkpoint
-- Replace a checkpoint's state and metadata by redacted versions. Because of the new revision, processes that cache the
-- checkpoint read it again.
-- seals: checkpoints.state
-- seals: checkpoints.metadata
UPDATE /*schema*/checkpoints SET state = :state::bytea, metadata = :metadata::text::jsonb, revision = :revision::bigint
WHERE thread_id = :thread_id::text AND checkpoint_ns = :checkpoint_ns::text AND checkpoint_id = :checkpoint_id::text;

-- name: renew_revisions
-- Give new revisions to checkpoints with some segments, so that processes that cache the checkpoints read them again.
UPDATE /*schema*/checkpoints SET revision = :revision::bigint
WHERE thread_id = :thread_id::text AND segment_ids && :segment_ids::integer[];

-- name: redact_segment
-- Replace the content of a segment by redacted content.
-- seals: segments.data
UPDATE /*schema*/segments SET data = :data::bytea
WHERE thread_id = :thread_id::text AND segment_id = :segment_id::integer;

-- name: redact_write
-- Replace pending writes by redacted writes.
-- seals: writes.data
UPDATE /*schema*/writes SET data = :data::bytea
WHERE thread_id = :thread_id::text AND checkpoint_ns = :checkpoint_ns::text AND checkpoint_id = :checkpoint_id::text
    AND task_id = :task_id::text AND idx = :idx::integer;

-- name: list_stored_bytes
-- Return encoded values of a thread, each with its key: answers, results of tools, and requests of runs.
-- opens: answers.value with checkpoint_ns = key.0, checkpoint_id = key.1, interrupt_id = key.2 of name answers
-- opens: tool_executions.result from value with idempotency_key = key.0 of name tool_executions
-- opens: run_requests.data from value with run_id = key.0 of name run_requests
SELECT 'answers' AS name, jsonb_build_array(a.checkpoint_ns, a.checkpoint_id, a.interrupt_id) AS key, a.value_type, a.value
FROM /*schema*/answers a WHERE a.thread_id = :thread_id::text
UNION ALL
SELECT 'tool_executions', jsonb_build_array(e.idempotency_key), e.result_type, e.result
FROM /*schema*/tool_executions e WHERE e.thread_id = :thread_id AND e.result IS NOT NULL
UNION ALL
SELECT 'run_requests', jsonb_build_array(r.run_id), 'frame', r.data
FROM /*schema*/run_requests r WHERE r.thread_id = :thread_id;

-- name: redact_answer
-- Replace the value of an answer.
-- seals: answers.value from data with checkpoint_ns = key.0, checkpoint_id = key.1, interrupt_id = key.2
UPDATE /*schema*/answers SET value = :data::bytea
WHERE thread_id = :thread_id::text AND checkpoint_ns = :key::jsonb ->> 0 AND checkpoint_id = :key::jsonb ->> 1
    AND interrupt_id = :key::jsonb ->> 2;

-- name: redact_result
-- Replace the result of a tool.
-- seals: tool_executions.result from data with idempotency_key = key.0
UPDATE /*schema*/tool_executions SET result = :data::bytea
WHERE thread_id = :thread_id::text AND idempotency_key = :key::jsonb ->> 0;

-- name: redact_request
-- Replace the request of a run.
-- seals: run_requests.data with run_id = key.0
UPDATE /*schema*/run_requests SET data = :data::bytea
WHERE thread_id = :thread_id::text AND run_id = :key::jsonb ->> 0;

-- name: list_stored_json
-- Return a page of the content of a thread's other rows as JSON, by table, with the key of each row.
-- opens: threads.title from content.title of name threads
-- opens: threads.metadata from content.metadata of name threads
-- opens: projections.state from content of name projections
-- opens: events.payload from content with kind = key.1 of name events
-- opens: runs.input from content.input with run_id = key.0 of name runs
-- opens: runs.output from content.output with run_id = key.0 of name runs
-- opens: runs.error_message from content.error_message with run_id = key.0 of name runs
-- opens: runs.error_traceback from content.error_traceback with run_id = key.0 of name runs
-- opens: runs.metadata from content.metadata with run_id = key.0 of name runs
-- opens: runs.error_message from content.error_message with run_id = key.0 of name webhooks
-- opens: runs.metadata from content.metadata with run_id = key.0 of name webhooks
-- opens: spans.input from content.input with run_id = key.0, span_id = key.1 of name spans
-- opens: spans.output from content.output with run_id = key.0, span_id = key.1 of name spans
-- opens: spans.error_message from content.error_message with run_id = key.0, span_id = key.1 of name spans
-- opens: spans.attributes from content.attributes with run_id = key.0, span_id = key.1 of name spans
-- opens: feedback.comment from content.comment with run_id = key.0, feedback_id = key.1 of name feedback
-- opens: tool_executions.arguments from content.arguments with idempotency_key = key.0 of name tool_executions
-- opens: tool_executions.preview from content.preview with idempotency_key = key.0 of name tool_executions
-- opens: tool_executions.error_message from content.error_message with idempotency_key = key.0 of name tool_executions
SELECT s.name, s.key, s.content, s.key::text FROM (
    SELECT 'threads' AS name, '[]'::jsonb AS key,
        jsonb_build_object('title', t.title, 'metadata', t.metadata) AS content
    FROM /*schema*/threads t WHERE t.thread_id = :thread_id::text
    UNION ALL
    SELECT 'projections', '[]', p.state FROM /*schema*/projections p WHERE p.thread_id = :thread_id
    UNION ALL
    SELECT 'events', jsonb_build_array(v.event_id, v.kind), v.payload FROM /*schema*/events v WHERE v.thread_id = :thread_id
    UNION ALL
    SELECT 'runs', jsonb_build_array(r.run_id), jsonb_build_object(
        'input', r.input, 'output', r.output, 'metadata', r.metadata, 'error_message', r.error_message,
        'error_traceback', r.error_traceback
    ) FROM /*schema*/runs r WHERE r.thread_id = :thread_id
    UNION ALL
    SELECT 'spans', jsonb_build_array(n.run_id, n.span_id, n.started_at), jsonb_build_object(
        'input', n.input, 'output', n.output, 'attributes', n.attributes, 'error_message', n.error_message
    ) FROM /*schema*/spans n WHERE n.thread_id = :thread_id
    UNION ALL
    SELECT 'tool_executions', jsonb_build_array(e.idempotency_key), jsonb_build_object(
        'arguments', e.arguments, 'preview', e.preview, 'error_message', e.error_message
    ) FROM /*schema*/tool_executions e WHERE e.thread_id = :thread_id
    UNION ALL
    SELECT 'feedback', jsonb_build_array(f.run_id, f.feedback_id), jsonb_build_object('comment', f.comment)
    FROM /*schema*/feedback f WHERE f.thread_id = :thread_id AND f.comment IS NOT NULL
    UNION ALL
    SELECT 'labels', jsonb_build_array(l.checkpoint_ns, l.checkpoint_id), jsonb_build_object('label', l.label)
    FROM /*schema*/labels l WHERE l.thread_id = :thread_id
    UNION ALL
    SELECT 'webhooks', jsonb_build_array(w.run_id, w.ended_at), w.run FROM /*schema*/webhooks w
    WHERE w.thread_id = :thread_id
) AS s
WHERE (s.name COLLATE "C", s.key::text COLLATE "C") > (:cursor_name::text, :cursor_key::text)
ORDER BY s.name COLLATE "C", s.key::text COLLATE "C" LIMIT :page_size;

-- name: redact_thread_row
-- Replace title and metadata of a thread.
-- seals: threads.title from content.title
-- seals: threads.metadata from content.metadata
UPDATE /*schema*/threads SET title = :content::jsonb ->> 'title', metadata = :content::jsonb -> 'metadata'
WHERE thread_id = :thread_id::text AND jsonb_array_length(:key::jsonb) = 0;

-- name: redact_projection
-- Replace the readable channels of a thread.
-- seals: projections.state from content
UPDATE /*schema*/projections SET state = :content::jsonb
WHERE thread_id = :thread_id::text AND jsonb_array_length(:key::jsonb) = 0;

-- name: redact_event
-- Replace the details of an event.
-- seals: events.payload from content with kind = key.1
UPDATE /*schema*/events SET payload = :content::jsonb
WHERE thread_id = :thread_id::text AND event_id = :key::jsonb ->> 0;

-- name: redact_run
-- Replace the input, output and error of a run.
-- seals: runs.input from content.input with run_id = key.0
-- seals: runs.output from content.output with run_id = key.0
-- seals: runs.error_message from content.error_message with run_id = key.0
-- seals: runs.error_traceback from content.error_traceback with run_id = key.0
-- seals: runs.metadata from content.metadata with run_id = key.0
UPDATE /*schema*/runs SET
    input = nullif(:content::jsonb -> 'input', 'null'), output = nullif(:content::jsonb -> 'output', 'null'),
    metadata = nullif(:content::jsonb -> 'metadata', 'null'), error_message = :content::jsonb ->> 'error_message',
    error_traceback = :content::jsonb ->> 'error_traceback'
WHERE thread_id = :thread_id::text AND run_id = :key::jsonb ->> 0;

-- name: redact_span
-- Replace the input, output and error of a span.
-- seals: spans.input from content.input with run_id = key.0, span_id = key.1
-- seals: spans.output from content.output with run_id = key.0, span_id = key.1
-- seals: spans.error_message from content.error_message with run_id = key.0, span_id = key.1
-- seals: spans.attributes from content.attributes with run_id = key.0, span_id = key.1
UPDATE /*schema*/spans SET
    input = nullif(:content::jsonb -> 'input', 'null'), output = nullif(:content::jsonb -> 'output', 'null'),
    attributes = :content::jsonb -> 'attributes', error_message = :content::jsonb ->> 'error_message'
WHERE thread_id = :thread_id::text AND run_id = :key::jsonb ->> 0 AND span_id = :key::jsonb ->> 1
    AND started_at = (:key::jsonb ->> 2)::timestamptz;

-- name: redact_execution
-- Replace the arguments, preview and error of a tool execution.
-- seals: tool_executions.arguments from content.arguments with idempotency_key = key.0
-- seals: tool_executions.preview from content.preview with idempotency_key = key.0
-- seals: tool_executions.error_message from content.error_message with idempotency_key = key.0
UPDATE /*schema*/tool_executions SET
    arguments = :content::jsonb -> 'arguments', preview = :content::jsonb ->> 'preview',
    error_message = :content::jsonb ->> 'error_message'
WHERE thread_id = :thread_id::text AND idempotency_key = :key::jsonb ->> 0;

-- name: redact_feedback
-- Replace a comment.
-- seals: feedback.comment from content.comment with run_id = key.0, feedback_id = key.1
UPDATE /*schema*/feedback SET comment = :content::jsonb ->> 'comment'
WHERE thread_id = :thread_id::text AND run_id = :key::jsonb ->> 0 AND feedback_id = :key::jsonb ->> 1;

-- name: redact_label
-- Replace the name of a checkpoint.
UPDATE /*schema*/labels SET label = :content::jsonb ->> 'label'
WHERE thread_id = :thread_id::text AND checkpoint_ns = :key::jsonb ->> 0 AND checkpoint_id = :key::jsonb ->> 1;

-- name: redact_webhook
-- Replace the content of a webhook.
-- seals: runs.error_message from content.error_message with run_id = key.0
-- seals: runs.metadata from content.metadata with run_id = key.0
UPDATE /*schema*/webhooks SET run = :content::jsonb
WHERE thread_id = :thread_id::text AND run_id = :key::jsonb ->> 0 AND ended_at = (:key::jsonb ->> 1)::timestamptz;

-- name: list_message_versions
-- Return a page of the recorded versions of some or all messages of a thread, in order.
-- opens: messages.content
-- opens: messages.tool_calls
SELECT m.message_id, m.checkpoint_id, m.channel, m.content, m.tool_calls, m.role, m.agent FROM /*schema*/messages m
WHERE m.thread_id = :thread_id::text AND (:all::boolean OR m.message_id = ANY(:message_ids::text[]))
    AND (m.message_id, m.checkpoint_id, m.channel) > (:cursor_id::text, :cursor_checkpoint::text, :cursor_channel::text)
ORDER BY m.message_id, m.checkpoint_id, m.channel LIMIT :page_size;

-- name: redact_message
-- Replace a recorded version of a message.
-- seals: messages.content
-- seals: messages.tool_calls
UPDATE /*schema*/messages SET content = :content::text, tool_calls = :tool_calls::text::jsonb, agent = :agent::text
WHERE thread_id = :thread_id::text AND message_id = :message_id::text AND checkpoint_id = :checkpoint_id::text
    AND channel = :channel::text;

-- name: list_messages_of_user
-- Return the runs of a user on a thread, each with the messages that the run has added, and its input.
-- opens: runs.input if intact
SELECT r.run_id, ARRAY(
    SELECT DISTINCT m.message_id FROM /*schema*/messages m
    WHERE m.thread_id = :thread_id::text AND m.run_id = r.run_id AND m.change <> 'removed'
), r.input
FROM /*schema*/runs r WHERE r.thread_id = :thread_id AND r.user_id = :user_id::text;

-- name: end_deleted_runs
-- End runs that were deleted from the queue.
UPDATE /*schema*/runs SET status = 'cancelled', ended_at = now()
WHERE thread_id = :thread_id::text AND run_id = ANY(:run_ids::text[]) AND status IN ('pending', 'running');

-- name: clear_runs
-- Remove the owner and the content of some runs of a thread, with their feedback and webhooks.
-- leaves: runs.error_message
-- leaves: runs.error_traceback
-- leaves: runs.input
-- leaves: runs.metadata
-- leaves: runs.output
WITH commented AS (
    DELETE FROM /*schema*/feedback WHERE thread_id = :thread_id::text AND run_id = ANY(:run_ids::text[])
), told AS (
    DELETE FROM /*schema*/webhooks WHERE thread_id = :thread_id AND run_id = ANY(:run_ids)
)
UPDATE /*schema*/runs SET
    user_id = NULL, input = NULL, output = NULL, metadata = NULL, webhook = NULL, error_message = NULL,
    error_traceback = NULL, key = NULL
WHERE thread_id = :thread_id AND run_id = ANY(:run_ids);

-- name: clear_spans
-- Remove the content of the spans of some runs.
-- leaves: spans.attributes
-- leaves: spans.error_message
-- leaves: spans.input
-- leaves: spans.output
UPDATE /*schema*/spans SET input = NULL, output = NULL, attributes = '{}', error_message = NULL
WHERE thread_id = :thread_id::text AND run_id = ANY(:run_ids::text[]);

-- name: clear_executions
-- Remove arguments and results of a thread's tool executions: executions of some runs, or all inherited executions.
-- Actions keep their status, so that they are not run again.
-- leaves: tool_executions.arguments
-- leaves: tool_executions.result
-- leaves: tool_executions.preview
-- leaves: tool_executions.error_message
UPDATE /*schema*/tool_executions SET
    arguments = '{}', preview = NULL, error_message = NULL, result = NULL,
    result_type = CASE WHEN result_type IS NOT NULL THEN 'none/erased' END
WHERE thread_id = :thread_id::text AND (run_id = ANY(:run_ids::text[]) OR :inherited::boolean AND is_copy);

-- name: list_payloads_of_runs
-- Return the events with content of some runs of a thread.
SELECT v.event_id FROM /*schema*/events v
WHERE v.thread_id = :thread_id::text AND v.run_id = ANY(:run_ids::text[]) AND v.kind NOT IN ('status', 'fork', 'prune')
ORDER BY v.event_id;

-- name: clear_events
-- Remove the details of some events.
-- leaves: events.payload
UPDATE /*schema*/events SET payload = '{"erased": true}'
WHERE thread_id = :thread_id::text AND event_id = ANY(:event_ids::text[]);

-- name: clear_inherited
-- Remove inherited answers, the pending writes that resume interrupts with them, labels and the source's title from a
-- fork or copy.
-- leaves: threads.title
WITH answered AS (
    DELETE FROM /*schema*/answers a WHERE a.thread_id = :thread_id::text AND EXISTS (
        SELECT 1 FROM /*schema*/checkpoints c
        WHERE c.thread_id = :thread_id AND c.checkpoint_ns = a.checkpoint_ns AND c.checkpoint_id = a.checkpoint_id
            AND c.is_copy
    )
), resumed AS (
    DELETE FROM /*schema*/writes w WHERE w.thread_id = :thread_id AND w.idx = -4 AND w.is_copy
), labelled AS (
    DELETE FROM /*schema*/labels l WHERE l.thread_id = :thread_id AND EXISTS (
        SELECT 1 FROM /*schema*/labels o
        WHERE o.thread_id = :source_id::text AND o.checkpoint_ns = l.checkpoint_ns AND o.checkpoint_id = l.checkpoint_id
            AND o.label = l.label
    )
)
UPDATE /*schema*/threads t SET title = NULL
WHERE t.thread_id = :thread_id AND (
    t.title = (SELECT s.title FROM /*schema*/threads s WHERE s.thread_id = :source_id)
    -- Encrypted titles cannot be compared.
    OR starts_with(t.title, 'pgs1:')
);
