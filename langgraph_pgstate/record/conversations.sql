-- name: has_messages
-- Return whether messages of a thread's root namespace were recorded.
SELECT EXISTS (SELECT 1 FROM /*schema*/messages WHERE thread_id = :thread_id AND checkpoint_ns = '');

-- name: scan_conversations
-- Return a page of a thread's checkpoints of the root namespace, oldest first, after a cursor, with the names of the
-- DeltaChannels that have no snapshot there.
-- opens: checkpoints.state with checkpoint_ns = ''
-- leaves: checkpoints.metadata
SELECT c.checkpoint_id, c.parent_checkpoint_id, c.run_id, ARRAY(
        SELECT jsonb_object_keys(c.metadata -> 'counters_since_delta_snapshot')
        WHERE jsonb_typeof(c.metadata -> 'counters_since_delta_snapshot') = 'object'
    ), c.state, c.segment_ids
FROM /*schema*/checkpoints c
WHERE c.thread_id = :thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id > :cursor_id::text
ORDER BY c.checkpoint_id LIMIT :page_size;

-- name: find_present
-- Return which of the given checkpoints of the root namespace exist.
SELECT checkpoint_id FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = '' AND checkpoint_id = ANY(:checkpoint_ids::text[])
ORDER BY checkpoint_id;

-- name: hold_present
-- Return the rows of `find_present`, and lock these checkpoints against deletion until the transaction ends.
SELECT checkpoint_id FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = '' AND checkpoint_id = ANY(:checkpoint_ids::text[])
ORDER BY checkpoint_id
FOR KEY SHARE;

-- name: get_message_changes
-- Return the recorded messages of some checkpoints of the root namespace.
-- opens: messages.content
-- opens: messages.tool_calls
SELECT checkpoint_id, message_id, channel, change, position, role, agent, content, tool_calls, tool_call_id
FROM /*schema*/messages
WHERE thread_id = :thread_id AND checkpoint_ns = '' AND checkpoint_id = ANY(:checkpoint_ids::text[]);

-- name: infer_thread_status
-- Set the status of a thread without recorded runs to the status that follows from its newest checkpoint. An archived
-- thread keeps its status.
UPDATE /*schema*/threads AS t SET status = found.status
FROM (
    SELECT CASE WHEN bool_or(w.idx = -3) THEN 'interrupted' WHEN bool_or(w.idx = -1) THEN 'error' ELSE 'idle' END AS status
    FROM /*schema*/writes w
    WHERE w.thread_id = :thread_id AND w.checkpoint_ns = '' AND w.checkpoint_id = (
        SELECT h.checkpoint_id FROM /*schema*/checkpoints h
        WHERE h.thread_id = :thread_id AND h.checkpoint_ns = '' ORDER BY h.checkpoint_id DESC LIMIT 1
    ) AND NOT EXISTS (
        -- A task that has written its results is finished.
        SELECT 1 FROM /*schema*/writes d
        WHERE d.thread_id = :thread_id AND d.checkpoint_ns = '' AND d.checkpoint_id = w.checkpoint_id
            AND d.task_id = w.task_id AND d.idx >= 0
    )
) AS found
WHERE t.thread_id = :thread_id AND t.archived_at IS NULL AND t.status <> found.status
    AND NOT EXISTS (SELECT 1 FROM /*schema*/runs r WHERE r.thread_id = :thread_id);
