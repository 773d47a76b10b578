-- name: list_thread_tables
-- Return the tables that have rows of threads, except the given tables. A referenced table comes before the tables that
-- refer to it. Each row has the table's name, columns and types, and statements that read, digest, delete, insert and
-- decode rows of the table. The last two columns are statements over all tables. The first counts the rows and bytes of
-- threads. The second finds threads that have rows outside of `threads`. If columns are given as `table.column`, return
-- only the given columns, in the given order.
WITH tables AS (
    SELECT c.oid, c.relname::text AS name, format('%I.%I', n.nspname, c.relname) AS path,
        EXISTS (SELECT 1 FROM pg_catalog.pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f') AS is_referring
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relnamespace = (SELECT t.relnamespace FROM pg_catalog.pg_class t WHERE t.oid = to_regclass(:threads::text))
        AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname::text <> ALL(:excepted::text[])
        AND EXISTS (
            SELECT 1 FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = c.oid AND a.attname = 'thread_id' AND NOT a.attisdropped
        )
), described AS (
    SELECT a.attrelid AS oid,
        array_agg(a.attname::text ORDER BY a.number) AS columns,
        array_agg(format_type(a.atttypid, NULL) ORDER BY a.number) AS types,
        string_agg(format('%I', a.attname), ', ' ORDER BY a.number) AS listed,
        string_agg(
            format(CASE WHEN y.typcategory = 'A' THEN 't.%I::pg_catalog.text' ELSE 't.%I' END, a.attname), ', '
            ORDER BY a.number
        ) AS sent,
        string_agg(
            format(
                CASE WHEN y.typcategory = 'A' THEN 'u.%I::%s' ELSE 'u.%I' END, a.attname, format_type(a.atttypid, NULL)
            ), ', ' ORDER BY a.number
        ) AS stored,
        string_agg(
            format(
                '$%s::%s[]', a.number,
                CASE WHEN y.typcategory = 'A' THEN 'pg_catalog.text' ELSE format_type(a.atttypid, NULL) END
            ), ', ' ORDER BY a.number
        ) AS given,
        string_agg(format('coalesce(pg_catalog.pg_column_size(t.%I), 0)', a.attname), ' + ' ORDER BY a.number) AS size
    FROM (
        SELECT b.attrelid, b.attname, b.atttypid, row_number() OVER (
            PARTITION BY b.attrelid ORDER BY array_position(:columns, format('%s.%s', t.name, b.attname)), b.attnum
        ) AS number
        FROM pg_catalog.pg_attribute b JOIN tables t ON t.oid = b.attrelid
        WHERE b.attnum > 0 AND NOT b.attisdropped AND b.attgenerated = '' AND b.attname <> 'pgstate_tenant'
            AND (:columns::text[] IS NULL OR format('%s.%s', t.name, b.attname) = ANY(:columns))
    ) AS a JOIN pg_catalog.pg_type y ON y.oid = a.atttypid
    GROUP BY a.attrelid
)
SELECT t.name, d.columns, d.types,
    format(
        'SELECT t.thread_id, pg_catalog.record_send(ROW(%s)) FROM %s t WHERE t.thread_id = ANY($1::pg_catalog.text[])',
        d.sent, t.path
    ),
    format(
        'SELECT d.thread_id, pg_catalog.count(*), pg_catalog.sha256(pg_catalog.string_agg(d.hash, NULL ORDER BY d.hash)) '
        'FROM (SELECT t.thread_id, pg_catalog.sha256(pg_catalog.record_send(ROW(%s))) AS hash FROM %s t '
        'WHERE t.thread_id = ANY($1::pg_catalog.text[])) AS d GROUP BY d.thread_id',
        d.sent, t.path
    ),
    format(
        'WITH d AS (DELETE FROM %s t WHERE t.thread_id = ANY($1::pg_catalog.text[]) '
        'RETURNING t.thread_id, pg_catalog.sha256(pg_catalog.record_send(ROW(%s))) AS hash) '
        'SELECT d.thread_id, pg_catalog.count(*), pg_catalog.sha256(pg_catalog.string_agg(d.hash, NULL ORDER BY d.hash)) '
        'FROM d GROUP BY d.thread_id',
        t.path, d.sent
    ),
    format('INSERT INTO %s (%s) SELECT %s FROM unnest(%s) AS u (%s)', t.path, d.listed, d.stored, d.given, d.listed),
    format(
        'SELECT %L AS name, NULL AS key, pg_catalog.to_jsonb(d) AS content '
        'FROM (SELECT %s FROM unnest(%s) AS u (%s)) AS d',
        t.name, d.stored, d.given, d.listed
    ),
    string_agg(
        format(
            'SELECT t.thread_id, pg_catalog.count(*), pg_catalog.sum(%s)::pg_catalog.int8 FROM %s t '
            'WHERE t.thread_id = ANY($1::pg_catalog.text[]) GROUP BY t.thread_id',
            d.size, t.path
        ), ' UNION ALL '
    ) OVER (),
    -- An archive may have rows of `threads` only.
    coalesce(string_agg(
        format('SELECT t.thread_id FROM %s t WHERE t.thread_id = ANY($1::pg_catalog.text[])', t.path), ' UNION '
    ) FILTER (WHERE t.name <> 'threads') OVER (), 'SELECT u.* FROM unnest($1::pg_catalog.text[]) AS u WHERE false')
FROM tables t JOIN described d ON d.oid = t.oid
ORDER BY t.is_referring, t.name;

-- name: explain_archivable
-- Return, for each given thread that exists, the reason why the thread cannot be archived now, and the id of the
-- thread's archive. The reason is null if the thread can be archived. The id is null if the thread is not archived.
SELECT t.thread_id, CASE
        WHEN t.archived_at IS NOT NULL THEN 'archived'
        WHEN EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = t.thread_id) THEN 'held'
        WHEN EXISTS (SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = t.thread_id) THEN 'queued'
        WHEN EXISTS (
            SELECT 1 FROM /*schema*/runs r
            WHERE r.thread_id = t.thread_id AND r.status IN ('pending', 'running') AND r.alive_until > now()
        ) OR EXISTS (
            SELECT 1 FROM /*schema*/leases l
            WHERE l.thread_id = t.thread_id AND l.holder_id IS NOT NULL AND l.expires_at > now()
        ) THEN 'running'
        WHEN EXISTS (
            -- A tool may outlive its run. Its outcome is stored when it ends.
            SELECT 1 FROM /*schema*/tool_executions e
            WHERE e.thread_id = t.thread_id AND e.status = 'running' AND e.alive_until > now()
        ) THEN 'acting'
        WHEN EXISTS (
            SELECT 1 FROM /*schema*/schedules s WHERE s.thread_id = t.thread_id AND s.next_at IS NOT NULL
        ) THEN 'scheduled'
        WHEN EXISTS (
            SELECT 1 FROM /*schema*/run_requests d WHERE d.thread_id = t.thread_id AND d.answer_at IS NOT NULL
        ) THEN 'awaiting'
        WHEN EXISTS (SELECT 1 FROM /*schema*/journal j WHERE j.thread_id = t.thread_id) THEN 'recorded'
        WHEN EXISTS (SELECT 1 FROM /*schema*/span_exports e WHERE e.thread_id = t.thread_id) THEN 'exported'
        WHEN t.updated_at > now() - :idle_for::interval THEN 'active'
    END, t.archive_id
