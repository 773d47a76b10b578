-- Adds the events of runs in the queue, so that other processes can follow a run.

CREATE TABLE /*schema*/stream_batches (
    thread_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    attempt integer NOT NULL,
    fencing_token bigint NOT NULL,
    position bigint NOT NULL,
    step integer NOT NULL,
    replayed_step integer,
    data bytea NOT NULL,
    PRIMARY KEY (thread_id, run_id, last_seq, created_at)
) PARTITION BY RANGE (created_at);
ALTER TABLE /*schema*/stream_batches ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE /*schema*/stream_batches_default PARTITION OF /*schema*/stream_batches DEFAULT;

ALTER TABLE /*schema*/runs ADD COLUMN last_event bigint;

COMMENT ON TABLE /*schema*/stream_batches IS
    'Events of runs from the queue, several in a row. Partitioned by day (UTC) of created_at; maintain drops old days.';
COMMENT ON COLUMN /*schema*/stream_batches.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/stream_batches.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/stream_batches.first_seq IS
    'number of the first event; those of a run are 1, 2, 3 and so on, over all attempts';
COMMENT ON COLUMN /*schema*/stream_batches.last_seq IS 'number of the last event';
COMMENT ON COLUMN /*schema*/stream_batches.created_at IS 'time of the transaction that wrote it';
COMMENT ON COLUMN /*schema*/stream_batches.attempt IS 'attempt of the run, from 1';
COMMENT ON COLUMN /*schema*/stream_batches.fencing_token IS 'number of the lease under which it was written';
COMMENT ON COLUMN /*schema*/stream_batches.position IS 'events under this lease before the first one';
COMMENT ON COLUMN /*schema*/stream_batches.step IS 'newest superstep of the thread that events so far are of';
COMMENT ON COLUMN /*schema*/stream_batches.replayed_step IS
    'newest superstep that events under earlier leases are of; null: there are none';
COMMENT ON COLUMN /*schema*/stream_batches.data IS 'the events, encoded';
COMMENT ON COLUMN /*schema*/runs.last_event IS
    'number of the last event of its stream when it last left a worker; null: it had none';
