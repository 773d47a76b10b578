-- Numbers the events of a run by the stored ones again.

DROP INDEX /*schema*/leases_expires_at_idx;
CREATE INDEX leases_expires_at_idx ON /*schema*/leases (expires_at, thread_id);

DROP INDEX /*schema*/run_requests_answer_at_idx;
CREATE INDEX run_requests_answer_at_idx ON /*schema*/run_requests (answer_at) WHERE answer_at IS NOT NULL;

ALTER TABLE /*schema*/queue RESET (fillfactor);
ALTER TABLE /*schema*/queue DROP COLUMN last_event, DROP COLUMN streamed, DROP COLUMN replayed_step;