FROM /*schema*/threads t WHERE t.thread_id = ANY(:thread_ids::text[])
ORDER BY t.thread_id;

-- name: lock_threads_for_update
-- Lock the rows of some threads until the transaction ends, and return the ids of the threads and of their archives.
-- Leave out rows that another transaction has locked. The lock excludes prunes, holds, labels, guarded writes and
-- enqueueing.
SELECT t.thread_id, t.archive_id FROM /*schema*/threads t WHERE t.thread_id = ANY(:thread_ids::text[])
ORDER BY t.thread_id FOR UPDATE SKIP LOCKED;

-- name: share_copies
-- Lock a key in shared mode until the transaction ends. Calls that make archives hold this lock at the same time. A
-- call that looks for copies takes the lock in exclusive mode.
SELECT pg_advisory_xact_lock_shared(hashtextextended(:key::text, 0));

-- name: begin_archive
-- Store the row of an archive. The objects of the archive are stored later.
INSERT INTO /*schema*/archives (archive_id, url, threads, bytes, root, schema_version, key_ids)
VALUES (
    :archive_id::text, :url::text, :threads::integer, :bytes::bigint, :root::bytea, :schema_version::integer,
    :key_ids::text[]
)
ON CONFLICT (archive_id) DO NOTHING;

-- name: lock_archive
-- Lock the row of an archive until the transaction ends, if the given deletion has claimed the archive. If no deletion
-- is given, lock the row only if no deletion has claimed the archive.
SELECT a.archive_id FROM /*schema*/archives a
WHERE a.archive_id = :archive_id::text AND a.deletion_id IS NOT DISTINCT FROM :deletion_id::text
FOR UPDATE;

