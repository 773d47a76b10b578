-- Takes the record away, and everything in it; the checkpoints stay.

DROP VIEW /*schema*/conversations;
DROP VIEW /*schema*/provenance;
DROP VIEW /*schema*/handoffs;
DROP VIEW /*schema*/usage_by_day;
DROP VIEW /*schema*/model_calls;
DROP VIEW /*schema*/tool_statistics;
DROP VIEW /*schema*/tool_calls;
DROP VIEW /*schema*/runaway_threads;
DROP VIEW /*schema*/failed_runs;
DROP TABLE /*schema*/prices;
DROP TABLE /*schema*/events;
DROP TABLE /*schema*/messages;
DROP TABLE /*schema*/tool_executions;
DROP TABLE /*schema*/spans;
DROP TABLE /*schema*/runs;
DROP TABLE /*schema*/projections;
DROP INDEX /*schema*/threads_user_id_idx;
ALTER TABLE /*schema*/threads
    DROP COLUMN tenant_id,
    DROP COLUMN status,
    DROP COLUMN title,
    DROP COLUMN metadata,
    DROP COLUMN version,
    DROP COLUMN expires_at;
