-- The tables of langgraph-checkpoint-postgres, as the ten migrations of version 3.2 create them, so that the saver's
-- own setup() has nothing left to do.
CREATE TABLE IF NOT EXISTS /*schema*/checkpoint_migrations (
    v integer PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS /*schema*/checkpoints (
    thread_id text NOT NULL,
    checkpoint_ns text NOT NULL DEFAULT '',
    checkpoint_id text NOT NULL,
    parent_checkpoint_id text,
    type text,
    checkpoint jsonb NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);
CREATE TABLE IF NOT EXISTS /*schema*/checkpoint_blobs (
    thread_id text NOT NULL,
    checkpoint_ns text NOT NULL DEFAULT '',
    channel text NOT NULL,
    version text NOT NULL,
    type text NOT NULL,
    blob bytea,
    PRIMARY KEY (thread_id, checkpoint_ns, channel, version)
);
CREATE TABLE IF NOT EXISTS /*schema*/checkpoint_writes (
    thread_id text NOT NULL,
    checkpoint_ns text NOT NULL DEFAULT '',
    checkpoint_id text NOT NULL,
    task_id text NOT NULL,
    idx integer NOT NULL,
    channel text NOT NULL,
    type text,
    blob bytea NOT NULL,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
);
ALTER TABLE /*schema*/checkpoint_blobs ALTER COLUMN blob DROP NOT NULL;
ALTER TABLE /*schema*/checkpoint_writes ADD COLUMN IF NOT EXISTS task_path text NOT NULL DEFAULT '';
CREATE INDEX IF NOT EXISTS checkpoints_thread_id_idx ON /*schema*/checkpoints (thread_id);
CREATE INDEX IF NOT EXISTS checkpoint_blobs_thread_id_idx ON /*schema*/checkpoint_blobs (thread_id);
CREATE INDEX IF NOT EXISTS checkpoint_writes_thread_id_idx ON /*schema*/checkpoint_writes (thread_id);
INSERT INTO /*schema*/checkpoint_migrations (v) SELECT generate_series(0, 9) ON CONFLICT (v) DO NOTHING;
