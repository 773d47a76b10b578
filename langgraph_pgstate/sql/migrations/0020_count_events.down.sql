-- Numbers the events of a run by the stored ones again.

DROP INDEX /*schema*/leases_expires_at_idx;
CREATE INDEX leases_expires_at_idx ON /*schema*/leases (expires_at, thread_id);

ALTER TABLE /*schema*/queue RESET (fillfactor);
ALTER TABLE /*schema*/queue DROP COLUMN last_event, DROP COLUMN streamed, DROP COLUMN replayed_step;
