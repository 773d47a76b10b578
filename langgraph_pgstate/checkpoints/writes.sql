-- name: put_writes
-- Store rows of pending writes, and return the idx of each stored row. Only rows of special channels (negative idx)
-- replace existing rows.
-- seals: writes.data by starts, lengths with idx = idxs
INSERT INTO /*schema*/writes AS stored (
    thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, data
)
SELECT :thread_id, :checkpoint_ns, :checkpoint_id::text, :task_id::text, new.idx, :task_path::text, :run_id::text,
    substr(:data::bytea, new.start, new.length)
FROM unnest(:idxs::integer[], :starts::integer[], :lengths::integer[]) AS new (idx, start, length)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE SET
    task_path = excluded.task_path,
    run_id = excluded.run_id,
    is_copy = excluded.is_copy,
    -- A new interrupt begins now, even if it replaces another interrupt.
    created_at = CASE WHEN stored.data = excluded.data THEN stored.created_at ELSE excluded.created_at END,
    data = excluded.data
WHERE stored.idx < 0
RETURNING idx;

-- name: put_new_writes
-- Store one row of ordinary writes, unless the row exists. If two calls store the row at the same time, one call fails.
-- ON CONFLICT would prevent this error, but would write every row twice to the WAL.
-- seals: writes.data
WITH new AS MATERIALIZED (
    SELECT now() AS at WHERE NOT EXISTS (
        SELECT 1 FROM /*schema*/writes
        WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id::text
            AND task_id = :task_id::text AND idx = :idx::integer
    )
)
INSERT INTO /*schema*/writes (
    thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, created_at, data
)
SELECT :thread_id, :checkpoint_ns, :checkpoint_id, :task_id, :idx, :task_path::text, :run_id::text, n.at, :data::bytea
FROM new n
RETURNING idx;

-- name: get_task_writes
-- Return the ordinary writes that one task has stored, locked until the transaction ends.
-- opens: writes.data
SELECT idx, data FROM /*schema*/writes
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id
    AND task_id = :task_id AND idx >= 0
ORDER BY created_at, idx
FOR UPDATE;

-- name: get_writes
-- Return the pending writes of some checkpoints of a namespace, in the order in which they are applied.
-- opens: writes.data
SELECT checkpoint_id, task_id, task_path, idx, data FROM /*schema*/writes
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[])
ORDER BY task_path, task_id, created_at, idx;

-- name: get_children_of_orphans
-- Return the states of checkpoints whose parent is missing, but has left old pending writes.
-- opens: checkpoints.state
SELECT DISTINCT c.parent_checkpoint_id, c.state, c.segment_ids, c.checkpoint_ns, c.checkpoint_id
FROM /*schema*/writes w JOIN /*schema*/checkpoints c
    ON c.thread_id = :thread_id::text AND c.checkpoint_ns = w.checkpoint_ns AND c.parent_checkpoint_id = w.checkpoint_id
WHERE w.thread_id = :thread_id AND w.created_at < now() - :older_than::interval AND NOT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints p
    WHERE p.thread_id = :thread_id AND p.checkpoint_ns = w.checkpoint_ns AND p.checkpoint_id = w.checkpoint_id
);

-- name: sweep_orphan_writes
-- Delete a thread's old pending writes whose checkpoint is missing, except writes of `kept_ids`. Delete nothing while a
-- run or a lease is active, because its process may still store the checkpoint. Return the number and bytes deleted.
WITH gone AS (
    DELETE FROM /*schema*/writes w
    WHERE w.thread_id = :thread_id::text AND w.created_at < now() - :older_than::interval
        AND NOT EXISTS (
            SELECT 1 FROM /*schema*/checkpoints c
            WHERE c.thread_id = :thread_id AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
        )
        AND w.checkpoint_id <> ALL(:kept_ids::text[])
        AND NOT EXISTS (
            SELECT 1 FROM /*schema*/runs r
            WHERE r.thread_id = :thread_id AND r.status IN ('pending', 'running') AND r.alive_until > now()
        )
        AND NOT EXISTS (
            SELECT 1 FROM /*schema*/leases l
            WHERE l.thread_id = :thread_id AND l.holder_id IS NOT NULL AND l.expires_at > now()
        )
    RETURNING octet_length(w.data) AS bytes
)
SELECT count(*), coalesce(sum(bytes), 0)::bigint FROM gone;

-- name: count_orphan_writes
-- Return what `sweep_orphan_writes` would delete.
SELECT count(*), coalesce(sum(octet_length(w.data)), 0)::bigint FROM /*schema*/writes w
WHERE w.thread_id = :thread_id::text AND w.created_at < now() - :older_than::interval
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints c
        WHERE c.thread_id = :thread_id AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
    )
    AND w.checkpoint_id <> ALL(:kept_ids::text[])
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/runs r
        WHERE r.thread_id = :thread_id AND r.status IN ('pending', 'running') AND r.alive_until > now()
    )
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/leases l
        WHERE l.thread_id = :thread_id AND l.holder_id IS NOT NULL AND l.expires_at > now()
    );

-- name: find_orphan_writes
-- Return a page of the ids of threads that have pending writes, after a cursor, and whether old writes of the thread
-- have no checkpoint.
SELECT p.thread_id, EXISTS (
    SELECT 1 FROM /*schema*/writes w
    WHERE w.thread_id = p.thread_id AND w.created_at < now() - :older_than::interval AND NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints c
        WHERE c.thread_id = p.thread_id AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
    ) AND NOT EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = p.thread_id)
)
FROM (
    SELECT DISTINCT thread_id FROM /*schema*/writes WHERE thread_id > :cursor_id::text
    ORDER BY thread_id LIMIT :page_size
) AS p
ORDER BY p.thread_id;

-- name: has_young_writes
-- Return whether a thread has pending writes younger than a given age.
SELECT EXISTS (
    SELECT 1 FROM /*schema*/writes WHERE thread_id = :thread_id::text AND created_at >= now() - :older_than::interval
);
