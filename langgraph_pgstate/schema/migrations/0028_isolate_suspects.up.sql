-- Marks runs whose worker died without a new checkpoint, so that they are claimed alone: what kills a worker takes no other
-- run with it again, and no run is given up for what another one did.

ALTER TABLE /*schema*/queue ADD COLUMN is_suspect boolean NOT NULL DEFAULT false;
UPDATE /*schema*/queue SET is_suspect = true WHERE crashes > 0;
CREATE INDEX queue_suspect_idx ON /*schema*/queue (queue, priority DESC, position) WHERE is_suspect;

COMMENT ON COLUMN /*schema*/queue.is_suspect IS
    'true: its worker died without a new checkpoint, or too often; a worker claims it only if it runs no other run';
