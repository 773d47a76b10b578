-- name: get_branches
-- Return every checkpoint of a namespace without its state, oldest first, with its label.
SELECT c.checkpoint_id, c.parent_checkpoint_id, c.step, c.source, c.created_at, c.run_id, l.label
FROM /*schema*/checkpoints c LEFT JOIN /*schema*/labels l
    ON l.thread_id = :thread_id::text AND l.checkpoint_ns = :checkpoint_ns::text
        AND l.checkpoint_id = c.checkpoint_id
WHERE c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns
ORDER BY c.checkpoint_id;

-- name: trace_lineage
-- Return a checkpoint, or the newest of a namespace, with its ancestors, in any order. Each row has the label and the
-- number of children, but no state.
WITH RECURSIVE lineage AS (
    (
        SELECT h.checkpoint_id, h.parent_checkpoint_id, h.step, h.source, h.created_at, h.run_id
        FROM /*schema*/checkpoints h
        WHERE h.thread_id = :thread_id::text AND h.checkpoint_ns = :checkpoint_ns::text
            AND (:checkpoint_id::text IS NULL OR h.checkpoint_id = :checkpoint_id)
        ORDER BY h.checkpoint_id DESC LIMIT 1
    )
    UNION
    SELECT c.checkpoint_id, c.parent_checkpoint_id, c.step, c.source, c.created_at, c.run_id
    FROM lineage d JOIN /*schema*/checkpoints c
        ON c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = d.parent_checkpoint_id
)
SELECT a.checkpoint_id, a.parent_checkpoint_id, a.step, a.source, a.created_at, a.run_id, l.label,
    (
        SELECT count(*) FROM /*schema*/checkpoints k
        WHERE k.thread_id = :thread_id AND k.checkpoint_ns = :checkpoint_ns AND k.parent_checkpoint_id = a.checkpoint_id
    )
FROM lineage a LEFT JOIN /*schema*/labels l
    ON l.thread_id = :thread_id AND l.checkpoint_ns = :checkpoint_ns AND l.checkpoint_id = a.checkpoint_id;

-- name: keep_labels
-- Block new labels and holds of a thread until the transaction ends. Puts are not blocked. Return the thread and its
-- archive, if any.
SELECT thread_id, archive_id, archived_at FROM /*schema*/threads WHERE thread_id = :thread_id::text FOR KEY SHARE;

-- name: put_label
-- Label a checkpoint, or the newest of its namespace. Return the checkpoint's id, or no row if it is missing.
WITH labelled AS MATERIALIZED (
    SELECT h.checkpoint_id, now() AS at FROM /*schema*/checkpoints h
    WHERE h.thread_id = :thread_id::text AND h.checkpoint_ns = :checkpoint_ns::text
        AND (:checkpoint_id::text IS NULL OR h.checkpoint_id = :checkpoint_id)
    ORDER BY h.checkpoint_id DESC LIMIT 1
)
INSERT INTO /*schema*/labels AS stored (thread_id, checkpoint_ns, checkpoint_id, label, created_at)
SELECT :thread_id, :checkpoint_ns, l.checkpoint_id, :label::text, l.at FROM labelled l
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET label = excluded.label
RETURNING checkpoint_id;

-- name: delete_label
-- Remove a checkpoint's label.
DELETE FROM /*schema*/labels
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id::text;

-- name: list_labels
-- Return a thread's labelled checkpoints, newest first.
SELECT l.checkpoint_ns, l.checkpoint_id, l.label, l.created_at
FROM /*schema*/labels l JOIN /*schema*/checkpoints c
    ON c.thread_id = :thread_id::text AND c.checkpoint_ns = l.checkpoint_ns AND c.checkpoint_id = l.checkpoint_id
WHERE l.thread_id = :thread_id
ORDER BY l.checkpoint_id DESC, l.checkpoint_ns;

