-- name: make_thread
-- Locks a thread's row until the transaction ends, making it if it is missing; changes nothing that is there.
INSERT INTO /*schema*/threads (thread_id) VALUES (:thread_id::text)
ON CONFLICT (thread_id) DO UPDATE SET updated_at = excluded.updated_at WHERE false;

-- name: hold_for_write
-- Locks what a guarded write rests on until the transaction ends, and fails if it is not there: the thread's row against deletion, its lease against being taken over, the parent against being advanced by another.
WITH thread AS MATERIALIZED (
    SELECT 1 FROM /*schema*/threads WHERE thread_id = :thread_id AND :holds_thread::boolean FOR KEY SHARE
), lease AS MATERIALIZED (
    SELECT 1 FROM /*schema*/leases WHERE thread_id = :thread_id AND fencing_token = :fencing_token::bigint FOR SHARE
), parent AS MATERIALIZED (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :held_id::text
    FOR NO KEY UPDATE
)
-- No number begins with a word: the cast is how a statement without PL/pgSQL ends its transaction and says why.
SELECT ('pgstate-guard:' || reason)::integer FROM (
    SELECT CASE
        WHEN :holds_thread AND NOT EXISTS (SELECT 1 FROM thread) THEN 'thread:'
        WHEN :fencing_token IS NOT NULL AND NOT EXISTS (SELECT 1 FROM lease) THEN 'lease:'
        -- A checkpoint that is stored already, and sent again, does not miss a parent that was pruned since.
        WHEN :held_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM parent) AND NOT EXISTS (
            SELECT 1 FROM /*schema*/checkpoints
            WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :own_id::text
        ) THEN 'head:'
    END AS reason
) AS found
WHERE reason IS NOT NULL;

-- name: check_deleted
-- Fails if a thread was deleted and not revived. After `hold_for_write`: only the next statement sees what that waited for.
SELECT ('pgstate-guard:deleted:' || extract(epoch FROM deleted_at))::integer
FROM /*schema*/tombstones WHERE thread_id = :thread_id AND expires_at > now();

-- name: check_head
-- Fails if a checkpoint has children, but not the one given. After `hold_for_write`: only the next statement sees what that waited for.
SELECT ('pgstate-guard:head:' || checkpoint_id)::integer
FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND parent_checkpoint_id = :held_id::text
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints
        WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :own_id::text
    )
LIMIT 1;

-- name: check_empty
-- Fails if a namespace has checkpoints, but not the one given.
SELECT ('pgstate-guard:head:' || newest.checkpoint_id)::integer FROM (
    SELECT checkpoint_id FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns
    ORDER BY checkpoint_id DESC LIMIT 1
) AS newest
WHERE NOT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :own_id::text
);

-- name: has_child
-- Whether a checkpoint was built on, although a prune may have taken that away.
SELECT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND parent_checkpoint_id = :checkpoint_id::text
) OR EXISTS (
    SELECT 1 FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id
        AND next_checkpoint_id IS NOT NULL
);

-- name: delete_orphan_writes
-- Removes the pending writes of a checkpoint that is not there.
DELETE FROM /*schema*/writes
WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id::text
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/checkpoints
        WHERE thread_id = :thread_id AND checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id::text
    );

-- name: put_tombstone
-- Notes that a thread was deleted, and until when that is kept.
INSERT INTO /*schema*/tombstones (thread_id, expires_at)
VALUES (:thread_id::text, now() + make_interval(secs => :seconds::double precision))
ON CONFLICT (thread_id) DO UPDATE SET deleted_at = excluded.deleted_at, expires_at = excluded.expires_at;

-- name: get_tombstone
-- When a thread was deleted whose id is not to be used again yet.
SELECT deleted_at FROM /*schema*/tombstones WHERE thread_id = :thread_id::text AND expires_at > now();

-- name: delete_tombstone
-- Lets a deleted thread's id be used again.
DELETE FROM /*schema*/tombstones WHERE thread_id = :thread_id;

-- name: sweep_tombstones
-- Removes a page of the tombstones whose time has passed.
DELETE FROM /*schema*/tombstones WHERE thread_id = ANY(ARRAY(
    SELECT thread_id FROM /*schema*/tombstones WHERE expires_at <= now() ORDER BY expires_at, thread_id LIMIT :page_size
)) AND expires_at <= now();
