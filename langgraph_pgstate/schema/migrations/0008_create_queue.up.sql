-- Adds the queue: runs that wait for a worker or are run by one, what they are to do, and the workers.

CREATE TABLE /*schema*/queue (
    thread_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    queue text NOT NULL,
    graph text NOT NULL,
    status text NOT NULL DEFAULT 'pending',
    is_ready boolean NOT NULL DEFAULT false,
    number bigint,
    priority integer NOT NULL DEFAULT 0,
    position bigint NOT NULL DEFAULT 0,
    key text NOT NULL DEFAULT '',
    run_after timestamptz,
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    attempt integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    cancel text,
    worker_id text COLLATE "C",
    fencing_token bigint,
    claimed_at timestamptz,
    claimed_checkpoint_id text COLLATE "C",
    timeout_at timestamptz,
    PRIMARY KEY (thread_id, run_id),
    CONSTRAINT queue_running_is_ready CHECK (status = 'pending' OR is_ready)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX queue_number_idx ON /*schema*/queue (thread_id, number) WHERE number IS NOT NULL;
CREATE UNIQUE INDEX queue_is_ready_idx ON /*schema*/queue (thread_id, is_ready) WHERE is_ready;
CREATE INDEX queue_graph_idx ON /*schema*/queue (queue, graph, priority DESC, position)
    WHERE is_ready AND status = 'pending';
CREATE INDEX queue_key_idx ON /*schema*/queue (queue, key, position) WHERE is_ready AND status = 'pending';
CREATE INDEX queue_position_idx ON /*schema*/queue (queue, position) WHERE is_ready AND status = 'pending';
CREATE INDEX queue_run_after_idx ON /*schema*/queue (run_after) WHERE run_after IS NOT NULL;
CREATE INDEX queue_worker_id_idx ON /*schema*/queue (worker_id) WHERE status = 'running';

CREATE TABLE /*schema*/run_requests (
    thread_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    options jsonb NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (thread_id, run_id)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/run_requests ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE /*schema*/workers (
    worker_id text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    queues text[] NOT NULL,
    graphs text[] NOT NULL,
    concurrency integer NOT NULL,
    PRIMARY KEY (worker_id)
);

ALTER TABLE /*schema*/runs ADD COLUMN queue text;

CREATE OR REPLACE VIEW /*schema*/failed_runs AS
SELECT r.thread_id, r.run_id, r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at,
    r.ended_at - r.started_at AS duration,
    r.status = 'running' OR coalesce(r.error_type IN ('ProcessDied', 'WorkerDied'), false) AS is_crashed, r.error_type,
    r.error_message, r.steps, r.cost
FROM /*schema*/runs r
WHERE r.status IN ('error', 'timeout') OR r.status = 'running' AND r.alive_until < now() AND NOT EXISTS (
    -- Its end is in the journal, and not in this table yet.
    SELECT 1 FROM /*schema*/journal j WHERE j.thread_id = r.thread_id AND j.run_id = r.run_id AND j.is_alone
);

COMMENT ON TABLE /*schema*/queue IS
    'Runs that wait for a worker, or that one runs. A row is deleted when its run ends.';
COMMENT ON COLUMN /*schema*/queue.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/queue.run_id IS 'the run, as in runs';
COMMENT ON COLUMN /*schema*/queue.queue IS 'name of the queue; a worker serves some of them';
COMMENT ON COLUMN /*schema*/queue.graph IS 'name of the graph';
COMMENT ON COLUMN /*schema*/queue.status IS 'pending or running';
COMMENT ON COLUMN /*schema*/queue.is_ready IS
    'true: a worker may claim it, or runs it; at most one run of each thread';
COMMENT ON COLUMN /*schema*/queue.number IS
    'order among the runs of its thread; null until run_after, if it was enqueued for later';
COMMENT ON COLUMN /*schema*/queue.priority IS 'higher is claimed first';
COMMENT ON COLUMN /*schema*/queue.position IS
    'order among the ready runs of its queue and priority; keys take turns';
COMMENT ON COLUMN /*schema*/queue.key IS 'runs of different keys take turns; empty by default';
COMMENT ON COLUMN /*schema*/queue.run_after IS 'not claimed before this time; null: at once';
COMMENT ON COLUMN /*schema*/queue.enqueued_at IS 'time it was enqueued, or retried by hand';
COMMENT ON COLUMN /*schema*/queue.attempt IS 'attempts that began; one that was given back does not count';
COMMENT ON COLUMN /*schema*/queue.crashes IS 'deaths of its worker since it last made a checkpoint';
COMMENT ON COLUMN /*schema*/queue.cancel IS
    'cancel, interrupt or rollback: its worker is to end it so; null: nobody asked for it';
COMMENT ON COLUMN /*schema*/queue.worker_id IS 'worker that runs it; null while it is pending';
COMMENT ON COLUMN /*schema*/queue.fencing_token IS
    'number of the lease under which its worker runs it; null while it is pending';
COMMENT ON COLUMN /*schema*/queue.claimed_at IS 'start of the attempt; null while it is pending';
COMMENT ON COLUMN /*schema*/queue.claimed_checkpoint_id IS
    'newest checkpoint of the thread at claimed_at, in the root namespace';
COMMENT ON COLUMN /*schema*/queue.timeout_at IS
    'time at which it has run too long, over all attempts; null: no limit, or not begun';

COMMENT ON TABLE /*schema*/run_requests IS
    'What enqueued runs are to do. A row is deleted when its run succeeds or is discarded.';
COMMENT ON COLUMN /*schema*/run_requests.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/run_requests.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/run_requests.options IS
    'graph, priority, key, retries and time limits; no content';
COMMENT ON COLUMN /*schema*/run_requests.data IS
    'input or command, config, context and other arguments of the graph; encoded';

COMMENT ON TABLE /*schema*/workers IS 'Workers that run graphs from the queue.';
COMMENT ON COLUMN /*schema*/workers.worker_id IS
    'host, boot, process and a number within the process, as in leases.holder_id';
COMMENT ON COLUMN /*schema*/workers.started_at IS 'time it started';
COMMENT ON COLUMN /*schema*/workers.seen_at IS 'time it was last seen alive';
COMMENT ON COLUMN /*schema*/workers.queues IS 'queues it serves';
COMMENT ON COLUMN /*schema*/workers.graphs IS 'graphs it can run';
COMMENT ON COLUMN /*schema*/workers.concurrency IS 'number of runs it runs at once';

COMMENT ON COLUMN /*schema*/runs.queue IS 'queue it was enqueued in; null: it was not enqueued';
COMMENT ON COLUMN /*schema*/runs.status IS
    'pending, running, success, interrupted, error, cancelled or timeout';
COMMENT ON COLUMN /*schema*/runs.started_at IS 'start of the last attempt; of a run not begun, time it was enqueued';
COMMENT ON COLUMN /*schema*/runs.error_type IS
    'exception; ProcessDied or WorkerDied: its process was killed';
COMMENT ON COLUMN /*schema*/failed_runs.error_type IS
    'exception; ProcessDied or WorkerDied: its process was killed';
COMMENT ON VIEW /*schema*/failed_runs IS
    'Runs that ended with an error or took too long, and runs whose process died.';

COMMENT ON COLUMN /*schema*/threads.status IS
    'idle, busy (a run is on it or enqueued), interrupted (its last run waits) or error (its last run failed); kept by '
    'the record and the queue';
