-- name: get_message_outline
-- Return the last change of each message on a branch, or of one channel, in the channel's order, without text. The
-- branch ends at a checkpoint of the root namespace, by default the newest. The last column is the number of
-- checkpoints since the change.
-- leaves: messages.tool_calls
WITH RECURSIVE lineage AS (
    SELECT c.checkpoint_id, c.parent_checkpoint_id, 0 AS depth FROM /*schema*/checkpoints c
    WHERE c.thread_id = :thread_id::text AND c.checkpoint_ns = ''
        AND c.checkpoint_id = coalesce(:checkpoint_id::text, (
            SELECT h.checkpoint_id FROM /*schema*/checkpoints h
            WHERE h.thread_id = :thread_id AND h.checkpoint_ns = ''
            ORDER BY h.checkpoint_id DESC LIMIT 1
        ))
    UNION ALL
    SELECT c.checkpoint_id, c.parent_checkpoint_id, l.depth + 1
    FROM lineage l JOIN /*schema*/checkpoints c
        ON c.thread_id = :thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = l.parent_checkpoint_id
    -- Damaged checkpoints can be their own ancestors.
    WHERE l.depth < (
        SELECT count(*) FROM /*schema*/checkpoints k WHERE k.thread_id = :thread_id AND k.checkpoint_ns = ''
    )
), changes AS (
    SELECT m.message_id, m.checkpoint_id, m.change, m.role, m.output_tokens, m.channel, l.depth,
        coalesce(octet_length(m.content), 0) + coalesce(octet_length(m.tool_calls::text), 0) AS size,
        row_number() OVER (PARTITION BY m.channel, m.message_id ORDER BY l.depth) AS age,
        first_value(l.depth) OVER additions AS since, first_value(m.position) OVER additions AS place
    FROM lineage l JOIN /*schema*/messages m
        ON m.thread_id = :thread_id AND m.checkpoint_ns = '' AND m.checkpoint_id = l.checkpoint_id
    WHERE :channel::text IS NULL OR m.channel = :channel
    WINDOW additions AS (PARTITION BY m.channel, m.message_id ORDER BY m.change <> 'added', l.depth)
)
SELECT n.message_id, n.checkpoint_id, n.change, n.role, n.size, n.output_tokens, n.channel, n.depth
FROM changes n WHERE n.age = 1
ORDER BY n.since DESC, n.place, n.message_id;

-- name: get_messages
-- Return some rows of `messages` of a thread's channel, in the given order. A message id and a checkpoint id name a
-- row.
-- opens: messages.content
-- opens: messages.tool_calls
SELECT m.thread_id, m.message_id, m.checkpoint_id, m.checkpoint_ns, m.channel, m.position, m.change, m.created_at,
    m.run_id, m.role, m.agent, m.content, m.tool_calls, m.tool_call_id, m.input_tokens, m.output_tokens
FROM unnest(:message_ids::text[], :checkpoint_ids::text[]) WITH ORDINALITY AS wanted (message_id, checkpoint_id, number)
    JOIN /*schema*/messages m
        ON m.thread_id = :thread_id::text AND m.message_id = wanted.message_id
            AND m.checkpoint_id = wanted.checkpoint_id AND m.channel = :channel::text
ORDER BY wanted.number;

-- name: has_checkpoint
-- Return whether a thread's root namespace has the given checkpoint.
SELECT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id::text AND checkpoint_ns = '' AND checkpoint_id = :checkpoint_id::text
);

