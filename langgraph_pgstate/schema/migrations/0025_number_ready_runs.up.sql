-- Gives the ready run of a thread the number 0, so that the index of numbers keeps a thread to one: an index less for each
-- run that is enqueued or claimed.

UPDATE /*schema*/queue SET number = 0 WHERE is_ready;
DROP INDEX /*schema*/queue_is_ready_idx;
ALTER TABLE /*schema*/queue ADD CONSTRAINT queue_ready_is_first CHECK (NOT is_ready OR number IS NOT DISTINCT FROM 0);

COMMENT ON COLUMN /*schema*/queue.number IS
    'order among the runs of its thread, 0 once it is the first; null until run_after, if it was enqueued for later';
