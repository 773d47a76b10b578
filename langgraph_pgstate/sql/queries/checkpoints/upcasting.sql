-- name: scan_outdated
-- A page of a thread's checkpoints of another state version than the given one, in key order, beyond a cursor.
SELECT checkpoint_ns, checkpoint_id FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND (checkpoint_ns, checkpoint_id) > (:cursor_ns::text, :cursor_id::text)
    AND coalesce(state_version, 1) <> :state_version::integer
ORDER BY checkpoint_ns, checkpoint_id
LIMIT :page_size;

-- name: upcast_checkpoint
-- Gives a checkpoint the values of a newer state version; touches no row, and writes nothing, when it was written again since it was read.
WITH upcast AS (
    UPDATE /*schema*/checkpoints SET
        revision = :revision::bigint,
        -- As in `put_checkpoint`: another process may be about to inherit what the row referred to.
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
-- A checkpoint's id and its parent's: of one by id, or of the newest in its namespace.
SELECT checkpoint_id, parent_checkpoint_id FROM /*schema*/checkpoints
WHERE thread_id = :thread_id::text AND checkpoint_ns = :checkpoint_ns::text
    AND (:checkpoint_id::text IS NULL OR checkpoint_id = :checkpoint_id)
ORDER BY checkpoint_id DESC LIMIT 1;

-- name: note_damage
-- Notes among a thread's events, once, that a damaged checkpoint was passed by, and for which one.
INSERT INTO /*schema*/events (thread_id, event_id, kind, checkpoint_ns, checkpoint_id, payload)
SELECT :thread_id::text,
    to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS') || '-corrupt-' || :checkpoint_id::text, 'corrupt',
    :checkpoint_ns::text, :checkpoint_id, jsonb_build_object('used', :used_id::text, 'why', :why::text)
WHERE NOT EXISTS (
    SELECT 1 FROM /*schema*/events e
    WHERE e.thread_id = :thread_id AND e.kind = 'corrupt' AND e.checkpoint_ns = :checkpoint_ns
        AND e.checkpoint_id = :checkpoint_id
)
ON CONFLICT (thread_id, event_id) DO NOTHING;
