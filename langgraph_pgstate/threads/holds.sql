-- name: put_hold
-- Hold a thread for a reason, unless there is already a hold with this reason.
INSERT INTO /*schema*/holds (thread_id, reason, held_by, created_at)
VALUES (:thread_id::text, :reason::text, :held_by::text, now())
ON CONFLICT (thread_id, reason) DO NOTHING;

-- name: find_stub_without_archive
-- Return the archive of an archived thread if the objects of the archive are being deleted.
SELECT a.archive_id FROM /*schema*/threads t JOIN /*schema*/archives a ON a.archive_id = t.archive_id
WHERE t.thread_id = :thread_id::text AND a.completed_at IS NULL;

-- name: delete_hold
-- End the hold with a reason. If a start is given, end the hold only if it began at this time.
DELETE FROM /*schema*/holds WHERE thread_id = :thread_id::text AND reason = :reason::text
    AND (:since::timestamptz IS NULL OR created_at = :since);

-- name: list_holds_of
-- Return the holds of a thread with persons and reasons, oldest first.
SELECT h.thread_id, h.reason, h.held_by, h.created_at
FROM /*schema*/holds h
WHERE h.thread_id = :thread_id::text
ORDER BY h.created_at, h.reason;

-- name: list_holds
-- Return a page of holds, by thread, after a cursor.
-- plan: at each call
SELECT h.thread_id, h.reason, h.held_by, h.created_at
FROM /*schema*/holds h
WHERE (h.thread_id, h.reason) > (:cursor_thread::text, :cursor_reason::text)
    AND (:thread_id::text IS NULL OR h.thread_id = :thread_id)
ORDER BY h.thread_id, h.reason
LIMIT :page_size;

-- name: has_held_spans
-- Return whether a month, like `2026_01`, has spans of a thread that is held.
SELECT EXISTS (
    SELECT 1 FROM (
        SELECT to_date(:month::text, 'YYYY_MM')::timestamp AT TIME ZONE 'UTC' AS first_at,
            (to_date(:month, 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC' AS last_at
    ) AS m, /*schema*/holds h JOIN /*schema*/spans s ON s.thread_id = h.thread_id
    WHERE s.started_at >= m.first_at AND s.started_at < m.last_at
);
