-- name: get_checkpoints
-- Return some checkpoints of a namespace, without their values.
SELECT checkpoint_id, nullif(parent_checkpoint_id, checkpoint_id), checkpoint, metadata FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[]);

-- name: find_blobs
-- Return the types and sizes of some values, each given by its channel and version.
SELECT b.channel, b.version, b.type, coalesce(octet_length(b.blob), 0)
FROM unnest(:channels::text[], :versions::text[]) AS wanted (channel, version)
JOIN /*schema*/checkpoint_blobs b
    ON b.thread_id = :thread_id AND b.checkpoint_ns = :checkpoint_ns
    AND b.channel = wanted.channel AND b.version = wanted.version;

-- name: digest_blobs
-- Return type and SHA-256 of some values.
SELECT b.channel, b.version, b.type, sha256(coalesce(b.blob, ''))
FROM unnest(:channels::text[], :versions::text[]) AS wanted (channel, version)
JOIN /*schema*/checkpoint_blobs b
    ON b.thread_id = :thread_id AND b.checkpoint_ns = :checkpoint_ns
    AND b.channel = wanted.channel AND b.version = wanted.version;

-- name: get_blobs
-- Return some values.
SELECT b.channel, b.version, b.type, coalesce(b.blob, '')
FROM unnest(:channels::text[], :versions::text[]) AS wanted (channel, version)
JOIN /*schema*/checkpoint_blobs b
    ON b.thread_id = :thread_id AND b.checkpoint_ns = :checkpoint_ns
    AND b.channel = wanted.channel AND b.version = wanted.version;

-- name: get_writes
-- Return the pending writes of some checkpoints of a namespace. If an old table has no `task_path`, return it empty.
SELECT w.checkpoint_id, w.task_id, w.task_path, w.idx, w.channel, coalesce(w.type, ''), w.blob
FROM (SELECT ''::text AS task_path) AS absent CROSS JOIN LATERAL (
    SELECT checkpoint_id, task_id, task_path, idx, channel, type, blob FROM /*schema*/checkpoint_writes
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[])
) AS w;

-- name: put_blobs
-- Store values. Existing values are kept, as by the official saver. One parameter has the bytes of all values.
INSERT INTO /*schema*/checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
SELECT :thread_id, :checkpoint_ns, r.channel, r.version, r.type, substr(:data::bytea, r.start, r.length)
FROM jsonb_to_recordset(:rows::jsonb)
    AS r (channel text, version text, type text, start integer, length integer)
ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING;

-- name: put_checkpoints
-- Store checkpoints, replacing existing ones.
INSERT INTO /*schema*/checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata
)
SELECT :thread_id, :checkpoint_ns, r.checkpoint_id, r.parent_checkpoint_id, r.checkpoint, r.metadata
FROM jsonb_to_recordset(:rows::jsonb)
    AS r (checkpoint_id text, parent_checkpoint_id text, checkpoint jsonb, metadata jsonb)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE SET
    parent_checkpoint_id = excluded.parent_checkpoint_id,
    checkpoint = excluded.checkpoint,
    metadata = excluded.metadata;

-- name: put_writes
-- Store pending writes, replacing existing ones.
INSERT INTO /*schema*/checkpoint_writes (
    thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob
)
SELECT :thread_id, :checkpoint_ns, r.checkpoint_id, r.task_id, r.task_path, r.idx, r.channel, r.type,
    substr(:data::bytea, r.start, r.length)
FROM jsonb_to_recordset(:rows::jsonb)
    AS r (checkpoint_id text, task_id text, task_path text, idx integer, channel text, type text, start integer,
        length integer)
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE SET
    task_path = excluded.task_path,
    channel = excluded.channel,
    type = excluded.type,
    blob = excluded.blob;
