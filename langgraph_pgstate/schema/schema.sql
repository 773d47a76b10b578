-- The whole schema, except the table of migrations (`bootstrap.sql`). The comments at the end describe every column.
-- Every name has its schema: nothing depends on search_path. Keys of rows of threads start with thread_id, so a
-- distributed PostgreSQL can keep a thread on one node. Ids compare byte by byte (collation "C"), as in Python.

-- A thread is one conversation or task. The first put makes its row. Later puts update the row every few seconds, so
-- that listing threads reads no checkpoints. `version` shows that an update of title or metadata is stale. An archived
-- thread keeps only this row, so that lists find the thread. A copy or a fork keeps inherited rows, even if these rows
-- are pruned or deleted in the thread of origin.
CREATE TABLE /*schema*/threads (
    thread_id text COLLATE "C" NOT NULL,
    agent text,
    user_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    tenant_id text COLLATE "C",
    status text NOT NULL DEFAULT 'idle',
    title text,
    metadata jsonb NOT NULL DEFAULT '{}',
    version integer NOT NULL DEFAULT 1,
    expires_at timestamptz,
    forked_from_thread_id text COLLATE "C",
    forked_from_checkpoint_id text COLLATE "C",
    ttl interval,
    ttl_strategy text NOT NULL DEFAULT 'delete',
    archived_at timestamptz,
    archive_id text COLLATE "C",
    origin_thread_ids text[] COLLATE "C",
    PRIMARY KEY (thread_id)
);
CREATE INDEX threads_updated_at_idx ON /*schema*/threads (updated_at DESC, thread_id);
CREATE INDEX threads_user_id_idx ON /*schema*/threads (user_id, updated_at DESC, thread_id) WHERE user_id IS NOT NULL;
CREATE INDEX threads_tenant_id_idx ON /*schema*/threads (tenant_id, updated_at DESC, thread_id)
    WHERE tenant_id IS NOT NULL;
CREATE INDEX threads_agent_idx ON /*schema*/threads (agent, updated_at DESC, thread_id) WHERE agent IS NOT NULL;
CREATE INDEX threads_status_idx ON /*schema*/threads (status, updated_at DESC, thread_id) WHERE status <> 'idle';
CREATE INDEX threads_forked_from_idx ON /*schema*/threads (forked_from_thread_id) WHERE forked_from_thread_id IS NOT NULL;
-- Only rows of copies and forks are in this index.
CREATE INDEX threads_origin_thread_ids_idx ON /*schema*/threads USING gin (origin_thread_ids)
    WHERE origin_thread_ids IS NOT NULL;
CREATE INDEX threads_expires_at_idx ON /*schema*/threads (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX threads_metadata_idx ON /*schema*/threads USING gin (metadata jsonb_path_ops) WITH (fastupdate = off);

-- A checkpoint is the state after one superstep, linked to its parent. `state` holds small values (versions, scalars)
-- and, for every other channel, references into `segment_ids`. `revision` shows a process whether its cached checkpoint
-- is unchanged. Columns that queries filter by are typed; `metadata` has everything. If a prune removed all children,
-- `next_checkpoint_id` is one of these children. A row with `is_copy` came from another thread, so a deletion of its
-- run keeps the row.
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
    next_checkpoint_id text COLLATE "C",
    state_version integer,
    is_copy boolean,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/checkpoints ALTER COLUMN state SET STORAGE EXTERNAL;
-- This index serves only lists over all threads. "POSIX" sorts like "C", but has another name, so that the planner
-- cannot use this index to look for the newest checkpoint of one thread.
CREATE INDEX checkpoints_checkpoint_id_idx ON /*schema*/checkpoints (checkpoint_id COLLATE "POSIX");
-- Each index makes a put slower, so this index also has the other columns that queries filter by. A query without a
-- parent scans this index instead of the rows. New entries go to the end of the index, so the columns cost least here.
CREATE INDEX checkpoints_parent_idx ON /*schema*/checkpoints (parent_checkpoint_id, source, step, created_at);
-- Plain graphs make checkpoints without a run. Leave these out, because each index entry makes a put slower.
CREATE INDEX checkpoints_run_id_idx ON /*schema*/checkpoints (run_id) WHERE run_id IS NOT NULL;

-- A segment is an immutable piece of encoded channel data, shared by every checkpoint whose `segment_ids` name it:
-- some elements of a list, or a value that changes as a whole. The data is compressed, so TOAST does not compress it.
CREATE TABLE /*schema*/segments (
    thread_id text COLLATE "C" NOT NULL,
    segment_id integer NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (thread_id, segment_id)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/segments ALTER COLUMN data SET STORAGE EXTERNAL;

-- Pending writes are results of tasks in a superstep that has no checkpoint yet. One row holds the numbered ordinary
-- writes of one call; a special channel (error -1, scheduled -2, interrupt -3, resume -4) has a separate row. There is
-- no foreign key to checkpoints, because writes may arrive before their checkpoint, and after a rollback.
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
    is_copy boolean,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/writes ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX writes_run_id_idx ON /*schema*/writes (run_id) WHERE run_id IS NOT NULL;
-- Interrupts, newest first. Interrupts of subgraphs are in the root namespace, too.
CREATE INDEX writes_interrupts_idx ON /*schema*/writes (created_at DESC, thread_id, task_id)
    WHERE idx = -3 AND checkpoint_ns = '';

-- Data keys, which encrypt content, wrapped by a master key that is not in the database. A scope's current key encrypts
-- new content. A destroyed key keeps its row. A key without a row counts as lost.
CREATE TABLE /*schema*/data_keys (
    key_id text COLLATE "C" NOT NULL,
    scope text COLLATE "C" NOT NULL,
    master_id text NOT NULL,
    wrapped bytea,
    is_of_tenant boolean NOT NULL DEFAULT false,
    is_current boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    replaced_at timestamptz,
    retired_at timestamptz,
    destroyed_at timestamptz,
    PRIMARY KEY (key_id)
);
CREATE UNIQUE INDEX data_keys_scope_idx ON /*schema*/data_keys (scope) WHERE is_current;

-- Legal holds. No data of a thread with a row here is deleted. A new hold locks the thread's row.
CREATE TABLE /*schema*/holds (
    thread_id text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    held_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id, reason)
);

-- Names of checkpoints, like "before refund". A prune keeps a checkpoint with a label.
CREATE TABLE /*schema*/labels (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    label text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);

-- A lease is the right to advance a thread until `expires_at`, by the clock of the database. Every new holder gets a
-- greater `fencing_token`, so that late writes of the last holder are refused. The first token of a thread is the time
-- in microseconds, which exceeds earlier tokens even if the row was deleted.
CREATE TABLE /*schema*/leases (
    thread_id text COLLATE "C" NOT NULL,
    holder_id text COLLATE "C",
    fencing_token bigint NOT NULL,
    acquired_at timestamptz NOT NULL DEFAULT now(),
    renewed_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (thread_id)
);
CREATE INDEX leases_expires_at_idx ON /*schema*/leases (expires_at);

-- Deleted threads, for as long as a run may still try to write to them.
CREATE TABLE /*schema*/tombstones (
    thread_id text COLLATE "C" NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (thread_id)
);
CREATE INDEX tombstones_expires_at_idx ON /*schema*/tombstones (expires_at, thread_id);

-- Archives. An archive has two objects outside of the database: the rows of several threads, and a manifest. The row
-- here is stored before the objects. Until the archive is complete, no rows of its threads are deleted.
CREATE TABLE /*schema*/archives (
    archive_id text COLLATE "C" NOT NULL,
    url text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    completed_at timestamptz,
    deletion_id text,
    threads integer NOT NULL,
    bytes bigint NOT NULL,
    root bytea NOT NULL,
    schema_version integer NOT NULL,
    key_ids text[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (archive_id)
);

-- Copies of threads in archives, also of threads that were restored or deleted.
CREATE TABLE /*schema*/archived_threads (
    thread_id text COLLATE "C" NOT NULL,
    archive_id text COLLATE "C" NOT NULL,
    user_id text,
    users text[],
    origin_thread_ids text[] COLLATE "C",
    PRIMARY KEY (thread_id, archive_id)
);
CREATE INDEX archived_threads_archive_id_idx ON /*schema*/archived_threads (archive_id);
CREATE INDEX archived_threads_user_id_idx ON /*schema*/archived_threads (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX archived_threads_users_idx ON /*schema*/archived_threads USING gin (users) WHERE users IS NOT NULL;
CREATE INDEX archived_threads_origin_thread_ids_idx ON /*schema*/archived_threads USING gin (origin_thread_ids)
    WHERE origin_thread_ids IS NOT NULL;

-- Policies of how long threads are kept. A policy selects threads, and has ages for its actions. It visits all threads
-- again and again; `cursor_id` is its position.
CREATE TABLE /*schema*/retention_policies (
    name text COLLATE "C" NOT NULL,
    agent text,
    tenant_id text COLLATE "C",
    user_id text,
    status text,
    metadata jsonb,
    content_after interval,
    prune_after interval,
    keep_last integer NOT NULL DEFAULT 1,
    archive_after interval,
    archive_to text,
    delete_after interval,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version integer NOT NULL DEFAULT 1,
    applied_at timestamptz,
    last_error text,
    cursor_id text COLLATE "C" NOT NULL DEFAULT '',
    began_at timestamptz,
    last_began_at timestamptz,
    PRIMARY KEY (name)
);

-- Answers to interrupts, at most one for each. A call that is repeated after a lost connection finds its own answer by
-- the random `answer_id`.
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
    is_default boolean NOT NULL DEFAULT false,
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, interrupt_id)
);

-- Channels as JSON, for queries in SQL: the values of the newest checkpoint, written with it.
CREATE TABLE /*schema*/projections (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    state jsonb NOT NULL,
    PRIMARY KEY (thread_id)
);
CREATE INDEX projections_state_idx ON /*schema*/projections USING gin (state jsonb_path_ops);

-- A run is one invocation of a graph on a thread. Its process renews `alive_until`. Steps, tokens and cost are sums
-- over all attempts. Other columns describe the last attempt. If the run was enqueued, the queue writes status,
-- attempt, end and error, and the recorder writes the other columns. A run that deletes its thread stays with its
-- events until `delete_at`, so that readers of the events learn of its end.
CREATE TABLE /*schema*/runs (
    thread_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    attempt integer NOT NULL DEFAULT 1,
    status text NOT NULL,
    agent text,
    tenant_id text COLLATE "C",
    user_id text COLLATE "C",
    holder_id text COLLATE "C",
    alive_until timestamptz,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    first_checkpoint_id text COLLATE "C",
    last_checkpoint_id text COLLATE "C",
    steps integer NOT NULL DEFAULT 0,
    input_tokens bigint NOT NULL DEFAULT 0,
    output_tokens bigint NOT NULL DEFAULT 0,
    cost numeric NOT NULL DEFAULT 0,
    error_type text,
    error_message text,
    error_traceback text,
    input jsonb,
    output jsonb,
    first_started_at timestamptz,
    steps_before integer NOT NULL DEFAULT 0,
    queue text,
    last_event bigint,
    key text,
    enqueued_at timestamptz,
    multitask_strategy text,
    metadata jsonb,
    webhook text,
    traceparent text,
    is_encrypted boolean NOT NULL DEFAULT false,
    release text,
    delete_at timestamptz,
    PRIMARY KEY (thread_id, run_id)
);
CREATE INDEX runs_thread_id_idx ON /*schema*/runs (thread_id, started_at DESC);
CREATE INDEX runs_running_idx ON /*schema*/runs (status, thread_id, run_id) WHERE status = 'running';
CREATE INDEX runs_started_at_idx ON /*schema*/runs (started_at DESC, thread_id, run_id);
CREATE INDEX runs_status_idx ON /*schema*/runs (status, started_at DESC, thread_id, run_id) WHERE status <> 'success';
CREATE INDEX runs_run_id_idx ON /*schema*/runs (run_id);
CREATE INDEX runs_steps_idx ON /*schema*/runs (steps DESC, thread_id, run_id) WHERE steps > 25;
CREATE INDEX runs_delete_at_idx ON /*schema*/runs (delete_at) WHERE delete_at IS NOT NULL;

-- Feedback is a score, a comment, or both, on a run or a span. The foreign key locks the run's row, so a run that is
-- being deleted gets no feedback. A caller's own serializer, which may encrypt, encodes the comment in `value`.
CREATE TABLE /*schema*/feedback (
    thread_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    feedback_id text COLLATE "C" NOT NULL,
    span_id text COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text,
    source text NOT NULL,
    name text NOT NULL,
    score double precision,
    comment text,
    value_type text,
    value bytea,
    PRIMARY KEY (thread_id, run_id, feedback_id),
    CONSTRAINT feedback_run FOREIGN KEY (thread_id, run_id) REFERENCES /*schema*/runs ON DELETE CASCADE,
    CONSTRAINT feedback_says_something CHECK (score IS NOT NULL OR comment IS NOT NULL OR value IS NOT NULL),
    CONSTRAINT feedback_score_is_bounded CHECK (score BETWEEN -1e15 AND 1e15)
);
CREATE INDEX feedback_created_at_idx ON /*schema*/feedback (created_at DESC, thread_id, run_id, feedback_id);

-- A run in the queue waits for a worker, or a worker runs it. Only a ready run can be claimed: the first run of its
-- thread by `number`, if this run is due. A ready run has the number 0, which is unique in a thread. So a thread has at
-- most one running run, and claims read only ready runs. A key's first ready run gets the smallest `position` of the
-- queue, and each further run of the key adds one, so that keys take turns. A claim sets `is_limited` for runs of a key
-- at its limit, so that later claims skip these runs.
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
    version text NOT NULL DEFAULT '',
    is_limited boolean NOT NULL DEFAULT false,
    last_event bigint NOT NULL DEFAULT 0,
    streamed bigint NOT NULL DEFAULT 0,
    replayed_step integer,
    is_suspect boolean NOT NULL DEFAULT false,
    PRIMARY KEY (thread_id, run_id),
    CONSTRAINT queue_running_is_ready CHECK (status = 'pending' OR is_ready),
    CONSTRAINT queue_limited_is_ready CHECK (NOT is_limited OR is_ready AND status = 'pending'),
    CONSTRAINT queue_ready_is_first CHECK (NOT is_ready OR number IS NOT DISTINCT FROM 0)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, fillfactor = 70);
CREATE UNIQUE INDEX queue_number_idx ON /*schema*/queue (thread_id, number) WHERE number IS NOT NULL;
CREATE INDEX queue_graph_idx ON /*schema*/queue (queue, graph, version, priority DESC, position)
    WHERE is_ready AND status = 'pending' AND NOT is_limited;
CREATE INDEX queue_key_idx ON /*schema*/queue (queue, key, position)
    WHERE is_ready AND status = 'pending' AND NOT is_limited;
CREATE INDEX queue_position_idx ON /*schema*/queue (queue, position)
    WHERE is_ready AND status = 'pending' AND NOT is_limited;
CREATE INDEX queue_limited_idx ON /*schema*/queue (queue, key, priority DESC, position) WHERE is_limited;
CREATE INDEX queue_running_idx ON /*schema*/queue (queue, key, worker_id) WHERE status = 'running';
CREATE INDEX queue_run_after_idx ON /*schema*/queue (run_after) WHERE run_after IS NOT NULL;
CREATE INDEX queue_suspect_idx ON /*schema*/queue (queue, priority DESC, position) WHERE is_suspect;

