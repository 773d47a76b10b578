-- The whole schema, as a story. It is what the migrations add up to (a test proves it); this file is for reading.
-- Every name carries its schema: nothing depends on search_path. Every key starts with thread_id, so a distributed
-- PostgreSQL can keep a thread on one node. Ids compare byte by byte (collation "C"), as Python compares them.

-- Which migrations were applied, and with which text.
CREATE TABLE /*schema*/migrations (
    version integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- A thread is one conversation or task. Its row is made by its first put and touched every few seconds while it
-- lives, so that listing threads never reads checkpoints.
CREATE TABLE /*schema*/threads (
    thread_id text COLLATE "C" NOT NULL,
    agent text,
    user_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id)
);
CREATE INDEX threads_updated_at_idx ON /*schema*/threads (updated_at DESC, thread_id);

-- A checkpoint is the state after one superstep, linked to its parent. `state` holds what is small (versions, scalars)
-- and, for every other channel, references into `segment_ids`. `revision` is drawn anew whenever the row is written: a
-- process that builds on what it remembers of a checkpoint must find it unchanged. What a question may filter by has a typed column;
-- `metadata` keeps everything.
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
-- For listings over all threads only. "POSIX" orders as "C" does, but is another name: the planner must not walk this
-- index through other threads' rows when it looks for the newest checkpoint of one.
CREATE INDEX checkpoints_checkpoint_id_idx ON /*schema*/checkpoints (checkpoint_id COLLATE "POSIX");
CREATE INDEX checkpoints_parent_idx ON /*schema*/checkpoints (parent_checkpoint_id)
    WHERE parent_checkpoint_id IS NOT NULL;
CREATE INDEX checkpoints_run_id_idx ON /*schema*/checkpoints (run_id) WHERE run_id IS NOT NULL;
-- Inputs, updates and forks over all threads; nearly every other checkpoint is of a loop, and is found by its thread.
CREATE INDEX checkpoints_source_step_idx ON /*schema*/checkpoints (source, step) WHERE source <> 'loop';
CREATE INDEX checkpoints_created_at_idx ON /*schema*/checkpoints USING brin (created_at)
    WITH (pages_per_range = 8, autosummarize = on);

-- A segment is an immutable run of encoded channel data, shared by every checkpoint whose `segment_ids` name it:
-- some elements of a list-valued channel, or values that change whole. Already compressed, so TOAST must not try again.
CREATE TABLE /*schema*/segments (
    thread_id text COLLATE "C" NOT NULL,
    segment_id integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (thread_id, segment_id)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/segments ALTER COLUMN data SET STORAGE EXTERNAL;

-- Pending writes are what a task wrote in the superstep that has not been checkpointed yet. One row holds the numbered
-- ordinary writes of one call; a special channel (error -1, scheduled -2, interrupt -3, resume -4) has a row
-- of its own. No foreign key to checkpoints: writes may arrive before their checkpoint, and after a rollback.
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
