-- name: put_projection
-- Store the readable values of a thread's newest checkpoint, if that checkpoint exists.
INSERT INTO /*schema*/projections AS known (thread_id, checkpoint_id, updated_at, state)
SELECT c.thread_id, c.checkpoint_id, now(), :projected::jsonb
FROM /*schema*/checkpoints c
WHERE c.thread_id = :thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = :checkpoint_id::text
    AND c.revision = :revision::bigint
ON CONFLICT (thread_id) DO UPDATE SET
    checkpoint_id = excluded.checkpoint_id,
    updated_at = excluded.updated_at,
    state = excluded.state
WHERE known.checkpoint_id <= excluded.checkpoint_id;
