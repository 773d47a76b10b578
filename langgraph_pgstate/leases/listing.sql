-- name: list_leases
-- Return a page of the active leases, the earliest to expire first.
SELECT thread_id, holder_id, fencing_token, acquired_at, renewed_at, expires_at
FROM /*schema*/leases
WHERE expires_at > now() AND holder_id IS NOT NULL
    AND (expires_at, thread_id) > (:cursor_at::timestamptz, :cursor_id::text)
ORDER BY expires_at, thread_id
LIMIT :page_size;
