-- name: put_projection
-- Store the projection of a thread's newest checkpoint: chosen channels as JSON. Do nothing if the checkpoint was
-- deleted or replaced.
-- leaves: checkpoints.state
-- seals: projections.state from projected
WITH stored AS MATERIALIZED (
    SELECT now() AS at FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = '' AND checkpoint_id = :checkpoint_id::text
        AND revision = :revision::bigint
)
INSERT INTO /*schema*/projections AS known (thread_id, checkpoint_id, updated_at, state)
SELECT :thread_id, :checkpoint_id, s.at, :projected::jsonb FROM stored s
ON CONFLICT (thread_id) DO UPDATE SET
    checkpoint_id = excluded.checkpoint_id,
    updated_at = excluded.updated_at,
    state = excluded.state
WHERE known.checkpoint_id <= excluded.checkpoint_id;
