-- name: browse_items
-- Return a page of items of a user, or of items below a namespace, last stored first.
-- opens: memories.value from value
-- searches: memories.value from text
-- plan: at each call
SELECT m.namespace, m.key, m.version, m.value, m.kind, m.user_id, m.agent, m.tenant_id, m.importance, m.duplicates,
    m.created_at, m.updated_at, m.valid_from, m.expires_at, m.changed_by, m.thread_id, m.run_id, m.checkpoint_id,
    m.message_id, m.accessed_at, m.access_count
FROM /*schema*/memories m
WHERE m.namespace OPERATOR(pg_catalog.>=) :lower::text[] AND m.namespace OPERATOR(pg_catalog.<) :upper::text[]
    AND (:user_id::text IS NULL OR m.user_id = :user_id) AND (:kind::text IS NULL OR m.kind = :kind)
    AND (:agent::text IS NULL OR m.agent = :agent) AND (:tenant_id::text IS NULL OR m.tenant_id = :tenant_id)
    AND (:text::text IS NULL OR strpos(lower(m.value::text), lower(:text)) > 0)
    AND (m.expires_at IS NULL OR m.expires_at > now()) AND m.updated_at <= :cursor_at::timestamptz
    AND (
        m.updated_at < :cursor_at OR m.namespace OPERATOR(pg_catalog.<) :cursor_namespace::text[]
        OR m.namespace OPERATOR(pg_catalog.=) :cursor_namespace AND m.key < :cursor_key::text
    )
ORDER BY m.updated_at DESC, m.namespace DESC, m.key DESC
LIMIT :page_size;

-- name: inspect_item
-- Return an item, with the beginning of the message that caused the item.
-- opens: messages.content from said
-- opens: memories.value from value
SELECT m.namespace, m.key, m.version, m.value, m.kind, m.user_id, m.agent, m.tenant_id, m.importance, m.duplicates,
    m.created_at, m.updated_at, m.valid_from, m.expires_at, m.changed_by, m.thread_id, m.run_id, m.checkpoint_id,
    m.message_id, m.accessed_at, m.access_count,
    s.role, CASE WHEN starts_with(s.content, 'pgs1:') THEN s.content ELSE left(s.content, 2000) END AS said, s.checkpoint_ns, s.checkpoint_id, s.channel
FROM /*schema*/memories m
    LEFT JOIN LATERAL (
        SELECT e.role, e.content, e.checkpoint_ns, e.checkpoint_id, e.channel FROM /*schema*/messages e
        WHERE e.thread_id = m.thread_id AND e.message_id = m.message_id AND e.change <> 'removed'
        ORDER BY e.checkpoint_id, e.channel LIMIT 1
    ) AS s ON true
WHERE m.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND m.key = :key::text
    AND (m.expires_at IS NULL OR m.expires_at > now());

-- name: list_caused_in_thread
-- Return versions of items that were stored in a thread, or in one of its runs, newest first.
-- opens: memories.value from value
-- leaves: memory_versions.value
SELECT a.namespace, a.key, a.version, a.value, a.kind, a.valid_from, a.valid_to, a.is_deleted, a.changed_by, a.thread_id,
    a.run_id, a.message_id
FROM (
    SELECT m.namespace, m.key, m.version, m.value, m.kind, m.valid_from, NULL::timestamptz AS valid_to,
        false AS is_deleted, m.changed_by, m.thread_id, m.run_id, m.message_id
    FROM /*schema*/memories m
    WHERE m.thread_id = :thread_id::text AND coalesce(m.run_id = :run_id::text, :run_id IS NULL) AND (m.expires_at IS NULL OR m.expires_at > now())
    UNION ALL
    SELECT v.namespace, v.key, v.version, v.value, v.kind, v.valid_from, v.valid_to, v.is_deleted, v.changed_by,
        v.thread_id, v.run_id, v.message_id
    FROM /*schema*/memory_versions v
    WHERE v.thread_id = :thread_id::text AND coalesce(v.run_id = :run_id::text, :run_id IS NULL) AND NOT EXISTS (
        SELECT 1 FROM /*schema*/memories x
        WHERE x.namespace OPERATOR(pg_catalog.=) v.namespace AND x.key = v.key AND x.expires_at <= now()
    )
) AS a
ORDER BY a.valid_from DESC, a.namespace, a.key, a.version DESC
LIMIT :page_size::integer;

-- name: list_caused_by_messages
-- Return versions of items that messages caused, newest first. The versions were stored in a thread, or in threads from
-- which this thread was forked, or in one of their runs.
-- opens: memories.value from value
-- leaves: memory_versions.value
WITH RECURSIVE sources AS (
    SELECT :thread_id::text COLLATE "C" AS thread_id
    UNION
    SELECT t.forked_from_thread_id FROM sources o JOIN /*schema*/threads t ON t.thread_id = o.thread_id
    WHERE t.forked_from_thread_id IS NOT NULL
)
SELECT a.namespace, a.key, a.version, a.value, a.kind, a.valid_from, a.valid_to, a.is_deleted, a.changed_by, a.thread_id,
    a.run_id, a.message_id
FROM (
    SELECT m.namespace, m.key, m.version, m.value, m.kind, m.valid_from, NULL::timestamptz AS valid_to,
        false AS is_deleted, m.changed_by, m.thread_id, m.run_id, m.message_id
    FROM /*schema*/memories m
    WHERE m.message_id = ANY(:message_ids::text[]) AND m.thread_id IN (SELECT s.thread_id FROM sources s)
        AND coalesce(m.run_id = :run_id::text, :run_id IS NULL) AND (m.expires_at IS NULL OR m.expires_at > now())
    UNION ALL
    SELECT v.namespace, v.key, v.version, v.value, v.kind, v.valid_from, v.valid_to, v.is_deleted, v.changed_by,
        v.thread_id, v.run_id, v.message_id
    FROM /*schema*/memory_versions v
    WHERE v.message_id = ANY(:message_ids::text[]) AND v.thread_id IN (SELECT s.thread_id FROM sources s)
        AND coalesce(v.run_id = :run_id::text, :run_id IS NULL) AND NOT EXISTS (
        SELECT 1 FROM /*schema*/memories x
        WHERE x.namespace OPERATOR(pg_catalog.=) v.namespace AND x.key = v.key AND x.expires_at <= now()
    )
) AS a
ORDER BY a.valid_from DESC, a.namespace, a.key, a.version DESC
LIMIT :page_size::integer;