-- name: begin_fork
-- Insert the row of a fork as a copy of the source's row, or lock the existing row. Return the checkpoint from which
-- the thread was forked; no row if the source is missing.
-- seals: threads.metadata from owner.metadata with thread_id = target_id
-- leaves: threads.title
WITH source AS MATERIALIZED (
    SELECT s.agent,
        -- Set the owner at once, because users who may see the source may not see the fork.
        CASE WHEN :owner::text::jsonb IS NULL THEN s.user_id ELSE :owner::text::jsonb ->> 'user_id' END,
        CASE WHEN :owner::text::jsonb IS NULL THEN s.tenant_id ELSE :owner::text::jsonb ->> 'tenant_id' END,
        now(), now(), s.title, coalesce(:owner::text::jsonb -> 'metadata', s.metadata), s.ttl, s.ttl_strategy,
        -- With a time to live, the fork expires that long from now, otherwise at the source's fixed time.
        coalesce(now() + s.ttl, s.expires_at)
    FROM /*schema*/threads s WHERE s.thread_id = :source_id::text
)
INSERT INTO /*schema*/threads AS stored (
    thread_id, agent, user_id, tenant_id, created_at, updated_at, title, metadata, ttl, ttl_strategy, expires_at
)
SELECT :target_id::text, s.* FROM source s
ON CONFLICT (thread_id) DO UPDATE SET
    updated_at = excluded.updated_at,
    -- Use UTC, because Citus requires an immutable expression, and the session's time zone may change.
    expires_at = coalesce(
        ((excluded.updated_at AT TIME ZONE 'UTC') + stored.ttl) AT TIME ZONE 'UTC', stored.expires_at
    )
RETURNING forked_from_thread_id, forked_from_checkpoint_id;

-- name: has_history
-- Return whether a thread has any checkpoint, and whether the root namespace has the checkpoint of the given id.
SELECT EXISTS (SELECT 1 FROM /*schema*/checkpoints WHERE thread_id = :thread_id::text),
    EXISTS (
        SELECT 1 FROM /*schema*/checkpoints
        WHERE thread_id = :thread_id AND checkpoint_ns = '' AND checkpoint_id = :checkpoint_id::text
    );

-- name: find_head
-- Return the newest checkpoint of a thread's root namespace.
SELECT checkpoint_id FROM /*schema*/checkpoints WHERE thread_id = :thread_id::text AND checkpoint_ns = ''
ORDER BY checkpoint_id DESC LIMIT 1;

