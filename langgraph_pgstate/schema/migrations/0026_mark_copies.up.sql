-- Marks what a copy or a fork brought to a thread, so that what a run wrote is deleted in its own thread only. Rows that
-- are there are marked if they are of a fork, or if their run is recorded on other threads but not on theirs.

ALTER TABLE /*schema*/checkpoints ADD COLUMN is_copy boolean;
ALTER TABLE /*schema*/writes ADD COLUMN is_copy boolean;

UPDATE /*schema*/checkpoints c SET is_copy = true
WHERE c.run_id IS NOT NULL AND (
    NOT EXISTS (SELECT 1 FROM /*schema*/runs r WHERE r.thread_id = c.thread_id AND r.run_id = c.run_id)
    AND EXISTS (SELECT 1 FROM /*schema*/runs o WHERE o.run_id = c.run_id)
    OR EXISTS (
        SELECT 1 FROM /*schema*/threads t
        WHERE t.thread_id = c.thread_id AND t.forked_from_thread_id IS NOT NULL AND (
            c.checkpoint_id <= t.forked_from_checkpoint_id OR EXISTS (
                SELECT 1 FROM /*schema*/checkpoints s
                WHERE s.thread_id = t.forked_from_thread_id AND s.checkpoint_ns = c.checkpoint_ns
                    AND s.checkpoint_id = c.checkpoint_id
            )
        )
    )
);
UPDATE /*schema*/writes w SET is_copy = true
FROM /*schema*/checkpoints c JOIN /*schema*/threads t ON t.thread_id = c.thread_id
WHERE c.is_copy AND w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns
    AND w.checkpoint_id = c.checkpoint_id AND w.run_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM /*schema*/runs r WHERE r.thread_id = w.thread_id AND r.run_id = w.run_id)
    AND (
        EXISTS (SELECT 1 FROM /*schema*/runs o WHERE o.run_id = w.run_id)
        OR t.forked_from_thread_id IS NOT NULL AND w.created_at < t.created_at
    );

COMMENT ON COLUMN /*schema*/checkpoints.is_copy IS 'true: brought by a copy or a fork; its run wrote it in another thread';
COMMENT ON COLUMN /*schema*/writes.is_copy IS 'true: brought by a copy or a fork; its run wrote it in another thread';
