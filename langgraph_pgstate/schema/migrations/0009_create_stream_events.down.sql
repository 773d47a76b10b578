-- Removes the events of runs.

DROP TABLE /*schema*/stream_batches;
ALTER TABLE /*schema*/runs DROP COLUMN last_event;
