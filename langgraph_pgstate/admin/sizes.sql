-- name: get_server_version
-- Return the server's version in readable form.
SELECT split_part(current_setting('server_version'), ' ', 1);

-- name: list_table_sizes
-- Return for each table of the schema: bytes on disk, bytes of the indexes, and PostgreSQL's estimate of the rows.
SELECT relname::text, pg_total_relation_size(oid), pg_indexes_size(oid), greatest(reltuples, 0)::bigint
FROM pg_catalog.pg_class
WHERE relnamespace = to_regnamespace(:schema::text) AND relkind IN ('r', 'p')
ORDER BY relname;

-- name: count_rows
-- Return the exact numbers of rows. Scans the tables, so it is only for small tables.
SELECT 'threads', count(*) FROM /*schema*/threads
UNION ALL SELECT 'checkpoints', count(*) FROM /*schema*/checkpoints
UNION ALL SELECT 'segments', count(*) FROM /*schema*/segments
UNION ALL SELECT 'writes', count(*) FROM /*schema*/writes
UNION ALL SELECT 'migrations', count(*) FROM /*schema*/migrations;

-- name: count_all_orphan_writes
-- Return the number of rows of pending writes without a checkpoint. Scans both tables, so it is only for small tables.
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

-- name: measure_tables
-- Return for each table of the schema, with partitions: bytes on disk, bytes of the indexes, PostgreSQL's estimates of
-- rows and dead rows, the number of partitions, and the times of the last vacuum and analyze.
SELECT coalesce(p.relname, c.relname)::text, sum(coalesce(pg_total_relation_size(c.oid), 0))::bigint,
    sum(coalesce(pg_indexes_size(c.oid), 0))::bigint, sum(greatest(c.reltuples, 0))::bigint,
    sum(coalesce(t.n_dead_tup, 0))::bigint, count(p.oid), max(greatest(t.last_vacuum, t.last_autovacuum)),
    max(greatest(t.last_analyze, t.last_autoanalyze))
FROM pg_catalog.pg_class c
    LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
    LEFT JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
    LEFT JOIN pg_catalog.pg_stat_all_tables t ON t.relid = c.oid
WHERE c.relnamespace = to_regnamespace(:schema::text) AND c.relkind = 'r'
GROUP BY 1
ORDER BY 2 DESC, 1;

-- name: describe_server
-- Return the server's version, the time, the bytes of the database, whether the server is a standby, and the schema of
-- the extension pg_stat_statements if it is installed.
SELECT split_part(current_setting('server_version'), ' ', 1), now(), pg_database_size(current_database()),
    pg_is_in_recovery(), (
        SELECT n.nspname::text FROM pg_catalog.pg_extension e
            JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'pg_stat_statements'
    );
