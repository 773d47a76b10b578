-- name: add_messages
-- Store the messages that first appear in some checkpoints of root namespaces, if those checkpoints exist. If a message
-- was stored for a subgraph before, its row moves to the root namespace.
-- seals: messages.content from changes.messages.content
-- seals: messages.tool_calls from changes.messages.tool_calls
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
-- Store the messages that first appear in some checkpoints of subgraphs, if those checkpoints exist. Messages that the
-- thread already has are skipped.
-- seals: messages.content from changes.messages.content
-- seals: messages.tool_calls from changes.messages.tool_calls
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
-- Compare a channel's messages at a checkpoint, or only those in `:named_ids`, with the messages of the branch before
-- the checkpoint. If the checkpoint exists, store which messages were added, edited, moved and removed.
-- seals: messages.content from messages.content
-- seals: messages.tool_calls from messages.tool_calls
WITH RECURSIVE head AS MATERIALIZED (
    SELECT checkpoint_id, parent_checkpoint_id, created_at FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id::text
), lineage AS (
    -- Do not read the branch if all named messages are new.
    SELECT c.checkpoint_id, c.parent_checkpoint_id, 1 AS depth FROM head h JOIN /*schema*/checkpoints c
        ON c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = h.parent_checkpoint_id
    WHERE :named_ids::text[] IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/messages m
        WHERE m.thread_id = :thread_id AND m.message_id = ANY(:named_ids) AND m.checkpoint_ns = :checkpoint_ns
            AND m.channel = :channel::text AND m.checkpoint_id <> :checkpoint_id
    )
    UNION ALL
    SELECT c.checkpoint_id, c.parent_checkpoint_id, l.depth + 1 FROM lineage l JOIN /*schema*/checkpoints c
        ON c.thread_id = :thread_id AND c.checkpoint_ns = :checkpoint_ns AND c.checkpoint_id = l.parent_checkpoint_id
    -- Damaged checkpoints can be their own ancestors.
    WHERE l.depth < (
        SELECT count(*) FROM /*schema*/checkpoints k WHERE k.thread_id = :thread_id AND k.checkpoint_ns = :checkpoint_ns
    )
), latest AS (
    SELECT DISTINCT ON (m.message_id) m.*,
        first_value(l.depth) OVER additions AS since, first_value(m.position) OVER additions AS place
    FROM lineage l JOIN /*schema*/messages m
        ON m.thread_id = :thread_id AND m.checkpoint_ns = :checkpoint_ns AND m.channel = :channel
        AND m.checkpoint_id = l.checkpoint_id
    WHERE :named_ids IS NULL OR m.message_id = ANY(:named_ids)
    WINDOW additions AS (PARTITION BY m.message_id ORDER BY m.change <> 'added', l.depth)
    ORDER BY m.message_id, l.depth
), earlier AS MATERIALIZED (
    SELECT *, row_number() OVER (ORDER BY since DESC, place) AS rank FROM latest WHERE change <> 'removed'
), moved AS (
    DELETE FROM /*schema*/messages
    WHERE thread_id = :thread_id AND message_id = ANY(:message_ids::text[]) AND checkpoint_ns <> ''
        AND :checkpoint_ns = '' AND EXISTS (SELECT 1 FROM head)
    RETURNING message_id, created_at
), sent AS MATERIALIZED (
    SELECT n.* FROM jsonb_to_recordset(:messages::jsonb) AS n (
        message_id text, role text, agent text, content text, tool_calls jsonb, tool_call_id text, input_tokens bigint,
        output_tokens bigint, is_moved boolean
    )
), present AS (
    SELECT p.message_id, p.number, e.rank,
        n.message_id IS NOT NULL AND (
            e.message_id IS NULL OR (e.role, e.agent, e.content, e.tool_calls, e.tool_call_id)
                IS DISTINCT FROM (n.role, n.agent, n.content, n.tool_calls, n.tool_call_id)
        ) AS is_changed,
        -- Messages that a checkpoint adds come after all messages that earlier checkpoints have added.
        e.message_id IS NULL OR n.is_moved IS TRUE
            OR (:named_ids IS NULL AND e.rank < lag(e.rank) OVER (ORDER BY p.number)) AS is_out_of_place
    FROM unnest(:present_ids::text[]) WITH ORDINALITY AS p (message_id, number)
    LEFT JOIN sent n ON n.message_id = p.message_id
    LEFT JOIN earlier e ON e.message_id = p.message_id
    WHERE EXISTS (SELECT 1 FROM head)
), placed AS (
    SELECT p.*, CASE WHEN :named_ids IS NULL AND :checkpoint_ns = '' THEN bool_or(p.is_out_of_place)
        OVER (ORDER BY p.number) ELSE p.is_out_of_place END AS is_added
    FROM present p
), changes AS (
    SELECT p.message_id, p.number - 1 AS position, CASE WHEN p.is_added THEN 'added' ELSE 'edited' END AS change,
        p.is_changed OR n.is_moved IS TRUE AS is_said_now, e.created_at, e.run_id,
        -- All messages after a moved message are stored again. For messages that were not sent, the recorded columns
        -- are used.
        CASE WHEN n.message_id IS NULL THEN e.role ELSE n.role END AS role,
        CASE WHEN n.message_id IS NULL THEN e.agent ELSE n.agent END AS agent,
        CASE WHEN n.message_id IS NULL THEN e.content ELSE n.content END AS content,
        CASE WHEN n.message_id IS NULL THEN e.tool_calls ELSE n.tool_calls END AS tool_calls,
        CASE WHEN n.message_id IS NULL THEN e.tool_call_id ELSE n.tool_call_id END AS tool_call_id,
        CASE WHEN n.message_id IS NULL THEN e.input_tokens ELSE n.input_tokens END AS input_tokens,
        CASE WHEN n.message_id IS NULL THEN e.output_tokens ELSE n.output_tokens END AS output_tokens
    FROM placed p LEFT JOIN sent n ON n.message_id = p.message_id
    LEFT JOIN earlier e ON e.message_id = p.message_id
    WHERE (p.is_added OR p.is_changed) AND (n.message_id IS NOT NULL OR e.message_id IS NOT NULL) AND (
        :checkpoint_ns = '' OR e.message_id IS NOT NULL OR NOT EXISTS (
            SELECT 1 FROM /*schema*/messages other
            WHERE other.thread_id = :thread_id AND other.message_id = p.message_id
                AND other.checkpoint_id <> :checkpoint_id
        )
    )
    UNION ALL
    SELECT e.message_id, e.position, 'removed', true, NULL, NULL, e.role, e.agent, NULL, NULL, e.tool_call_id, NULL, NULL
    FROM earlier e
    WHERE e.message_id <> ALL(:present_ids) AND EXISTS (SELECT 1 FROM head)
), stale AS (
    -- An earlier put of this checkpoint may have stored other messages, which are deleted.
    DELETE FROM /*schema*/messages
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id
        AND channel = :channel AND message_id NOT IN (SELECT c.message_id FROM changes c)
        AND EXISTS (SELECT 1 FROM head)
)
INSERT INTO /*schema*/messages (
    thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role, agent,
    content, tool_calls, tool_call_id, input_tokens, output_tokens
)
SELECT :thread_id, c.message_id, :checkpoint_id, :checkpoint_ns, :channel, c.position, c.change,
    CASE WHEN c.is_said_now THEN coalesce(first.created_at, head.created_at) ELSE c.created_at END,
    CASE WHEN c.is_said_now THEN :run_id::text ELSE c.run_id END,
    c.role, c.agent, c.content, c.tool_calls, c.tool_call_id, c.input_tokens, c.output_tokens
