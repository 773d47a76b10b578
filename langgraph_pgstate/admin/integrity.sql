-- name: list_visited_thread_ids
-- Return a page of the ids of all threads that have a row in any table, in order, after a cursor.
(SELECT thread_id FROM /*schema*/threads WHERE thread_id > :cursor_id::text ORDER BY thread_id LIMIT :page_size)
UNION
(SELECT DISTINCT thread_id FROM /*schema*/checkpoints WHERE thread_id > :cursor_id ORDER BY thread_id LIMIT :page_size)
UNION
(SELECT DISTINCT thread_id FROM /*schema*/segments WHERE thread_id > :cursor_id ORDER BY thread_id LIMIT :page_size)
UNION
(SELECT DISTINCT thread_id FROM /*schema*/writes WHERE thread_id > :cursor_id ORDER BY thread_id LIMIT :page_size)
UNION
(SELECT DISTINCT thread_id FROM /*schema*/tool_executions WHERE thread_id > :cursor_id ORDER BY thread_id
    LIMIT :page_size)
UNION
(SELECT DISTINCT thread_id FROM /*schema*/run_requests WHERE thread_id > :cursor_id ORDER BY thread_id LIMIT :page_size)
ORDER BY thread_id LIMIT :page_size;

-- name: scan_checkpoints
-- Return a page of a thread's checkpoints of all namespaces, in key order, after a cursor.
-- opens: checkpoints.state if intact
-- opens: checkpoints.metadata if intact
SELECT checkpoint_ns, checkpoint_id, metadata::text, state, segment_ids FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND (checkpoint_ns, checkpoint_id) > (:cursor_ns::text, :cursor_id::text)
ORDER BY checkpoint_ns, checkpoint_id
LIMIT :page_size;

-- name: scan_segments
-- Return segments of a thread after a cursor: at most `max_bytes`, but at least one segment.
-- opens: segments.data if intact
SELECT segment_id, data FROM (
    SELECT segment_id, data,
        sum(octet_length(data)) OVER (ORDER BY segment_id) - octet_length(data) AS bytes_before
    FROM /*schema*/segments
    WHERE thread_id = :thread_id AND segment_id = ANY(:segment_ids::integer[]) AND segment_id > :cursor_id::integer
) AS found
WHERE bytes_before < :max_bytes::bigint
ORDER BY segment_id;

-- name: count_segments
-- Return the number of segments of a thread.
SELECT count(*) FROM /*schema*/segments WHERE thread_id = :thread_id;

-- name: scan_writes
-- Return a page of a thread's rows of pending writes, in key order, after a cursor, and whether their checkpoint is
-- missing.
-- opens: writes.data if intact
SELECT checkpoint_ns, checkpoint_id, task_id, idx, data, NOT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints c
    WHERE c.thread_id = :thread_id AND c.checkpoint_ns = writes.checkpoint_ns AND c.checkpoint_id = writes.checkpoint_id
)
FROM /*schema*/writes
WHERE thread_id = :thread_id
    AND (checkpoint_ns, checkpoint_id, task_id, idx)
        > (:cursor_ns::text, :cursor_id::text, :cursor_task::text, :cursor_idx::integer)
ORDER BY checkpoint_ns, checkpoint_id, task_id, idx
LIMIT :page_size;

-- name: scan_answers
-- Return a page of a thread's answers, in key order, after a cursor.
-- opens: answers.value if intact
SELECT checkpoint_ns, checkpoint_id, interrupt_id, value_type, value FROM /*schema*/answers
WHERE thread_id = :thread_id
    AND (checkpoint_ns, checkpoint_id, interrupt_id) > (:cursor_ns::text, :cursor_id::text, :cursor_interrupt::text)
ORDER BY checkpoint_ns, checkpoint_id, interrupt_id
LIMIT :page_size;

-- name: scan_feedback
-- Return a page of a thread's encoded comments on runs, in key order, after a cursor.
-- opens: feedback.value if intact
SELECT run_id, feedback_id, value_type, value FROM /*schema*/feedback
WHERE thread_id = :thread_id AND value_type IS NOT NULL
    AND (run_id, feedback_id) > (:cursor_run::text, :cursor_id::text)
ORDER BY run_id, feedback_id
LIMIT :page_size;

-- name: scan_requests
-- Return a page of the requests of a thread's enqueued runs, in key order, after a cursor.
-- opens: run_requests.data if intact
SELECT run_id, data, options::text FROM /*schema*/run_requests
WHERE thread_id = :thread_id AND run_id > :cursor_run::text
ORDER BY run_id
LIMIT :page_size;

-- name: scan_results
-- Return a page of the results of a thread's tool executions, in key order, after a cursor.
-- opens: tool_executions.result if intact
SELECT idempotency_key, result_type, result FROM /*schema*/tool_executions
WHERE thread_id = :thread_id AND idempotency_key > :cursor_key::text
    AND result_type IS NOT NULL AND result IS NOT NULL
ORDER BY idempotency_key
LIMIT :page_size;
