-- name: list_threads
-- Return a page of threads, most recently updated first, below a cursor; reads no checkpoint.
-- opens: threads.title
-- opens: threads.metadata
-- plan: at each call
SELECT t.thread_id, t.agent, t.user_id, t.created_at, t.updated_at, t.tenant_id, t.status, t.title, t.metadata,
    t.version, t.expires_at, t.ttl_strategy, t.forked_from_thread_id, t.forked_from_checkpoint_id,
    t.archived_at, EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = t.thread_id)
FROM /*schema*/threads t
WHERE t.updated_at <= :cursor_updated_at::timestamptz
    AND (t.updated_at < :cursor_updated_at OR t.thread_id > :cursor_id::text)
    AND (:user_id::text IS NULL OR t.user_id = :user_id)
    AND (:tenant_id::text IS NULL OR t.tenant_id = :tenant_id)
    AND (:agent::text IS NULL OR t.agent = :agent)
    AND (:status::text IS NULL OR t.status = :status)
    AND (:archived::boolean IS NULL OR (t.archived_at IS NOT NULL) = :archived)
    AND (:created_after::timestamptz IS NULL OR t.created_at >= :created_after)
    AND (:created_before::timestamptz IS NULL OR t.created_at < :created_before)
    AND (:updated_after::timestamptz IS NULL OR t.updated_at >= :updated_after)
    AND (:updated_before::timestamptz IS NULL OR t.updated_at < :updated_before)
ORDER BY t.updated_at DESC, t.thread_id
LIMIT :page_size;

-- name: search_threads
-- Return the columns of `list_threads` for threads with some content. The condition `driver` finds candidates, and the
-- other conditions filter them.
-- opens: threads.title
-- opens: threads.metadata
-- matches: threads.metadata
-- matches: threads.metadata from scope
-- searches: projections.state
-- searches: projections.state from path
-- searches: messages.content from text
-- plan: at each call
WITH found AS (
    SELECT u.thread_id FROM /*schema*/threads u WHERE :driver::text = 'user' AND u.user_id = :user_id::text
    UNION ALL
    SELECT m.thread_id FROM /*schema*/threads m WHERE :driver = 'metadata' AND m.metadata @> :metadata::jsonb
    UNION ALL
    SELECT s.thread_id FROM /*schema*/projections s WHERE :driver = 'state' AND s.state @> :state::jsonb
    UNION ALL
    SELECT s.thread_id FROM /*schema*/projections s WHERE :driver = 'path' AND s.state @@ :path::jsonpath
    UNION ALL
    SELECT a.thread_id FROM /*schema*/threads a WHERE :driver = 'scope' AND a.metadata @> ANY(:scope::text[]::jsonb[])
    UNION ALL
    (
        SELECT g.thread_id FROM /*schema*/messages g
        WHERE :driver = 'text' AND g.content IS NOT NULL
            AND to_tsvector('simple', left(g.content, 100000)) @@ websearch_to_tsquery('simple', :text::text)
        UNION
        SELECT i.thread_id FROM /*schema*/threads i
        WHERE :driver = 'text' AND i.thread_id LIKE regexp_replace(:text, E'([\\\\%_])', E'\\\\\\1', 'g') || '%'
    )
)
SELECT t.thread_id, t.agent, t.user_id, t.created_at, t.updated_at, t.tenant_id, t.status, t.title, t.metadata,
    t.version, t.expires_at, t.ttl_strategy, t.forked_from_thread_id, t.forked_from_checkpoint_id,
    t.archived_at, EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = t.thread_id)
FROM found f JOIN /*schema*/threads t ON t.thread_id = f.thread_id
    LEFT JOIN /*schema*/projections p ON p.thread_id = f.thread_id
WHERE (:metadata::jsonb IS NULL OR t.metadata @> :metadata)
    AND (:state::jsonb IS NULL OR p.state @> :state)
    AND (:path::jsonpath IS NULL OR p.state @@ :path)
    AND (:scope::text[] IS NULL OR t.metadata @> ANY(:scope::text[]::jsonb[]))
    AND t.updated_at <= :cursor_updated_at::timestamptz
    AND (t.updated_at < :cursor_updated_at OR t.thread_id > :cursor_id::text)
    AND (:user_id::text IS NULL OR t.user_id = :user_id)
    AND (:tenant_id::text IS NULL OR t.tenant_id = :tenant_id)
    AND (:agent::text IS NULL OR t.agent = :agent)
    AND (:status::text IS NULL OR t.status = :status)
    AND (:archived::boolean IS NULL OR (t.archived_at IS NOT NULL) = :archived)
    AND (:created_after::timestamptz IS NULL OR t.created_at >= :created_after)
    AND (:created_before::timestamptz IS NULL OR t.created_at < :created_before)
    AND (:updated_after::timestamptz IS NULL OR t.updated_at >= :updated_after)
    AND (:updated_before::timestamptz IS NULL OR t.updated_at < :updated_before)
ORDER BY t.updated_at DESC, t.thread_id
LIMIT :page_size;

-- name: get_thread
-- Return one thread, with its newest checkpoint in the root namespace and its projected channels.
-- opens: threads.title
-- opens: threads.metadata
-- opens: projections.state
-- matches: threads.metadata from scope
-- leaves: checkpoints.state
SELECT t.thread_id, t.agent, t.user_id, t.created_at, t.updated_at, t.tenant_id, t.status, t.title, t.metadata,
    t.version, t.expires_at, t.ttl_strategy, t.forked_from_thread_id, t.forked_from_checkpoint_id,
    t.archived_at, EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = t.thread_id), (
        SELECT c.checkpoint_id FROM /*schema*/checkpoints c WHERE c.thread_id = :thread_id AND c.checkpoint_ns = ''
        ORDER BY c.checkpoint_id DESC LIMIT 1
    ),
    (SELECT p.state FROM /*schema*/projections p WHERE p.thread_id = :thread_id) AS state
