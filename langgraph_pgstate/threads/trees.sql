-- name: list_tree
-- Return the checkpoints of a namespace around a checkpoint, newest first, without states. Each row has: the label; the
-- nodes of the next superstep that have written; the numbers of all interrupts and of interrupts whose task has not
-- continued; the answered interrupts; the interrupted run; the subgraphs that ran. If a task's path does not name the
-- node (a sent task, or an error handler), the node is read from the task's span.
-- leaves: checkpoints.metadata
WITH RECURSIVE shown AS MATERIALIZED (
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
), spaces AS (
    (
        SELECT c.checkpoint_ns FROM /*schema*/checkpoints c
        WHERE c.thread_id = :thread_id AND c.checkpoint_ns > :first_ns::text AND c.checkpoint_ns < :last_ns::text
        ORDER BY c.checkpoint_ns LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT c.checkpoint_ns FROM /*schema*/checkpoints c
        WHERE c.thread_id = :thread_id AND c.checkpoint_ns > p.checkpoint_ns AND c.checkpoint_ns < :last_ns
        ORDER BY c.checkpoint_ns LIMIT 1
    )
    FROM spaces p WHERE p.checkpoint_ns IS NOT NULL
), subgraphs AS MATERIALIZED (
    SELECT n.checkpoint_ns, (
        SELECT c.metadata -> 'parents' ->> :checkpoint_ns FROM /*schema*/checkpoints c
        WHERE c.thread_id = :thread_id AND c.checkpoint_ns = n.checkpoint_ns
        ORDER BY c.checkpoint_id DESC LIMIT 1
    ) AS parent_id
    FROM (SELECT p.checkpoint_ns FROM spaces p WHERE p.checkpoint_ns IS NOT NULL LIMIT 500) AS n
    WHERE strpos(substr(n.checkpoint_ns, length(:first_ns) + 1), '|') = 0
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
    ) THEN (SELECT a.run_id FROM asked a WHERE a.checkpoint_id = s.checkpoint_id ORDER BY a.event_id DESC LIMIT 1) END,
    ARRAY(SELECT g.checkpoint_ns FROM subgraphs g WHERE g.parent_id = s.checkpoint_id ORDER BY g.checkpoint_ns LIMIT 50)
FROM shown s LEFT JOIN /*schema*/labels l
    ON l.thread_id = :thread_id AND l.checkpoint_ns = :checkpoint_ns AND l.checkpoint_id = s.checkpoint_id
ORDER BY s.checkpoint_id DESC;

-- name: find_step
-- Return the newest checkpoint of a superstep in a namespace, or else of the last earlier superstep, or else the
-- namespace's first checkpoint.
SELECT coalesce(
    (
        SELECT c.checkpoint_id FROM /*schema*/checkpoints c
        WHERE c.thread_id = :thread_id::text AND c.checkpoint_ns = :checkpoint_ns::text AND c.step <= :step::integer
        ORDER BY c.step DESC, c.checkpoint_id DESC LIMIT 1
    ),
    (
        SELECT c.checkpoint_id FROM /*schema*/checkpoints c
        WHERE c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns
        ORDER BY c.checkpoint_id LIMIT 1
    )
);
