-- Forks, guards, answers and versions of the state. `schema.sql` tells what each is for.

ALTER TABLE /*schema*/threads
    ADD COLUMN forked_from_thread_id text COLLATE "C",
    ADD COLUMN forked_from_checkpoint_id text COLLATE "C";

ALTER TABLE /*schema*/checkpoints
    ADD COLUMN next_checkpoint_id text COLLATE "C",
    ADD COLUMN state_version integer;

CREATE INDEX writes_interrupts_idx ON /*schema*/writes (created_at DESC, thread_id, task_id)
    WHERE idx = -3 AND checkpoint_ns = '';

CREATE TABLE /*schema*/labels (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    label text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);

CREATE TABLE /*schema*/leases (
    thread_id text COLLATE "C" NOT NULL,
    holder_id text COLLATE "C",
    fencing_token bigint NOT NULL,
    acquired_at timestamptz NOT NULL DEFAULT now(),
    renewed_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (thread_id)
);
CREATE INDEX leases_expires_at_idx ON /*schema*/leases (expires_at, thread_id);

CREATE TABLE /*schema*/tombstones (
    thread_id text COLLATE "C" NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (thread_id)
);
CREATE INDEX tombstones_expires_at_idx ON /*schema*/tombstones (expires_at, thread_id);

CREATE TABLE /*schema*/answers (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    interrupt_id text COLLATE "C" NOT NULL,
    answer_id text NOT NULL,
    task_id text COLLATE "C" NOT NULL,
    answered_at timestamptz NOT NULL DEFAULT now(),
    answered_by text,
    value_type text NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, interrupt_id)
);

CREATE TABLE /*schema*/journal (
    thread_id text COLLATE "C" NOT NULL,
    entry_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C",
    is_alone boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    data bytea NOT NULL,
    PRIMARY KEY (thread_id, entry_id)
) WITH (toast_tuple_target = 4080, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE /*schema*/journal ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX journal_run_id_idx ON /*schema*/journal (run_id) WHERE is_alone;

-- A run whose crash was settled has crashed, too.
CREATE OR REPLACE VIEW /*schema*/failed_runs AS
SELECT r.thread_id, r.run_id, r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at,
    r.ended_at - r.started_at AS duration,
    r.status = 'running' OR r.error_type IS NOT DISTINCT FROM 'ProcessDied' AS is_crashed, r.error_type,
    r.error_message, r.steps, r.cost
FROM /*schema*/runs r
WHERE r.status = 'error' OR r.status = 'running' AND r.alive_until < now();