-- name: claim_archive
-- Claim an archive for a call that deletes it. A call that claimed the archive earlier loses its claim. Return whether
-- all objects of the archive were stored, and no call has begun to delete the objects.
UPDATE /*schema*/archives SET deletion_id = :deletion_id::text WHERE archive_id = :archive_id::text
RETURNING completed_at IS NOT NULL;

-- name: begin_deletion
-- Store that a call begins to delete the objects of an archive. The call must have claimed the archive.
UPDATE /*schema*/archives SET completed_at = NULL
WHERE archive_id = :archive_id::text AND deletion_id = :deletion_id::text;

-- name: add_archived_threads
-- Store the threads of which an archive has copies.
INSERT INTO /*schema*/archived_threads (thread_id, archive_id, user_id, users, origin_thread_ids)
SELECT u.thread_id, :archive_id::text, nullif(u.user_id, ''), nullif(u.users, '{}')::text[],
    nullif(u.origins, '')::text[]
FROM unnest(:thread_ids::text[], :user_ids::text[], :users::text[], :origins::text[])
    AS u (thread_id, user_id, users, origins)
ON CONFLICT (thread_id, archive_id) DO NOTHING;

-- name: mark_archived
-- Turn the rows of threads into stubs, which name their archive.
UPDATE /*schema*/threads SET archived_at = now(), archive_id = :archive_id::text, expires_at = NULL
WHERE thread_id = ANY(:thread_ids::text[]);

-- name: complete_archive
-- Store that the threads of an archive were deleted from the tables.
UPDATE /*schema*/archives SET completed_at = now() WHERE archive_id = :archive_id::text;

-- name: find_archives
-- Return the archives of some archived threads, each with its threads, the URL of its objects, and the digest of its
-- manifest.
SELECT a.archive_id, a.url, a.root, array_agg(t.thread_id ORDER BY t.thread_id)
FROM /*schema*/threads t JOIN /*schema*/archives a ON a.archive_id = t.archive_id
WHERE t.thread_id = ANY(:thread_ids::text[]) AND t.archived_at IS NOT NULL
GROUP BY a.archive_id, a.url, a.root
ORDER BY a.archive_id;

-- name: find_restored
-- Return the archives that have the newest copies of some threads that are in the database, as `find_archives` does.
SELECT a.archive_id, a.url, a.root, array_agg(n.thread_id ORDER BY n.thread_id)
FROM (
    SELECT DISTINCT ON (c.thread_id) c.thread_id, c.archive_id
    FROM /*schema*/archived_threads c
        JOIN /*schema*/archives a ON a.archive_id = c.archive_id
        JOIN /*schema*/threads t ON t.thread_id = c.thread_id
    WHERE c.thread_id = ANY(:thread_ids::text[]) AND t.archived_at IS NULL
        AND a.completed_at IS NOT NULL AND a.deletion_id IS NULL
    ORDER BY c.thread_id, a.completed_at DESC
) AS n JOIN /*schema*/archives a ON a.archive_id = n.archive_id
GROUP BY a.archive_id, a.url, a.root
ORDER BY a.archive_id;

-- name: find_roots
-- Return the digests of the manifests of some archives.
SELECT a.archive_id, a.root FROM /*schema*/archives a WHERE a.archive_id = ANY(:archive_ids::text[]);

-- name: end_stubs
-- Store that threads are in the database again. A time to live starts again, and a fixed time of expiry is removed.
UPDATE /*schema*/threads SET archived_at = NULL, archive_id = NULL, expires_at = now() + ttl
WHERE thread_id = ANY(:thread_ids::text[]);

-- name: list_archived_threads
-- Return a page of archived threads in order of their ids, after a cursor, each with its archive.
-- opens: threads.title
-- plan: at each call
SELECT t.thread_id, t.archived_at, a.archive_id, a.url, t.user_id, t.agent, t.title, t.updated_at
FROM /*schema*/threads t JOIN /*schema*/archives a ON a.archive_id = t.archive_id
WHERE t.archived_at IS NOT NULL AND t.thread_id > :cursor_thread::text
    AND (:user_id::text IS NULL OR t.user_id = :user_id)
    AND (:agent::text IS NULL OR t.agent = :agent)
    AND (:archive_id::text IS NULL OR t.archive_id = :archive_id)
    AND (:thread_ids::text[] IS NULL OR t.thread_id = ANY(:thread_ids))
ORDER BY t.thread_id
LIMIT :page_size;

-- name: lock_stubs
-- Lock the rows of some threads until the transaction ends, and return each with its archive, or null if the thread is
-- not archived.
SELECT t.thread_id, t.archive_id FROM /*schema*/threads t WHERE t.thread_id = ANY(:thread_ids::text[])
ORDER BY t.thread_id FOR UPDATE;

