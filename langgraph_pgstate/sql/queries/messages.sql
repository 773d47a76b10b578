-- name: add_messages
-- Stores the messages that some checkpoints of root namespaces are the first to have, if those are there; what first appeared in a subgraph is the root's from then on.
WITH said AS MATERIALIZED (
    SELECT s.thread_id, s.checkpoint_ns, s.checkpoint_id, s.run_id, s.channel, s.place, c.created_at, new.*
    FROM ROWS FROM (jsonb_to_recordset(:changes::jsonb) AS (
        thread_id text, checkpoint_ns text, checkpoint_id text, run_id text, channel text, messages jsonb
    )) WITH ORDINALITY AS s (thread_id, checkpoint_ns, checkpoint_id, run_id, channel, messages, place)
    JOIN /*schema*/checkpoints c
        ON c.thread_id = s.thread_id AND c.checkpoint_ns = s.checkpoint_ns AND c.checkpoint_id = s.checkpoint_id
        AND c.thread_id = ANY(:thread_ids::text[])
    CROSS JOIN LATERAL jsonb_to_recordset(s.messages) AS new (
        message_id text, position integer, role text, agent text, content text, tool_calls jsonb, tool_call_id text,
        input_tokens bigint, output_tokens bigint
    )
), moved AS (
    DELETE FROM /*schema*/messages m USING (SELECT DISTINCT thread_id, message_id FROM said) AS gone
    WHERE m.thread_id = gone.thread_id AND m.message_id = gone.message_id AND m.thread_id = ANY(:thread_ids)
        AND m.checkpoint_ns <> ''
    RETURNING m.thread_id, m.message_id, m.created_at
)
INSERT INTO /*schema*/messages (
    thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role, agent,
    content, tool_calls, tool_call_id, input_tokens, output_tokens
)
SELECT DISTINCT ON (
    said.thread_id COLLATE "C", said.message_id COLLATE "C", said.checkpoint_id COLLATE "C", said.channel
)
    said.thread_id, said.message_id, said.checkpoint_id, said.checkpoint_ns, said.channel, said.position, 'added',
    coalesce((
        SELECT min(moved.created_at) FROM moved
        WHERE moved.thread_id = said.thread_id AND moved.message_id = said.message_id
    ), said.created_at),
    said.run_id, said.role, said.agent, said.content, said.tool_calls, said.tool_call_id, said.input_tokens,
    said.output_tokens
FROM said
ORDER BY said.thread_id COLLATE "C", said.message_id COLLATE "C", said.checkpoint_id COLLATE "C", said.channel, said.place
ON CONFLICT (thread_id, message_id, checkpoint_id, channel) DO UPDATE SET
    position = excluded.position,
    change = excluded.change,
    run_id = excluded.run_id,
    role = excluded.role,
    agent = excluded.agent,
    content = excluded.content,
    tool_calls = excluded.tool_calls,
    tool_call_id = excluded.tool_call_id,
    input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens;

-- name: add_subgraph_messages
-- Stores the messages that some checkpoints of subgraphs are the first to have, if those are there; what a thread has already is left out.
WITH said AS MATERIALIZED (
    SELECT s.thread_id, s.checkpoint_ns, s.checkpoint_id, s.run_id, s.channel, s.place, c.created_at, new.*
    FROM ROWS FROM (jsonb_to_recordset(:changes::jsonb) AS (
        thread_id text, checkpoint_ns text, checkpoint_id text, run_id text, channel text, messages jsonb
    )) WITH ORDINALITY AS s (thread_id, checkpoint_ns, checkpoint_id, run_id, channel, messages, place)
    JOIN /*schema*/checkpoints c
        ON c.thread_id = s.thread_id AND c.checkpoint_ns = s.checkpoint_ns AND c.checkpoint_id = s.checkpoint_id
        AND c.thread_id = ANY(:thread_ids::text[])
    CROSS JOIN LATERAL jsonb_to_recordset(s.messages) AS new (
        message_id text, position integer, role text, agent text, content text, tool_calls jsonb, tool_call_id text,
        input_tokens bigint, output_tokens bigint
    )
)
INSERT INTO /*schema*/messages (
    thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role, agent,
    content, tool_calls, tool_call_id, input_tokens, output_tokens
)
SELECT DISTINCT ON (said.thread_id COLLATE "C", said.message_id COLLATE "C")
    said.thread_id, said.message_id, said.checkpoint_id, said.checkpoint_ns, said.channel, said.position, 'added',
    said.created_at, said.run_id, said.role, said.agent, said.content, said.tool_calls, said.tool_call_id,
    said.input_tokens, said.output_tokens
FROM said
WHERE NOT EXISTS (
    SELECT 1 FROM /*schema*/messages other
    WHERE other.thread_id = said.thread_id AND other.message_id = said.message_id
        AND other.checkpoint_id <> said.checkpoint_id AND other.thread_id = ANY(:thread_ids)
)
ORDER BY said.thread_id COLLATE "C", said.message_id COLLATE "C", said.place
ON CONFLICT (thread_id, message_id, checkpoint_id, channel) DO UPDATE SET
    position = excluded.position,
    change = excluded.change,
    run_id = excluded.run_id,
    role = excluded.role,
    agent = excluded.agent,
    content = excluded.content,
    tool_calls = excluded.tool_calls,
    tool_call_id = excluded.tool_call_id,
    input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens;

