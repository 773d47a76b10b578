-- Takes away what completed the record.

DROP INDEX /*schema*/tool_executions_started_at_idx;
ALTER TABLE /*schema*/tool_executions
    DROP COLUMN origin_thread_id,
    DROP COLUMN is_copy;
