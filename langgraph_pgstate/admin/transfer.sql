-- name: get_transfer_outline
-- Return the keys of a thread's checkpoints and of its rows of pending writes, and the sizes of the pending writes.
SELECT checkpoint_ns, checkpoint_id, NULL::text AS task_id, 0 AS idx, 0 AS bytes
FROM /*schema*/checkpoints WHERE thread_id = :thread_id
UNION ALL
SELECT checkpoint_ns, checkpoint_id, task_id, idx, octet_length(data)
FROM /*schema*/writes WHERE thread_id = :thread_id;

-- name: get_rows
-- Return some checkpoints of a namespace, without their segments.
-- opens: checkpoints.state
-- opens: checkpoints.metadata
SELECT checkpoint_id, parent_checkpoint_id, metadata::text, state, segment_ids, revision FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[]);

-- name: import_thread
-- Insert a thread's row. An existing row gets missing owners, the earlier `created_at` and the later `updated_at`. Change
-- nothing if the thread is archived.
INSERT INTO /*schema*/threads AS stored (thread_id, agent, user_id, tenant_id, created_at, updated_at)
VALUES (
    :thread_id, :agent, :user_id, :tenant_id, coalesce(:first_at::timestamptz, now()), coalesce(:last_at::timestamptz, now())
)
ON CONFLICT (thread_id) DO UPDATE SET
    agent = coalesce(stored.agent, excluded.agent),
    user_id = coalesce(stored.user_id, excluded.user_id),
    tenant_id = coalesce(stored.tenant_id, excluded.tenant_id),
    created_at = least(stored.created_at, excluded.created_at),
    updated_at = greatest(stored.updated_at, excluded.updated_at),
    expires_at = greatest(
        stored.expires_at,
        -- Use UTC, because Citus requires an immutable expression, and the session's time zone may change.
        ((greatest(stored.updated_at, excluded.updated_at) AT TIME ZONE 'UTC') + stored.ttl) AT TIME ZONE 'UTC'
    )
WHERE stored.archived_at IS NULL;

-- name: import_segments
-- Store segments. One parameter has the concatenated frames.
-- seals: segments.data by starts, lengths with segment_id = ids
INSERT INTO /*schema*/segments (thread_id, segment_id, data)
SELECT :thread_id, new.segment_id, substr(:data::bytea, new.start, new.length)
FROM unnest(:ids::integer[], :starts::integer[], :lengths::integer[]) AS new (segment_id, start, length);

-- name: import_checkpoints
-- Store copied checkpoints with their original times. One parameter has the concatenated states.
-- seals: checkpoints.state from data in rows
-- seals: checkpoints.metadata from rows.metadata
INSERT INTO /*schema*/checkpoints AS stored (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, revision,
    segment_ids, metadata, state
)
SELECT :thread_id, :checkpoint_ns, r.checkpoint_id, r.parent_checkpoint_id, r.run_id, r.source, r.step,
    coalesce(r.created_at, now()), r.revision, r.segment_ids, r.metadata,
    substr(:data::bytea, r.start, r.length)
FROM jsonb_to_recordset(:rows::jsonb) AS r (
    checkpoint_id text, parent_checkpoint_id text, run_id text, source text, step integer, created_at timestamptz,
    revision bigint, segment_ids integer[], metadata jsonb, start integer, length integer
)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
    parent_checkpoint_id = excluded.parent_checkpoint_id,
    run_id = excluded.run_id,
    source = excluded.source,
    step = excluded.step,
    revision = excluded.revision,
    segment_ids = excluded.segment_ids || stored.segment_ids,
    metadata = excluded.metadata,
    state = excluded.state;

-- name: delete_writes
-- Delete some rows of pending writes. Three lists of equal length name the checkpoint, task and number of each row.
DELETE FROM /*schema*/writes w USING (
    SELECT * FROM unnest(:checkpoint_ids::text[], :task_ids::text[], :idxs::integer[]) AS u (checkpoint_id, task_id, idx)
) AS gone
WHERE w.thread_id = :thread_id AND w.checkpoint_ns = :checkpoint_ns AND w.checkpoint_id = gone.checkpoint_id
    AND w.task_id = gone.task_id AND w.idx = gone.idx;

-- name: import_writes
-- Store copied rows of pending writes. One parameter has the concatenated data.
-- seals: writes.data in rows
INSERT INTO /*schema*/writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, data)
SELECT :thread_id, :checkpoint_ns, r.checkpoint_id, r.task_id, r.idx, r.task_path,
    substr(:data::bytea, r.start, r.length)
FROM jsonb_to_recordset(:rows::jsonb) AS r (
    checkpoint_id text, task_id text, idx integer, task_path text, start integer, length integer
)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE SET
    task_path = excluded.task_path,
    data = excluded.data;