-- name: fork_thread
-- Copy a checkpoint of the root namespace with its history into another existing thread, under the same ids: ancestors,
-- subgraphs, writes, segments, messages, tool executions and labels. Results of the superstep that begins at the
-- checkpoint are copied only if the checkpoint has no children. Otherwise, the fork runs this superstep itself.
-- leaves: checkpoints.state
-- leaves: checkpoints.metadata
-- leaves: segments.data
-- leaves: writes.data
-- leaves: messages.content
-- leaves: messages.tool_calls
-- leaves: threads.metadata
-- leaves: tool_executions.fingerprint
-- leaves: tool_executions.arguments
-- leaves: tool_executions.result
-- leaves: tool_executions.preview
-- leaves: tool_executions.error_message
WITH RECURSIVE lineage AS (
    SELECT c.checkpoint_id, c.parent_checkpoint_id FROM /*schema*/checkpoints c
    WHERE c.thread_id = :source_id::text AND c.checkpoint_ns = '' AND c.checkpoint_id = :checkpoint_id::text
    UNION
    SELECT c.checkpoint_id, c.parent_checkpoint_id
    FROM lineage d JOIN /*schema*/checkpoints c
        ON c.thread_id = :source_id AND c.checkpoint_ns = '' AND c.checkpoint_id = d.parent_checkpoint_id
), past AS (
    -- Checkpoints whose supersteps belong to the fork's past. The superstep after the forked checkpoint belongs to the
    -- past only if the checkpoint has no children.
    SELECT d.checkpoint_id FROM lineage d
    WHERE d.checkpoint_id <> :checkpoint_id OR NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints k
        WHERE k.thread_id = :source_id AND k.checkpoint_ns = '' AND k.parent_checkpoint_id = :checkpoint_id
    ) AND NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints o JOIN /*schema*/checkpoints k
            ON k.thread_id = :source_id AND k.checkpoint_ns = '' AND k.checkpoint_id > :checkpoint_id
        WHERE o.thread_id = :source_id AND o.checkpoint_ns = '' AND o.checkpoint_id = :checkpoint_id
            AND o.next_checkpoint_id IS NOT NULL
    )
), pruned AS (
    -- The newest pruned ancestor. Pruned checkpoints no longer exist, but their tool executions do.
    SELECT d.parent_checkpoint_id AS newest FROM lineage d
    WHERE d.parent_checkpoint_id IS NOT NULL AND d.parent_checkpoint_id NOT IN (SELECT checkpoint_id FROM lineage)
), members AS (
    (
        SELECT ''::text COLLATE "C" AS checkpoint_ns, d.checkpoint_id, d.parent_checkpoint_id FROM lineage d
        UNION ALL
        SELECT c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id FROM /*schema*/checkpoints c
        WHERE c.thread_id = :source_id AND c.checkpoint_ns > '' AND EXISTS (SELECT 1 FROM lineage) AND (
            c.metadata -> 'parents' ->> '' IS NULL
            OR c.metadata -> 'parents' ->> '' IN (SELECT p.checkpoint_id FROM past p)
        )
    )
    UNION
    -- The parents of the checkpoints above. A subgraph may have continued from a checkpoint of another branch.
    SELECT c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id
    FROM members m JOIN /*schema*/checkpoints c
        ON c.thread_id = :source_id AND c.checkpoint_ns = m.checkpoint_ns AND c.checkpoint_id = m.parent_checkpoint_id
    WHERE m.checkpoint_ns > ''
), actions AS (
    SELECT e.idempotency_key FROM /*schema*/tool_executions e
    WHERE e.thread_id = :source_id AND e.compensates IS NULL AND (
        coalesce(e.root_checkpoint_id, e.checkpoint_id) IS NULL
        OR coalesce(e.root_checkpoint_id, e.checkpoint_id) IN (SELECT d.checkpoint_id FROM lineage d)
        OR coalesce(e.root_checkpoint_id, e.checkpoint_id) <= (SELECT p.newest FROM pruned p) AND NOT EXISTS (
            SELECT 1 FROM /*schema*/checkpoints c WHERE c.thread_id = :source_id AND c.checkpoint_ns = ''
                AND c.checkpoint_id = coalesce(e.root_checkpoint_id, e.checkpoint_id)
        )
    )
), copied_segments AS (
    INSERT INTO /*schema*/segments (thread_id, segment_id, data)
    SELECT :target_id::text, s.segment_id, s.data FROM /*schema*/segments s
    WHERE s.thread_id = :source_id AND s.segment_id IN (
        SELECT unnest(c.segment_ids) FROM members m JOIN /*schema*/checkpoints c
            ON c.thread_id = :source_id AND c.checkpoint_ns = m.checkpoint_ns AND c.checkpoint_id = m.checkpoint_id
    )
    ON CONFLICT (thread_id, segment_id) DO NOTHING
), copied_writes AS (
    INSERT INTO /*schema*/writes (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, created_at, data, is_copy
    )
    SELECT :target_id, w.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.run_id, w.created_at, w.data,
        true
    FROM members m JOIN /*schema*/writes w
        ON w.thread_id = :source_id AND w.checkpoint_ns = m.checkpoint_ns AND w.checkpoint_id = m.checkpoint_id
    WHERE m.checkpoint_ns > '' OR m.checkpoint_id IN (SELECT p.checkpoint_id FROM past p)
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING
), copied_messages AS (
    INSERT INTO /*schema*/messages (
        thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role,
        agent, content, tool_calls, tool_call_id, input_tokens, output_tokens
    )
    SELECT :target_id, g.message_id, g.checkpoint_id, g.checkpoint_ns, g.channel, g.position, g.change, g.created_at,
        g.run_id, g.role, g.agent, g.content, g.tool_calls, g.tool_call_id, g.input_tokens, g.output_tokens
    FROM /*schema*/messages g
    WHERE g.thread_id = :source_id
        AND (g.checkpoint_ns, g.checkpoint_id) IN (SELECT m.checkpoint_ns, m.checkpoint_id FROM members m)
    ON CONFLICT (thread_id, message_id, checkpoint_id, channel) DO NOTHING
), copied_executions AS (
    INSERT INTO /*schema*/tool_executions (
        thread_id, idempotency_key, tool, status, attempt, agent, tool_call_id, run_id, task_id, checkpoint_ns,
        checkpoint_id, step, holder_id, alive_until, started_at, ended_at, arguments, result_type, result, preview,
        error_type, error_message, compensates, compensated_at, fingerprint, intent_id, root_checkpoint_id, answers,
        origin_thread_id, is_copy
    )
    SELECT :target_id, e.idempotency_key, e.tool, e.status, e.attempt, e.agent, e.tool_call_id, e.run_id, e.task_id,
        e.checkpoint_ns, e.checkpoint_id, e.step, e.holder_id, e.alive_until, e.started_at, e.ended_at, e.arguments,
        e.result_type, e.result, e.preview, e.error_type, e.error_message, e.compensates, e.compensated_at,
        e.fingerprint, e.intent_id, e.root_checkpoint_id, e.answers, coalesce(e.origin_thread_id, e.thread_id), true
    FROM /*schema*/tool_executions e
    WHERE e.thread_id = :source_id
        AND coalesce(e.compensates, e.idempotency_key) IN (SELECT a.idempotency_key FROM actions a)
    ON CONFLICT (thread_id, idempotency_key) DO NOTHING
), copied_labels AS (
    INSERT INTO /*schema*/labels (thread_id, checkpoint_ns, checkpoint_id, label, created_at)
    SELECT :target_id, l.checkpoint_ns, l.checkpoint_id, l.label, l.created_at
    FROM members m JOIN /*schema*/labels l
        ON l.thread_id = :source_id AND l.checkpoint_ns = m.checkpoint_ns AND l.checkpoint_id = m.checkpoint_id
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING
), noted AS (
    UPDATE /*schema*/threads SET
        forked_from_thread_id = :source_id,
        forked_from_checkpoint_id = :checkpoint_id,
        origin_thread_ids = array_append((
            SELECT s.origin_thread_ids FROM /*schema*/threads s WHERE s.thread_id = :source_id
        ), :source_id)
    WHERE thread_id = :target_id AND EXISTS (SELECT 1 FROM lineage)
)
INSERT INTO /*schema*/checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, revision,
    segment_ids, metadata, state, next_checkpoint_id, state_version, is_copy
)
SELECT :target_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.run_id, c.source, c.step, c.created_at,
    c.revision, c.segment_ids,
    CASE WHEN c.metadata ? 'thread_id' THEN c.metadata || :renaming::jsonb ELSE c.metadata END, c.state,
    (
        SELECT n.checkpoint_id FROM members n
        WHERE n.checkpoint_ns = m.checkpoint_ns AND n.checkpoint_id = c.next_checkpoint_id
    ),
    c.state_version, true
