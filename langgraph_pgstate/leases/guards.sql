-- name: make_thread
-- Insert a thread's row if it is missing, and lock the row until the transaction ends. An existing row is not changed.
INSERT INTO /*schema*/threads (thread_id) VALUES (:thread_id::text)
ON CONFLICT (thread_id) DO UPDATE SET updated_at = excluded.updated_at WHERE false;

-- name: hold_for_write
-- Lock the rows on which a guarded write depends until the transaction ends. Fail if a row is missing. While the rows
-- are locked, the thread is not deleted, the lease is not taken over, and the parent gets no other child.
WITH thread AS MATERIALIZED (
    SELECT 1 FROM /*schema*/threads WHERE thread_id = :thread_id AND :holds_thread::boolean FOR KEY SHARE
), lease AS MATERIALIZED (
    SELECT 1 FROM /*schema*/leases WHERE thread_id = :thread_id AND fencing_token = :fencing_token::bigint FOR SHARE
), parent AS MATERIALIZED (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :held_id::text
    FOR NO KEY UPDATE
)
-- The cast fails with the text as its message. Without PL/pgSQL, there is no other way to raise an error.
SELECT ('pgstate-guard:' || reason || ';')::integer FROM (
    SELECT CASE
        WHEN :holds_thread AND NOT EXISTS (SELECT 1 FROM thread) THEN 'thread:'
        WHEN :fencing_token IS NOT NULL AND NOT EXISTS (SELECT 1 FROM lease) THEN 'lease:'
        -- A stored checkpoint that is sent again does not need its parent, which may have been pruned.
        WHEN :held_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM parent) AND NOT EXISTS (
            SELECT 1 FROM /*schema*/checkpoints
            WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :own_id::text
        ) THEN 'head:'
    END AS reason
) AS found
WHERE reason IS NOT NULL;

-- name: check_deleted
-- Fail if a thread was deleted and not revived. Runs after `hold_for_write`, because only a later statement sees rows
-- that were committed while `hold_for_write` waited.
SELECT ('pgstate-guard:deleted:' || extract(epoch FROM deleted_at) || ';')::integer
FROM /*schema*/tombstones WHERE thread_id = :thread_id AND expires_at > now();

-- name: check_head
-- Fail if a checkpoint has children other than the given child. Runs after `hold_for_write`, as `check_deleted` does.
SELECT ('pgstate-guard:head:' || checkpoint_id || ';')::integer
FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND parent_checkpoint_id = :held_id::text
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints
        WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :own_id::text
    )
LIMIT 1;

-- name: check_empty
-- Fail if a namespace has checkpoints other than the given one.
SELECT ('pgstate-guard:head:' || newest.checkpoint_id || ';')::integer FROM (
    SELECT checkpoint_id FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
    ORDER BY checkpoint_id DESC LIMIT 1
) AS newest
WHERE NOT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :own_id::text
);

-- name: has_child
-- Return whether a checkpoint has children or had children that were pruned.
SELECT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND parent_checkpoint_id = :checkpoint_id::text
) OR EXISTS (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id
        AND next_checkpoint_id IS NOT NULL
);

-- name: delete_orphan_writes
-- Delete the pending writes of a checkpoint that does not exist.
DELETE FROM /*schema*/writes
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id::text
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints
        WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id::text
    );

-- name: put_tombstone
-- Store a tombstone for a deleted thread, which expires after some seconds.
INSERT INTO /*schema*/tombstones (thread_id, expires_at)
VALUES (:thread_id::text, now() + make_interval(secs => :seconds::double precision))
ON CONFLICT (thread_id) DO UPDATE SET deleted_at = excluded.deleted_at, expires_at = excluded.expires_at;

-- name: get_tombstone
-- Return the time at which a thread was deleted; no row if its id may be used again.
SELECT deleted_at FROM /*schema*/tombstones WHERE thread_id = :thread_id::text AND expires_at > now();

-- name: get_archive_of
-- Return the archive of a thread and the time of archiving; no row if the thread is not archived.
SELECT archive_id, archived_at FROM /*schema*/threads WHERE thread_id = :thread_id::text AND archived_at IS NOT NULL;

-- name: delete_tombstone
-- Allow a deleted thread's id to be used again.
DELETE FROM /*schema*/tombstones WHERE thread_id = :thread_id;

-- name: sweep_tombstones
-- Delete a page of expired tombstones.
DELETE FROM /*schema*/tombstones WHERE thread_id = ANY(ARRAY(
    SELECT thread_id FROM /*schema*/tombstones WHERE expires_at <= now() ORDER BY expires_at, thread_id LIMIT :page_size
)) AND expires_at <= now();