-- name: find_tombstones
-- Return the given threads that were deleted and whose ids must not be used again yet.
SELECT d.thread_id, d.deleted_at FROM /*schema*/tombstones d
WHERE d.thread_id = ANY(:thread_ids::text[]) AND d.expires_at > now() ORDER BY d.thread_id;

-- name: find_copies
-- Find the archives that have a copy of a given thread, of a thread of a given user, or of a thread that had inherited
-- from a given source. The user owned the thread, or acted in the thread, before the archive was made. Return a row for
-- each thread of these archives: its owner, other users and origins when the archive was made; whether it had inherited
-- from a given source; whether its stub names the archive, and the stub's owner. The last two columns tell whether the
-- archive is complete, and, if a process may still be making the archive, when the archive was begun.
SELECT a.archive_id, a.url, a.root, c.thread_id, c.user_id, c.users, c.origin_thread_ids::text,
    coalesce(c.origin_thread_ids && :source_ids::text[], false), t.thread_id IS NOT NULL, t.user_id,
    a.completed_at IS NOT NULL, CASE
        WHEN a.completed_at IS NULL AND a.deletion_id IS NULL
            AND a.created_at BETWEEN now() - :near::interval AND now() + :near THEN a.created_at
    END
FROM /*schema*/archives a JOIN /*schema*/archived_threads c ON c.archive_id = a.archive_id
LEFT JOIN /*schema*/threads t ON t.thread_id = c.thread_id AND t.archive_id = c.archive_id
WHERE a.archive_id IN (
    SELECT g.archive_id FROM /*schema*/archived_threads g
    WHERE g.thread_id = ANY(:thread_ids::text[]) OR g.user_id = :user_id::text OR g.users @> ARRAY[:user_id]
        OR g.origin_thread_ids && :source_ids
)
ORDER BY a.archive_id, c.thread_id;

-- name: list_unfinished
-- Return a page of archives that were begun more than `:near` ago, are not complete, and are named by no stub.
SELECT a.archive_id, a.url, a.root FROM /*schema*/archives a
WHERE a.completed_at IS NULL AND a.created_at NOT BETWEEN now() - :near::interval AND now() + :near
    AND a.archive_id > :cursor_id::text AND NOT EXISTS (
        SELECT 1 FROM /*schema*/archived_threads c JOIN /*schema*/threads t ON t.thread_id = c.thread_id
        WHERE c.archive_id = a.archive_id AND t.archive_id = a.archive_id
    )
ORDER BY a.archive_id
LIMIT :page_size;

-- name: claim_unfinished
-- Claim an archive that is not complete, as `claim_archive` does. Return no row if the archive is complete or deleted.
UPDATE /*schema*/archives SET deletion_id = :deletion_id::text
WHERE archive_id = :archive_id::text AND completed_at IS NULL
RETURNING archive_id;

-- name: move_stubs
-- Let the stubs of threads in one archive name another archive, which has copies of the threads, too.
UPDATE /*schema*/threads SET archive_id = :new_archive_id::text
WHERE thread_id = ANY(:thread_ids::text[]) AND archive_id = :archive_id::text;

-- name: clear_stubs
-- Turn the stubs of a deleted archive's threads, or of some of them, into ordinary rows, and return these threads.
UPDATE /*schema*/threads SET archived_at = NULL, archive_id = NULL
WHERE thread_id IN (
    SELECT c.thread_id FROM /*schema*/archived_threads c
    WHERE c.archive_id = :archive_id::text AND (:thread_ids::text[] IS NULL OR c.thread_id = ANY(:thread_ids))
) AND archive_id = :archive_id
RETURNING thread_id;

-- name: delete_archived_threads
-- Delete the rows that name the threads of an archive, or some of its threads.
DELETE FROM /*schema*/archived_threads
WHERE archive_id = :archive_id::text AND (:thread_ids::text[] IS NULL OR thread_id = ANY(:thread_ids));

-- name: delete_archive
-- Delete the row of an archive if `archived_threads` has no rows of the archive.
DELETE FROM /*schema*/archives WHERE archive_id = :archive_id::text AND NOT EXISTS (
    SELECT 1 FROM /*schema*/archived_threads c WHERE c.archive_id = :archive_id
);

-- name: reuse_data_keys
-- Mark data keys as not retired, because restored rows are encrypted under them. The next rotation then encrypts these
-- rows under newer keys.
UPDATE /*schema*/data_keys SET retired_at = NULL WHERE key_id = ANY(:key_ids::text[]) AND retired_at IS NOT NULL;
