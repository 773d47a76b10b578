-- name: put_writes
-- Stores rows of pending writes: special channels (negative idx) replace what was there, ordinary ones never do; answers the idx of each row stored.
INSERT INTO /*schema*/writes AS stored (
    thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, data
)
SELECT :thread_id, :checkpoint_ns, :checkpoint_id::text, :task_id::text, new.idx, :task_path::text, :run_id::text,
    substr(:data::bytea, new.start, new.length)
FROM unnest(:idxs::integer[], :starts::integer[], :lengths::integer[]) AS new (idx, start, length)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE SET
    task_path = excluded.task_path,
    run_id = excluded.run_id,
    -- Another question than before waits from now on.
    created_at = CASE WHEN stored.data = excluded.data THEN stored.created_at ELSE excluded.created_at END,
    data = excluded.data
WHERE stored.idx < 0
RETURNING idx;

-- name: put_new_writes
-- Stores one row of ordinary writes, unless it is there; two that do so at once collide on the key. Without ON CONFLICT, which logs every row twice.
INSERT INTO /*schema*/writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, data)
SELECT :thread_id, :checkpoint_ns, :checkpoint_id::text, :task_id::text, :idx::integer, :task_path::text,
    :run_id::text, :data::bytea
WHERE NOT EXISTS (
    SELECT 1 FROM /*schema*/writes
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id
        AND task_id = :task_id AND idx = :idx
)
RETURNING idx;

-- name: get_task_writes
-- The ordinary writes one task has stored, locked until the transaction ends.
SELECT idx, data FROM /*schema*/writes
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id
    AND task_id = :task_id AND idx >= 0
ORDER BY created_at, idx
FOR UPDATE;

-- name: get_writes
-- The pending writes of some checkpoints of a namespace, in the order they are applied.
SELECT checkpoint_id, task_id, task_path, idx, data FROM /*schema*/writes
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[])
ORDER BY task_path, task_id, created_at, idx;
