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
-- lives, so that listing threads never reads checkpoints. `version` counts updates of title and metadata, so that a
-- stale one can be refused. A thread that was forked off another says from where. `pgstate maintain` deletes it after
-- `expires_at`, which moves along with `updated_at` where a `ttl` is set.
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
    PRIMARY KEY (thread_id)
);
CREATE INDEX threads_updated_at_idx ON /*schema*/threads (updated_at DESC, thread_id);
CREATE INDEX threads_user_id_idx ON /*schema*/threads (user_id, updated_at DESC, thread_id) WHERE user_id IS NOT NULL;
CREATE INDEX threads_tenant_id_idx ON /*schema*/threads (tenant_id, updated_at DESC, thread_id)
    WHERE tenant_id IS NOT NULL;
CREATE INDEX threads_status_idx ON /*schema*/threads (status, updated_at DESC, thread_id) WHERE status <> 'idle';
CREATE INDEX threads_expires_at_idx ON /*schema*/threads (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX threads_metadata_idx ON /*schema*/threads USING gin (metadata jsonb_path_ops);

-- A checkpoint is the state after one superstep, linked to its parent. `state` holds what is small (versions, scalars)
-- and, for every other channel, references into `segment_ids`. `revision` is drawn anew whenever the row is written: a
-- process that builds on what it remembers of a checkpoint must find it unchanged. What a question may filter by has a
-- typed column; `metadata` keeps everything. `next_checkpoint_id` is one that was made from here, where a prune took all
-- of those away: the branch has moved on. `state_version` is the version of the user's state its values are of; none
-- stands for the first.
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
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
) WITH (toast_tuple_target = 4080);
ALTER TABLE /*schema*/checkpoints ALTER COLUMN state SET STORAGE EXTERNAL;
-- For listings over all threads only. "POSIX" orders as "C" does, but is another name: the planner must not walk this
-- index through other threads' rows when it looks for the newest checkpoint of one.
CREATE INDEX checkpoints_checkpoint_id_idx ON /*schema*/checkpoints (checkpoint_id COLLATE "POSIX");
-- Each index makes every put dearer, and so does a predicate. What else checkpoints are looked for by stands behind the
-- parent, where it costs least: new entries go to the end of that index. A question that names no parent walks it instead
-- of the rows.
CREATE INDEX checkpoints_parent_idx ON /*schema*/checkpoints (parent_checkpoint_id, source, step, created_at);
-- A plain graph's checkpoints name no run: an entry for each would cost more than the predicate.
CREATE INDEX checkpoints_run_id_idx ON /*schema*/checkpoints (run_id) WHERE run_id IS NOT NULL;

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
-- The questions that graphs have asked, in the root namespace, where those of subgraphs stand, too: newest first.
CREATE INDEX writes_interrupts_idx ON /*schema*/writes (created_at DESC, thread_id, task_id)
    WHERE idx = -3 AND checkpoint_ns = '';

-- What a user calls a checkpoint: "before refund". Prunes keep what has a label.
CREATE TABLE /*schema*/labels (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_ns text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    label text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id)
);

-- A lease is the right to advance a thread until `expires_at`, by the database's clock. Whoever takes it over raises
-- `fencing_token`, so that what its last holder still writes is refused. No holder: given back. A thread's first token
-- is the time in microseconds: it stays greater than all before it when the row went meanwhile.
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

-- Threads that were deleted, for as long as a run that was still going may try to write to them.
CREATE TABLE /*schema*/tombstones (
    thread_id text COLLATE "C" NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (thread_id)
);
CREATE INDEX tombstones_expires_at_idx ON /*schema*/tombstones (expires_at, thread_id);

-- Answers of humans to interrupts, each once; the graph is resumed with them by whoever comes next. `answer_id` is drawn
-- anew for each call that answers: whoever asks again after a lost connection finds its own.
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

-- The channels a user wants to ask for in SQL: the latest values of each thread's root namespace, written with its
-- checkpoint.
CREATE TABLE /*schema*/projections (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    state jsonb NOT NULL,
    PRIMARY KEY (thread_id)
);
CREATE INDEX projections_state_idx ON /*schema*/projections USING gin (state jsonb_path_ops);

-- A run is one invocation of a graph on a thread. A running one whose `alive_until` has passed was left by a process that
-- died: its holder renews it while it lives. Steps, tokens and cost are those of all its attempts, `steps_before` those of
-- the ones before the last; the other columns tell of the last, `first_started_at` of the first.
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
    PRIMARY KEY (thread_id, run_id)
);
CREATE INDEX runs_thread_id_idx ON /*schema*/runs (thread_id, started_at DESC);
CREATE INDEX runs_running_idx ON /*schema*/runs (status, thread_id, run_id) WHERE status = 'running';
CREATE INDEX runs_started_at_idx ON /*schema*/runs (started_at DESC, thread_id, run_id);
CREATE INDEX runs_status_idx ON /*schema*/runs (status, started_at DESC, thread_id, run_id) WHERE status <> 'success';
CREATE INDEX runs_run_id_idx ON /*schema*/runs (run_id);
CREATE INDEX runs_steps_idx ON /*schema*/runs (steps DESC, thread_id, run_id) WHERE steps > 25;

