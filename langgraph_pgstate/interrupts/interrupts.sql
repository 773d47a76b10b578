-- name: scan_interrupts
-- Return a page of the interrupts of all threads, newest first, after a cursor, including answered interrupts.
SELECT thread_id, checkpoint_id, created_at, task_id FROM /*schema*/writes
WHERE idx = -3 AND checkpoint_ns = '' AND created_at <= :cursor_at::timestamptz
    AND (created_at < :cursor_at OR (thread_id, task_id) > (:cursor_thread::text, :cursor_task::text))
ORDER BY created_at DESC, thread_id, task_id
LIMIT :page_size;

-- name: get_interrupts
-- Return the open interrupts at some checkpoints, those of called tasks of the functional API ahead of their callers'.
-- An interrupt is open if the task is unfinished, and the checkpoint is the newest of the thread. Optional filters are
-- the thread's user, tenant, agent and metadata (`scope`).
-- opens: writes.data with checkpoint_ns = '', idx = -3 if intact
-- opens: threads.title
-- matches: threads.metadata from scope
SELECT w.thread_id, w.checkpoint_id, w.task_id, w.run_id, w.created_at, w.data, t.user_id, t.tenant_id, t.agent, t.title
FROM unnest(:thread_ids::text[], :checkpoint_ids::text[]) AS h (thread_id, checkpoint_id)
    JOIN /*schema*/writes w
        ON w.thread_id = h.thread_id AND w.checkpoint_ns = '' AND w.checkpoint_id = h.checkpoint_id AND w.idx = -3
    JOIN /*schema*/checkpoints c
        ON c.thread_id = w.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = w.checkpoint_id
    LEFT JOIN /*schema*/threads t ON t.thread_id = w.thread_id
WHERE (:user_id::text IS NULL OR t.user_id = :user_id)
    AND (:tenant_id::text IS NULL OR t.tenant_id = :tenant_id)
    AND (:agent::text IS NULL OR t.agent = :agent)
    AND (:scope::text[] IS NULL OR t.metadata @> ANY(:scope::text[]::jsonb[]))
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints n
        WHERE n.thread_id = w.thread_id AND n.checkpoint_ns = '' AND n.checkpoint_id > w.checkpoint_id
    ) AND NOT EXISTS (
        -- A task that has written its results is finished.
        SELECT 1 FROM /*schema*/writes d
        WHERE d.thread_id = w.thread_id AND d.checkpoint_ns = '' AND d.checkpoint_id = w.checkpoint_id
            AND d.task_id = w.task_id AND d.idx >= 0
    )
ORDER BY length(w.task_path) DESC, w.created_at, w.task_path, w.task_id;

-- name: get_head
-- Return the newest checkpoint of a thread's root namespace.
SELECT checkpoint_id FROM /*schema*/checkpoints WHERE thread_id = :thread_id::text AND checkpoint_ns = ''
ORDER BY checkpoint_id DESC LIMIT 1;

-- name: get_answered
-- Return the newest answer to an interrupt, and the last interrupt of the task, even if the thread has continued.
-- opens: writes.data with checkpoint_ns = '', idx = -3 if intact
-- opens: answers.value with checkpoint_ns = ''
SELECT a.checkpoint_id, a.task_id, a.answered_at, a.answered_by, a.value_type, a.value, a.is_default, r.run_id,
    w.run_id, w.created_at, w.data
FROM /*schema*/answers a
    -- A run that resumes with an answer has the answer's id.
    LEFT JOIN /*schema*/runs r ON r.thread_id = a.thread_id AND r.run_id = a.answer_id
    LEFT JOIN /*schema*/writes w
        ON w.thread_id = a.thread_id AND w.checkpoint_ns = a.checkpoint_ns AND w.checkpoint_id = a.checkpoint_id
        AND w.task_id = a.task_id AND w.idx = -3
WHERE a.thread_id = :thread_id::text AND a.checkpoint_ns = '' AND a.interrupt_id = :interrupt_id::text
ORDER BY a.checkpoint_id DESC LIMIT 1;

-- name: list_answered
-- Return the answers given at some checkpoints of a thread, oldest first, with the last interrupts of the tasks.
-- Answers of more than `most_bytes` are left out. Interrupts of more bytes are null.
-- opens: writes.data with checkpoint_ns = '', idx = -3 if intact
-- opens: answers.value with checkpoint_ns = ''
SELECT a.checkpoint_id, a.interrupt_id, a.task_id, a.answered_at, a.answered_by, a.value_type, a.value, a.is_default,
    r.run_id, w.run_id, w.created_at, CASE WHEN octet_length(w.data) <= :most_bytes::bigint THEN w.data END AS data
FROM /*schema*/answers a
    LEFT JOIN /*schema*/runs r ON r.thread_id = a.thread_id AND r.run_id = a.answer_id
    LEFT JOIN /*schema*/writes w
        ON w.thread_id = a.thread_id AND w.checkpoint_ns = a.checkpoint_ns AND w.checkpoint_id = a.checkpoint_id
        AND w.task_id = a.task_id AND w.idx = -3
WHERE a.thread_id = :thread_id::text AND a.checkpoint_ns = '' AND a.checkpoint_id = ANY(:checkpoint_ids::text[])
    AND octet_length(a.value) <= :most_bytes
ORDER BY a.answered_at, a.interrupt_id;
