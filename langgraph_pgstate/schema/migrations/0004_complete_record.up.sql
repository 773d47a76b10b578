-- How long threads are kept, what all attempts of a run add up to, messages that stand in two channels, and when and
-- where tools were executed. `schema.sql` tells what each is for.

ALTER TABLE /*schema*/threads ADD COLUMN ttl interval;

ALTER TABLE /*schema*/runs
    ADD COLUMN first_started_at timestamptz,
    ADD COLUMN steps_before integer NOT NULL DEFAULT 0;

ALTER TABLE /*schema*/messages
    DROP CONSTRAINT messages_pkey,
    ADD PRIMARY KEY (thread_id, message_id, checkpoint_id, channel);

ALTER TABLE /*schema*/tool_executions
    ADD COLUMN origin_thread_id text COLLATE "C",
    ADD COLUMN is_copy boolean NOT NULL DEFAULT false;
CREATE INDEX tool_executions_started_at_idx ON /*schema*/tool_executions (started_at);
