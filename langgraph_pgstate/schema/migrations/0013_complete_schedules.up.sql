-- Adds an end, a pause, metadata and a time to live of threads to schedules; and webhooks of runs.

ALTER TABLE /*schema*/schedules
    ADD COLUMN is_paused boolean NOT NULL DEFAULT false, ADD COLUMN end_at timestamptz,
    ADD COLUMN thread_ttl interval, ADD COLUMN metadata jsonb NOT NULL DEFAULT '{}';
UPDATE /*schema*/schedules SET is_paused = true WHERE next_at IS NULL;

ALTER TABLE /*schema*/runs ADD COLUMN webhook text;

CREATE TABLE /*schema*/webhooks (
    thread_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT now(),
    url text NOT NULL,
    run jsonb NOT NULL,
    deliver_after timestamptz DEFAULT now(),
    attempts integer NOT NULL DEFAULT 0,
    last_error text,
    PRIMARY KEY (thread_id, run_id, ended_at)
);
CREATE INDEX webhooks_deliver_after_idx ON /*schema*/webhooks (deliver_after) WHERE deliver_after IS NOT NULL;
CREATE INDEX webhooks_failed_idx ON /*schema*/webhooks (ended_at DESC, thread_id, run_id) WHERE deliver_after IS NULL;

COMMENT ON COLUMN /*schema*/schedules.is_paused IS 'true: its ticks pass';
COMMENT ON COLUMN /*schema*/schedules.end_at IS 'time of its last tick at most; null: it has no end';
COMMENT ON COLUMN /*schema*/schedules.thread_ttl IS
    'how long the new threads of its runs are kept after they were touched last; null: for ever';
COMMENT ON COLUMN /*schema*/schedules.metadata IS
    'metadata of its runs and of their new threads; with a serializer of the caller''s own, only what its scope names';
COMMENT ON COLUMN /*schema*/schedules.next_at IS 'next tick; null: paused, or ended';
COMMENT ON COLUMN /*schema*/runs.webhook IS 'URL that is told when the run ends; null: none';

COMMENT ON TABLE /*schema*/webhooks IS
    'Ends of runs that are to be told to a URL. A row is deleted when it was delivered; it outlives its thread.';
COMMENT ON COLUMN /*schema*/webhooks.thread_id IS 'thread';
COMMENT ON COLUMN /*schema*/webhooks.run_id IS 'run';
COMMENT ON COLUMN /*schema*/webhooks.ended_at IS 'time at which the run ended; with the run it identifies the delivery';
COMMENT ON COLUMN /*schema*/webhooks.url IS 'where it is delivered to';
COMMENT ON COLUMN /*schema*/webhooks.run IS 'columns of the run, as it ended';
COMMENT ON COLUMN /*schema*/webhooks.deliver_after IS
    'time before which nobody delivers it: the next attempt, or the end of one that goes on; null: it failed for good';
COMMENT ON COLUMN /*schema*/webhooks.attempts IS 'number of attempts that were begun';
COMMENT ON COLUMN /*schema*/webhooks.last_error IS 'why the last attempt failed; null: none has';