-- Requests of enqueued runs. If a run fails or is interrupted, its row stays for a retry or an answer.
CREATE TABLE /*schema*/run_requests (
    thread_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    options jsonb NOT NULL,
    data bytea NOT NULL,
    answer_at timestamptz,
    PRIMARY KEY (thread_id, run_id)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/run_requests ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX run_requests_answer_at_idx ON /*schema*/run_requests ((options ->> 'graph'), answer_at)
    WHERE answer_at IS NOT NULL;

-- Workers. The rows show which runs no living worker accepts.
CREATE TABLE /*schema*/workers (
    worker_id text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    queues text[] NOT NULL,
    graphs text[] NOT NULL,
    concurrency integer NOT NULL,
    versions jsonb NOT NULL DEFAULT '{}',
    drain_asked_at timestamptz,
    PRIMARY KEY (worker_id)
);

-- The events of runs from the queue; a row has several events. Events are numbered without gaps over all attempts of a
-- run, because each transaction that adds events also updates the run's row in `queue`. The number of events under the
-- present lease (`streamed`) shows whether a batch is sent again. `setup()` and `pgstate maintain` make partitions by
-- day; the default partition takes other days.
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

-- Limits of the runs of a queue, of each of its keys, or of one key: at the same time, or per window of time.
CREATE TABLE /*schema*/queue_limits (
    queue text NOT NULL,
    key text NOT NULL,
    concurrency integer,
    rate integer,
    rate_seconds double precision,
    PRIMARY KEY (queue, key)
);

-- Claims under a limit. A claim counts the running runs in its snapshot, and increments the revision that it has read.
-- If another claim of the key was committed meanwhile, the revision differs, and the claim takes no run.
CREATE TABLE /*schema*/queue_keys (
    queue text NOT NULL,
    key text NOT NULL,
    revision bigint NOT NULL DEFAULT 1,
    window_started_at timestamptz NOT NULL DEFAULT now(),
    window_claims integer NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- At each tick of a schedule, the first process that locks the row enqueues a run, and sets `next_at` to the following
-- tick, in one transaction. The run's id is made from the schedule's name and the tick. Like `workers`, the table
-- belongs to no thread, and is not distributed by thread. A schedule of a client of the server is deleted with its
-- thread, so that it never runs on a later thread of the same id.
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
    is_paused boolean NOT NULL DEFAULT false,
    end_at timestamptz,
    thread_ttl interval,
    metadata jsonb NOT NULL DEFAULT '{}',
    owner_id text COLLATE "C",
    PRIMARY KEY (name)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/schedules ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX schedules_next_at_idx ON /*schema*/schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedules_thread_id_idx ON /*schema*/schedules (thread_id) WHERE thread_id IS NOT NULL;

-- Webhooks to deliver. The transaction that ends a run with a `webhook` inserts a row, which is deleted when the URL
-- has responded. A process that delivers a webhook moves `deliver_after`. If the process dies, another process delivers
-- the webhook, perhaps for the second time, with the same key. If a run deletes its thread at its end, the row stays.
-- Any other deletion of the thread deletes the row. Copies and exports of threads leave this table out.
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

-- Assistants are graphs with their own config and context. Each change makes a version; runs use the current version.
-- Like schedules, assistants belong to no thread.
CREATE TABLE /*schema*/assistants (
    assistant_id text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    owner_id text COLLATE "C",
    PRIMARY KEY (assistant_id)
);
CREATE TABLE /*schema*/assistant_versions (
    assistant_id text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    graph text NOT NULL,
    name text NOT NULL,
    description text,
    metadata jsonb NOT NULL DEFAULT '{}',
    data bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (assistant_id, version)
);

-- Items that agents keep beyond a conversation. A namespace is a path of labels, compared label by label. Rows of a
-- large namespace are in the indexes for approximate search (`is_large`), or wait for `maintain` (`is_waiting`). Other
-- rows are searched exactly. If the embedding model failed, an item is `is_unindexed` until its embeddings are stored.
-- A memory has a `kind`, and a `digest` by which a duplicate is found. `value` may be encrypted.
CREATE TABLE /*schema*/memories (
    namespace text[] COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    value jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz,
    ttl interval,
    words tsvector,
    index_fields text[],
    is_large boolean NOT NULL,
    is_waiting boolean NOT NULL,
    is_unindexed boolean NOT NULL,
    kind text,
    user_id text,
    agent text,
    tenant_id text COLLATE "C",
    importance real,
    digest text COLLATE "C",
    duplicates integer NOT NULL DEFAULT 0,
    valid_from timestamptz NOT NULL,
    changed_by text,
    thread_id text COLLATE "C",
    run_id text COLLATE "C",
    checkpoint_id text COLLATE "C",
    message_id text COLLATE "C",
    accessed_at timestamptz,
    access_count integer NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX memories_expires_at_idx ON /*schema*/memories (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX memories_words_idx ON /*schema*/memories USING gin (words) WHERE is_large;
CREATE INDEX memories_waiting_idx ON /*schema*/memories (namespace, key) WHERE is_waiting;
CREATE INDEX memories_unindexed_idx ON /*schema*/memories (updated_at) WHERE is_unindexed;
CREATE INDEX memories_user_id_idx ON /*schema*/memories (user_id, updated_at DESC) WHERE user_id IS NOT NULL;
CREATE INDEX memories_thread_id_idx ON /*schema*/memories (thread_id, run_id) WHERE thread_id IS NOT NULL;
CREATE INDEX memories_message_id_idx ON /*schema*/memories (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX memories_digest_idx ON /*schema*/memories (digest, namespace) WHERE digest IS NOT NULL;

-- Earlier versions of memories, each valid from `valid_from` until `valid_to`.
CREATE TABLE /*schema*/memory_versions (
    namespace text[] COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    value jsonb NOT NULL,
    kind text,
    user_id text,
    agent text,
    tenant_id text COLLATE "C",
    importance real,
    valid_from timestamptz NOT NULL,
    valid_to timestamptz NOT NULL,
    is_deleted boolean NOT NULL,
    deleted_by text,
    changed_by text,
    thread_id text COLLATE "C",
    run_id text COLLATE "C",
    checkpoint_id text COLLATE "C",
    message_id text COLLATE "C",
    PRIMARY KEY (namespace, key, version)
);
CREATE INDEX memory_versions_message_id_idx ON /*schema*/memory_versions (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX memory_versions_thread_id_idx ON /*schema*/memory_versions (thread_id, run_id) WHERE thread_id IS NOT NULL;

-- Namespaces with so many memories that they are searched approximately. Until `is_ready`, `maintain` puts their rows
-- into the indexes, and searches are exact.
CREATE TABLE /*schema*/large_namespaces (
    namespace text[] COLLATE "C" NOT NULL,
    is_ready boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace)
);

-- Indexes of embeddings, one for each model. Each index has its own table of vectors, like `memory_vectors_1`, because
-- the number of dimensions is part of the type. Searches use the last index that is complete.
CREATE TABLE /*schema*/memory_indexes (
    name text COLLATE "C" NOT NULL,
    number integer NOT NULL,
    dims integer NOT NULL,
    vector_type text NOT NULL,
    distance text NOT NULL,
    fields text[] NOT NULL,
    parameters jsonb NOT NULL,
    is_complete boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    indexer text,
    indexing_until timestamptz,
    PRIMARY KEY (name)
);
CREATE UNIQUE INDEX memory_indexes_number_idx ON /*schema*/memory_indexes (number);

-- Files of agents, outside of threads. A namespace is a list of labels, compared as a whole. The row of a file names
-- its newest version. A change of the file locks this row, so the row stays when the file is deleted. The row has no
-- content, so that lists of files read little.
CREATE TABLE /*schema*/files (
    namespace text[] COLLATE "C" NOT NULL,
    path text COLLATE "C" NOT NULL,
    directory text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    size bigint NOT NULL,
    line_count integer NOT NULL,
    is_text boolean NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    modified_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz,
    PRIMARY KEY (namespace, path)
);
CREATE INDEX files_directory_idx ON /*schema*/files (namespace, directory) WHERE deleted_at IS NULL;

-- The text of each file's newest version, for searches. Texts of a few kilobytes stay in the row uncompressed, so that
-- searches are several times faster. Binary files, texts with NUL, and files that a caller's own serializer has encoded
-- are not here.
CREATE TABLE /*schema*/file_texts (
    namespace text[] COLLATE "C" NOT NULL,
    path text COLLATE "C" NOT NULL,
    content text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, path)
) WITH (toast_tuple_target = 8160);
ALTER TABLE /*schema*/file_texts ALTER COLUMN content SET STORAGE EXTERNAL;

-- Every version of every file, with the run and the checkpoint from which it was written. A write that is repeated
-- after a lost connection finds its own version by the random `change_id`.
CREATE TABLE /*schema*/file_versions (
    namespace text[] COLLATE "C" NOT NULL,
    path text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    operation text NOT NULL,
    change_id text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    size bigint NOT NULL,
    line_count integer NOT NULL,
    is_text boolean NOT NULL,
    restored_version integer,
    changed_by text,
    thread_id text COLLATE "C",
    checkpoint_ns text COLLATE "C",
    checkpoint_id text COLLATE "C",
    run_id text COLLATE "C",
    value_type text,
    data bytea,
    PRIMARY KEY (namespace, path, version)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/file_versions ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX file_versions_thread_id_idx ON /*schema*/file_versions (thread_id, created_at) WHERE thread_id IS NOT NULL;

-- A span is one timed operation in a run: graph, node, model call, tool call, retriever. Its row is stored within a
-- second of its start. `setup()` and `pgstate maintain` make partitions by month; the default partition takes other
-- months.
CREATE TABLE /*schema*/spans (
    thread_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    span_id text COLLATE "C" NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz,
    parent_span_id text COLLATE "C",
    kind text NOT NULL,
    name text NOT NULL,
    status text NOT NULL,
    checkpoint_ns text COLLATE "C",
    checkpoint_id text COLLATE "C",
    step integer,
    node text,
    task_id text COLLATE "C",
    agent text,
    provider text,
    model text,
    input_tokens bigint,
    output_tokens bigint,
    cache_read_tokens bigint,
    reasoning_tokens bigint,
    cost numeric,
    tool_call_id text COLLATE "C",
    error_type text,
    error_message text,
    input jsonb,
    output jsonb,
    attributes jsonb NOT NULL DEFAULT '{}',
    semconv_version text NOT NULL,
    PRIMARY KEY (thread_id, run_id, span_id, started_at)
) PARTITION BY RANGE (started_at);
CREATE INDEX spans_started_at_idx ON /*schema*/spans (kind, started_at) WHERE kind <> 'llm';
-- Sums of the costs of models read only this index.
CREATE INDEX spans_model_calls_idx ON /*schema*/spans (started_at)
    INCLUDE (provider, model, input_tokens, output_tokens, cache_read_tokens, reasoning_tokens, cost)
    WHERE kind = 'llm';
CREATE TABLE /*schema*/spans_default PARTITION OF /*schema*/spans DEFAULT;

-- Exporters of spans. One process at a time, the holder, exports. Another process takes over after `expires_at`, by the
-- clock of the database.
CREATE TABLE /*schema*/exporters (
    name text COLLATE "C" NOT NULL,
    endpoint text NOT NULL,
    holder_id text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    caught_up_at timestamptz,
    PRIMARY KEY (name)
);

-- Spans that have ended and are not exported yet. While there is an exporter, the transaction that stores the end of a
-- span queues the span, so that no span is missed. Rows are deleted after the export.
CREATE TABLE /*schema*/span_exports (
    thread_id text COLLATE "C" NOT NULL,
    export_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    span_ids text[] NOT NULL,
    started_ats timestamptz[] NOT NULL,
    PRIMARY KEY (thread_id, export_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX span_exports_created_at_idx ON /*schema*/span_exports (created_at, thread_id, export_id);

-- A tool execution is one action. Its row is committed before the tool runs, and completed afterwards. The key
-- identifies the action, so that it is done once. Only the process with the random `intent_id` of the attempt may
-- write the outcome. `result` is compressed if `result_type` begins with `frame/`. After a copy or a fork, the token
-- that the tool gives to other services is still made from `origin_thread_id`. While `is_copy` is true, the action is
-- compensated on the thread of origin.
CREATE TABLE /*schema*/tool_executions (
    thread_id text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C",
    intent_id text COLLATE "C",
    tool text NOT NULL,
    status text NOT NULL,
    attempt integer NOT NULL DEFAULT 1,
    agent text,
    tool_call_id text COLLATE "C",
    run_id text COLLATE "C",
    task_id text COLLATE "C",
    checkpoint_ns text COLLATE "C",
    checkpoint_id text COLLATE "C",
    root_checkpoint_id text COLLATE "C",
    step integer,
    holder_id text COLLATE "C",
    alive_until timestamptz,
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    arguments jsonb NOT NULL,
    result_type text,
    result bytea,
    preview text,
    error_type text,
    error_message text,
    answers integer NOT NULL DEFAULT 0,
    compensates text COLLATE "C",
    compensated_at timestamptz,
    origin_thread_id text COLLATE "C",
    is_copy boolean NOT NULL DEFAULT false,
    PRIMARY KEY (thread_id, idempotency_key)
);
ALTER TABLE /*schema*/tool_executions ALTER COLUMN result SET STORAGE EXTERNAL;
CREATE INDEX tool_executions_started_at_idx ON /*schema*/tool_executions (started_at);
CREATE INDEX tool_executions_tool_idx ON /*schema*/tool_executions (tool, started_at);
CREATE INDEX tool_executions_status_idx ON /*schema*/tool_executions (status, started_at) WHERE status <> 'success';

-- Every chat message where it first appeared. An edit or a removal is a separate row. A message in two channels has a
-- row for each channel. The messages of a branch are the rows of its checkpoints, in the order in which they were added
-- last. If a message is put between other messages, all later messages are added again. When a prune removes the parent
-- of a checkpoint, the checkpoint gets rows for all messages of its branch, also for removed messages.
CREATE TABLE /*schema*/messages (
    thread_id text COLLATE "C" NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    channel text NOT NULL,
    position integer NOT NULL,
    change text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    run_id text COLLATE "C",
    role text,
    agent text,
    content text,
    tool_calls jsonb,
    tool_call_id text COLLATE "C",
    input_tokens bigint,
    output_tokens bigint,
    PRIMARY KEY (thread_id, message_id, checkpoint_id, channel)
);
CREATE INDEX messages_search_idx ON /*schema*/messages USING gin (to_tsvector('simple', left(content, 100000)))
    WHERE content IS NOT NULL;

-- Events of threads: status changes, handoffs, interrupts, resumes, forks, prunes, refused runs. Rows are only added.
CREATE TABLE /*schema*/events (
    thread_id text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    kind text NOT NULL,
    run_id text COLLATE "C",
    checkpoint_ns text COLLATE "C",
    checkpoint_id text COLLATE "C",
    agent text,
    payload jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (thread_id, event_id)
);
CREATE INDEX events_kind_idx ON /*schema*/events (kind, created_at);

-- Whether events are chained by hashes: one row if they are. Like `prices`, the table belongs to no thread or tenant.
CREATE TABLE /*schema*/event_chaining (
    is_on boolean NOT NULL DEFAULT true,
    since timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (is_on),
    CONSTRAINT event_chaining_has_one_row CHECK (is_on)
);

-- The chain of a thread's events: its length, and the hash of its last entry. A transaction that appends locks the row.
CREATE TABLE /*schema*/event_chains (
    thread_id text COLLATE "C" NOT NULL,
    chain_id text NOT NULL,
    number bigint NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (thread_id)
);

-- An entry of a chain is an event as it was stored. `digest` is the SHA-256 of `salt` and the event; `hash` is the
-- SHA-256 of the previous hash and the digest. The salt is removed when the event is deleted or redacted. Without the
-- salt, the event cannot be guessed from the digest. A redacted event has a second entry later in the chain.
CREATE TABLE /*schema*/event_hashes (
    thread_id text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    salt bytea,
    digest bytea NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (thread_id, number)
);
CREATE INDEX event_hashes_event_id_idx ON /*schema*/event_hashes (thread_id, event_id);

-- Chains of threads that were deleted or erased. `chain_id` is random, so the row does not identify the thread.
CREATE TABLE /*schema*/event_chain_ends (
    chain_id text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    hash bytea NOT NULL,
    reason text NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id)
);

-- Erasures, and their receipts, which name no person. A repeated call finds its unfinished erasure by the salted hash
-- in `subject`. The transactions that erase rows add the numbers of rows to `counts`.
CREATE TABLE /*schema*/erasures (
    erasure_id text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    salt bytea,
    subject bytea,
    counts jsonb NOT NULL DEFAULT '{}',
    receipt jsonb,
    PRIMARY KEY (erasure_id)
);
CREATE INDEX erasures_started_at_idx ON /*schema*/erasures (started_at DESC, erasure_id);

-- Recorded entries that are not in the tables yet. The transaction of a checkpoint stores one row with its runs, spans,
-- events and messages. A writer moves the entries into the tables within a second, also after a crash. One transaction
-- deletes a row and writes its entries, so that entries are written once.
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

-- Prices of a million tokens, from a time on, edited by the user. The cost of a span is computed when it is stored.
CREATE TABLE /*schema*/prices (
    model text NOT NULL,
    provider text NOT NULL DEFAULT '',
    valid_from timestamptz NOT NULL DEFAULT '-infinity',
    input numeric NOT NULL,
    output numeric NOT NULL,
    cache_read numeric,
    reasoning numeric,
    PRIMARY KEY (model, provider, valid_from)
);

-- Maximum cost of model calls on one day (UTC), of a tenant, a user, an agent or a key of the queue.
CREATE TABLE /*schema*/budgets (
    scope text NOT NULL,
    name text NOT NULL,
    amount numeric NOT NULL,
    PRIMARY KEY (scope, name)
);

-- Costs of today's model calls whose thread or run was deleted, so that a deletion does not restore a budget. The table
-- has rows only while there are budgets. Its rows belong to no thread and have no content; `maintain` deletes rows of
-- other days.
CREATE TABLE /*schema*/deleted_costs (
    started_at timestamptz NOT NULL,
    span_id text COLLATE "C" NOT NULL,
    tenant_id text COLLATE "C",
    user_id text COLLATE "C",
    agent text,
    key text,
    cost numeric NOT NULL,
    PRIMARY KEY (started_at, span_id)
);

-- Reports of `maintain`, with the sizes of the tables. Like `workers`, the table belongs to no thread.
CREATE TABLE /*schema*/maintenance (
    maintained_at timestamptz NOT NULL DEFAULT now(),
    seconds double precision NOT NULL,
    report jsonb NOT NULL,
    sizes jsonb NOT NULL,
    PRIMARY KEY (maintained_at)
);

-- Views for common queries, which can be filtered and aggregated.

-- Runs that ended with an error or took too long, and runs whose process died.
CREATE VIEW /*schema*/failed_runs AS
SELECT r.thread_id, r.run_id, r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at,
    r.ended_at - r.started_at AS duration,
    r.status = 'running' OR coalesce(r.error_type IN ('ProcessDied', 'WorkerDied'), false) AS is_crashed, r.error_type,
    r.error_message, r.steps, r.cost
FROM /*schema*/runs r
WHERE r.status IN ('error', 'timeout') OR r.status = 'running' AND r.alive_until < now() AND NOT EXISTS (
    -- Leave out a run whose end is in the journal, and not in this table yet.
    SELECT 1 FROM /*schema*/journal j WHERE j.thread_id = r.thread_id AND j.run_id = r.run_id AND j.is_alone
);

-- Runs of status running whose process died, until `maintain` or the thread's next run ends them.
CREATE VIEW /*schema*/stuck_runs AS
SELECT r.thread_id, r.run_id, r.agent, r.tenant_id, r.user_id, r.attempt, r.holder_id, r.started_at, r.alive_until,
    r.steps, r.last_checkpoint_id
FROM /*schema*/runs r
WHERE r.status = 'running' AND r.alive_until < now() AND NOT EXISTS (
    -- Leave out a run whose end is in the journal, and not in this table yet.
    SELECT 1 FROM /*schema*/journal j WHERE j.thread_id = r.thread_id AND j.run_id = r.run_id AND j.is_alone
);

-- Threads with runs of more than 25 supersteps.
CREATE VIEW /*schema*/runaway_threads AS
SELECT r.thread_id, count(*) AS runs, max(r.steps) AS most_steps, max(r.started_at) AS last_started_at,
    sum(r.cost) AS cost
FROM /*schema*/runs r
WHERE r.steps > 25
GROUP BY r.thread_id;

-- Interrupted threads: tasks of their newest checkpoint wait for an answer, and have written no result.
CREATE VIEW /*schema*/waiting_threads AS
SELECT w.thread_id, t.agent, t.tenant_id, t.user_id, t.title, w.checkpoint_id, min(w.created_at) AS since,
    count(*) AS tasks, sum((
        SELECT count(*) FROM /*schema*/answers a
        WHERE a.thread_id = w.thread_id AND a.checkpoint_ns = '' AND a.checkpoint_id = w.checkpoint_id
            AND a.task_id = w.task_id AND a.answered_at >= w.created_at
    ))::bigint AS answers
FROM /*schema*/writes w
    JOIN /*schema*/checkpoints c
        ON c.thread_id = w.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = w.checkpoint_id
    LEFT JOIN /*schema*/threads t ON t.thread_id = w.thread_id
WHERE w.idx = -3 AND w.checkpoint_ns = '' AND NOT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints n
    WHERE n.thread_id = w.thread_id AND n.checkpoint_ns = '' AND n.checkpoint_id > w.checkpoint_id
) AND NOT EXISTS (
    SELECT 1 FROM /*schema*/writes d
    WHERE d.thread_id = w.thread_id AND d.checkpoint_ns = '' AND d.checkpoint_id = w.checkpoint_id
        AND d.task_id = w.task_id AND d.idx >= 0
) AND NOT EXISTS (
    -- If a task of the functional API is interrupted, the tasks that called it have its interrupt, too.
    SELECT 1 FROM /*schema*/writes k
    WHERE k.thread_id = w.thread_id AND k.checkpoint_ns = '' AND k.checkpoint_id = w.checkpoint_id AND k.idx = -3
        AND starts_with(k.task_path, '~__pregel_push, ' || w.task_path || ', ') AND NOT EXISTS (
            SELECT 1 FROM /*schema*/writes d
            WHERE d.thread_id = k.thread_id AND d.checkpoint_ns = '' AND d.checkpoint_id = k.checkpoint_id
                AND d.task_id = k.task_id AND d.idx >= 0
        )
)
GROUP BY w.thread_id, t.agent, t.tenant_id, t.user_id, t.title, w.checkpoint_id;

-- Actions of the tool ledger with an unknown outcome.
CREATE VIEW /*schema*/unknown_effects AS
SELECT e.thread_id, e.idempotency_key, e.tool, e.status, e.attempt, e.agent, e.tool_call_id, e.run_id, e.arguments,
    e.holder_id, e.started_at, e.ended_at, e.compensates, e.is_copy, e.origin_thread_id
FROM /*schema*/tool_executions e
WHERE e.status IN ('running', 'timeout', 'unknown') AND (e.status <> 'running' OR e.alive_until < now());

-- Every call of a tool.
CREATE VIEW /*schema*/tool_calls AS
SELECT s.thread_id, s.run_id, s.span_id, s.name AS tool, s.agent, s.status, s.started_at, s.ended_at,
    extract(epoch FROM s.ended_at - s.started_at)::double precision AS seconds, s.error_type, s.error_message,
    s.tool_call_id, s.step, s.checkpoint_id
FROM /*schema*/spans s
WHERE s.kind = 'tool';

-- Calls, errors, unknown outcomes (by the ledger) and seconds of tools, over all time. The duration of a call whose
-- process died is unknown. Such a call is no error if it was found to have taken effect.
CREATE VIEW /*schema*/tool_statistics AS
SELECT c.tool, count(*) AS calls,
    count(*) FILTER (WHERE c.status = 'error' AND NOT c.is_unknown AND NOT c.is_found) AS errors,
    count(*) FILTER (WHERE c.is_unknown) AS unknown,
    count(*) FILTER (WHERE c.status = 'error' AND NOT c.is_unknown AND NOT c.is_found)::double precision
        / nullif(count(c.ended_at) FILTER (WHERE NOT c.is_unknown), 0) AS error_rate,
    avg(c.seconds) AS mean, percentile_cont(0.5) WITHIN GROUP (ORDER BY c.seconds) AS p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY c.seconds) AS p95, max(c.started_at) AS last_at
FROM (
    SELECT t.tool, t.status, t.started_at, t.ended_at,
        CASE WHEN t.error_type IS NULL OR t.error_type NOT IN ('ProcessDied', 'WorkerDied') THEN t.seconds END
            AS seconds,
        CASE WHEN t.error_type IN ('ProcessDied', 'WorkerDied') THEN coalesce((
            SELECT e.status FROM /*schema*/tool_executions e
            WHERE e.thread_id = t.thread_id AND e.tool_call_id = t.tool_call_id AND e.alive_until IS NULL
            LIMIT 1
        ) = 'success', false) ELSE false END AS is_found, ((t.thread_id, t.tool_call_id) IN (
        SELECT e.thread_id, e.tool_call_id FROM /*schema*/tool_executions e WHERE e.status IN ('timeout', 'unknown')
    )) IS TRUE AS is_unknown
    FROM /*schema*/tool_calls t
) AS c
GROUP BY c.tool;

-- Every call of a model, with its owner, tokens and cost.
CREATE VIEW /*schema*/model_calls AS
SELECT s.thread_id, s.run_id, s.span_id, coalesce(s.agent, r.agent) AS agent, s.provider, s.model, r.tenant_id,
    r.user_id, (s.started_at AT TIME ZONE 'UTC')::date AS day, s.started_at, s.ended_at, s.status, s.input_tokens,
    s.output_tokens, s.cache_read_tokens, s.reasoning_tokens, s.cost
FROM /*schema*/spans s LEFT JOIN /*schema*/runs r ON r.thread_id = s.thread_id AND r.run_id = s.run_id
WHERE s.kind = 'llm';

-- Tokens and money by day, agent, model, tenant and user.
CREATE VIEW /*schema*/usage_by_day AS
SELECT m.day, m.agent, m.provider, m.model, m.tenant_id, m.user_id, count(*) AS calls,
    sum(m.input_tokens) AS input_tokens, sum(m.output_tokens) AS output_tokens,
    sum(m.cache_read_tokens) AS cache_read_tokens, sum(m.reasoning_tokens) AS reasoning_tokens, sum(m.cost) AS cost,
    count(*) FILTER (WHERE m.cost IS NULL) AS unpriced
FROM /*schema*/model_calls m
GROUP BY m.day, m.agent, m.provider, m.model, m.tenant_id, m.user_id;

-- Handoffs from one agent to another, with the time until the thread's next handoff.
CREATE VIEW /*schema*/handoffs AS
SELECT v.thread_id, v.event_id, v.created_at, v.run_id, v.payload ->> 'from' AS source, v.payload ->> 'to' AS target,
    v.payload ->> 'reason' AS reason,
    extract(epoch FROM (
        SELECT n.created_at FROM /*schema*/events n
        WHERE n.thread_id = v.thread_id AND n.event_id > v.event_id AND n.kind = 'handoff'
        ORDER BY n.event_id LIMIT 1
    ) - v.created_at)::double precision AS seconds_to_next
FROM /*schema*/events v
WHERE v.kind = 'handoff';

-- The run, tools and cost behind each checkpoint of the root namespace. The spans of a superstep have the checkpoint
-- from which the superstep started, or only its number if they were stored before that checkpoint. Spans of subgraphs
-- have their own checkpoints; `runs.provenance()` in Python includes these spans.
CREATE VIEW /*schema*/provenance AS
SELECT c.thread_id, c.checkpoint_id, c.parent_checkpoint_id, c.source, c.step, c.created_at, c.run_id,
    r.status AS run_status, r.agent, r.tenant_id, r.user_id, a.tools, a.model_calls, a.input_tokens, a.output_tokens,
    a.cost, (
        SELECT count(*) FROM /*schema*/checkpoints o
        WHERE o.thread_id = c.thread_id AND o.checkpoint_ns = '' AND o.parent_checkpoint_id = c.parent_checkpoint_id
    ) AS branches
FROM /*schema*/checkpoints c
    LEFT JOIN /*schema*/runs r ON r.thread_id = c.thread_id AND r.run_id = c.run_id
    LEFT JOIN LATERAL (
        SELECT array_agg(s.name ORDER BY s.started_at) FILTER (WHERE s.kind = 'tool') AS tools,
            count(*) FILTER (WHERE s.kind = 'llm') AS model_calls, sum(s.input_tokens) AS input_tokens,
            sum(s.output_tokens) AS output_tokens, sum(s.cost) AS cost
        FROM /*schema*/spans s
        WHERE s.thread_id = c.thread_id AND s.run_id = c.run_id AND (
            s.checkpoint_id = c.parent_checkpoint_id
            OR s.checkpoint_id IS NULL AND s.step = c.step AND coalesce(s.checkpoint_ns, '') = ''
        ) AND (s.kind <> 'graph' OR s.parent_span_id IS NOT NULL)
    ) AS a ON true
WHERE c.checkpoint_ns = '';

-- Summaries of threads: memories of the kind `summary` that were made from a thread.
CREATE VIEW /*schema*/summaries AS
SELECT m.thread_id, m.checkpoint_id, m.run_id, m.message_id, m.user_id, m.tenant_id, m.valid_from AS created_at,
    m.value ->> 'content' AS content, m.namespace, m.key
FROM /*schema*/memories m
WHERE m.kind = 'summary' AND m.thread_id IS NOT NULL AND (m.expires_at IS NULL OR m.expires_at > now());

-- Versions of memories and the messages that caused them: in the thread that stored the version, and in its forks.
CREATE VIEW /*schema*/memory_messages AS
SELECT v.namespace, v.key, v.version, v.kind, v.user_id, v.valid_from, v.valid_to, v.changed_by,
    v.thread_id AS origin_thread_id, v.run_id, v.checkpoint_id, f.thread_id, v.message_id, m.role, m.content,
    m.created_at AS said_at
FROM (
    SELECT c.namespace, c.key, c.version, c.kind, c.user_id, c.valid_from, NULL::timestamptz AS valid_to, c.changed_by,
        c.thread_id, c.run_id, c.checkpoint_id, c.message_id
    FROM /*schema*/memories c
    WHERE c.message_id IS NOT NULL AND (c.expires_at IS NULL OR c.expires_at > now())
    UNION ALL
    SELECT e.namespace, e.key, e.version, e.kind, e.user_id, e.valid_from, e.valid_to, e.changed_by, e.thread_id,
        e.run_id, e.checkpoint_id, e.message_id
    FROM /*schema*/memory_versions e
    WHERE e.message_id IS NOT NULL
) AS v CROSS JOIN LATERAL (
    WITH RECURSIVE forks AS (
        SELECT v.thread_id
        UNION
        SELECT t.thread_id FROM forks o JOIN /*schema*/threads t ON t.forked_from_thread_id = o.thread_id
    )
    SELECT o.thread_id FROM forks o
) AS f CROSS JOIN LATERAL (
    SELECT s.role, s.content, s.created_at FROM /*schema*/messages s
    WHERE s.thread_id = f.thread_id AND s.message_id = v.message_id AND s.change <> 'removed'
    ORDER BY s.checkpoint_id, s.channel LIMIT 1
) AS m;

-- The conversation on the branch that ends at the newest checkpoint of each thread, with edits and removals applied.
CREATE VIEW /*schema*/conversations AS
SELECT t.thread_id, t.tenant_id, t.user_id, m.number, m.channel, m.message_id, m.role, m.agent, m.content, m.tool_calls,
    m.tool_call_id, m.created_at, m.run_id
FROM /*schema*/threads t CROSS JOIN LATERAL (
    WITH RECURSIVE lineage AS (
        (
            SELECT h.checkpoint_id, h.parent_checkpoint_id, 0 AS depth FROM /*schema*/checkpoints h
            WHERE h.thread_id = t.thread_id AND h.checkpoint_ns = ''
            ORDER BY h.checkpoint_id DESC LIMIT 1
        )
        UNION ALL
        SELECT c.checkpoint_id, c.parent_checkpoint_id, l.depth + 1
        FROM lineage l JOIN /*schema*/checkpoints c
            ON c.thread_id = t.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = l.parent_checkpoint_id
        -- Damaged checkpoints can be their own ancestors.
        WHERE l.depth < (
            SELECT count(*) FROM /*schema*/checkpoints k WHERE k.thread_id = t.thread_id AND k.checkpoint_ns = ''
        )
    ), changes AS (
        SELECT e.*,
            first_value(l.depth) OVER additions AS since, first_value(e.position) OVER additions AS place,
            row_number() OVER (PARTITION BY e.channel, e.message_id ORDER BY l.depth) AS age
        FROM lineage l JOIN /*schema*/messages e
            ON e.thread_id = t.thread_id AND e.checkpoint_ns = '' AND e.checkpoint_id = l.checkpoint_id
        WINDOW additions AS (PARTITION BY e.channel, e.message_id ORDER BY e.change <> 'added', l.depth)
    )
    SELECT row_number() OVER (ORDER BY n.since DESC, n.place, n.message_id) AS number, n.channel, n.message_id, n.role,
        n.agent, n.content, n.tool_calls, n.tool_call_id, n.created_at, n.run_id
    FROM changes n
    WHERE n.age = 1 AND n.change <> 'removed'
) AS m;

-- The meaning of every table, view and column, as `\d+` in psql shows it. Times are those of the database's clock.

COMMENT ON TABLE /*schema*/migrations IS 'Migrations that were applied to this schema.';
COMMENT ON COLUMN /*schema*/migrations.version IS 'number of the migration';
COMMENT ON COLUMN /*schema*/migrations.name IS 'name of its file';
COMMENT ON COLUMN /*schema*/migrations.checksum IS 'SHA-256 of its SQL, hexadecimal';
COMMENT ON COLUMN /*schema*/migrations.applied_at IS 'time it was applied';
COMMENT ON COLUMN /*schema*/migrations.is_additive IS
    'true: programs of the previous version work with the migrated schema';

COMMENT ON TABLE /*schema*/threads IS 'One row for each conversation or task. The first checkpoint makes it.';
COMMENT ON COLUMN /*schema*/threads.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/threads.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/threads.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/threads.created_at IS 'time of the first checkpoint';
COMMENT ON COLUMN /*schema*/threads.updated_at IS 'last activity; at most five seconds behind the newest checkpoint';
COMMENT ON COLUMN /*schema*/threads.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/threads.status IS
    'idle, busy (it has a running or enqueued run), interrupted (its last run waits) or error (its last run failed); '
    'set by the recorder and the queue';
COMMENT ON COLUMN /*schema*/threads.title IS 'title, set by the application';
COMMENT ON COLUMN /*schema*/threads.metadata IS 'set by the application; indexed for @>';
COMMENT ON COLUMN /*schema*/threads.version IS 'number of updates of title and metadata, from 1';
COMMENT ON COLUMN /*schema*/threads.expires_at IS
    'time from which maintain may delete or prune the thread; with a ttl, it moves with updated_at; null: never, or '
    'with a ttl not before the next activity';
COMMENT ON COLUMN /*schema*/threads.forked_from_thread_id IS 'thread it was forked from';
COMMENT ON COLUMN /*schema*/threads.forked_from_checkpoint_id IS 'checkpoint it was forked from';
COMMENT ON COLUMN /*schema*/threads.ttl IS 'how long it is kept after its last activity; null: no limit';
COMMENT ON COLUMN /*schema*/threads.ttl_strategy IS
    'what happens when it expires: delete, or keep_latest, which prunes all but its newest checkpoints';
COMMENT ON COLUMN /*schema*/threads.archived_at IS 'time it was archived; null: its rows are in the database';
COMMENT ON COLUMN /*schema*/threads.archive_id IS 'archive that has the rows of the thread; null: it is not archived';
COMMENT ON COLUMN /*schema*/threads.origin_thread_ids IS
    'threads whose rows it has by copies and forks, also by copies of copies; null: none';

COMMENT ON TABLE /*schema*/checkpoints IS 'One row for each state of a graph after a superstep.';
COMMENT ON COLUMN /*schema*/checkpoints.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/checkpoints.checkpoint_ns IS
    'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/checkpoints.checkpoint_id IS
    'the checkpoint; ids sort by time within a thread and namespace';
COMMENT ON COLUMN /*schema*/checkpoints.parent_checkpoint_id IS 'checkpoint it was made from; null for the first';
COMMENT ON COLUMN /*schema*/checkpoints.run_id IS 'run that made it; null if the config named none';
COMMENT ON COLUMN /*schema*/checkpoints.source IS 'input, loop (a superstep), update (update_state) or fork';
COMMENT ON COLUMN /*schema*/checkpoints.step IS 'superstep: -1 for the input, 0 for the first';
COMMENT ON COLUMN /*schema*/checkpoints.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/checkpoints.revision IS 'random number, new whenever the row is written';
COMMENT ON COLUMN /*schema*/checkpoints.segment_ids IS 'rows of segments that state refers to';
COMMENT ON COLUMN /*schema*/checkpoints.metadata IS 'metadata of LangGraph';
COMMENT ON COLUMN /*schema*/checkpoints.state IS 'versions, small values and references to segments; encoded';
COMMENT ON COLUMN /*schema*/checkpoints.next_checkpoint_id IS
    'a child that a prune removed; the branch continued from here';
COMMENT ON COLUMN /*schema*/checkpoints.state_version IS 'version of the state of the application; null: the first';
COMMENT ON COLUMN /*schema*/checkpoints.is_copy IS 'true: brought by a copy or a fork; its run wrote it in another thread';

COMMENT ON TABLE /*schema*/segments IS
    'Immutable pieces of channel values, shared by checkpoints: some elements of a list, or a large value.';
COMMENT ON COLUMN /*schema*/segments.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/segments.segment_id IS 'random number';
COMMENT ON COLUMN /*schema*/segments.data IS 'elements or value; encoded';

COMMENT ON TABLE /*schema*/writes IS
    'Pending writes: results of tasks in a superstep that has no checkpoint yet. They may arrive before their '
    'checkpoint.';
COMMENT ON COLUMN /*schema*/writes.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/writes.checkpoint_ns IS 'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/writes.checkpoint_id IS 'checkpoint the task started from';
COMMENT ON COLUMN /*schema*/writes.task_id IS 'the task';
COMMENT ON COLUMN /*schema*/writes.idx IS
    '0 or more: ordinary writes of one call; -1 error, -2 scheduled, -3 interrupt, -4 resume';
COMMENT ON COLUMN /*schema*/writes.task_path IS 'orders the tasks of a superstep';
COMMENT ON COLUMN /*schema*/writes.run_id IS 'the run; null if the config named none';
COMMENT ON COLUMN /*schema*/writes.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/writes.data IS 'channels and values; encoded';
COMMENT ON COLUMN /*schema*/writes.is_copy IS 'true: brought by a copy or a fork; its run wrote it in another thread';

COMMENT ON TABLE /*schema*/holds IS 'Legal holds. No data of a held thread is deleted.';
COMMENT ON COLUMN /*schema*/holds.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/holds.reason IS 'why it is held, like the number of a case';
COMMENT ON COLUMN /*schema*/holds.held_by IS 'name of the person who holds it';
COMMENT ON COLUMN /*schema*/holds.created_at IS 'time since which it is held';
COMMENT ON TABLE /*schema*/data_keys IS
    'Keys that encrypt content, each wrapped by a master key that is not in the database.';
COMMENT ON COLUMN /*schema*/data_keys.key_id IS 'id of the key; encrypted values begin with it';
COMMENT ON COLUMN /*schema*/data_keys.scope IS 'scope of the key, such as a user; empty: all rows';
COMMENT ON COLUMN /*schema*/data_keys.master_id IS 'master key that has wrapped it';
COMMENT ON COLUMN /*schema*/data_keys.wrapped IS 'the key, encrypted by the master key; null: it was destroyed';
COMMENT ON COLUMN /*schema*/data_keys.is_of_tenant IS
    'whether it was wrapped for its tenant, so that it cannot be unwrapped for another one';
COMMENT ON COLUMN /*schema*/data_keys.is_current IS 'whether new content of the scope is encrypted under it';
COMMENT ON COLUMN /*schema*/data_keys.created_at IS 'time it was made';
COMMENT ON COLUMN /*schema*/data_keys.replaced_at IS 'time from which another key encrypts new content';
COMMENT ON COLUMN /*schema*/data_keys.retired_at IS 'time since which no row is encrypted under it; archives may still need it';
COMMENT ON COLUMN /*schema*/data_keys.destroyed_at IS 'time it was destroyed; values under it cannot be read any more';

COMMENT ON TABLE /*schema*/labels IS 'Names of checkpoints. A prune keeps a checkpoint that has one.';
COMMENT ON COLUMN /*schema*/labels.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/labels.checkpoint_ns IS 'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/labels.checkpoint_id IS 'the checkpoint';
COMMENT ON COLUMN /*schema*/labels.label IS 'its name';
COMMENT ON COLUMN /*schema*/labels.created_at IS 'time the name was given';

COMMENT ON TABLE /*schema*/projections IS
    'Channels named with project=, as JSON: one row for each thread, with the values of its newest checkpoint.';
COMMENT ON COLUMN /*schema*/projections.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/projections.checkpoint_id IS 'checkpoint the values are from';
COMMENT ON COLUMN /*schema*/projections.updated_at IS 'time they were stored';
COMMENT ON COLUMN /*schema*/projections.state IS 'channel names and values; indexed for @> and @@';

COMMENT ON TABLE /*schema*/leases IS 'The right to advance a thread.';
COMMENT ON COLUMN /*schema*/leases.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/leases.holder_id IS
    'process: host, boot, process ids, start time and a number; null: the lease was released';
COMMENT ON COLUMN /*schema*/leases.fencing_token IS 'number of the lease; grows with every lease of the thread';
COMMENT ON COLUMN /*schema*/leases.acquired_at IS 'time it was taken';
COMMENT ON COLUMN /*schema*/leases.renewed_at IS 'time its holder last renewed it';
COMMENT ON COLUMN /*schema*/leases.expires_at IS 'time from which it is free unless it is renewed';

COMMENT ON TABLE /*schema*/tombstones IS 'Deleted threads to which late writes are refused.';
COMMENT ON COLUMN /*schema*/tombstones.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/tombstones.deleted_at IS 'time it was deleted';
COMMENT ON COLUMN /*schema*/tombstones.expires_at IS 'time from which maintain may remove the tombstone';

COMMENT ON TABLE /*schema*/archives IS 'Objects outside of the database that have the rows of archived threads.';
COMMENT ON COLUMN /*schema*/archives.archive_id IS 'its id, part of the names of its two objects';
COMMENT ON COLUMN /*schema*/archives.url IS 'folder or bucket of the objects';
COMMENT ON COLUMN /*schema*/archives.created_at IS 'time the upload began';
COMMENT ON COLUMN /*schema*/archives.completed_at IS
    'time its threads were deleted from the database; null: the archive was not finished, none of its threads could be '
    'deleted, or its objects are being deleted';
COMMENT ON COLUMN /*schema*/archives.deletion_id IS
    'random id of the call that is deleting the archive; null: none';
COMMENT ON COLUMN /*schema*/archives.threads IS 'number of threads in it';
COMMENT ON COLUMN /*schema*/archives.bytes IS 'size of both objects';
COMMENT ON COLUMN /*schema*/archives.root IS 'SHA-256 of the manifest, which has the SHA-256 of each part';
COMMENT ON COLUMN /*schema*/archives.schema_version IS 'version of the schema when the archive was made';
COMMENT ON COLUMN /*schema*/archives.key_ids IS 'data keys that encrypted values in it need';

COMMENT ON TABLE /*schema*/archived_threads IS 'Copies of threads in archives.';
COMMENT ON COLUMN /*schema*/archived_threads.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/archived_threads.archive_id IS 'archive that has a copy of it';
COMMENT ON COLUMN /*schema*/archived_threads.user_id IS 'owner of the thread when it was archived';
COMMENT ON COLUMN /*schema*/archived_threads.users IS
    'other users whose runs, answers, feedback or actions are in the copy; null: none';
COMMENT ON COLUMN /*schema*/archived_threads.origin_thread_ids IS
    'threads from which the thread was forked or copied, when it was archived; null: none';

COMMENT ON TABLE /*schema*/retention_policies IS 'Policies of how long threads are kept.';
COMMENT ON COLUMN /*schema*/retention_policies.name IS 'name of the policy';
COMMENT ON COLUMN /*schema*/retention_policies.agent IS 'only threads of this agent';
COMMENT ON COLUMN /*schema*/retention_policies.tenant_id IS 'only threads of this tenant';
COMMENT ON COLUMN /*schema*/retention_policies.user_id IS 'only threads of this user';
COMMENT ON COLUMN /*schema*/retention_policies.status IS 'only threads of this status';
COMMENT ON COLUMN /*schema*/retention_policies.metadata IS 'only threads whose metadata contain this';
COMMENT ON COLUMN /*schema*/retention_policies.content_after IS
    'age at which content is removed from spans, messages and runs';
COMMENT ON COLUMN /*schema*/retention_policies.prune_after IS 'age at which checkpoints are pruned';
COMMENT ON COLUMN /*schema*/retention_policies.keep_last IS 'number of newest checkpoints to keep in each namespace';
COMMENT ON COLUMN /*schema*/retention_policies.archive_after IS 'time without activity after which threads are archived';
COMMENT ON COLUMN /*schema*/retention_policies.archive_to IS 'folder or bucket of the archive';
COMMENT ON COLUMN /*schema*/retention_policies.delete_after IS
    'time without activity after which threads are deleted, also from archives';
COMMENT ON COLUMN /*schema*/retention_policies.created_at IS 'time it was made';
COMMENT ON COLUMN /*schema*/retention_policies.updated_at IS 'time it was changed last';
COMMENT ON COLUMN /*schema*/retention_policies.version IS 'number of times that it was stored';
COMMENT ON COLUMN /*schema*/retention_policies.applied_at IS
    'time it was last applied to all threads; null: not since it was stored';
COMMENT ON COLUMN /*schema*/retention_policies.last_error IS
    'why it was not applied to some threads the last time; null: no error';
COMMENT ON COLUMN /*schema*/retention_policies.cursor_id IS 'last thread that it has visited';
COMMENT ON COLUMN /*schema*/retention_policies.began_at IS
    'time it began to visit threads, or an earlier time if some must be visited again; null: it has visited all';
COMMENT ON COLUMN /*schema*/retention_policies.last_began_at IS
    'start of its last complete visit: the next visit leaves out threads in which nothing can have come of age since; '
    'null: the next visit leaves out none';

COMMENT ON TABLE /*schema*/answers IS 'Answers to interrupts, at most one for each.';
COMMENT ON COLUMN /*schema*/answers.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/answers.checkpoint_ns IS
    'always empty, for the root namespace, which also has the interrupts of subgraphs';
COMMENT ON COLUMN /*schema*/answers.checkpoint_id IS 'interrupted checkpoint';
COMMENT ON COLUMN /*schema*/answers.interrupt_id IS 'id that LangGraph gave the interrupt';
COMMENT ON COLUMN /*schema*/answers.answer_id IS
    'random; lets a repeated call find its own answer. The run that resumes with the answer has the same id';
COMMENT ON COLUMN /*schema*/answers.task_id IS 'interrupted task';
COMMENT ON COLUMN /*schema*/answers.answered_at IS 'time of the answer';
COMMENT ON COLUMN /*schema*/answers.answered_by IS 'person who answered, if given';
COMMENT ON COLUMN /*schema*/answers.value_type IS 'encoding of value';
COMMENT ON COLUMN /*schema*/answers.value IS 'the answer; encoded';
COMMENT ON COLUMN /*schema*/answers.is_default IS
    'true: the default answer of the run, because no other was given in time';

COMMENT ON TABLE /*schema*/runs IS
    'One row for each invocation of a graph on a thread. Steps, tokens and cost are those of all attempts; other '
    'columns describe the last attempt.';
COMMENT ON COLUMN /*schema*/runs.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/runs.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/runs.attempt IS '1, and one more each time the run is invoked again under its id';
COMMENT ON COLUMN /*schema*/runs.status IS
    'pending, running, success, interrupted, error, cancelled or timeout';
COMMENT ON COLUMN /*schema*/runs.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/runs.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/runs.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/runs.holder_id IS 'process that runs it';
COMMENT ON COLUMN /*schema*/runs.alive_until IS
    'time until which its process counts as alive; a running run after this time was left by a dead process';
COMMENT ON COLUMN /*schema*/runs.started_at IS
    'start of the last attempt; before the first attempt, time it was enqueued';
COMMENT ON COLUMN /*schema*/runs.ended_at IS 'end of the last attempt; null while it runs';
COMMENT ON COLUMN /*schema*/runs.first_checkpoint_id IS 'first checkpoint it made in the root namespace';
COMMENT ON COLUMN /*schema*/runs.last_checkpoint_id IS 'newest checkpoint it made in the root namespace';
COMMENT ON COLUMN /*schema*/runs.steps IS 'supersteps with a checkpoint in the root namespace';
COMMENT ON COLUMN /*schema*/runs.input_tokens IS 'tokens read by its model calls';
COMMENT ON COLUMN /*schema*/runs.output_tokens IS 'tokens written by its model calls';
COMMENT ON COLUMN /*schema*/runs.cost IS 'cost of its model calls, in the currency of prices';
COMMENT ON COLUMN /*schema*/runs.error_type IS
    'exception; ProcessDied or WorkerDied: its process was killed';
COMMENT ON COLUMN /*schema*/runs.error_message IS 'message of the exception';
COMMENT ON COLUMN /*schema*/runs.error_traceback IS 'traceback of the exception';
COMMENT ON COLUMN /*schema*/runs.input IS 'input as JSON, truncated at RecorderSettings.limit bytes';
COMMENT ON COLUMN /*schema*/runs.output IS 'output as JSON, truncated at RecorderSettings.limit bytes';
COMMENT ON COLUMN /*schema*/runs.first_started_at IS 'start of the first attempt';
COMMENT ON COLUMN /*schema*/runs.steps_before IS 'supersteps of the attempts before the last';
COMMENT ON COLUMN /*schema*/runs.queue IS 'queue it was enqueued in; null: it was not enqueued';
COMMENT ON COLUMN /*schema*/runs.last_event IS
    'number of the last event of its stream, stored when a worker ends or requeues the run; null: no events';
COMMENT ON COLUMN /*schema*/runs.key IS 'key that it was enqueued with; null: none, or it was not enqueued';
COMMENT ON COLUMN /*schema*/runs.enqueued_at IS 'time it was enqueued; null: it was not enqueued';
COMMENT ON COLUMN /*schema*/runs.multitask_strategy IS
    'enqueue, reject, interrupt or rollback: what it did to other runs of the thread; null: it was not enqueued';
COMMENT ON COLUMN /*schema*/runs.metadata IS
    'metadata it was enqueued with; null: none, or the state has a serializer that is not LangGraph''s';
COMMENT ON COLUMN /*schema*/runs.traceparent IS
    'W3C traceparent of the caller, to whose trace the run belongs; null: the run is a trace of its own';
COMMENT ON COLUMN /*schema*/runs.is_encrypted IS
    'true: a serializer other than LangGraph''s own, which may encrypt, stores the state; no content is exported';
COMMENT ON COLUMN /*schema*/runs.webhook IS 'URL to which the end of the run is sent; null: none';
COMMENT ON COLUMN /*schema*/runs.release IS 'release of the application that ran it; null: not known';
COMMENT ON COLUMN /*schema*/runs.delete_at IS
    'time at which it is deleted with its events, because it has deleted its thread; null: it is deleted with its thread';

COMMENT ON TABLE /*schema*/feedback IS
    'Scores and comments on runs and spans, by people and programs. Deleted with the run.';
COMMENT ON COLUMN /*schema*/feedback.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/feedback.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/feedback.feedback_id IS
    'id of the feedback; new feedback with this id replaces the old feedback';
COMMENT ON COLUMN /*schema*/feedback.span_id IS 'span of the run that is judged; null: the whole run';
COMMENT ON COLUMN /*schema*/feedback.created_at IS 'time it was given first';
COMMENT ON COLUMN /*schema*/feedback.created_by IS 'who gave it; null: not known';
COMMENT ON COLUMN /*schema*/feedback.source IS 'human, model or program: what kind of judge gave it';
COMMENT ON COLUMN /*schema*/feedback.name IS 'what is judged, like helpfulness';
COMMENT ON COLUMN /*schema*/feedback.score IS 'score, on a scale of the application, from -1e15 to 1e15; null: none';
COMMENT ON COLUMN /*schema*/feedback.comment IS
    'comment in clear text; null: none, or the state has a serializer that is not LangGraph''s';
COMMENT ON COLUMN /*schema*/feedback.value_type IS 'type of value, from the serializer; null: no value';
COMMENT ON COLUMN /*schema*/feedback.value IS
    'comment, encoded by a serializer of the caller, which may encrypt it; null: none, or LangGraph''s own serializer';

COMMENT ON TABLE /*schema*/queue IS
    'Runs that wait for a worker, or that one runs. A row is deleted when its run ends; its row in runs stays.';
COMMENT ON COLUMN /*schema*/queue.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/queue.run_id IS 'the run, as in runs';
COMMENT ON COLUMN /*schema*/queue.queue IS 'name of the queue; a worker serves some of them';
COMMENT ON COLUMN /*schema*/queue.graph IS 'name of the graph';
COMMENT ON COLUMN /*schema*/queue.status IS 'pending or running';
COMMENT ON COLUMN /*schema*/queue.is_ready IS
    'true: a worker may claim it, or runs it; at most one run of each thread';
COMMENT ON COLUMN /*schema*/queue.number IS
    'order among the runs of its thread, 0 once it is the first; null until run_after, if it was enqueued for later';
COMMENT ON COLUMN /*schema*/queue.priority IS 'higher is claimed first';
COMMENT ON COLUMN /*schema*/queue.position IS
    'order among the ready runs of its queue and priority; keys take turns';
COMMENT ON COLUMN /*schema*/queue.key IS 'runs of different keys take turns, and limits apply to keys; empty: no key';
COMMENT ON COLUMN /*schema*/queue.run_after IS 'not claimed before this time; null: at once';
COMMENT ON COLUMN /*schema*/queue.enqueued_at IS
    'time it was enqueued, retried by hand, or due (run_after): the last of these';
COMMENT ON COLUMN /*schema*/queue.attempt IS
    'number of attempts that began, except attempts after which the run was requeued without an error';
COMMENT ON COLUMN /*schema*/queue.crashes IS 'number of deaths of its workers since the run last made a checkpoint';
COMMENT ON COLUMN /*schema*/queue.cancel IS
    'cancel, interrupt or rollback: how its worker must end it; null: no end was requested';
COMMENT ON COLUMN /*schema*/queue.worker_id IS 'worker that runs it; null while it is pending';
COMMENT ON COLUMN /*schema*/queue.fencing_token IS
    'number of the lease under which its worker runs it; null while it is pending';
COMMENT ON COLUMN /*schema*/queue.claimed_at IS 'start of the attempt; null while it is pending';
COMMENT ON COLUMN /*schema*/queue.claimed_checkpoint_id IS
    'newest checkpoint of the thread at claimed_at, in the root namespace';
COMMENT ON COLUMN /*schema*/queue.timeout_at IS
    'time at which it has run too long, over all attempts; null: no limit, or not begun';
COMMENT ON COLUMN /*schema*/queue.version IS
    'version of the graph: only workers that accept it claim the run; empty: all workers';
COMMENT ON COLUMN /*schema*/queue.is_limited IS
    'true: its key was at its limit; not claimed until a run of the key ends, or the time window of its rate';
COMMENT ON COLUMN /*schema*/queue.last_event IS 'number of its last stored event, over all attempts; 0: none';
COMMENT ON COLUMN /*schema*/queue.streamed IS 'number of events stored under its present lease';
COMMENT ON COLUMN /*schema*/queue.replayed_step IS
    'newest superstep of events that were stored under earlier leases; null: no such events';
COMMENT ON COLUMN /*schema*/queue.is_suspect IS
    'true: its worker died without a new checkpoint, or too often; a worker claims it only if it runs no other run';

COMMENT ON TABLE /*schema*/run_requests IS
    'Requests of enqueued runs. A row is deleted when its run succeeds or is discarded.';
COMMENT ON COLUMN /*schema*/run_requests.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/run_requests.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/run_requests.options IS
    'graph, priority, key, owner, retries and time limits; no content';
COMMENT ON COLUMN /*schema*/run_requests.data IS
    'input or command, config, context and other arguments of the graph; encoded';
COMMENT ON COLUMN /*schema*/run_requests.answer_at IS
    'time at which the interrupts of the run get its default answer; null: never';

COMMENT ON TABLE /*schema*/workers IS 'Workers that run graphs from the queue.';
COMMENT ON COLUMN /*schema*/workers.worker_id IS
    'host, boot, process and a number within the process, as in leases.holder_id';
COMMENT ON COLUMN /*schema*/workers.started_at IS 'time it started';
COMMENT ON COLUMN /*schema*/workers.seen_at IS 'time it was last seen alive';
COMMENT ON COLUMN /*schema*/workers.queues IS 'queues it serves';
COMMENT ON COLUMN /*schema*/workers.graphs IS 'graphs it can run';
COMMENT ON COLUMN /*schema*/workers.concurrency IS 'number of runs it runs at once';
COMMENT ON COLUMN /*schema*/workers.versions IS
    'by graph, an array of the versions that it accepts besides runs without a version';
COMMENT ON COLUMN /*schema*/workers.drain_asked_at IS
    'time the worker was asked to drain: to claim no more, requeue its runs and end; null: it was not';

COMMENT ON TABLE /*schema*/queue_limits IS 'Limits of runs at the same time, or per window. Edited by the user.';
COMMENT ON COLUMN /*schema*/queue_limits.queue IS 'the queue';
COMMENT ON COLUMN /*schema*/queue_limits.key IS
    'the key; empty: the whole queue; *: each key that has no row of its own';
COMMENT ON COLUMN /*schema*/queue_limits.concurrency IS 'maximum number of running runs; 0: none; null: no limit';
COMMENT ON COLUMN /*schema*/queue_limits.rate IS 'maximum number of attempts that begin in a window; null: no limit';
COMMENT ON COLUMN /*schema*/queue_limits.rate_seconds IS 'length of the window in seconds; null: no limit';

COMMENT ON TABLE /*schema*/queue_keys IS
    'Claims of runs under a limit. Each claim makes a new revision of its key, so that claims of a key do not overlap.';
COMMENT ON COLUMN /*schema*/queue_keys.queue IS 'the queue';
COMMENT ON COLUMN /*schema*/queue_keys.key IS 'the key; empty: the whole queue';
COMMENT ON COLUMN /*schema*/queue_keys.revision IS 'greater by one with each claim';
COMMENT ON COLUMN /*schema*/queue_keys.window_started_at IS
    'first claim of the window; the next window begins with the first claim after rate_seconds';
COMMENT ON COLUMN /*schema*/queue_keys.window_claims IS 'runs claimed in the window';

COMMENT ON TABLE /*schema*/stream_batches IS
    'Events of runs from the queue, several in each row; join reads them. Partitioned by day (UTC) of created_at; '
    'maintain drops old days.';
COMMENT ON COLUMN /*schema*/stream_batches.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/stream_batches.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/stream_batches.first_seq IS
    'number of the first event; the events of a run are 1, 2, 3 and so on, over all attempts';
COMMENT ON COLUMN /*schema*/stream_batches.last_seq IS 'number of the last event';
COMMENT ON COLUMN /*schema*/stream_batches.created_at IS 'time of the transaction that wrote it';
COMMENT ON COLUMN /*schema*/stream_batches.attempt IS 'attempt of the run, from 1';
COMMENT ON COLUMN /*schema*/stream_batches.fencing_token IS 'number of the lease under which it was written';
COMMENT ON COLUMN /*schema*/stream_batches.position IS 'number of events under this lease in earlier rows';
COMMENT ON COLUMN /*schema*/stream_batches.step IS 'newest superstep of the thread in the events so far';
COMMENT ON COLUMN /*schema*/stream_batches.replayed_step IS
    'newest superstep of events that were stored under earlier leases; null: no such events';
COMMENT ON COLUMN /*schema*/stream_batches.data IS 'the events, encoded';

COMMENT ON TABLE /*schema*/schedules IS
    'Schedules, which enqueue a run at each of their ticks. Not part of any thread.';
COMMENT ON COLUMN /*schema*/schedules.name IS 'the schedule';
COMMENT ON COLUMN /*schema*/schedules.graph IS 'name of the graph';
COMMENT ON COLUMN /*schema*/schedules.queue IS 'name of the queue';
COMMENT ON COLUMN /*schema*/schedules.thread_id IS 'thread of all its runs; null: a new thread for each';
COMMENT ON COLUMN /*schema*/schedules.cron IS 'minute, hour, day of month, month and day of week of its ticks';
COMMENT ON COLUMN /*schema*/schedules.timezone IS 'IANA name of the time zone of cron';
COMMENT ON COLUMN /*schema*/schedules.missed IS
    'what becomes of ticks for which no process enqueued a run within a minute: skip, once (one run) or all (100 runs '
    'at most)';
COMMENT ON COLUMN /*schema*/schedules.options IS
    'priority, key, multitask_strategy, owner, retries and time limits; no content';
COMMENT ON COLUMN /*schema*/schedules.data IS
    'input or command, config, context and other arguments of the graph; encoded';
COMMENT ON COLUMN /*schema*/schedules.next_at IS 'next tick; null: paused, or ended';
COMMENT ON COLUMN /*schema*/schedules.last_at IS 'last tick that was not skipped; null: none yet';
COMMENT ON COLUMN /*schema*/schedules.last_thread_id IS 'thread of last_run_id';
COMMENT ON COLUMN /*schema*/schedules.last_run_id IS 'run that it enqueued last';
COMMENT ON COLUMN /*schema*/schedules.last_error IS
    'why the run of last_at was refused; null: it was not refused';
COMMENT ON COLUMN /*schema*/schedules.created_at IS 'time it was made';
COMMENT ON COLUMN /*schema*/schedules.updated_at IS 'time it was changed, paused or resumed';
COMMENT ON COLUMN /*schema*/schedules.is_paused IS 'true: its ticks enqueue no run';
COMMENT ON COLUMN /*schema*/schedules.end_at IS 'time after which it has no ticks; null: it has no end';
COMMENT ON COLUMN /*schema*/schedules.thread_ttl IS
    'how long the new threads of its runs are kept after their last activity; null: for ever';
COMMENT ON COLUMN /*schema*/schedules.metadata IS
    'metadata of its runs and of their new threads, in clear text; with a serializer that is not LangGraph''s, only '
    'the keys that the scope of the schedule names';
COMMENT ON COLUMN /*schema*/schedules.owner_id IS
    'authenticated user of the server who made it or changed it last; null: none';
COMMENT ON TABLE /*schema*/webhooks IS
    'Ends of runs to send to a URL. A row is deleted after its delivery, and outlives its thread.';
COMMENT ON COLUMN /*schema*/webhooks.thread_id IS 'thread';
COMMENT ON COLUMN /*schema*/webhooks.run_id IS 'run';
COMMENT ON COLUMN /*schema*/webhooks.ended_at IS 'time at which the run ended; identifies the delivery, with the run';
COMMENT ON COLUMN /*schema*/webhooks.url IS 'URL to which it is delivered';
COMMENT ON COLUMN /*schema*/webhooks.run IS 'columns of the run, as it ended';
COMMENT ON COLUMN /*schema*/webhooks.deliver_after IS
    'time of the next attempt; while an attempt is in progress, the time from which another process may deliver it; '
    'null: it failed for good';
COMMENT ON COLUMN /*schema*/webhooks.attempts IS 'number of attempts that were begun';
COMMENT ON COLUMN /*schema*/webhooks.last_error IS 'why the last attempt failed; null: none has';
COMMENT ON TABLE /*schema*/assistants IS
    'Assistants: graphs with a config and a context of their own. Not part of any thread.';
COMMENT ON COLUMN /*schema*/assistants.assistant_id IS 'assistant';
COMMENT ON COLUMN /*schema*/assistants.version IS 'version that runs use; not always the newest';
COMMENT ON COLUMN /*schema*/assistants.created_at IS 'time it was made';
COMMENT ON COLUMN /*schema*/assistants.updated_at IS 'time of its last change';
COMMENT ON COLUMN /*schema*/assistants.owner_id IS 'authenticated user of the server who made it; null: none';
COMMENT ON TABLE /*schema*/assistant_versions IS 'Versions of assistants, which do not change.';
COMMENT ON COLUMN /*schema*/assistant_versions.assistant_id IS 'assistant';
COMMENT ON COLUMN /*schema*/assistant_versions.version IS 'number of the version, from 1';
COMMENT ON COLUMN /*schema*/assistant_versions.graph IS 'name of the graph';
COMMENT ON COLUMN /*schema*/assistant_versions.name IS 'name for people; need not be unique';
COMMENT ON COLUMN /*schema*/assistant_versions.description IS 'description for people; null: none';
COMMENT ON COLUMN /*schema*/assistant_versions.metadata IS 'metadata of the caller; its runs get the metadata, too';
COMMENT ON COLUMN /*schema*/assistant_versions.data IS 'config and context; encoded';
COMMENT ON COLUMN /*schema*/assistant_versions.created_at IS 'time it was made';

COMMENT ON TABLE /*schema*/memories IS 'Memories and items of LangGraph''s store: what agents keep beyond a conversation.';
COMMENT ON COLUMN /*schema*/memories.namespace IS 'labels that say where it belongs, outermost first';
COMMENT ON COLUMN /*schema*/memories.key IS 'its name within the namespace';
COMMENT ON COLUMN /*schema*/memories.version IS 'counts changes of the value, from 1';
COMMENT ON COLUMN /*schema*/memories.value IS 'the stored value';
COMMENT ON COLUMN /*schema*/memories.created_at IS 'time it was stored first';
COMMENT ON COLUMN /*schema*/memories.updated_at IS 'time it was stored last';
COMMENT ON COLUMN /*schema*/memories.expires_at IS 'time at which it expires; null: never';
COMMENT ON COLUMN /*schema*/memories.ttl IS
    'time to live: a read sets expires_at to this time after the read; null: reads do not change it';
COMMENT ON COLUMN /*schema*/memories.words IS 'words of the indexed fields, for full text; null: it is not indexed';
COMMENT ON COLUMN /*schema*/memories.index_fields IS 'fields to index; null: those of the store; empty: none';
COMMENT ON COLUMN /*schema*/memories.is_large IS
    'whether it is in the indexes for approximate search, because its namespace is in large_namespaces';
COMMENT ON COLUMN /*schema*/memories.is_waiting IS
    'whether it was stored after its namespace became large, and is not in the indexes yet';
COMMENT ON COLUMN /*schema*/memories.is_unindexed IS 'whether embeddings are missing because the model failed';
COMMENT ON COLUMN /*schema*/memories.kind IS
    'fact, preference, interaction, summary or another; null: an item of the store';
COMMENT ON COLUMN /*schema*/memories.user_id IS 'user whom it is about';
COMMENT ON COLUMN /*schema*/memories.agent IS 'agent that keeps it';
COMMENT ON COLUMN /*schema*/memories.tenant_id IS 'tenant';
COMMENT ON COLUMN /*schema*/memories.importance IS 'from 0 to 1; null: not given';
COMMENT ON COLUMN /*schema*/memories.digest IS 'hash of the kind and the content without case, spaces and punctuation';
COMMENT ON COLUMN /*schema*/memories.duplicates IS 'number of times that an equal memory was stored again';
COMMENT ON COLUMN /*schema*/memories.valid_from IS 'time from which this version is valid';
COMMENT ON COLUMN /*schema*/memories.changed_by IS 'user or service that stored this version';
COMMENT ON COLUMN /*schema*/memories.thread_id IS 'thread in which this version was stored';
COMMENT ON COLUMN /*schema*/memories.run_id IS 'run that stored this version';
COMMENT ON COLUMN /*schema*/memories.checkpoint_id IS 'checkpoint of the superstep that stored this version';
COMMENT ON COLUMN /*schema*/memories.message_id IS 'message that caused this version';
COMMENT ON COLUMN /*schema*/memories.accessed_at IS 'time it was read last, written every few seconds';
COMMENT ON COLUMN /*schema*/memories.access_count IS 'number of reads, written every few seconds';

COMMENT ON TABLE /*schema*/memory_versions IS 'Earlier versions of memories.';
COMMENT ON COLUMN /*schema*/memory_versions.namespace IS 'namespace of the memory';
COMMENT ON COLUMN /*schema*/memory_versions.key IS 'key of the memory';
COMMENT ON COLUMN /*schema*/memory_versions.version IS 'number of the version';
COMMENT ON COLUMN /*schema*/memory_versions.value IS 'the stored value';
COMMENT ON COLUMN /*schema*/memory_versions.kind IS 'kind it had';
COMMENT ON COLUMN /*schema*/memory_versions.user_id IS 'user whom it was about';
COMMENT ON COLUMN /*schema*/memory_versions.agent IS 'agent that kept it';
COMMENT ON COLUMN /*schema*/memory_versions.tenant_id IS 'tenant';
COMMENT ON COLUMN /*schema*/memory_versions.importance IS 'importance it had';
COMMENT ON COLUMN /*schema*/memory_versions.valid_from IS 'time from which it was valid';
COMMENT ON COLUMN /*schema*/memory_versions.valid_to IS 'time at which it was replaced or deleted';
COMMENT ON COLUMN /*schema*/memory_versions.is_deleted IS 'whether the memory was deleted then';
COMMENT ON COLUMN /*schema*/memory_versions.deleted_by IS 'user or service that deleted it';
COMMENT ON COLUMN /*schema*/memory_versions.changed_by IS 'user or service that stored it';
COMMENT ON COLUMN /*schema*/memory_versions.thread_id IS 'thread in which it was stored';
COMMENT ON COLUMN /*schema*/memory_versions.run_id IS 'run that stored it';
COMMENT ON COLUMN /*schema*/memory_versions.checkpoint_id IS 'checkpoint of the superstep that stored it';
COMMENT ON COLUMN /*schema*/memory_versions.message_id IS 'message that caused it';

COMMENT ON TABLE /*schema*/large_namespaces IS 'Namespaces that are searched approximately.';
COMMENT ON COLUMN /*schema*/large_namespaces.namespace IS 'the namespace';
COMMENT ON COLUMN /*schema*/large_namespaces.is_ready IS 'whether its memories are in the indexes, or is_waiting';
COMMENT ON COLUMN /*schema*/large_namespaces.created_at IS 'time it became large';

COMMENT ON TABLE /*schema*/memory_indexes IS 'Indexes of embeddings, each with a table of vectors.';
COMMENT ON COLUMN /*schema*/memory_indexes.name IS 'name in the options of the store';
COMMENT ON COLUMN /*schema*/memory_indexes.number IS 'number in the name of its table, memory_vectors_1';
COMMENT ON COLUMN /*schema*/memory_indexes.dims IS 'number of dimensions';
COMMENT ON COLUMN /*schema*/memory_indexes.vector_type IS 'vector or halfvec';
COMMENT ON COLUMN /*schema*/memory_indexes.distance IS 'cosine, l2 or inner_product';
COMMENT ON COLUMN /*schema*/memory_indexes.fields IS 'fields of a value that are embedded; $ is the whole value';
COMMENT ON COLUMN /*schema*/memory_indexes.parameters IS 'parameters of the approximate index';
COMMENT ON COLUMN /*schema*/memory_indexes.is_complete IS 'whether all memories are in it';
COMMENT ON COLUMN /*schema*/memory_indexes.created_at IS 'time it was made';
COMMENT ON COLUMN /*schema*/memory_indexes.indexer IS 'call that embeds missing memories; one at a time';
COMMENT ON COLUMN /*schema*/memory_indexes.indexing_until IS
    'time until which no other call may embed; null: any call may';

COMMENT ON TABLE /*schema*/files IS 'Files of agents: the newest version of each, without contents. Not part of any thread.';
COMMENT ON COLUMN /*schema*/files.namespace IS 'labels of the owner of the file, compared as a whole';
COMMENT ON COLUMN /*schema*/files.path IS 'path, from /';
COMMENT ON COLUMN /*schema*/files.directory IS 'the path up to its last /';
COMMENT ON COLUMN /*schema*/files.version IS 'number of the newest version, from 1; a deletion makes one, too';
COMMENT ON COLUMN /*schema*/files.size IS 'bytes';
COMMENT ON COLUMN /*schema*/files.line_count IS 'number of lines; 0: binary, or empty';
COMMENT ON COLUMN /*schema*/files.is_text IS 'true: it is text, in UTF-8';
COMMENT ON COLUMN /*schema*/files.created_at IS 'time of its first version';
COMMENT ON COLUMN /*schema*/files.modified_at IS 'time of its newest version';
COMMENT ON COLUMN /*schema*/files.deleted_at IS 'time it was deleted; null: it was not';
COMMENT ON TABLE /*schema*/file_texts IS
    'The text of the newest version of each file, for searches. Without binary files, texts with NUL, and files that a '
    'serializer of the application has encoded.';
COMMENT ON COLUMN /*schema*/file_texts.namespace IS 'labels, as in files';
COMMENT ON COLUMN /*schema*/file_texts.path IS 'path, from /';
COMMENT ON COLUMN /*schema*/file_texts.content IS 'the text';
COMMENT ON TABLE /*schema*/file_versions IS 'Versions of files, which do not change.';
COMMENT ON COLUMN /*schema*/file_versions.namespace IS 'labels, as in files';
COMMENT ON COLUMN /*schema*/file_versions.path IS 'path, from /';
COMMENT ON COLUMN /*schema*/file_versions.version IS 'number of the version, from 1';
COMMENT ON COLUMN /*schema*/file_versions.operation IS 'write, edit, delete or restore';
COMMENT ON COLUMN /*schema*/file_versions.change_id IS 'random; a write that is repeated finds its version by it';
COMMENT ON COLUMN /*schema*/file_versions.created_at IS 'time it was written';
COMMENT ON COLUMN /*schema*/file_versions.size IS 'bytes';
COMMENT ON COLUMN /*schema*/file_versions.line_count IS 'number of lines; 0: binary, or empty';
COMMENT ON COLUMN /*schema*/file_versions.is_text IS 'true: it is text, in UTF-8';
COMMENT ON COLUMN /*schema*/file_versions.restored_version IS 'version that a restore has made the newest again';
COMMENT ON COLUMN /*schema*/file_versions.changed_by IS 'person who changed it, if named';
COMMENT ON COLUMN /*schema*/file_versions.thread_id IS 'thread of the run that wrote it; null: written outside of a run';
COMMENT ON COLUMN /*schema*/file_versions.checkpoint_ns IS
    'namespace of the graph that wrote it: an agent, or a subagent that a tool called; null: written outside of a run';
COMMENT ON COLUMN /*schema*/file_versions.checkpoint_id IS
    'checkpoint from which the superstep of the write started, in checkpoint_ns; null: none is known';
COMMENT ON COLUMN /*schema*/file_versions.run_id IS 'run that wrote it; null: none is known';
COMMENT ON COLUMN /*schema*/file_versions.value_type IS
    'type that the serializer of the application gave data; null: data is a frame of the content';
COMMENT ON COLUMN /*schema*/file_versions.data IS 'the content, encoded; null: the version is a deletion';

COMMENT ON TABLE /*schema*/spans IS
    'One row for each timed operation in a run. Partitioned by month of started_at: spans_2026_11 and so on; '
    'spans_default has the months without a partition.';
COMMENT ON COLUMN /*schema*/spans.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/spans.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/spans.span_id IS 'the span';
COMMENT ON COLUMN /*schema*/spans.started_at IS 'start';
COMMENT ON COLUMN /*schema*/spans.ended_at IS 'end; null while it runs';
COMMENT ON COLUMN /*schema*/spans.parent_span_id IS 'span that called it; null for the root of a run';
COMMENT ON COLUMN /*schema*/spans.kind IS 'graph, node, chain, llm, tool, retriever or memory';
COMMENT ON COLUMN /*schema*/spans.name IS 'name of the graph, node, model class, tool or retriever; what is done with memory';
COMMENT ON COLUMN /*schema*/spans.status IS 'running, success, error, interrupted or cancelled';
COMMENT ON COLUMN /*schema*/spans.checkpoint_ns IS 'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/spans.checkpoint_id IS 'checkpoint its superstep started from';
COMMENT ON COLUMN /*schema*/spans.step IS 'superstep';
COMMENT ON COLUMN /*schema*/spans.node IS 'node of the graph';
COMMENT ON COLUMN /*schema*/spans.task_id IS 'task of the superstep';
COMMENT ON COLUMN /*schema*/spans.agent IS 'the agent';
COMMENT ON COLUMN /*schema*/spans.provider IS 'provider of the model, with the names of OpenTelemetry';
COMMENT ON COLUMN /*schema*/spans.model IS 'the model, as the provider names it';
COMMENT ON COLUMN /*schema*/spans.input_tokens IS 'tokens read, cached ones included';
COMMENT ON COLUMN /*schema*/spans.output_tokens IS 'tokens written, reasoning included';
COMMENT ON COLUMN /*schema*/spans.cache_read_tokens IS 'tokens read from a cache; part of input_tokens';
COMMENT ON COLUMN /*schema*/spans.reasoning_tokens IS 'tokens of reasoning; part of output_tokens';
COMMENT ON COLUMN /*schema*/spans.cost IS
    'cost in the currency of prices, computed when the span is stored; null: the model had no price';
COMMENT ON COLUMN /*schema*/spans.tool_call_id IS 'id that the model gave the tool call';
COMMENT ON COLUMN /*schema*/spans.error_type IS 'exception';
COMMENT ON COLUMN /*schema*/spans.error_message IS 'message of the exception';
COMMENT ON COLUMN /*schema*/spans.input IS 'input as JSON, truncated at RecorderSettings.limit bytes';
COMMENT ON COLUMN /*schema*/spans.output IS 'output as JSON, truncated at RecorderSettings.limit bytes';
COMMENT ON COLUMN /*schema*/spans.attributes IS 'other attributes, with the GenAI names of OpenTelemetry';
COMMENT ON COLUMN /*schema*/spans.semconv_version IS 'version of the names of attributes';

COMMENT ON TABLE /*schema*/exporters IS
    'Exporters of spans. While there is one, spans that end are queued for it. Not part of any thread.';
COMMENT ON COLUMN /*schema*/exporters.name IS 'name of the exporter: otlp';
COMMENT ON COLUMN /*schema*/exporters.endpoint IS 'URL that its holder sends to, without credentials';
COMMENT ON COLUMN /*schema*/exporters.holder_id IS 'process that exports';
COMMENT ON COLUMN /*schema*/exporters.expires_at IS
    'time after which another process may export; maintain removes an exporter a week later';
COMMENT ON COLUMN /*schema*/exporters.created_at IS 'time from which spans are queued';
COMMENT ON COLUMN /*schema*/exporters.caught_up_at IS
    'time at which the wanted spans of earlier runs had been queued; null: not yet';

COMMENT ON TABLE /*schema*/span_exports IS
    'Spans that have ended and are not exported yet. Empty without an exporter.';
COMMENT ON COLUMN /*schema*/span_exports.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/span_exports.export_id IS 'random id';
COMMENT ON COLUMN /*schema*/span_exports.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/span_exports.created_at IS 'time they were queued';
COMMENT ON COLUMN /*schema*/span_exports.span_ids IS 'span_id of each';
COMMENT ON COLUMN /*schema*/span_exports.started_ats IS 'started_at of each';

COMMENT ON TABLE /*schema*/tool_executions IS
    'One row for each action of the tool ledger: written before the tool runs, completed after it.';
COMMENT ON COLUMN /*schema*/tool_executions.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/tool_executions.idempotency_key IS
    'identity of the action: the same key is the same action';
COMMENT ON COLUMN /*schema*/tool_executions.fingerprint IS 'distinguishes actions under one tool-call id';
COMMENT ON COLUMN /*schema*/tool_executions.intent_id IS 'random for each attempt; only its owner writes the outcome';
COMMENT ON COLUMN /*schema*/tool_executions.tool IS 'name of the tool';
COMMENT ON COLUMN /*schema*/tool_executions.status IS
    'pending (may run again: nothing happened), running, success, error, timeout (took too long: outcome unknown) or '
    'unknown (its process died: outcome unknown)';
COMMENT ON COLUMN /*schema*/tool_executions.attempt IS 'number of attempts, from 1';
COMMENT ON COLUMN /*schema*/tool_executions.agent IS 'agent that called it';
COMMENT ON COLUMN /*schema*/tool_executions.tool_call_id IS 'id that the model gave the tool call';
COMMENT ON COLUMN /*schema*/tool_executions.run_id IS 'run of the last attempt';
COMMENT ON COLUMN /*schema*/tool_executions.task_id IS 'task that called it';
COMMENT ON COLUMN /*schema*/tool_executions.checkpoint_ns IS
    'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/tool_executions.checkpoint_id IS 'checkpoint its superstep started from, in checkpoint_ns';
COMMENT ON COLUMN /*schema*/tool_executions.root_checkpoint_id IS
    'checkpoint its superstep started from, in the root namespace';
COMMENT ON COLUMN /*schema*/tool_executions.step IS 'superstep';
COMMENT ON COLUMN /*schema*/tool_executions.holder_id IS 'process that runs it, or ran it last';
COMMENT ON COLUMN /*schema*/tool_executions.alive_until IS
    'time until which the process counts as alive; null: its outcome was found by another process or a person';
COMMENT ON COLUMN /*schema*/tool_executions.started_at IS 'start of the last attempt';
COMMENT ON COLUMN /*schema*/tool_executions.ended_at IS 'time of the outcome; null while it runs';
COMMENT ON COLUMN /*schema*/tool_executions.arguments IS 'arguments of the tool, as JSON';
COMMENT ON COLUMN /*schema*/tool_executions.result_type IS 'encoding of result';
COMMENT ON COLUMN /*schema*/tool_executions.result IS 'exact result; encoded';
COMMENT ON COLUMN /*schema*/tool_executions.preview IS 'beginning of the result as text';
COMMENT ON COLUMN /*schema*/tool_executions.error_type IS 'exception';
COMMENT ON COLUMN /*schema*/tool_executions.error_message IS 'message of the exception';
COMMENT ON COLUMN /*schema*/tool_executions.answers IS
    'number of answers to interrupts of its task that were used to settle it; -1 if a person has settled it outside of the '
    'task, until the task calls it again';
COMMENT ON COLUMN /*schema*/tool_executions.compensates IS 'idempotency_key of the action that this one takes back';
COMMENT ON COLUMN /*schema*/tool_executions.compensated_at IS 'time it was taken back';
COMMENT ON COLUMN /*schema*/tool_executions.origin_thread_id IS 'thread it was begun on, if a fork or copy brought it';
COMMENT ON COLUMN /*schema*/tool_executions.is_copy IS
    'true: brought by a fork or copy, and not begun again on this thread';

COMMENT ON TABLE /*schema*/messages IS
    'One row for each chat message where it first appeared, and one for each edit or removal. If a message is put '
    'between others, it and all later messages get new rows. After a prune, the oldest remaining checkpoint has a row '
    'for each message of its branch. Read the current branch with the view conversations.';
COMMENT ON COLUMN /*schema*/messages.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/messages.message_id IS 'id of the message';
COMMENT ON COLUMN /*schema*/messages.checkpoint_id IS 'checkpoint it appeared in';
COMMENT ON COLUMN /*schema*/messages.checkpoint_ns IS 'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/messages.channel IS 'channel of the state';
COMMENT ON COLUMN /*schema*/messages.position IS 'place in the channel at that checkpoint, from 0';
COMMENT ON COLUMN /*schema*/messages.change IS 'added, edited or removed';
COMMENT ON COLUMN /*schema*/messages.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/messages.run_id IS 'run that made it';
COMMENT ON COLUMN /*schema*/messages.role IS 'system, human, ai, tool or another';
COMMENT ON COLUMN /*schema*/messages.agent IS 'agent that said it, if named';
COMMENT ON COLUMN /*schema*/messages.content IS 'its text; indexed as to_tsvector(''simple'', left(content, 100000))';
COMMENT ON COLUMN /*schema*/messages.tool_calls IS 'tool calls that it asks for';
COMMENT ON COLUMN /*schema*/messages.tool_call_id IS 'tool call that it answers';
COMMENT ON COLUMN /*schema*/messages.input_tokens IS 'tokens read, as its model counted them';
COMMENT ON COLUMN /*schema*/messages.output_tokens IS 'tokens written, as its model counted them';

COMMENT ON TABLE /*schema*/events IS 'Events of threads. Rows are only added.';
COMMENT ON COLUMN /*schema*/events.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/events.event_id IS 'the event; ids sort by time';
COMMENT ON COLUMN /*schema*/events.created_at IS 'time of the event';
COMMENT ON COLUMN /*schema*/events.kind IS
    'status, handoff, interrupt, resume, answer, fork, prune, refused (a guard refused the run), budget (a model call was '
    'refused), corrupt, action (of a person, on a page), audit (events were deleted or redacted) or another';
COMMENT ON COLUMN /*schema*/events.run_id IS 'run it happened in';
COMMENT ON COLUMN /*schema*/events.checkpoint_ns IS 'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/events.checkpoint_id IS 'the checkpoint';
COMMENT ON COLUMN /*schema*/events.agent IS 'the agent';
COMMENT ON COLUMN /*schema*/events.payload IS
    'details; for the kind interrupt, the values of the interrupts are under the key interrupts';

COMMENT ON TABLE /*schema*/event_chaining IS 'One row if events are chained by hashes; else empty.';
COMMENT ON COLUMN /*schema*/event_chaining.is_on IS 'true';
COMMENT ON COLUMN /*schema*/event_chaining.since IS 'time from which new events are chained';

COMMENT ON TABLE /*schema*/event_chains IS 'Chains of hashes of threads'' events.';
COMMENT ON COLUMN /*schema*/event_chains.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/event_chains.chain_id IS 'random id, from which the first hash is made';
COMMENT ON COLUMN /*schema*/event_chains.number IS 'number of the last entry, from 1';
COMMENT ON COLUMN /*schema*/event_chains.hash IS 'hash of the last entry';

COMMENT ON TABLE /*schema*/event_hashes IS 'Entries of the chains: each is an event as it was stored.';
COMMENT ON COLUMN /*schema*/event_hashes.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/event_hashes.number IS 'place in the chain, from 1';
COMMENT ON COLUMN /*schema*/event_hashes.event_id IS 'the event';
COMMENT ON COLUMN /*schema*/event_hashes.salt IS 'random; null: the event was deleted or redacted, as a later event says';
COMMENT ON COLUMN /*schema*/event_hashes.digest IS 'SHA-256 of the salt and the event';
COMMENT ON COLUMN /*schema*/event_hashes.hash IS 'SHA-256 of the hash of the previous entry and the digest';

COMMENT ON TABLE /*schema*/event_chain_ends IS 'Chains of threads that were deleted or erased.';
COMMENT ON COLUMN /*schema*/event_chain_ends.chain_id IS 'the chain, as in exports';
COMMENT ON COLUMN /*schema*/event_chain_ends.number IS 'number of its last entry';
COMMENT ON COLUMN /*schema*/event_chain_ends.hash IS 'hash of its last entry';
COMMENT ON COLUMN /*schema*/event_chain_ends.reason IS 'deleted; or erased, with the id of the receipt';
COMMENT ON COLUMN /*schema*/event_chain_ends.ended_at IS 'time its events were deleted';

COMMENT ON TABLE /*schema*/erasures IS 'Erasures, and their receipts, which name no person.';
COMMENT ON COLUMN /*schema*/erasures.erasure_id IS 'random id';
COMMENT ON COLUMN /*schema*/erasures.kind IS 'user, thread or message';
COMMENT ON COLUMN /*schema*/erasures.started_at IS 'start';
COMMENT ON COLUMN /*schema*/erasures.ended_at IS 'end; null: it is not finished, and the same call continues it';
COMMENT ON COLUMN /*schema*/erasures.salt IS 'random, for subject; null once it is finished';
COMMENT ON COLUMN /*schema*/erasures.subject IS 'SHA-256 of the salt and the subject; null once it is finished';
COMMENT ON COLUMN /*schema*/erasures.counts IS 'rows that were erased or redacted, by table';
COMMENT ON COLUMN /*schema*/erasures.receipt IS 'receipt with its signature; null until it is finished';

COMMENT ON TABLE /*schema*/journal IS
    'Recorded entries that are not in the other tables yet. A writer moves each entry once, also after a crash.';
COMMENT ON COLUMN /*schema*/journal.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/journal.entry_id IS 'the entry';
COMMENT ON COLUMN /*schema*/journal.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/journal.is_alone IS 'true: written without a checkpoint, like the end of a run';
COMMENT ON COLUMN /*schema*/journal.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/journal.data IS 'runs, spans, events and messages; encoded';

COMMENT ON TABLE /*schema*/prices IS
    'Prices of a million tokens, yours to edit. Changes count for spans that are stored from then on.';
COMMENT ON COLUMN /*schema*/prices.model IS 'the model, as the provider names it';
COMMENT ON COLUMN /*schema*/prices.provider IS 'the provider; empty for any';
COMMENT ON COLUMN /*schema*/prices.valid_from IS 'time from which the price holds';
COMMENT ON COLUMN /*schema*/prices.input IS 'price of a million tokens read';
COMMENT ON COLUMN /*schema*/prices.output IS 'price of a million tokens written';
COMMENT ON COLUMN /*schema*/prices.cache_read IS 'price of a million tokens read from a cache; null: as input';
COMMENT ON COLUMN /*schema*/prices.reasoning IS 'price of a million tokens of reasoning; null: as output';

COMMENT ON TABLE /*schema*/budgets IS 'Money that model calls may cost on one day (UTC). Edited by the user.';
COMMENT ON COLUMN /*schema*/budgets.scope IS 'tenant, user, agent or key';
COMMENT ON COLUMN /*schema*/budgets.name IS 'the tenant, user, agent or key; *: each that has no row of its own';
COMMENT ON COLUMN /*schema*/budgets.amount IS 'cost at which further calls are refused, in the currency of prices';

COMMENT ON TABLE /*schema*/deleted_costs IS
    'Costs of model calls of this day (UTC) whose thread or run was deleted, for budgets. Empty without '
    'budgets; maintain deletes rows of other days. Not part of any thread.';
COMMENT ON COLUMN /*schema*/deleted_costs.started_at IS 'start of the call';
COMMENT ON COLUMN /*schema*/deleted_costs.span_id IS 'id that its span had';
COMMENT ON COLUMN /*schema*/deleted_costs.tenant_id IS 'tenant of its run';
COMMENT ON COLUMN /*schema*/deleted_costs.user_id IS 'user of its run';
COMMENT ON COLUMN /*schema*/deleted_costs.agent IS 'agent of its run';
COMMENT ON COLUMN /*schema*/deleted_costs.key IS 'key of its run in the queue';
COMMENT ON COLUMN /*schema*/deleted_costs.cost IS 'cost, in the currency of prices';

COMMENT ON TABLE /*schema*/maintenance IS
    'Reports of maintain, for 400 days. Not part of any thread.';
COMMENT ON COLUMN /*schema*/maintenance.maintained_at IS 'time it ended';
COMMENT ON COLUMN /*schema*/maintenance.seconds IS 'how long it took, in seconds';
COMMENT ON COLUMN /*schema*/maintenance.report IS 'what it made, ended and deleted: numbers and names of partitions';
COMMENT ON COLUMN /*schema*/maintenance.sizes IS
    'bytes of each table with its indexes and partitions, by name of the table';

COMMENT ON VIEW /*schema*/failed_runs IS
    'Runs that ended with an error or took too long, and runs whose process died.';
COMMENT ON COLUMN /*schema*/failed_runs.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/failed_runs.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/failed_runs.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/failed_runs.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/failed_runs.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/failed_runs.started_at IS 'start of the last attempt';
COMMENT ON COLUMN /*schema*/failed_runs.ended_at IS 'end; null if it was not recorded';
COMMENT ON COLUMN /*schema*/failed_runs.duration IS 'ended_at - started_at';
COMMENT ON COLUMN /*schema*/failed_runs.is_crashed IS 'true: its process died';
COMMENT ON COLUMN /*schema*/failed_runs.error_type IS
    'exception; ProcessDied or WorkerDied: its process was killed';
COMMENT ON COLUMN /*schema*/failed_runs.error_message IS 'message of the exception';
COMMENT ON COLUMN /*schema*/failed_runs.steps IS 'supersteps of all attempts';
COMMENT ON COLUMN /*schema*/failed_runs.cost IS 'cost of its model calls, in the currency of prices';

COMMENT ON VIEW /*schema*/stuck_runs IS
    'Runs of status running whose process died. They are ended by maintain, or by the next run on the thread.';
COMMENT ON COLUMN /*schema*/stuck_runs.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/stuck_runs.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/stuck_runs.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/stuck_runs.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/stuck_runs.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/stuck_runs.attempt IS 'number of the attempt';
COMMENT ON COLUMN /*schema*/stuck_runs.holder_id IS 'process that ran it';
COMMENT ON COLUMN /*schema*/stuck_runs.started_at IS 'start of the last attempt';
COMMENT ON COLUMN /*schema*/stuck_runs.alive_until IS 'time until which the process counted as alive';
COMMENT ON COLUMN /*schema*/stuck_runs.steps IS 'supersteps of all attempts';
COMMENT ON COLUMN /*schema*/stuck_runs.last_checkpoint_id IS 'newest checkpoint it made: the thread goes on from there';

COMMENT ON VIEW /*schema*/runaway_threads IS 'Threads with runs of more than 25 supersteps.';
COMMENT ON COLUMN /*schema*/runaway_threads.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/runaway_threads.runs IS 'number of such runs';
COMMENT ON COLUMN /*schema*/runaway_threads.most_steps IS 'supersteps of the longest run';
COMMENT ON COLUMN /*schema*/runaway_threads.last_started_at IS 'start of the newest such run';
COMMENT ON COLUMN /*schema*/runaway_threads.cost IS 'cost of all such runs, in the currency of prices';

COMMENT ON VIEW /*schema*/waiting_threads IS
    'Interrupted threads: their newest checkpoint has tasks that wait for an answer. Works without a recorder.';
COMMENT ON COLUMN /*schema*/waiting_threads.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/waiting_threads.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/waiting_threads.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/waiting_threads.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/waiting_threads.title IS 'title, set by the application';
COMMENT ON COLUMN /*schema*/waiting_threads.checkpoint_id IS 'interrupted checkpoint, the newest of the root namespace';
COMMENT ON COLUMN /*schema*/waiting_threads.since IS 'time of the oldest interrupt';
COMMENT ON COLUMN /*schema*/waiting_threads.tasks IS 'interrupted tasks; a task may have several interrupts';
COMMENT ON COLUMN /*schema*/waiting_threads.answers IS
    'answers that were given and not used yet: the application must resume the thread';

COMMENT ON VIEW /*schema*/unknown_effects IS
    'Actions of the tool ledger with an unknown outcome: the tool took too long, or its process died. A person '
    'must settle them.';
COMMENT ON COLUMN /*schema*/unknown_effects.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/unknown_effects.idempotency_key IS
    'identity of the action: the same key is the same action';
COMMENT ON COLUMN /*schema*/unknown_effects.tool IS 'name of the tool';
COMMENT ON COLUMN /*schema*/unknown_effects.status IS
    'timeout (took too long), unknown (its process died) or running (its process died, which is not recorded yet)';
COMMENT ON COLUMN /*schema*/unknown_effects.attempt IS 'number of attempts, from 1';
COMMENT ON COLUMN /*schema*/unknown_effects.agent IS 'agent that called it';
COMMENT ON COLUMN /*schema*/unknown_effects.tool_call_id IS 'id that the model gave the tool call';
COMMENT ON COLUMN /*schema*/unknown_effects.run_id IS 'run of the last attempt';
COMMENT ON COLUMN /*schema*/unknown_effects.arguments IS 'arguments of the tool, as JSON';
COMMENT ON COLUMN /*schema*/unknown_effects.holder_id IS 'process that runs it, or ran it last';
COMMENT ON COLUMN /*schema*/unknown_effects.started_at IS 'start of the last attempt';
COMMENT ON COLUMN /*schema*/unknown_effects.ended_at IS
    'time at which the outcome was recorded as unknown; null: not recorded yet';
COMMENT ON COLUMN /*schema*/unknown_effects.compensates IS 'idempotency_key of the action that this one takes back';
COMMENT ON COLUMN /*schema*/unknown_effects.is_copy IS
    'true: brought by a fork or copy; the action belongs to origin_thread_id';
COMMENT ON COLUMN /*schema*/unknown_effects.origin_thread_id IS 'thread it was begun on, if a fork or copy brought it';

COMMENT ON VIEW /*schema*/tool_calls IS 'Every call of a tool.';
COMMENT ON COLUMN /*schema*/tool_calls.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/tool_calls.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/tool_calls.span_id IS 'the span';
COMMENT ON COLUMN /*schema*/tool_calls.tool IS 'name of the tool';
COMMENT ON COLUMN /*schema*/tool_calls.agent IS 'agent that called it';
COMMENT ON COLUMN /*schema*/tool_calls.status IS 'as in spans';
COMMENT ON COLUMN /*schema*/tool_calls.started_at IS 'start';
COMMENT ON COLUMN /*schema*/tool_calls.ended_at IS 'end; null while it runs';
COMMENT ON COLUMN /*schema*/tool_calls.seconds IS 'duration in seconds; null while it runs';
COMMENT ON COLUMN /*schema*/tool_calls.error_type IS 'exception';
COMMENT ON COLUMN /*schema*/tool_calls.error_message IS 'message of the exception';
COMMENT ON COLUMN /*schema*/tool_calls.tool_call_id IS 'id that the model gave the tool call';
COMMENT ON COLUMN /*schema*/tool_calls.step IS 'superstep';
COMMENT ON COLUMN /*schema*/tool_calls.checkpoint_id IS 'checkpoint its superstep started from';

COMMENT ON VIEW /*schema*/tool_statistics IS 'Tools over all time. For a shorter time aggregate tool_calls.';
COMMENT ON COLUMN /*schema*/tool_statistics.tool IS 'name of the tool';
COMMENT ON COLUMN /*schema*/tool_statistics.calls IS 'number of calls';
COMMENT ON COLUMN /*schema*/tool_statistics.errors IS
    'number of failed calls; without calls of unknown outcome, and calls whose process died after they took effect';
COMMENT ON COLUMN /*schema*/tool_statistics.unknown IS 'number of calls with an unknown outcome, by the ledger';
COMMENT ON COLUMN /*schema*/tool_statistics.error_rate IS 'failures divided by calls with an outcome, 0 to 1';
COMMENT ON COLUMN /*schema*/tool_statistics.mean IS 'mean duration in seconds, without calls whose process died';
COMMENT ON COLUMN /*schema*/tool_statistics.p50 IS 'median duration in seconds, without calls whose process died';
COMMENT ON COLUMN /*schema*/tool_statistics.p95 IS
    '95th percentile of the duration in seconds, without calls whose process died';
COMMENT ON COLUMN /*schema*/tool_statistics.last_at IS 'start of the newest call';

COMMENT ON VIEW /*schema*/model_calls IS 'Every call of a model.';
COMMENT ON COLUMN /*schema*/model_calls.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/model_calls.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/model_calls.span_id IS 'the span';
COMMENT ON COLUMN /*schema*/model_calls.agent IS 'the agent';
COMMENT ON COLUMN /*schema*/model_calls.provider IS 'provider of the model';
COMMENT ON COLUMN /*schema*/model_calls.model IS 'the model, as the provider names it';
COMMENT ON COLUMN /*schema*/model_calls.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/model_calls.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/model_calls.day IS 'day of started_at in UTC';
COMMENT ON COLUMN /*schema*/model_calls.started_at IS 'start';
COMMENT ON COLUMN /*schema*/model_calls.ended_at IS 'end; null while it runs';
COMMENT ON COLUMN /*schema*/model_calls.status IS 'as in spans';
COMMENT ON COLUMN /*schema*/model_calls.input_tokens IS 'tokens read, cached ones included';
COMMENT ON COLUMN /*schema*/model_calls.output_tokens IS 'tokens written, reasoning included';
COMMENT ON COLUMN /*schema*/model_calls.cache_read_tokens IS 'tokens read from a cache; part of input_tokens';
COMMENT ON COLUMN /*schema*/model_calls.reasoning_tokens IS 'tokens of reasoning; part of output_tokens';
COMMENT ON COLUMN /*schema*/model_calls.cost IS 'cost in the currency of prices; null: the model had no price';

COMMENT ON VIEW /*schema*/usage_by_day IS 'Model calls, tokens and money by day, agent, model, tenant and user.';
COMMENT ON COLUMN /*schema*/usage_by_day.day IS 'day in UTC';
COMMENT ON COLUMN /*schema*/usage_by_day.agent IS 'the agent';
COMMENT ON COLUMN /*schema*/usage_by_day.provider IS 'provider of the model';
COMMENT ON COLUMN /*schema*/usage_by_day.model IS 'the model, as the provider names it';
COMMENT ON COLUMN /*schema*/usage_by_day.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/usage_by_day.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/usage_by_day.calls IS 'number of model calls';
COMMENT ON COLUMN /*schema*/usage_by_day.input_tokens IS 'tokens read, cached ones included';
COMMENT ON COLUMN /*schema*/usage_by_day.output_tokens IS 'tokens written, reasoning included';
COMMENT ON COLUMN /*schema*/usage_by_day.cache_read_tokens IS 'tokens read from a cache; part of input_tokens';
COMMENT ON COLUMN /*schema*/usage_by_day.reasoning_tokens IS 'tokens of reasoning; part of output_tokens';
COMMENT ON COLUMN /*schema*/usage_by_day.cost IS 'cost of the calls with a price, in the currency of prices';
COMMENT ON COLUMN /*schema*/usage_by_day.unpriced IS 'number of calls without a price';

COMMENT ON VIEW /*schema*/handoffs IS 'Handoffs from one agent to another.';
COMMENT ON COLUMN /*schema*/handoffs.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/handoffs.event_id IS 'the event';
COMMENT ON COLUMN /*schema*/handoffs.created_at IS 'time of the handoff';
COMMENT ON COLUMN /*schema*/handoffs.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/handoffs.source IS 'agent that handed over';
COMMENT ON COLUMN /*schema*/handoffs.target IS 'agent that took over';
COMMENT ON COLUMN /*schema*/handoffs.reason IS 'reason, if one was given';
COMMENT ON COLUMN /*schema*/handoffs.seconds_to_next IS
    'seconds until the next handoff of the thread; null: there was none';

COMMENT ON VIEW /*schema*/provenance IS
    'The run, tools and cost behind each checkpoint of the root namespace. Spans of subgraphs are left out; '
    'state.runs.provenance has them.';
COMMENT ON COLUMN /*schema*/provenance.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/provenance.checkpoint_id IS 'the checkpoint';
COMMENT ON COLUMN /*schema*/provenance.parent_checkpoint_id IS 'checkpoint it was made from; null for the first';
COMMENT ON COLUMN /*schema*/provenance.source IS 'as in checkpoints';
COMMENT ON COLUMN /*schema*/provenance.step IS 'as in checkpoints';
COMMENT ON COLUMN /*schema*/provenance.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/provenance.run_id IS 'run that made it';
COMMENT ON COLUMN /*schema*/provenance.run_status IS 'status of the run, as in runs';
COMMENT ON COLUMN /*schema*/provenance.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/provenance.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/provenance.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/provenance.tools IS 'tools called in the superstep, in order';
COMMENT ON COLUMN /*schema*/provenance.model_calls IS 'number of model calls in the superstep';
COMMENT ON COLUMN /*schema*/provenance.input_tokens IS 'tokens read in the superstep';
COMMENT ON COLUMN /*schema*/provenance.output_tokens IS 'tokens written in the superstep';
COMMENT ON COLUMN /*schema*/provenance.cost IS 'cost of the superstep, in the currency of prices';
COMMENT ON COLUMN /*schema*/provenance.branches IS 'number of checkpoints with the same parent, itself included';

COMMENT ON VIEW /*schema*/summaries IS 'Summaries of threads: memories of the kind summary.';
COMMENT ON COLUMN /*schema*/summaries.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/summaries.checkpoint_id IS 'checkpoint of the thread when the summary was stored';
COMMENT ON COLUMN /*schema*/summaries.run_id IS 'run that made it';
COMMENT ON COLUMN /*schema*/summaries.message_id IS 'message of the state that contains the summary';
COMMENT ON COLUMN /*schema*/summaries.user_id IS 'user of the thread';
COMMENT ON COLUMN /*schema*/summaries.tenant_id IS 'tenant of the thread';
COMMENT ON COLUMN /*schema*/summaries.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/summaries.content IS 'the summary';
COMMENT ON COLUMN /*schema*/summaries.namespace IS 'namespace of the memory';
COMMENT ON COLUMN /*schema*/summaries.key IS 'key of the memory';
COMMENT ON VIEW /*schema*/memory_messages IS
    'Versions of memories and the messages that caused them, in the thread that stored the version and in its forks.';
COMMENT ON COLUMN /*schema*/memory_messages.namespace IS 'namespace of the memory';
COMMENT ON COLUMN /*schema*/memory_messages.key IS 'key of the memory';
COMMENT ON COLUMN /*schema*/memory_messages.version IS 'number of the version';
COMMENT ON COLUMN /*schema*/memory_messages.kind IS 'kind of the memory';
COMMENT ON COLUMN /*schema*/memory_messages.user_id IS 'user whom it is about';
COMMENT ON COLUMN /*schema*/memory_messages.valid_from IS 'time from which the version is valid';
COMMENT ON COLUMN /*schema*/memory_messages.valid_to IS 'time until which it was valid; null: it is the current one';
COMMENT ON COLUMN /*schema*/memory_messages.changed_by IS 'user or service that stored it';
COMMENT ON COLUMN /*schema*/memory_messages.origin_thread_id IS 'thread in which it was stored';
COMMENT ON COLUMN /*schema*/memory_messages.run_id IS 'run that stored it';
COMMENT ON COLUMN /*schema*/memory_messages.checkpoint_id IS 'checkpoint of the superstep that stored it';
COMMENT ON COLUMN /*schema*/memory_messages.thread_id IS 'thread with the message: origin_thread_id, or its fork';
COMMENT ON COLUMN /*schema*/memory_messages.message_id IS 'the message';
COMMENT ON COLUMN /*schema*/memory_messages.role IS 'who said it, as in messages';
COMMENT ON COLUMN /*schema*/memory_messages.content IS 'text of the message';
COMMENT ON COLUMN /*schema*/memory_messages.said_at IS 'time it was stored';

COMMENT ON VIEW /*schema*/conversations IS
    'The conversation on the branch that ends at the newest checkpoint of each thread. Always filter by thread_id.';
COMMENT ON COLUMN /*schema*/conversations.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/conversations.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/conversations.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/conversations.number IS 'order in the channel, from 1';
COMMENT ON COLUMN /*schema*/conversations.channel IS 'channel of the state';
COMMENT ON COLUMN /*schema*/conversations.message_id IS 'id of the message';
COMMENT ON COLUMN /*schema*/conversations.role IS 'system, human, ai, tool or another';
COMMENT ON COLUMN /*schema*/conversations.agent IS 'agent that said it, if named';
COMMENT ON COLUMN /*schema*/conversations.content IS 'its text';
COMMENT ON COLUMN /*schema*/conversations.tool_calls IS 'tool calls that it asks for';
COMMENT ON COLUMN /*schema*/conversations.tool_call_id IS 'tool call that it answers';
COMMENT ON COLUMN /*schema*/conversations.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/conversations.run_id IS 'run that made it';
