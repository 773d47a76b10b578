-- Numbers the events of a run by its row in the queue, so that storing them takes one statement that reads nothing else;
-- leaves space in the pages of the queue, where such an update needs no index entries; keeps threads out of the index of
-- leases by time, which plans of an empty table would use to look them up; and finds due default answers by graph.

ALTER TABLE /*schema*/queue
    ADD COLUMN last_event bigint NOT NULL DEFAULT 0,
    ADD COLUMN streamed bigint NOT NULL DEFAULT 0,
    ADD COLUMN replayed_step integer;
ALTER TABLE /*schema*/queue SET (fillfactor = 70);

DROP INDEX /*schema*/leases_expires_at_idx;
CREATE INDEX leases_expires_at_idx ON /*schema*/leases (expires_at);

DROP INDEX /*schema*/run_requests_answer_at_idx;
CREATE INDEX run_requests_answer_at_idx ON /*schema*/run_requests ((options ->> 'graph'), answer_at)
    WHERE answer_at IS NOT NULL;

COMMENT ON COLUMN /*schema*/queue.last_event IS 'number of its last stored event, over all attempts; 0: none';
COMMENT ON COLUMN /*schema*/queue.streamed IS 'events stored under its present lease';
COMMENT ON COLUMN /*schema*/queue.replayed_step IS
    'newest superstep that events under earlier leases are of; null: there are none';
