-- name: list_tree
-- Return the checkpoints of a namespace around one, or the newest, without their states, newest first: with labels, the
-- nodes of the tasks of the next superstep that have written, numbers of interrupts, and of those whose task has not
-- gone on, the answered ones, and the run that was interrupted. The path of a task that was sent, or
-- that handles an error, does not name its node: its span does, which began about then.
WITH shown AS MATERIALIZED (
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
), named AS MATERIALIZED (
    SELECT jsonb_object_agg(n.task_id, n.node) AS nodes FROM (
        SELECT p.task_id, p.node FROM /*schema*/spans p
        WHERE p.thread_id = :thread_id
            AND p.run_id = ANY(ARRAY(SELECT DISTINCT s.run_id FROM shown s WHERE s.run_id IS NOT NULL))
            AND p.started_at >= (SELECT min(s.created_at) FROM shown s) - interval '1 min'
            AND p.started_at <= (SELECT max(s.created_at) FROM shown s) + interval '1 min'
            AND p.kind = 'node' AND p.task_id IS NOT NULL
        LIMIT 5000
    ) AS n
), asked AS MATERIALIZED (
    SELECT v.event_id, v.checkpoint_id, v.run_id FROM /*schema*/events v
    WHERE v.thread_id = :thread_id AND v.kind = 'interrupt' AND v.run_id IS NOT NULL
        AND coalesce(v.checkpoint_ns, '') = :checkpoint_ns
    ORDER BY v.event_id DESC LIMIT 200
)
SELECT s.checkpoint_id, s.parent_checkpoint_id, s.step, s.source, s.created_at, s.run_id, l.label,
    ARRAY(
        SELECT CASE WHEN starts_with(w.task_path, :pull::text) AND right(w.task_path, length(:handler)) <> :handler
            THEN substr(w.task_path, length(:pull) + 1)
            ELSE coalesce((SELECT n.nodes ->> w.task_id FROM named n), '') END
        FROM /*schema*/writes w
        WHERE w.thread_id = :thread_id AND w.checkpoint_ns = :checkpoint_ns AND w.checkpoint_id = s.checkpoint_id
            AND w.task_path <> ''
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
    ),
    ARRAY(
        SELECT a.interrupt_id FROM /*schema*/answers a
        WHERE a.thread_id = :thread_id AND a.checkpoint_ns = :checkpoint_ns AND a.checkpoint_id = s.checkpoint_id
        ORDER BY a.interrupt_id
    ),
    CASE WHEN EXISTS (
        SELECT 1 FROM /*schema*/writes w
        WHERE w.thread_id = :thread_id AND w.checkpoint_ns = :checkpoint_ns AND w.checkpoint_id = s.checkpoint_id
            AND w.idx = -3
    ) THEN (SELECT a.run_id FROM asked a WHERE a.checkpoint_id = s.checkpoint_id ORDER BY a.event_id DESC LIMIT 1) END
FROM shown s LEFT JOIN /*schema*/labels l
    ON l.thread_id = :thread_id AND l.checkpoint_ns = :checkpoint_ns AND l.checkpoint_id = s.checkpoint_id
ORDER BY s.checkpoint_id DESC;
