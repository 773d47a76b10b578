-- Removes what schedules had not, and webhooks. A schedule that has ended is paused.

DROP TABLE /*schema*/webhooks;
ALTER TABLE /*schema*/runs DROP COLUMN webhook;
ALTER TABLE /*schema*/schedules
    DROP COLUMN is_paused, DROP COLUMN end_at, DROP COLUMN thread_ttl, DROP COLUMN metadata;
COMMENT ON COLUMN /*schema*/schedules.next_at IS 'next tick; null: paused';
