-- Threads that were to be pruned are kept.

UPDATE /*schema*/threads SET ttl = NULL, expires_at = NULL WHERE ttl_strategy = 'keep_latest';
ALTER TABLE /*schema*/threads DROP COLUMN ttl_strategy;

COMMENT ON COLUMN /*schema*/threads.expires_at IS
    'time from which maintain may delete it; moves with updated_at if there is a ttl; null: never';
