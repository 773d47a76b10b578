-- Puts model calls back into the index of spans of all kinds.

DROP INDEX /*schema*/spans_model_calls_idx;
DROP INDEX /*schema*/spans_started_at_idx;
CREATE INDEX spans_started_at_idx ON /*schema*/spans (kind, started_at);

COMMENT ON COLUMN /*schema*/tool_executions.alive_until IS 'time until which the process counts as alive';
