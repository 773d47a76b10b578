-- Keeps what a run was enqueued with when its request is deleted: time, strategy and metadata.

ALTER TABLE /*schema*/runs
    ADD COLUMN enqueued_at timestamptz, ADD COLUMN multitask_strategy text, ADD COLUMN metadata jsonb;

COMMENT ON COLUMN /*schema*/runs.enqueued_at IS 'time it was enqueued; null: it was not enqueued';
COMMENT ON COLUMN /*schema*/runs.multitask_strategy IS
    'enqueue, reject, interrupt or rollback: what it did to other runs of the thread; null: it was not enqueued';
COMMENT ON COLUMN /*schema*/runs.metadata IS
    'metadata it was enqueued with; null: none, or the state has a serializer of its own';