-- A span is one timed operation in a run: graph, node, LLM call, tool call, retriever. Its row is there within a second of
-- its start. Partitions by month are made ahead by `setup()` and `pgstate maintain`; the default one catches the rest.
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
CREATE INDEX spans_started_at_idx ON /*schema*/spans (kind, started_at);
CREATE TABLE /*schema*/spans_default PARTITION OF /*schema*/spans DEFAULT;

-- A tool execution is one intended effect: committed before the tool runs, completed after it. The key says what the
-- action is, so that it is done once. `result` holds the exact answer through the serializer, compressed where
-- `result_type` begins with `frame/`, `preview` its beginning.
-- `fingerprint` tells apart what a model asked for under one tool-call id; `intent_id` is drawn anew for each attempt, and
-- only its owner may write the outcome. `answers`: how many resume values of its task were used up to settle it.
-- What a fork or a copy brought along names the thread it was begun on (`origin_thread_id`, which its token is made of); as
-- long as it was not begun again here (`is_copy`), what it did is that thread's to take back.
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

-- Every chat message, where it first appeared; an edit or a removal is a row of its own (`change`: added, edited,
-- removed). `position` is its place in the channel at that checkpoint; one that stands in two channels has a row in each.
-- A branch's messages are the rows of its checkpoints, in the order in which they were added last: a message that comes
-- between others is added with all that follow it. When a prune takes a checkpoint's parent away, the checkpoint gets a
-- row of each message that its branch has by then, and of each removed one, with what it said.
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

-- What happened to a thread: status changes, handoffs, interrupts, resumes, forks, prunes, refused runs. Append-only.
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

-- What was recorded and is not in the tables yet: one row beside each checkpoint, in its transaction, with the runs,
-- spans, events and messages that came with it, packed. A writer moves it within moments, whoever comes next after a
-- crash; taking a row out and writing what it says is one transaction, so it is done once. `is_alone`: noted without a
-- checkpoint that would lead to it, as the end of a run is.
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

-- What tokens cost, per million, from a time on. The user's to edit; a span's cost is computed when it is stored.
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

-- Questions with ready answers, one line each: filter and sum them up as you like.

-- Runs that failed, or whose process died.
CREATE VIEW /*schema*/failed_runs AS
SELECT r.thread_id, r.run_id, r.agent, r.tenant_id, r.user_id, r.started_at, r.ended_at,
    r.ended_at - r.started_at AS duration,
    r.status = 'running' OR r.error_type IS NOT DISTINCT FROM 'ProcessDied' AS is_crashed, r.error_type,
    r.error_message, r.steps, r.cost
FROM /*schema*/runs r
WHERE r.status = 'error' OR r.status = 'running' AND r.alive_until < now() AND NOT EXISTS (
    -- How it ended is known, but not in the tables yet.
    SELECT 1 FROM /*schema*/journal j WHERE j.thread_id = r.thread_id AND j.run_id = r.run_id AND j.is_alone
);

-- Threads with runs of more than 25 supersteps.
CREATE VIEW /*schema*/runaway_threads AS
SELECT r.thread_id, count(*) AS runs, max(r.steps) AS most_steps, max(r.started_at) AS last_started_at,
    sum(r.cost) AS cost
FROM /*schema*/runs r
WHERE r.steps > 25
GROUP BY r.thread_id;

-- Every call of a tool, and how long it took.
CREATE VIEW /*schema*/tool_calls AS
SELECT s.thread_id, s.run_id, s.span_id, s.name AS tool, s.agent, s.status, s.started_at, s.ended_at,
    extract(epoch FROM s.ended_at - s.started_at)::double precision AS seconds, s.error_type, s.error_message,
    s.tool_call_id, s.step, s.checkpoint_id
FROM /*schema*/spans s
WHERE s.kind = 'tool';

-- Tools by calls, seconds, errors and calls of which the ledger says that nobody knows whether they took effect, over all
-- time; over less, sum up `tool_calls`.
CREATE VIEW /*schema*/tool_statistics AS
SELECT c.tool, count(*) AS calls, count(*) FILTER (WHERE c.status = 'error' AND NOT c.is_unknown) AS errors,
    count(*) FILTER (WHERE c.is_unknown) AS unknown,
    count(*) FILTER (WHERE c.status = 'error' AND NOT c.is_unknown)::double precision
        / nullif(count(c.ended_at) FILTER (WHERE NOT c.is_unknown), 0) AS error_rate,
    avg(c.seconds) AS mean, percentile_cont(0.5) WITHIN GROUP (ORDER BY c.seconds) AS p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY c.seconds) AS p95, max(c.started_at) AS last_at
FROM (
    SELECT t.*, ((t.thread_id, t.tool_call_id) IN (
        SELECT e.thread_id, e.tool_call_id FROM /*schema*/tool_executions e WHERE e.status IN ('timeout', 'unknown')
    )) IS TRUE AS is_unknown
    FROM /*schema*/tool_calls t
) AS c
GROUP BY c.tool;

-- Every call of a model: whose it was, its tokens and what it cost.
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

-- Who handed over to whom, and when the thread's next handoff came.
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

-- What led to a checkpoint of the root namespace: its run, and what the superstep called and cost. A superstep's spans
-- name the checkpoint it started from, or only its number, if they were stored before it; those of its subgraphs name
-- their own, and are found by `provenance()` in Python.
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

-- What is said on the branch that ends at each thread's newest checkpoint: edits replace, removals remove. `number` is
-- the order of the channel.
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
