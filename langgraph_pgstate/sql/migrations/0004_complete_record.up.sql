-- What the record lacked to answer every question at once. `schema.sql` tells what each is for.

ALTER TABLE /*schema*/tool_executions
    ADD COLUMN origin_thread_id text COLLATE "C",
    ADD COLUMN is_copy boolean NOT NULL DEFAULT false;
CREATE INDEX tool_executions_started_at_idx ON /*schema*/tool_executions (started_at);
