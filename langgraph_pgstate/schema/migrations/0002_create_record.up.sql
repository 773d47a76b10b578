-- The record beside the checkpoints: whose a thread is, its runs, spans, tool executions, messages and events.
-- `schema.sql` tells what each is for.

ALTER TABLE /*schema*/threads
    ADD COLUMN tenant_id text COLLATE "C",
    ADD COLUMN status text NOT NULL DEFAULT 'idle',
    ADD COLUMN title text,
    ADD COLUMN metadata jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN version integer NOT NULL DEFAULT 1,
    ADD COLUMN expires_at timestamptz;
CREATE INDEX threads_user_id_idx ON /*schema*/threads (user_id, updated_at DESC, thread_id) WHERE user_id IS NOT NULL;
CREATE INDEX threads_tenant_id_idx ON /*schema*/threads (tenant_id, updated_at DESC, thread_id)
    WHERE tenant_id IS NOT NULL;
CREATE INDEX threads_status_idx ON /*schema*/threads (status, updated_at DESC, thread_id) WHERE status <> 'idle';
CREATE INDEX threads_expires_at_idx ON /*schema*/threads (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX threads_metadata_idx ON /*schema*/threads USING gin (metadata jsonb_path_ops);

CREATE TABLE /*schema*/projections (
    thread_id text COLLATE "C" NOT NULL,
    checkpoint_id text COLLATE "C" NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    state jsonb NOT NULL,
    PRIMARY KEY (thread_id)
);
CREATE INDEX projections_state_idx ON /*schema*/projections USING gin (state jsonb_path_ops);

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
    PRIMARY KEY (thread_id, run_id)
);
CREATE INDEX runs_thread_id_idx ON /*schema*/runs (thread_id, started_at DESC);
CREATE INDEX runs_running_idx ON /*schema*/runs (status, thread_id, run_id) WHERE status = 'running';
CREATE INDEX runs_started_at_idx ON /*schema*/runs (started_at DESC, thread_id, run_id);
CREATE INDEX runs_status_idx ON /*schema*/runs (status, started_at DESC, thread_id, run_id) WHERE status <> 'success';
CREATE INDEX runs_run_id_idx ON /*schema*/runs (run_id);
CREATE INDEX runs_steps_idx ON /*schema*/runs (steps DESC, thread_id, run_id) WHERE steps > 25;

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
    PRIMARY KEY (thread_id, idempotency_key)
);
ALTER TABLE /*schema*/tool_executions ALTER COLUMN result SET STORAGE EXTERNAL;
CREATE INDEX tool_executions_tool_idx ON /*schema*/tool_executions (tool, started_at);
CREATE INDEX tool_executions_status_idx ON /*schema*/tool_executions (status, started_at) WHERE status <> 'success';

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
    PRIMARY KEY (thread_id, message_id, checkpoint_id)
);
CREATE INDEX messages_search_idx ON /*schema*/messages USING gin (to_tsvector('simple', left(content, 100000)))
    WHERE content IS NOT NULL;

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
    r.ended_at - r.started_at AS duration, r.status = 'running' AS is_crashed, r.error_type, r.error_message, r.steps,
    r.cost
FROM /*schema*/runs r
WHERE r.status = 'error' OR r.status = 'running' AND r.alive_until < now();

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

-- Tools by calls, seconds and errors, over all time; over less, sum up `tool_calls`.
CREATE VIEW /*schema*/tool_statistics AS
SELECT c.tool, count(*) AS calls, count(*) FILTER (WHERE c.status = 'error') AS errors,
    count(*) FILTER (WHERE c.status = 'error')::double precision / nullif(count(c.ended_at), 0) AS error_rate,
    avg(c.seconds) AS mean, percentile_cont(0.5) WITHIN GROUP (ORDER BY c.seconds) AS p50,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY c.seconds) AS p95, max(c.started_at) AS last_at
FROM /*schema*/tool_calls c
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
-- the order in which messages came; one that was put between others later on comes last here.
CREATE VIEW /*schema*/conversations AS
SELECT t.thread_id, t.tenant_id, t.user_id, m.number, m.channel, m.message_id, m.role, m.agent, m.content, m.tool_calls,
    m.tool_call_id, m.created_at, m.run_id
FROM /*schema*/threads t CROSS JOIN LATERAL (
    WITH RECURSIVE lineage AS (
        (
            SELECT h.checkpoint_id, h.parent_checkpoint_id FROM /*schema*/checkpoints h
            WHERE h.thread_id = t.thread_id AND h.checkpoint_ns = ''
            ORDER BY h.checkpoint_id DESC LIMIT 1
        )
        UNION ALL
        SELECT c.checkpoint_id, c.parent_checkpoint_id
        FROM lineage l JOIN /*schema*/checkpoints c
            ON c.thread_id = t.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = l.parent_checkpoint_id
    ), changes AS (
        SELECT e.*,
            first_value(e.checkpoint_id) OVER whole AS since, first_value(e.position) OVER whole AS place,
            row_number() OVER (PARTITION BY e.channel, e.message_id ORDER BY e.checkpoint_id DESC) AS age
        FROM /*schema*/messages e
        WHERE e.thread_id = t.thread_id AND e.checkpoint_ns = '' AND (
            e.checkpoint_id IN (SELECT l.checkpoint_id FROM lineage l)
            OR e.checkpoint_id <= (
                SELECT min(l.parent_checkpoint_id) FROM lineage l
                HAVING bool_and(l.parent_checkpoint_id IS NOT NULL)
            ) AND NOT EXISTS (
                SELECT 1 FROM /*schema*/checkpoints c
                WHERE c.thread_id = t.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = e.checkpoint_id
            )
        )
        WINDOW whole AS (PARTITION BY e.channel, e.message_id ORDER BY e.checkpoint_id)
    )
    SELECT row_number() OVER (ORDER BY n.since, n.place) AS number, n.channel, n.message_id, n.role, n.agent, n.content,
        n.tool_calls, n.tool_call_id, n.created_at, n.run_id
    FROM changes n
    WHERE n.age = 1 AND n.change <> 'removed'
) AS m;
