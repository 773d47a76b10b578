-- name: get_segments
-- Return some segments of a thread.
-- opens: segments.data
SELECT segment_id, data FROM /*schema*/segments
WHERE thread_id = :thread_id AND segment_id = ANY(:segment_ids::integer[]);

-- name: get_segments_of
-- Return some segments of a checkpoint; no row if the checkpoint was deleted or has another revision.
-- opens: segments.data
SELECT s.segment_id, s.data
FROM /*schema*/checkpoints c LEFT JOIN /*schema*/segments s
    ON s.thread_id = c.thread_id AND s.segment_id = ANY(:segment_ids::integer[])
WHERE c.thread_id = :thread_id::text AND c.checkpoint_ns = :checkpoint_ns::text
    AND c.checkpoint_id = :checkpoint_id::text AND c.revision = :revision::bigint;

-- name: delete_unreferenced_segments
-- Delete the segments of a thread that no remaining checkpoint refers to, in any namespace or fork.
WITH live AS (
    SELECT DISTINCT unnest(segment_ids) AS segment_id FROM /*schema*/checkpoints WHERE thread_id = :thread_id
), gone AS (
    DELETE FROM /*schema*/segments s
    WHERE s.thread_id = :thread_id AND NOT EXISTS (SELECT 1 FROM live WHERE live.segment_id = s.segment_id)
    RETURNING octet_length(s.data) AS bytes
)
SELECT count(*), coalesce(sum(bytes), 0)::bigint FROM gone;

-- name: count_unreferenced_segments
-- Return the number and bytes of a thread's segments that would be unreferenced without the given checkpoints.
WITH going AS (
    SELECT * FROM unnest(:namespaces::text[], :checkpoint_ids::text[]) AS g (checkpoint_ns, checkpoint_id)
), live AS (
    SELECT DISTINCT unnest(c.segment_ids) AS segment_id FROM /*schema*/checkpoints c
    WHERE c.thread_id = :thread_id AND NOT EXISTS (
        SELECT 1 FROM going g WHERE g.checkpoint_ns = c.checkpoint_ns AND g.checkpoint_id = c.checkpoint_id
    )
)
SELECT count(*), coalesce(sum(octet_length(s.data)), 0)::bigint FROM /*schema*/segments s
WHERE s.thread_id = :thread_id AND NOT EXISTS (SELECT 1 FROM live WHERE live.segment_id = s.segment_id);