-- name: reconcile_messages
-- Compares a channel's messages at a checkpoint, or those named only, with what its branch had before, and stores what was added, edited and removed, if that checkpoint was stored. Of those named, new ones come at the end.
WITH RECURSIVE head AS MATERIALIZED (
    SELECT checkpoint_id, parent_checkpoint_id, created_at FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id::text
), lineage AS (
    -- Not walked where all that is named is new.
    SELECT checkpoint_id, parent_checkpoint_id FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id AND (
        :named_ids::text[] IS NULL OR EXISTS (
            SELECT 1 FROM /*schema*/messages m
            WHERE m.thread_id = :thread_id AND m.message_id = ANY(:named_ids) AND m.checkpoint_ns = :checkpoint_ns
                AND m.channel = :channel::text AND m.checkpoint_id < :checkpoint_id
        )
    )
    UNION ALL
    SELECT c.checkpoint_id, c.parent_checkpoint_id FROM lineage l JOIN /*schema*/checkpoints c
        ON c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = l.parent_checkpoint_id
), earlier AS MATERIALIZED (
    -- The last word on each message; what a prune took the checkpoint of belongs to the branches that go on from it, or later.
    SELECT DISTINCT ON (m.message_id) m.*
    FROM /*schema*/messages m
    WHERE m.thread_id = :thread_id AND m.checkpoint_ns = :checkpoint_ns AND m.channel = :channel
        AND m.checkpoint_id < :checkpoint_id
        AND (:named_ids IS NULL OR m.message_id = ANY(:named_ids))
        AND (
            m.checkpoint_id IN (SELECT l.checkpoint_id FROM lineage l)
            OR (
                m.checkpoint_id <= (SELECT l.parent_checkpoint_id FROM lineage l ORDER BY l.checkpoint_id LIMIT 1)
                AND NOT EXISTS (
                    SELECT 1 FROM /*schema*/checkpoints c
                    WHERE c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns
                        AND c.checkpoint_id = m.checkpoint_id
                )
            )
        )
    ORDER BY m.message_id, m.checkpoint_id DESC
), moved AS (
    DELETE FROM /*schema*/messages
    WHERE thread_id = :thread_id AND message_id = ANY(:message_ids::text[]) AND checkpoint_ns <> ''
        AND :checkpoint_ns = '' AND EXISTS (SELECT 1 FROM head)
    RETURNING message_id, created_at
), new AS (
    SELECT * FROM jsonb_to_recordset(:messages::jsonb) AS n (
        message_id text, position integer, role text, agent text, content text, tool_calls jsonb, tool_call_id text,
        input_tokens bigint, output_tokens bigint, is_moved boolean
    )
    WHERE EXISTS (SELECT 1 FROM head)
), changes AS (
    SELECT new.message_id,
        CASE WHEN :named_ids IS NULL THEN new.position WHEN e.change <> 'removed' AND new.is_moved IS NOT TRUE THEN e.position
            -- On a thread with branches, or with edits, it may be more than there are: it still comes last.
            ELSE new.position + (
                SELECT count(*) FROM /*schema*/messages o
                WHERE o.thread_id = :thread_id AND o.checkpoint_ns = :checkpoint_ns AND o.channel = :channel
                    AND o.checkpoint_id < :checkpoint_id AND o.change <> 'removed'
            )::integer END AS position,
        new.role, new.agent, new.content, new.tool_calls, new.tool_call_id, new.input_tokens, new.output_tokens,
        -- Removed and said again at once, it is no longer where it was.
        CASE WHEN e.message_id IS NULL OR e.change = 'removed' OR new.is_moved THEN 'added' ELSE 'edited' END AS change
    FROM new LEFT JOIN earlier e ON e.message_id = new.message_id
    WHERE (
        e.message_id IS NULL
        OR e.change = 'removed'
        OR new.is_moved
        OR (e.role, e.agent, e.content, e.tool_calls, e.tool_call_id)
            IS DISTINCT FROM (new.role, new.agent, new.content, new.tool_calls, new.tool_call_id)
    ) AND (
        :checkpoint_ns = '' OR e.message_id IS NOT NULL OR NOT EXISTS (
            SELECT 1 FROM /*schema*/messages other
            WHERE other.thread_id = :thread_id AND other.message_id = new.message_id
                AND other.checkpoint_id <> :checkpoint_id
        )
    )
    UNION ALL
    SELECT e.message_id, e.position, e.role, e.agent, NULL, NULL, e.tool_call_id, NULL, NULL, 'removed'
    FROM earlier e
    WHERE e.change <> 'removed' AND e.message_id <> ALL(:present_ids::text[]) AND EXISTS (SELECT 1 FROM head)
)
INSERT INTO /*schema*/messages (
    thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role, agent,
    content, tool_calls, tool_call_id, input_tokens, output_tokens
)
SELECT :thread_id, c.message_id, :checkpoint_id, :checkpoint_ns, :channel, c.position, c.change,
    coalesce(first.created_at, head.created_at), :run_id::text, c.role, c.agent, c.content, c.tool_calls, c.tool_call_id,
    c.input_tokens, c.output_tokens
FROM changes c CROSS JOIN head LEFT JOIN LATERAL (
    SELECT min(moved.created_at) AS created_at FROM moved WHERE moved.message_id = c.message_id
) AS first ON true
ON CONFLICT (thread_id, message_id, checkpoint_id, channel) DO UPDATE SET
    position = excluded.position,
    change = excluded.change,
    run_id = excluded.run_id,
    role = excluded.role,
    agent = excluded.agent,
    content = excluded.content,
    tool_calls = excluded.tool_calls,
    tool_call_id = excluded.tool_call_id,
    input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens;

-- name: delete_messages
-- Removes what was said first at some checkpoints of a namespace.
DELETE FROM /*schema*/messages
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[]);
