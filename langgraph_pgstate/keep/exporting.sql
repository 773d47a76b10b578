-- name: export_thread_rows
-- Return a page of the rows of a thread as JSON, by table, without encoded values. A value that cannot be read is
-- replaced by its error.
-- leaves: checkpoints.state
-- opens: threads.title from content.title of name threads or error
-- opens: threads.metadata from content.metadata of name threads or error
-- opens: checkpoints.metadata from content.metadata of name checkpoints or error
-- opens: messages.content from content.content of name messages or error
-- opens: messages.tool_calls from content.tool_calls of name messages or error
-- opens: runs.input from content.input of name runs or error
-- opens: runs.output from content.output of name runs or error
-- opens: runs.error_message from content.error_message of name runs or error
-- opens: runs.error_traceback from content.error_traceback of name runs or error
-- opens: runs.metadata from content.metadata of name runs or error
-- opens: feedback.comment from content.comment of name feedback or error
-- opens: spans.input from content.input of name spans or error
-- opens: spans.output from content.output of name spans or error
-- opens: spans.error_message from content.error_message of name spans or error
-- opens: spans.attributes from content.attributes of name spans or error
-- opens: events.payload from content.payload of name events or error
-- opens: projections.state from content.state of name projections or error
-- opens: tool_executions.fingerprint from content.fingerprint of name tool_executions or error
-- opens: tool_executions.arguments from content.arguments of name tool_executions or error
-- opens: tool_executions.preview from content.preview of name tool_executions or error
-- opens: tool_executions.error_message from content.error_message of name tool_executions or error
-- opens: runs.error_message from content.run.error_message of name webhooks or error
-- opens: runs.metadata from content.run.metadata of name webhooks or error
SELECT s.name, s.key, s.content FROM (
    SELECT 'threads' AS name, '' AS key, to_jsonb(t) AS content
    FROM /*schema*/threads t WHERE t.thread_id = :thread_id::text
    UNION ALL
    SELECT 'checkpoints', c.checkpoint_ns || ' ' || c.checkpoint_id, to_jsonb(c) - 'state'::text - 'segment_ids'::text - 'revision'::text
    FROM /*schema*/checkpoints c WHERE c.thread_id = :thread_id
    UNION ALL
    SELECT 'labels', l.checkpoint_ns || ' ' || l.checkpoint_id, to_jsonb(l)
    FROM /*schema*/labels l WHERE l.thread_id = :thread_id
    UNION ALL
    SELECT 'messages', m.checkpoint_id || ' ' || m.channel || ' ' || m.message_id, to_jsonb(m)
    FROM /*schema*/messages m WHERE m.thread_id = :thread_id
    UNION ALL
    SELECT 'answers', a.checkpoint_id || ' ' || a.interrupt_id, to_jsonb(a) - 'value'::text
    FROM /*schema*/answers a WHERE a.thread_id = :thread_id
    UNION ALL
    SELECT 'runs', r.run_id, to_jsonb(r) FROM /*schema*/runs r WHERE r.thread_id = :thread_id
    UNION ALL
    SELECT 'feedback', f.run_id || ' ' || f.feedback_id, to_jsonb(f) - 'value'::text
    FROM /*schema*/feedback f WHERE f.thread_id = :thread_id
    UNION ALL
    SELECT 'spans', n.run_id || ' ' || n.span_id || ' ' || n.started_at, to_jsonb(n)
    FROM /*schema*/spans n WHERE n.thread_id = :thread_id
    UNION ALL
    SELECT 'tool_executions', e.idempotency_key, to_jsonb(e) - 'result'::text
    FROM /*schema*/tool_executions e WHERE e.thread_id = :thread_id
    UNION ALL
    SELECT 'events', v.event_id, to_jsonb(v) FROM /*schema*/events v WHERE v.thread_id = :thread_id
    UNION ALL
    SELECT 'projections', '', to_jsonb(p) FROM /*schema*/projections p WHERE p.thread_id = :thread_id
    UNION ALL
    SELECT 'queue', q.run_id, to_jsonb(q) FROM /*schema*/queue q WHERE q.thread_id = :thread_id
    UNION ALL
    SELECT 'webhooks', w.run_id || ' ' || w.ended_at, to_jsonb(w) FROM /*schema*/webhooks w WHERE w.thread_id = :thread_id
) AS s
WHERE (s.name COLLATE "C", s.key COLLATE "C") > (:cursor_name::text, :cursor_key::text)
ORDER BY s.name COLLATE "C", s.key COLLATE "C" LIMIT :page_size;

