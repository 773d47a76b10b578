-- name: find_schema
-- Return whether the schema exists.
SELECT to_regnamespace(:schema::text) IS NOT NULL;

-- name: find_tables
-- Return the columns of the tables. They show whether the tables belong to this saver.
SELECT c.relname::text, a.attname::text
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = to_regnamespace(:schema::text) AND a.attnum > 0 AND NOT a.attisdropped
    AND c.relname IN ('checkpoints', 'checkpoint_blobs', 'checkpoint_writes');

-- name: list_thread_ids
-- Return a page of thread ids, in order, after a cursor; without a cursor from the start, including the empty id.
(SELECT DISTINCT thread_id FROM /*schema*/checkpoints WHERE :cursor_id::text IS NULL OR thread_id > :cursor_id
    ORDER BY thread_id LIMIT :page_size)
UNION
(SELECT DISTINCT thread_id FROM /*schema*/checkpoint_writes WHERE :cursor_id IS NULL OR thread_id > :cursor_id
    ORDER BY thread_id LIMIT :page_size)
ORDER BY thread_id LIMIT :page_size;

-- name: count_threads
-- Return the number of threads.
SELECT count(*) FROM (
    SELECT thread_id FROM /*schema*/checkpoints UNION SELECT thread_id FROM /*schema*/checkpoint_writes
) AS visited;

-- name: get_outline
-- Return the keys of a thread's checkpoints, and the keys and sizes of its pending writes.
SELECT checkpoint_ns, checkpoint_id, NULL::text AS task_id, 0 AS idx, 0 AS bytes
FROM /*schema*/checkpoints WHERE thread_id = :thread_id
UNION ALL
SELECT checkpoint_ns, checkpoint_id, task_id, idx, octet_length(blob)
FROM /*schema*/checkpoint_writes WHERE thread_id = :thread_id;
