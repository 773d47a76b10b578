-- name: list_threads
-- Return a page of threads, most recently updated first, below a cursor; reads no checkpoint. Conditions that an index
-- serves are variants.
-- variant: list_threads_of_user
-- variant: list_threads_of_tenant
-- variant: list_threads_with_status
SELECT t.thread_id, t.agent, t.user_id, t.created_at, t.updated_at, t.tenant_id, t.status, t.title, t.metadata,
    t.version, t.expires_at, t.forked_from_thread_id, t.forked_from_checkpoint_id
FROM /*schema*/threads t
WHERE t.updated_at <= :cursor_updated_at::timestamptz
--+of_user     AND t.user_id = :user_id::text
--+of_tenant     AND t.tenant_id = :tenant_id::text
--+with_status     AND t.status <> 'idle' AND t.status = :status::text
    AND (t.updated_at < :cursor_updated_at OR t.thread_id > :cursor_id::text)
    AND (:user_id::text IS NULL OR t.user_id = :user_id)
    AND (:tenant_id::text IS NULL OR t.tenant_id = :tenant_id)
    AND (:agent::text IS NULL OR t.agent = :agent)
    AND (:status::text IS NULL OR t.status = :status)
    AND (:created_after::timestamptz IS NULL OR t.created_at >= :created_after)
    AND (:created_before::timestamptz IS NULL OR t.created_at < :created_before)
    AND (:updated_after::timestamptz IS NULL OR t.updated_at >= :updated_after)
    AND (:updated_before::timestamptz IS NULL OR t.updated_at < :updated_before)
ORDER BY t.updated_at DESC, t.thread_id
LIMIT :page_size;

-- name: search_threads
-- Return the same for threads with some content: the condition that `driver` names finds candidates, the others filter
-- them.
WITH found AS (
    SELECT u.thread_id FROM /*schema*/threads u WHERE :driver::text = 'user' AND u.user_id = :user_id::text
    UNION ALL
    SELECT m.thread_id FROM /*schema*/threads m WHERE :driver = 'metadata' AND m.metadata @> :metadata::jsonb
    UNION ALL
    SELECT s.thread_id FROM /*schema*/projections s WHERE :driver = 'state' AND s.state @> :state::jsonb
    UNION ALL
    SELECT s.thread_id FROM /*schema*/projections s WHERE :driver = 'path' AND s.state @@ :path::jsonpath
)
SELECT t.thread_id, t.agent, t.user_id, t.created_at, t.updated_at, t.tenant_id, t.status, t.title, t.metadata,
    t.version, t.expires_at, t.forked_from_thread_id, t.forked_from_checkpoint_id
FROM found f JOIN /*schema*/threads t ON t.thread_id = f.thread_id
    LEFT JOIN /*schema*/projections p ON p.thread_id = f.thread_id
WHERE (:metadata::jsonb IS NULL OR t.metadata @> :metadata)
    AND (:state::jsonb IS NULL OR p.state @> :state)
    AND (:path::jsonpath IS NULL OR p.state @@ :path)
    AND t.updated_at <= :cursor_updated_at::timestamptz
    AND (t.updated_at < :cursor_updated_at OR t.thread_id > :cursor_id::text)
    AND (:user_id::text IS NULL OR t.user_id = :user_id)
    AND (:tenant_id::text IS NULL OR t.tenant_id = :tenant_id)
    AND (:agent::text IS NULL OR t.agent = :agent)
    AND (:status::text IS NULL OR t.status = :status)
    AND (:created_after::timestamptz IS NULL OR t.created_at >= :created_after)
    AND (:created_before::timestamptz IS NULL OR t.created_at < :created_before)
    AND (:updated_after::timestamptz IS NULL OR t.updated_at >= :updated_after)
    AND (:updated_before::timestamptz IS NULL OR t.updated_at < :updated_before)
ORDER BY t.updated_at DESC, t.thread_id
LIMIT :page_size;

-- name: get_thread
-- Return one thread, with its newest checkpoint in the root namespace and its projected channels.
SELECT t.thread_id, t.agent, t.user_id, t.created_at, t.updated_at, t.tenant_id, t.status, t.title, t.metadata,
    t.version, t.expires_at, t.forked_from_thread_id, t.forked_from_checkpoint_id,
    (
        SELECT c.checkpoint_id FROM /*schema*/checkpoints c WHERE c.thread_id = :thread_id AND c.checkpoint_ns = ''
        ORDER BY c.checkpoint_id DESC LIMIT 1
    ),
    (SELECT p.state FROM /*schema*/projections p WHERE p.thread_id = :thread_id)
FROM /*schema*/threads t
WHERE t.thread_id = :thread_id::text;

-- name: update_thread
-- Merge metadata and set a title, unless the version is another than expected or nothing would change; return the
-- version.
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
SELECT metadata || :metadata::jsonb <> metadata OR (:has_title::boolean AND title IS DISTINCT FROM :title::text)
FROM /*schema*/threads WHERE thread_id = :thread_id::text;
