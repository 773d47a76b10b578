-- The saver's four tables: threads, checkpoints, segments, writes. `schema.sql` tells what each is for.

CREATE TABLE /*schema*/threads (
    thread_id text COLLATE "C" NOT NULL,
    agent text,
    user_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id)
);
CREATE INDEX threads_updated_at_idx ON /*schema*/threads (updated_at DESC, thread_id);

CREATE TABLE /*schema*/checkpoints (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    parent_checkpoint_id text COLLATE "C",
    run_id text COLLATE "C",
    source text,
    step integer,
    created_at timestamptz NOT NULL DEFAULT now(),
    revision bigint NOT NULL DEFAULT (random() * 9007199254740991)::bigint,
    segment_ids integer[] NOT NULL,
    metadata jsonb NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/checkpoints ALTER COLUMN state SET STORAGE EXTERNAL;
CREATE INDEX checkpoints_checkpoint_id_idx ON /*schema*/checkpoints (checkpoint_id COLLATE "POSIX");
CREATE INDEX checkpoints_parent_idx ON /*schema*/checkpoints (parent_checkpoint_id)
    WHERE parent_checkpoint_id IS NOT NULL;
CREATE INDEX checkpoints_run_id_idx ON /*schema*/checkpoints (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX checkpoints_source_step_idx ON /*schema*/checkpoints (source, step) WHERE source <> 'loop';
CREATE INDEX checkpoints_created_at_idx ON /*schema*/checkpoints USING brin (created_at)
    WITH (pages_per_range = 8, autosummarize = on);

CREATE TABLE /*schema*/segments (
    thread_id text COLLATE "C" NOT NULL,
    segment_id integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (thread_id, segment_id)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/segments ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE /*schema*/writes (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    task_id text COLLATE "C" NOT NULL,
    idx integer NOT NULL,
    task_path text COLLATE "C" NOT NULL,
    run_id text COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT now(),
    data bytea NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/writes ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX writes_run_id_idx ON /*schema*/writes (run_id) WHERE run_id IS NOT NULL;
