-- Keeps a thread to one ready run by an index of its own again.

ALTER TABLE /*schema*/queue DROP CONSTRAINT queue_ready_is_first;
CREATE UNIQUE INDEX queue_is_ready_idx ON /*schema*/queue (thread_id, is_ready) WHERE is_ready;

COMMENT ON COLUMN /*schema*/queue.number IS
    'order among the runs of its thread; null until run_after, if it was enqueued for later';