FROM /*schema*/threads t
WHERE t.thread_id = :thread_id::text AND (:scope::text[] IS NULL OR t.metadata @> ANY(:scope::text[]::jsonb[]));

-- name: update_thread
-- Merge metadata and set a title, if the version is expected and the thread would change. Return the version.
-- seals: threads.title
-- seals: threads.metadata
UPDATE /*schema*/threads SET
    metadata = metadata || :metadata::jsonb,
    title = CASE WHEN :has_title::boolean THEN :title::text ELSE title END,
    version = version + 1
WHERE thread_id = :thread_id::text
    AND (:expected_version::integer IS NULL OR version = :expected_version)
    AND (metadata || :metadata <> metadata OR (:has_title AND title IS DISTINCT FROM :title))
RETURNING version;

-- name: would_change_thread
-- Return whether an update would change a thread's metadata or title.
-- seals: threads.title
-- seals: threads.metadata
SELECT metadata || :metadata::jsonb <> metadata OR (:has_title::boolean AND title IS DISTINCT FROM :title::text)
FROM /*schema*/threads WHERE thread_id = :thread_id::text;

-- name: sort_threads
-- Return threads in the order of one of their columns, from an offset; reads no checkpoint.
-- opens: threads.title
-- opens: threads.metadata
-- matches: threads.metadata
-- matches: threads.metadata from scope
-- searches: projections.state
-- searches: projections.state from path
-- plan: at each call
SELECT t.thread_id, t.agent, t.user_id, t.created_at, t.updated_at, t.tenant_id, t.status, t.title,
    t.metadata, t.version, t.expires_at, t.ttl_strategy, t.forked_from_thread_id, t.forked_from_checkpoint_id,
    t.archived_at, EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = t.thread_id)
FROM /*schema*/threads t
WHERE (:metadata::jsonb IS NULL OR t.metadata @> :metadata)
    AND (:scope::text[] IS NULL OR t.metadata @> ANY(:scope::text[]::jsonb[]))
    AND (:ids::text[] IS NULL OR t.thread_id = ANY(:ids))
    AND (:user_id::text IS NULL OR t.user_id = :user_id)
    AND (:tenant_id::text IS NULL OR t.tenant_id = :tenant_id)
    AND (:agent::text IS NULL OR t.agent = :agent)
    AND (:status::text IS NULL OR t.status = :status)
    AND (:archived::boolean IS NULL OR (t.archived_at IS NOT NULL) = :archived)
    AND (:created_after::timestamptz IS NULL OR t.created_at >= :created_after)
    AND (:created_before::timestamptz IS NULL OR t.created_at < :created_before)
    AND (:updated_after::timestamptz IS NULL OR t.updated_at >= :updated_after)
    AND (:updated_before::timestamptz IS NULL OR t.updated_at < :updated_before)
    AND (:state::jsonb IS NULL AND :path::jsonpath IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/projections p
        WHERE p.thread_id = t.thread_id AND (:state IS NULL OR p.state @> :state)
            AND (:path IS NULL OR p.state @@ :path)
    ))
ORDER BY
    CASE WHEN :ascending::boolean THEN CASE :by::text
        WHEN 'thread_id' THEN t.thread_id WHEN 'status' THEN t.status END END,
    CASE WHEN NOT :ascending THEN CASE :by
        WHEN 'thread_id' THEN t.thread_id WHEN 'status' THEN t.status END END DESC,
    CASE WHEN :ascending THEN CASE :by
        WHEN 'created_at' THEN t.created_at WHEN 'updated_at' THEN t.updated_at END END,
    CASE WHEN NOT :ascending THEN CASE :by
        WHEN 'created_at' THEN t.created_at WHEN 'updated_at' THEN t.updated_at END END DESC, t.thread_id
LIMIT :page_size OFFSET :offset;

-- name: count_selected_threads
-- Return the number of threads that pass the filters of `sort_threads`.
-- matches: threads.metadata
-- matches: threads.metadata from scope
-- searches: projections.state
-- searches: projections.state from path
-- plan: at each call
SELECT count(*)
FROM /*schema*/threads t
WHERE (:metadata::jsonb IS NULL OR t.metadata @> :metadata)
    AND (:scope::text[] IS NULL OR t.metadata @> ANY(:scope::text[]::jsonb[]))
    AND (:ids::text[] IS NULL OR t.thread_id = ANY(:ids))
    AND (:user_id::text IS NULL OR t.user_id = :user_id)
    AND (:tenant_id::text IS NULL OR t.tenant_id = :tenant_id)
    AND (:agent::text IS NULL OR t.agent = :agent)
    AND (:status::text IS NULL OR t.status = :status)
    AND (:archived::boolean IS NULL OR (t.archived_at IS NOT NULL) = :archived)
    AND (:created_after::timestamptz IS NULL OR t.created_at >= :created_after)
    AND (:created_before::timestamptz IS NULL OR t.created_at < :created_before)
    AND (:updated_after::timestamptz IS NULL OR t.updated_at >= :updated_after)
    AND (:updated_before::timestamptz IS NULL OR t.updated_at < :updated_before)
    AND (:state::jsonb IS NULL AND :path::jsonpath IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/projections p
        WHERE p.thread_id = t.thread_id AND (:state IS NULL OR p.state @> :state)
            AND (:path IS NULL OR p.state @@ :path)
    ));
