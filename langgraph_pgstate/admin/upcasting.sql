-- name: scan_outdated
-- Return a page of a thread's checkpoints whose state version is not `state_version`, in key order, after a cursor.
SELECT checkpoint_ns, checkpoint_id FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND (checkpoint_ns, checkpoint_id) > (:cursor_ns::text, :cursor_id::text)
    AND coalesce(state_version, 1) <> :state_version::integer
ORDER BY checkpoint_ns, checkpoint_id
LIMIT :page_size;

-- name: upcast_checkpoint
-- Give a checkpoint the values of a newer state version, unless the checkpoint was written again.
-- seals: checkpoints.state
-- seals: segments.data from new_data by new_starts, new_lengths with segment_id = new_ids
WITH upcast AS (
    UPDATE /*schema*/checkpoints SET
        revision = :revision::bigint,
        -- Keep the old segments, because another process may be about to inherit them.
        segment_ids = :segment_ids::integer[] || segment_ids,
        state = :state::bytea,
        state_version = :state_version::integer
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id::text
        AND revision = :base_revision::bigint
    RETURNING thread_id
), new_segments AS (
    INSERT INTO /*schema*/segments (thread_id, segment_id, data)
    SELECT :thread_id, new.segment_id, substr(:new_data::bytea, new.start, new.length)
    FROM upcast CROSS JOIN LATERAL unnest(:new_ids::integer[], :new_starts::integer[], :new_lengths::integer[])
        AS new (segment_id, start, length)
)
SELECT count(*) FROM upcast;

-- name: get_parent
-- Return the id of a checkpoint and of its parent. Without an id, take the newest checkpoint of the namespace.
SELECT checkpoint_id, parent_checkpoint_id FROM /*schema*/checkpoints
WHERE thread_id = :thread_id::text AND checkpoint_ns = :checkpoint_ns::text
    AND (:checkpoint_id::text IS NULL OR checkpoint_id = :checkpoint_id)
ORDER BY checkpoint_id DESC LIMIT 1;

-- name: note_damage
-- Record once, among a thread's events, which damaged checkpoint was skipped, and which checkpoint was used instead.
-- leaves: events.payload
WITH damage AS MATERIALIZED (
    SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS') || '-corrupt-' || :checkpoint_id::text AS event_id,
        now() AS at, jsonb_build_object('used', :used_id::text, 'why', :why::text) AS payload
    WHERE NOT EXISTS (
        SELECT 1 FROM /*schema*/events e
        WHERE e.thread_id = :thread_id::text AND e.kind = 'corrupt' AND e.checkpoint_ns = :checkpoint_ns::text
            AND e.checkpoint_id = :checkpoint_id
    )
)
INSERT INTO /*schema*/events (thread_id, event_id, created_at, kind, checkpoint_ns, checkpoint_id, payload)
SELECT :thread_id, d.event_id, d.at, 'corrupt', :checkpoint_ns, :checkpoint_id, d.payload FROM damage d
ON CONFLICT (thread_id, event_id) DO NOTHING
RETURNING thread_id, event_id;
