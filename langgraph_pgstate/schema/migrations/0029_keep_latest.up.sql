-- Lets a thread that expires lose its older checkpoints instead of being deleted.

ALTER TABLE /*schema*/threads ADD COLUMN ttl_strategy text NOT NULL DEFAULT 'delete';

COMMENT ON COLUMN /*schema*/threads.expires_at IS
    'time from which maintain may delete or prune it; moves with updated_at if there is a ttl; null: never, or not before its next activity';
COMMENT ON COLUMN /*schema*/threads.ttl_strategy IS
    'what happens when it expires: delete, or keep_latest, which prunes all but its newest checkpoints';
