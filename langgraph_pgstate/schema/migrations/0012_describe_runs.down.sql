-- Removes the time, the strategy and the metadata that runs were enqueued with.

ALTER TABLE /*schema*/runs DROP COLUMN enqueued_at, DROP COLUMN multitask_strategy, DROP COLUMN metadata;