FROM members m JOIN /*schema*/checkpoints c
    ON c.thread_id = :source_id AND c.checkpoint_ns = m.checkpoint_ns AND c.checkpoint_id = m.checkpoint_id
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING;

-- name: note_fork
-- Record an event of a thread: the thread is a fork, or was forked.
-- seals: events.payload with kind = 'fork'
INSERT INTO /*schema*/events (thread_id, event_id, kind, checkpoint_ns, checkpoint_id, payload)
VALUES (
    :thread_id::text,
    to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS') || '-fork-' || :suffix::text,
    'fork',
    '',
    :checkpoint_id::text,
    :payload::text::jsonb
)
RETURNING thread_id, event_id;

-- name: copy_projection
-- Copy a thread's projection to its fork, unless the thread has continued from the forked checkpoint. Return the names
-- of the projected channels, and whether they were copied.
-- leaves: checkpoints.state
-- leaves: projections.state
WITH source AS (
    SELECT p.checkpoint_id, p.updated_at, p.state, NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints c
        WHERE c.thread_id = :source_id::text AND c.checkpoint_ns = '' AND c.checkpoint_id > :checkpoint_id::text
    ) AS is_current
    FROM /*schema*/projections p WHERE p.thread_id = :source_id
), copied AS (
    INSERT INTO /*schema*/projections (thread_id, checkpoint_id, updated_at, state)
    SELECT :target_id::text, s.checkpoint_id, s.updated_at, s.state FROM source s
    WHERE s.is_current AND s.checkpoint_id <= :checkpoint_id
    ON CONFLICT (thread_id) DO NOTHING
)
SELECT ARRAY(SELECT jsonb_object_keys(s.state)), s.is_current AND s.checkpoint_id <= :checkpoint_id FROM source s;

-- name: project_fork
-- Store the projected channels of a fork whose source has continued since.
-- seals: projections.state from projected
INSERT INTO /*schema*/projections (thread_id, checkpoint_id, state)
VALUES (:thread_id::text, :checkpoint_id::text, :projected::text::jsonb)
ON CONFLICT (thread_id) DO NOTHING;

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
