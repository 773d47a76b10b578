-- name: set_expiry
-- Set when a thread expires (after a time to live, at a fixed time, or never) and what happens then. Return the time of
-- expiry, or no row if the thread is missing or archived.
WITH due AS MATERIALIZED (
    SELECT coalesce(:at::timestamptz, now() + coalesce(:ttl::interval, :after::interval)) AS at
)
UPDATE /*schema*/threads SET ttl = :ttl, ttl_strategy = :strategy::text, expires_at = due.at
FROM due
WHERE thread_id = :thread_id::text AND archived_at IS NULL
RETURNING expires_at;

-- name: begin_ttl
-- Set the default time to live of a thread at its first checkpoint, unless the thread has its own setting.
UPDATE /*schema*/threads SET ttl = :ttl::interval, ttl_strategy = :strategy::text, expires_at = now() + :ttl
WHERE thread_id = :thread_id::text AND ttl IS NULL AND expires_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints c
    WHERE c.thread_id = :thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id <> :checkpoint_id::text
);

-- name: list_expired
-- Return a page of expired threads, oldest expiry first, after a cursor, except threads in use. If `is_copied` is true,
-- return only threads to delete of which archives have copies. If `is_copied` is false, return only other threads.
SELECT t.expires_at, t.thread_id, t.ttl_strategy FROM /*schema*/threads t
WHERE t.expires_at <= now() AND t.archived_at IS NULL
    AND (t.expires_at, t.thread_id) > (:cursor_at::timestamptz, :cursor_id::text)
    AND t.updated_at <= now() - make_interval(secs => :quiet::double precision)
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/runs r
        WHERE r.thread_id = t.thread_id AND r.status IN ('pending', 'running') AND r.alive_until > now()
    )
    AND NOT EXISTS (SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = t.thread_id)
    AND NOT EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = t.thread_id)
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/leases l
        WHERE l.thread_id = t.thread_id AND l.holder_id IS NOT NULL AND l.expires_at > now()
    )
    AND (:is_copied::boolean IS NULL OR :is_copied = (t.ttl_strategy = 'delete' AND EXISTS (
        SELECT 1 FROM /*schema*/archived_threads c WHERE c.thread_id = t.thread_id
    )))
ORDER BY t.expires_at, t.thread_id
LIMIT :page_size;

-- name: list_held_expired
-- Return expired threads that a hold protects, in order.
SELECT DISTINCT h.thread_id FROM /*schema*/holds h JOIN /*schema*/threads t ON t.thread_id = h.thread_id
WHERE t.expires_at <= now() AND t.archived_at IS NULL
ORDER BY h.thread_id LIMIT :page_size;

-- name: hold_expired
-- Lock the row of an expired thread until the transaction ends. Return no row if the thread is in use or locked, or if
-- the strategy is `delete` and archives have copies. Return the strategy, and whether the thread is leased.
SELECT t.ttl_strategy, EXISTS (
    SELECT 1 FROM /*schema*/leases l
    WHERE l.thread_id = :thread_id AND l.holder_id IS NOT NULL AND l.expires_at > now()
)
FROM /*schema*/threads t
WHERE t.thread_id = :thread_id::text AND t.expires_at <= now() AND t.archived_at IS NULL
    AND t.updated_at <= now() - make_interval(secs => :quiet::double precision)
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/runs r
        WHERE r.thread_id = :thread_id AND r.status IN ('pending', 'running') AND r.alive_until > now()
    )
    AND NOT EXISTS (SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = :thread_id)
    AND NOT EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = :thread_id)
    AND (t.ttl_strategy <> 'delete' OR NOT EXISTS (
        SELECT 1 FROM /*schema*/archived_threads c WHERE c.thread_id = :thread_id
    ))
FOR UPDATE SKIP LOCKED;

-- name: end_expiry
-- Prevent a pruned thread from expiring before its next access.
UPDATE /*schema*/threads SET expires_at = NULL WHERE thread_id = :thread_id::text;
