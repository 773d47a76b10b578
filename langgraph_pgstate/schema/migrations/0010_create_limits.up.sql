-- Adds limits of queues and keys, versions of graphs, and budgets of money for each day.

ALTER TABLE /*schema*/queue
    ADD COLUMN version text NOT NULL DEFAULT '',
    ADD COLUMN is_limited boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT queue_limited_is_ready CHECK (NOT is_limited OR is_ready AND status = 'pending');

DROP INDEX /*schema*/queue_graph_idx;
DROP INDEX /*schema*/queue_key_idx;
DROP INDEX /*schema*/queue_position_idx;
DROP INDEX /*schema*/queue_worker_id_idx;
CREATE INDEX queue_graph_idx ON /*schema*/queue (queue, graph, version, priority DESC, position)
    WHERE is_ready AND status = 'pending' AND NOT is_limited;
CREATE INDEX queue_key_idx ON /*schema*/queue (queue, key, position)
    WHERE is_ready AND status = 'pending' AND NOT is_limited;
CREATE INDEX queue_position_idx ON /*schema*/queue (queue, position)
    WHERE is_ready AND status = 'pending' AND NOT is_limited;
CREATE INDEX queue_limited_idx ON /*schema*/queue (queue, key, priority DESC, position) WHERE is_limited;
CREATE INDEX queue_running_idx ON /*schema*/queue (queue, key, worker_id) WHERE status = 'running';

ALTER TABLE /*schema*/runs ADD COLUMN key text;
ALTER TABLE /*schema*/workers ADD COLUMN versions jsonb NOT NULL DEFAULT '{}';

CREATE TABLE /*schema*/queue_limits (
    queue text NOT NULL,
    key text NOT NULL,
    concurrency integer,
    rate integer,
    rate_seconds double precision,
    PRIMARY KEY (queue, key)
);

CREATE TABLE /*schema*/queue_keys (
    queue text NOT NULL,
    key text NOT NULL,
    revision bigint NOT NULL DEFAULT 1,
    window_started_at timestamptz NOT NULL DEFAULT now(),
    window_claims integer NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE /*schema*/budgets (
    scope text NOT NULL,
    name text NOT NULL,
    amount numeric NOT NULL,
    PRIMARY KEY (scope, name)
);

COMMENT ON COLUMN /*schema*/queue.version IS
    'version of the graph: only workers that accept it claim the run; empty: all workers';
COMMENT ON COLUMN /*schema*/queue.is_limited IS
    'true: its key was at its limit; not claimed until runs of the key end or a window of its rate does';
COMMENT ON COLUMN /*schema*/queue.key IS 'runs of different keys take turns, and limits apply to keys; empty: no key';
COMMENT ON COLUMN /*schema*/runs.key IS 'key that it was enqueued with; null: none, or it was not enqueued';
COMMENT ON COLUMN /*schema*/workers.versions IS
    'by graph, an array of the versions that it accepts besides runs without a version';

COMMENT ON TABLE /*schema*/queue_limits IS 'Limits of the runs that run at once, or begin in a time. Edited by the user.';
COMMENT ON COLUMN /*schema*/queue_limits.queue IS 'the queue';
COMMENT ON COLUMN /*schema*/queue_limits.key IS
    'the key; empty: the whole queue; *: each key that has no row of its own';
COMMENT ON COLUMN /*schema*/queue_limits.concurrency IS 'runs that run at once at most; 0: none; null: no limit';
COMMENT ON COLUMN /*schema*/queue_limits.rate IS 'attempts that begin in a window at most; null: no limit';
COMMENT ON COLUMN /*schema*/queue_limits.rate_seconds IS 'length of the window in seconds; null: no limit';

COMMENT ON TABLE /*schema*/queue_keys IS
    'Claims of runs under a limit. Claims of one key take place one after the other, each by a new revision.';
COMMENT ON COLUMN /*schema*/queue_keys.queue IS 'the queue';
COMMENT ON COLUMN /*schema*/queue_keys.key IS 'the key; empty: the whole queue';
COMMENT ON COLUMN /*schema*/queue_keys.revision IS 'greater by one with each claim';
COMMENT ON COLUMN /*schema*/queue_keys.window_started_at IS
    'first claim of the window; the next window begins with the first claim after rate_seconds';
COMMENT ON COLUMN /*schema*/queue_keys.window_claims IS 'runs claimed in the window';

COMMENT ON TABLE /*schema*/budgets IS 'Money that model calls may cost on one day (UTC). Edited by the user.';
COMMENT ON COLUMN /*schema*/budgets.scope IS 'tenant, user, agent or key';
COMMENT ON COLUMN /*schema*/budgets.name IS 'the tenant, user, agent or key; *: each that has no row of its own';
COMMENT ON COLUMN /*schema*/budgets.amount IS 'cost at which further calls are refused, in the currency of prices';
COMMENT ON COLUMN /*schema*/events.kind IS
    'status, handoff, interrupt, resume, answer, fork, prune, refused (a guard refused the run), budget (a model call was '
    'refused) or corrupt';