-- name: export_user_rows
-- Return a page of a user's rows outside of threads, or in other users' threads, as JSON, by table. `is_encoded` is
-- true for the newest version of a file, if the version has content. A value that cannot be read is replaced by its
-- error.
-- opens: feedback.comment from content.comment of name feedback or error
-- opens: events.payload from content.payload of name events or error
-- opens: runs.input from content.input of name runs or error
-- opens: runs.output from content.output of name runs or error
-- opens: runs.error_message from content.error_message of name runs or error
-- opens: runs.error_traceback from content.error_traceback of name runs or error
-- opens: runs.metadata from content.metadata of name runs or error
-- opens: messages.content from content.content of name messages or error
-- opens: messages.tool_calls from content.tool_calls of name messages or error
-- leaves: file_texts.content
-- leaves: file_versions.data
-- opens: schedules.metadata from content.metadata of name schedules or error
-- opens: assistant_versions.description from content.description of name assistants or error
-- opens: assistant_versions.metadata from content.metadata of name assistants or error
-- opens: memories.value from content.value of name memories or error
-- opens: memory_versions.value from content.value of name memory_versions or error
-- leaves: memories.words
-- leaves: memories.digest
SELECT s.name, s.key, s.content FROM (
    SELECT 'memories' AS name, o.namespace::text || ' ' || o.key AS key,
        to_jsonb(o) - 'words'::text AS content
    FROM /*schema*/memories o
    WHERE o.user_id = :user_id::text OR o.user_id IS NULL AND (/*is_of_user*/true OR o.thread_id IN (
        SELECT t.thread_id FROM /*schema*/threads t WHERE t.user_id = :user_id
    ))
    UNION ALL
    SELECT 'memory_versions', o.namespace::text || ' ' || o.key || ' ' || o.version, to_jsonb(o)
    FROM /*schema*/memory_versions o
    WHERE o.user_id = :user_id OR o.user_id IS NULL AND (/*is_of_user*/true OR o.thread_id IN (
        SELECT t.thread_id FROM /*schema*/threads t WHERE t.user_id = :user_id
    ))
    UNION ALL
    SELECT 'file_versions', o.namespace::text || ' ' || o.path || ' ' || o.version,
        to_jsonb(o) - 'data'::text || jsonb_build_object('content', CASE WHEN o.version = n.version THEN (
            SELECT x.content FROM /*schema*/file_texts x
            WHERE x.namespace OPERATOR(pg_catalog.=) o.namespace AND x.path = o.path
        ) END, 'is_encoded', o.version = n.version AND o.data IS NOT NULL)
    FROM /*schema*/file_versions o
        LEFT JOIN /*schema*/files n ON n.namespace OPERATOR(pg_catalog.=) o.namespace AND n.path = o.path
    WHERE /*is_of_user*/true
    UNION ALL
    SELECT 'schedules', c.name, to_jsonb(c) - 'data'::text FROM /*schema*/schedules c
    WHERE c.owner_id = :user_id OR c.options -> 'owner' ->> 'user_id' = :user_id
    UNION ALL
    SELECT 'assistants', a.assistant_id || ' ' || v.version, to_jsonb(v) - 'data'::text
    FROM /*schema*/assistants a JOIN /*schema*/assistant_versions v ON v.assistant_id = a.assistant_id
    WHERE a.owner_id = :user_id
    UNION ALL
    SELECT 'budgets', b.scope, to_jsonb(b) FROM /*schema*/budgets b
    WHERE b.name = :user_id AND b.scope IN ('user', 'key')
    UNION ALL
    SELECT 'retention_policies', p.name, to_jsonb(p) FROM /*schema*/retention_policies p WHERE p.user_id = :user_id
    UNION ALL
    SELECT 'queue_limits', l.queue, to_jsonb(l) FROM /*schema*/queue_limits l WHERE l.key = :user_id
    UNION ALL
    SELECT 'feedback', f.thread_id || ' ' || f.run_id || ' ' || f.feedback_id, to_jsonb(f) - 'value'::text
    FROM /*schema*/feedback f WHERE f.created_by = :user_id
    UNION ALL
    SELECT 'answers', a.thread_id || ' ' || a.checkpoint_id || ' ' || a.interrupt_id, to_jsonb(a) - 'value'::text
    FROM /*schema*/answers a WHERE a.answered_by = :user_id
    UNION ALL
    SELECT 'events', v.thread_id || ' ' || v.event_id, to_jsonb(v) FROM /*schema*/events v
    WHERE v.kind IN ('action', 'answer') AND v.payload ->> 'by' = :user_id
    UNION ALL
    -- Leave out the output, which has content of other users.
    SELECT 'runs', r.thread_id || ' ' || r.run_id, to_jsonb(r) - 'output'::text
    FROM /*schema*/runs r LEFT JOIN /*schema*/threads t ON t.thread_id = r.thread_id
    WHERE r.user_id = :user_id AND t.user_id IS DISTINCT FROM :user_id
    UNION ALL
    SELECT 'messages', m.thread_id || ' ' || m.checkpoint_id || ' ' || m.channel || ' ' || m.message_id, to_jsonb(m)
    FROM /*schema*/runs r LEFT JOIN /*schema*/threads t ON t.thread_id = r.thread_id
        JOIN /*schema*/messages m ON m.thread_id = r.thread_id AND m.run_id = r.run_id
    WHERE r.user_id = :user_id AND t.user_id IS DISTINCT FROM :user_id
) AS s
WHERE (s.name COLLATE "C", s.key COLLATE "C") > (:cursor_name::text, :cursor_key::text)
ORDER BY s.name COLLATE "C", s.key COLLATE "C" LIMIT :page_size;
