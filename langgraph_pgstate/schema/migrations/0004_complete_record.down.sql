-- Takes threads' time to live, what is known of runs' earlier attempts, messages' second channels, and where tools were
-- executed away.

DELETE FROM /*schema*/messages m USING /*schema*/messages o
WHERE o.thread_id = m.thread_id AND o.message_id = m.message_id AND o.checkpoint_id = m.checkpoint_id
    AND (o.channel <> 'messages', o.channel) < (m.channel <> 'messages', m.channel);
ALTER TABLE /*schema*/messages
    DROP CONSTRAINT messages_pkey,
    ADD PRIMARY KEY (thread_id, message_id, checkpoint_id);

ALTER TABLE /*schema*/runs
    DROP COLUMN first_started_at,
    DROP COLUMN steps_before;

-- Nothing would move their time along any more: after another way up, a thread that is in use would be swept.
UPDATE /*schema*/threads SET expires_at = NULL WHERE ttl IS NOT NULL;
ALTER TABLE /*schema*/threads DROP COLUMN ttl;

DROP INDEX /*schema*/tool_executions_started_at_idx;
ALTER TABLE /*schema*/tool_executions
    DROP COLUMN origin_thread_id,
    DROP COLUMN is_copy;