FROM changes c CROSS JOIN head LEFT JOIN LATERAL (
    SELECT min(moved.created_at) AS created_at FROM moved WHERE moved.message_id = c.message_id
) AS first ON true
ON CONFLICT (thread_id, message_id, checkpoint_id, channel) DO UPDATE SET
    position = excluded.position,
    change = excluded.change,
    role = excluded.role,
    agent = excluded.agent,
    content = excluded.content,
    tool_calls = excluded.tool_calls,
    tool_call_id = excluded.tool_call_id,
    input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens;

-- name: rebase_messages
-- For each checkpoint of the root namespace whose parent is about to be deleted, store all messages of its branch, and
-- the texts of removed messages, so that no older rows are needed.
-- leaves: messages.content
-- leaves: messages.tool_calls
INSERT INTO /*schema*/messages (
    thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role, agent,
    content, tool_calls, tool_call_id, input_tokens, output_tokens
)
WITH RECURSIVE lineage AS (
    SELECT c.checkpoint_id AS base_id, c.checkpoint_id, c.parent_checkpoint_id, 0 AS depth FROM /*schema*/checkpoints c
    WHERE c.thread_id = :thread_id AND c.checkpoint_ns = '' AND c.parent_checkpoint_id = ANY(:checkpoint_ids::text[])
        AND c.checkpoint_id <> ALL(:checkpoint_ids)
    UNION ALL
    SELECT l.base_id, c.checkpoint_id, c.parent_checkpoint_id, l.depth + 1 FROM lineage l JOIN /*schema*/checkpoints c
        ON c.thread_id = :thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = l.parent_checkpoint_id
    -- Damaged checkpoints can be their own ancestors.
    WHERE l.depth < (
        SELECT count(*) FROM /*schema*/checkpoints k WHERE k.thread_id = :thread_id AND k.checkpoint_ns = ''
    )
), changes AS (
    SELECT l.base_id, m.*,
        first_value(m.change) OVER (PARTITION BY l.base_id, m.channel, m.message_id ORDER BY l.depth) AS last_change,
        first_value(l.depth) OVER additions AS since, first_value(m.position) OVER additions AS place,
        row_number() OVER (
            PARTITION BY l.base_id, m.channel, m.message_id ORDER BY m.change = 'removed', l.depth
        ) AS age
    FROM lineage l JOIN /*schema*/messages m
        ON m.thread_id = :thread_id AND m.checkpoint_ns = '' AND m.checkpoint_id = l.checkpoint_id
    WINDOW additions AS (
        PARTITION BY l.base_id, m.channel, m.message_id ORDER BY m.change <> 'added', l.depth
    )
)
SELECT :thread_id, n.message_id, n.base_id, '', n.channel,
    row_number() OVER (
        PARTITION BY n.base_id, n.channel ORDER BY n.last_change = 'removed', n.since DESC, n.place
    ) - 1,
    CASE n.last_change WHEN 'removed' THEN 'removed' ELSE 'added' END,
    n.created_at, n.run_id, n.role, n.agent, n.content, n.tool_calls, n.tool_call_id, n.input_tokens, n.output_tokens
FROM changes n
WHERE n.age = 1
ON CONFLICT (thread_id, message_id, checkpoint_id, channel) DO UPDATE SET
    position = excluded.position,
    change = excluded.change,
    created_at = excluded.created_at,
    run_id = excluded.run_id,
    role = excluded.role,
    agent = excluded.agent,
    content = excluded.content,
    tool_calls = excluded.tool_calls,
    tool_call_id = excluded.tool_call_id,
    input_tokens = excluded.input_tokens,
    output_tokens = excluded.output_tokens;

-- name: delete_messages
-- Delete the rows of `messages` that belong to some checkpoints of a namespace.
DELETE FROM /*schema*/messages
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = ANY(:checkpoint_ids::text[]);