-- name: search_messages
-- Return a page of messages that match a search, newest or best match first, below a cursor. The search may be limited
-- to a thread, a user or a tenant. Texts that an edit has replaced are left out.
-- opens: messages.content
-- opens: messages.tool_calls
-- searches: messages.content from query
-- plan: at each call
WITH found AS (
    SELECT m.thread_id, m.message_id, m.checkpoint_id, m.channel, m.created_at,
        CASE WHEN :by_rank::boolean
            THEN ts_rank(
                to_tsvector('simple', left(m.content, 100000)), websearch_to_tsquery('simple', :query::text)
            )::double precision
            ELSE extract(epoch FROM m.created_at)::double precision
        END AS score
    FROM /*schema*/messages m
    WHERE m.content IS NOT NULL AND (:thread_id::text IS NULL OR m.thread_id = :thread_id)
        AND to_tsvector('simple', left(m.content, 100000)) @@ websearch_to_tsquery('simple', :query)
        AND NOT EXISTS (
            SELECT 1 FROM /*schema*/messages e
            WHERE e.thread_id = m.thread_id AND e.message_id = m.message_id AND e.channel = m.channel
                AND e.checkpoint_id > m.checkpoint_id AND e.change = 'edited'
        )
        -- Equal messages in several channels or branches are returned once.
        AND NOT EXISTS (
            SELECT 1 FROM /*schema*/messages d
            WHERE d.thread_id = m.thread_id AND d.message_id = m.message_id AND d.content = m.content
                AND (d.channel <> 'messages', d.channel, d.checkpoint_id)
                    < (m.channel <> 'messages', m.channel, m.checkpoint_id)
                AND NOT EXISTS (
                    SELECT 1 FROM /*schema*/messages e
                    WHERE e.thread_id = m.thread_id AND e.message_id = m.message_id AND e.channel = d.channel
                        AND e.checkpoint_id > d.checkpoint_id AND e.change = 'edited'
                )
        )
        AND (:user_id::text IS NULL AND :tenant_id::text IS NULL OR EXISTS (
            SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = m.thread_id
                AND (:user_id IS NULL OR t.user_id = :user_id) AND (:tenant_id IS NULL OR t.tenant_id = :tenant_id)
        ))
), page AS (
    SELECT f.thread_id, f.message_id, f.checkpoint_id, f.channel, f.score FROM found f
    WHERE f.score < :cursor_score::double precision OR f.score = :cursor_score
        AND (f.thread_id, f.message_id, f.checkpoint_id, f.channel)
            > (:cursor_thread::text, :cursor_message::text, :cursor_id::text, :cursor_channel::text)
    ORDER BY f.score DESC, f.thread_id, f.message_id, f.checkpoint_id, f.channel
    LIMIT :page_size
)
SELECT m.thread_id, m.message_id, m.checkpoint_id, m.checkpoint_ns, m.channel, m.position, m.change, m.created_at,
    m.run_id, m.role, m.agent, m.content, m.tool_calls, m.tool_call_id, m.input_tokens, m.output_tokens,
    ts_headline('simple', left(m.content, 100000), websearch_to_tsquery('simple', :query),
        'StartSel=«, StopSel=», MaxFragments=2, MaxWords=20, MinWords=8, ShortWord=0, FragmentDelimiter=" … "'),
    p.score
FROM page p JOIN /*schema*/messages m
    ON m.thread_id = p.thread_id AND m.message_id = p.message_id AND m.checkpoint_id = p.checkpoint_id
        AND m.channel = p.channel
ORDER BY p.score DESC, p.thread_id, p.message_id, p.checkpoint_id, p.channel;

-- name: find_hits
-- For each given thread, return the newest message that matches a search.
-- opens: messages.content
-- opens: messages.tool_calls
-- searches: messages.content from query
SELECT h.thread_id, h.message_id, h.checkpoint_id, h.checkpoint_ns, h.channel, h.position, h.change, h.created_at,
    h.run_id, h.role, h.agent, h.content, h.tool_calls, h.tool_call_id, h.input_tokens, h.output_tokens,
    ts_headline('simple', left(h.content, 100000), websearch_to_tsquery('simple', :query::text),
        'StartSel=«, StopSel=», MaxFragments=2, MaxWords=20, MinWords=8, ShortWord=0, FragmentDelimiter=" … "'),
    extract(epoch FROM h.created_at)::double precision
FROM (
    SELECT DISTINCT ON (m.thread_id) m.thread_id, m.message_id, m.checkpoint_id, m.checkpoint_ns, m.channel,
        m.position, m.change, m.created_at, m.run_id, m.role, m.agent, m.content, m.tool_calls, m.tool_call_id,
        m.input_tokens, m.output_tokens
    FROM /*schema*/messages m
    WHERE m.thread_id = ANY(:thread_ids::text[]) AND m.content IS NOT NULL
        AND to_tsvector('simple', left(m.content, 100000)) @@ websearch_to_tsquery('simple', :query)
    ORDER BY m.thread_id, m.created_at DESC, m.checkpoint_id DESC, m.channel <> 'messages', m.channel
) AS h;
