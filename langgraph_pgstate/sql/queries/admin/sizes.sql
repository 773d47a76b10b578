-- name: get_server_version
-- Return the server's version in readable form.
SELECT split_part(current_setting('server_version'), ' ', 1);

-- name: list_table_sizes
-- Return for each table of the schema its bytes on disk, those of its indexes, and PostgreSQL's estimate of its rows.
SELECT relname::text, pg_total_relation_size(oid), pg_indexes_size(oid), greatest(reltuples, 0)::bigint
FROM pg_catalog.pg_class
WHERE relnamespace = to_regnamespace(:schema::text) AND relkind IN ('r', 'p')
ORDER BY relname;

-- name: count_rows
-- Return the exact numbers of rows; scans the tables, so not for large ones.
SELECT 'threads', count(*) FROM /*schema*/threads
UNION ALL SELECT 'checkpoints', count(*) FROM /*schema*/checkpoints
UNION ALL SELECT 'segments', count(*) FROM /*schema*/segments
UNION ALL SELECT 'writes', count(*) FROM /*schema*/writes
UNION ALL SELECT 'migrations', count(*) FROM /*schema*/migrations;

-- name: count_all_orphan_writes
-- Return the number of rows of pending writes without a checkpoint; scans both tables, so not for large ones.
SELECT count(*) FROM /*schema*/writes w WHERE NOT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints c
    WHERE c.thread_id = w.thread_id AND c.checkpoint_ns = w.checkpoint_ns AND c.checkpoint_id = w.checkpoint_id
);

-- name: get_thread_size
-- Return a thread's numbers of rows, and the stored bytes of its states, segments and pending writes.
SELECT
    (SELECT count(*) FROM /*schema*/checkpoints WHERE thread_id = :thread_id::text),
    (SELECT coalesce(sum(octet_length(state)), 0)::bigint FROM /*schema*/checkpoints WHERE thread_id = :thread_id),
    (SELECT count(*) FROM /*schema*/segments WHERE thread_id = :thread_id),
    (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM /*schema*/segments WHERE thread_id = :thread_id),
    (SELECT count(*) FROM /*schema*/writes WHERE thread_id = :thread_id),
    (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM /*schema*/writes WHERE thread_id = :thread_id);
