-- Adds schedules, which enqueue runs at times, and answers that are given by default.

CREATE TABLE /*schema*/schedules (
    name text COLLATE "C" NOT NULL,
    graph text NOT NULL,
    queue text NOT NULL,
    thread_id text COLLATE "C",
    cron text NOT NULL,
    timezone text NOT NULL,
    missed text NOT NULL,
    options jsonb NOT NULL,
    data bytea NOT NULL,
    next_at timestamptz,
    last_at timestamptz,
    last_thread_id text COLLATE "C",
    last_run_id text COLLATE "C",
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/schedules ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX schedules_next_at_idx ON /*schema*/schedules (next_at) WHERE next_at IS NOT NULL;

ALTER TABLE /*schema*/run_requests ADD COLUMN answer_at timestamptz;
CREATE INDEX run_requests_answer_at_idx ON /*schema*/run_requests (answer_at) WHERE answer_at IS NOT NULL;

ALTER TABLE /*schema*/answers ADD COLUMN is_default boolean NOT NULL DEFAULT false;

COMMENT ON TABLE /*schema*/schedules IS
    'Schedules, which enqueue a run at each of their ticks. Not part of any thread.';
COMMENT ON COLUMN /*schema*/schedules.name IS 'the schedule';
COMMENT ON COLUMN /*schema*/schedules.graph IS 'name of the graph';
COMMENT ON COLUMN /*schema*/schedules.queue IS 'name of the queue';
COMMENT ON COLUMN /*schema*/schedules.thread_id IS 'thread of all its runs; null: a new thread for each';
COMMENT ON COLUMN /*schema*/schedules.cron IS 'minute, hour, day of month, month and day of week of its ticks';
COMMENT ON COLUMN /*schema*/schedules.timezone IS 'IANA name of the time zone of cron';
COMMENT ON COLUMN /*schema*/schedules.missed IS
    'what becomes of ticks at which nobody enqueued runs for a minute: skip, once (one run) or all (100 runs at most)';
COMMENT ON COLUMN /*schema*/schedules.options IS
    'priority, key, multitask_strategy, owner, retries and time limits; no content';
COMMENT ON COLUMN /*schema*/schedules.data IS
    'input or command, config, context and other arguments of the graph; encoded';
COMMENT ON COLUMN /*schema*/schedules.next_at IS 'next tick; null: paused';
COMMENT ON COLUMN /*schema*/schedules.last_at IS 'last tick that was not skipped; null: none yet';
COMMENT ON COLUMN /*schema*/schedules.last_thread_id IS 'thread of last_run_id';
COMMENT ON COLUMN /*schema*/schedules.last_run_id IS 'run that it enqueued last';
COMMENT ON COLUMN /*schema*/schedules.last_error IS
    'why a run was refused at last_at; null: none was';
COMMENT ON COLUMN /*schema*/schedules.created_at IS 'time it was made';
COMMENT ON COLUMN /*schema*/schedules.updated_at IS 'time it was changed, paused or resumed';

COMMENT ON COLUMN /*schema*/run_requests.answer_at IS
    'time at which the interrupts of the run get its default answer; null: never';
COMMENT ON COLUMN /*schema*/answers.is_default IS 'true: nobody answered in time, and the run has a default answer';
