-- Keeps what outlives a deleted thread: what its model calls have cost, for budgets, and for readers the run that deleted it.

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

COMMENT ON TABLE /*schema*/deleted_costs IS
    'What model calls of this day (UTC) have cost whose thread or run was deleted, for budgets. Not part of any thread.';
COMMENT ON COLUMN /*schema*/deleted_costs.started_at IS 'start of the call';
COMMENT ON COLUMN /*schema*/deleted_costs.span_id IS 'id that its span had';
COMMENT ON COLUMN /*schema*/deleted_costs.tenant_id IS 'tenant of its run';
COMMENT ON COLUMN /*schema*/deleted_costs.user_id IS 'user of its run';
COMMENT ON COLUMN /*schema*/deleted_costs.agent IS 'agent of its run';
COMMENT ON COLUMN /*schema*/deleted_costs.key IS 'key of its run in the queue';
COMMENT ON COLUMN /*schema*/deleted_costs.cost IS 'cost, in the currency of prices';

ALTER TABLE /*schema*/runs ADD COLUMN delete_at timestamptz;
CREATE INDEX runs_delete_at_idx ON /*schema*/runs (delete_at) WHERE delete_at IS NOT NULL;

COMMENT ON COLUMN /*schema*/runs.delete_at IS
    'time at which it is deleted with its events, because it has deleted its thread; null: it is deleted with its thread';
