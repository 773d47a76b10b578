-- name: delete_thread
-- Removes the rows of some threads, all but their segments; answers how many threads, checkpoints and writes went, and their bytes.
WITH gone AS (
    DELETE FROM /*schema*/checkpoints WHERE thread_id = ANY(:thread_ids::text[])
    RETURNING thread_id, octet_length(state) AS bytes
), gone_writes AS (
    DELETE FROM /*schema*/writes WHERE thread_id = ANY(:thread_ids::text[])
    RETURNING thread_id, octet_length(data) AS bytes
), gone_threads AS (
    DELETE FROM /*schema*/threads WHERE thread_id = ANY(:thread_ids::text[])
    RETURNING thread_id
)
SELECT
    (SELECT count(*) FROM (
        SELECT thread_id FROM gone_threads UNION SELECT thread_id FROM gone UNION SELECT thread_id FROM gone_writes
    ) AS t),
    (SELECT count(*) FROM gone),
    (SELECT count(*) FROM gone_writes),
    (SELECT coalesce(sum(bytes), 0)::bigint FROM gone) + (SELECT coalesce(sum(bytes), 0)::bigint FROM gone_writes);

-- name: count_thread
-- What deleting some threads would remove, segments included.
SELECT
    (SELECT count(*) FROM (
        SELECT thread_id FROM /*schema*/threads WHERE thread_id = ANY(:thread_ids::text[])
        UNION SELECT thread_id FROM /*schema*/checkpoints WHERE thread_id = ANY(:thread_ids::text[])
        UNION SELECT thread_id FROM /*schema*/writes WHERE thread_id = ANY(:thread_ids::text[])
    ) AS t),
    (SELECT count(*) FROM /*schema*/checkpoints WHERE thread_id = ANY(:thread_ids::text[])),
    (SELECT count(*) FROM /*schema*/writes WHERE thread_id = ANY(:thread_ids::text[])),
    (SELECT count(*) FROM /*schema*/segments WHERE thread_id = ANY(:thread_ids::text[])),
    (SELECT coalesce(sum(octet_length(state)), 0)::bigint FROM /*schema*/checkpoints
        WHERE thread_id = ANY(:thread_ids::text[]))
    + (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM /*schema*/writes
        WHERE thread_id = ANY(:thread_ids::text[]))
    + (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM /*schema*/segments
        WHERE thread_id = ANY(:thread_ids::text[]));

-- name: find_strangers
-- Checkpoints of the target thread that the source does not have, at most one; a copy must not mix two histories.
SELECT t.checkpoint_ns, t.checkpoint_id FROM /*schema*/checkpoints t
WHERE t.thread_id = :target_id AND NOT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints s
    WHERE s.thread_id = :source_id AND s.checkpoint_ns = t.checkpoint_ns AND s.checkpoint_id = t.checkpoint_id
)
LIMIT 1;

-- name: copy_thread
-- Copies a thread under its ids, from one snapshot; metadata that names the thread names the copy.
WITH copied_thread AS (
    INSERT INTO /*schema*/threads (thread_id, agent, user_id)
    SELECT :target_id, agent, user_id FROM /*schema*/threads WHERE thread_id = :source_id
    ON CONFLICT (thread_id) DO NOTHING
), copied_segments AS (
    INSERT INTO /*schema*/segments (thread_id, segment_id, data)
    SELECT :target_id, segment_id, data FROM /*schema*/segments WHERE thread_id = :source_id
    ON CONFLICT (thread_id, segment_id) DO NOTHING
), copied_writes AS (
    INSERT INTO /*schema*/writes (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, created_at, data
    )
    SELECT :target_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, created_at, data
    FROM /*schema*/writes WHERE thread_id = :source_id
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING
)
INSERT INTO /*schema*/checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, segment_ids,
    metadata, state
)
SELECT :target_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, segment_ids,
    CASE WHEN metadata ? 'thread_id' THEN metadata || jsonb_build_object('thread_id', :target_id::text)
        ELSE metadata END,
    state
FROM /*schema*/checkpoints WHERE thread_id = :source_id
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING;

-- name: list_threads
-- A page of threads, most recently touched first, below a cursor.
SELECT thread_id, agent, user_id, created_at, updated_at FROM /*schema*/threads
WHERE :cursor_updated_at::timestamptz IS NULL
    OR (updated_at <= :cursor_updated_at AND (updated_at < :cursor_updated_at OR thread_id > :cursor_id::text))
ORDER BY updated_at DESC, thread_id
LIMIT :page_size;

-- name: list_thread_ids
-- A page of thread ids in their own order, beyond a cursor, for jobs that visit every thread.
SELECT thread_id FROM /*schema*/threads WHERE thread_id > :cursor_id::text ORDER BY thread_id LIMIT :page_size;
