-- Keeps what model calls have cost whose thread was deleted, for budgets.

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
