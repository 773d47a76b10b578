-- name: list_tree
-- Return the checkpoints of a namespace around one, or the newest, without their states, newest first: with labels, the
-- paths of the tasks of the next superstep that have written, and numbers of interrupts, and of those whose task has
-- not gone on.
WITH shown AS (
    (
        SELECT c.checkpoint_id, c.parent_checkpoint_id, c.step, c.source, c.created_at, c.run_id
        FROM /*schema*/checkpoints c
        WHERE c.thread_id = :thread_id::text AND c.checkpoint_ns = :checkpoint_ns::text
            AND c.checkpoint_id <= :checkpoint_id::text
        ORDER BY c.checkpoint_id DESC LIMIT :page_size
    )
    UNION ALL
    (
        SELECT c.checkpoint_id, c.parent_checkpoint_id, c.step, c.source, c.created_at, c.run_id
        FROM /*schema*/checkpoints c
        WHERE c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id > :checkpoint_id
        ORDER BY c.checkpoint_id LIMIT :page_size
    )
)
SELECT s.checkpoint_id, s.parent_checkpoint_id, s.step, s.source, s.created_at, s.run_id, l.label,
    ARRAY(
        SELECT w.task_path FROM /*schema*/writes w
        WHERE w.thread_id = :thread_id AND w.checkpoint_ns = :checkpoint_ns AND w.checkpoint_id = s.checkpoint_id
        GROUP BY w.task_id, w.task_path ORDER BY w.task_path LIMIT 100
    ),
    (
        SELECT count(*) FROM /*schema*/writes w
        WHERE w.thread_id = :thread_id AND w.checkpoint_ns = :checkpoint_ns AND w.checkpoint_id = s.checkpoint_id
            AND w.idx = -3
    ),
    (
        SELECT count(*) FROM /*schema*/writes w
        WHERE w.thread_id = :thread_id AND w.checkpoint_ns = :checkpoint_ns AND w.checkpoint_id = s.checkpoint_id
            AND w.idx = -3 AND NOT EXISTS (
                SELECT 1 FROM /*schema*/writes d
                WHERE d.thread_id = :thread_id AND d.checkpoint_ns = :checkpoint_ns
                    AND d.checkpoint_id = s.checkpoint_id AND d.task_id = w.task_id AND d.idx >= 0
            )
    )
FROM shown s LEFT JOIN /*schema*/labels l
    ON l.thread_id = :thread_id AND l.checkpoint_ns = :checkpoint_ns AND l.checkpoint_id = s.checkpoint_id
ORDER BY s.checkpoint_id DESC;
