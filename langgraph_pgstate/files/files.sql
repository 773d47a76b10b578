-- name: get_file_head
-- Return the newest version of a file, whether it is deleted, and which agent wrote it.
SELECT f.version, f.deleted_at IS NOT NULL, f.size, f.is_text, v.thread_id, v.checkpoint_ns
FROM /*schema*/files f
    JOIN /*schema*/file_versions v
        ON v.namespace OPERATOR(pg_catalog.=) f.namespace AND v.path = f.path AND v.version = f.version
WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.path = :path::text;

-- name: get_files
-- Return the newest versions of files with their contents, without deleted files.
-- opens: file_versions.data
SELECT f.path, f.version, f.size, f.line_count, f.is_text, f.created_at, f.modified_at, v.value_type, v.data
FROM /*schema*/files f
    JOIN /*schema*/file_versions v
        ON v.namespace OPERATOR(pg_catalog.=) f.namespace AND v.path = f.path AND v.version = f.version
WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.path = ANY(:paths::text[]) AND f.deleted_at IS NULL;

-- name: get_file_version
-- Return a version of a file with its content. Return no row if the version is a deletion.
-- opens: file_versions.data
SELECT v.path, v.version, v.size, v.line_count, v.is_text, f.created_at, v.created_at, v.value_type, v.data
FROM /*schema*/file_versions v
    JOIN /*schema*/files f ON f.namespace OPERATOR(pg_catalog.=) v.namespace AND f.path = v.path
WHERE v.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND v.path = :path::text AND v.version = :version::integer
    AND v.data IS NOT NULL;

-- name: put_file
-- Store a version of a file if the version is the first or follows the newest version. Return the version's time. Lock
-- the row of the file first, as `delete_files` does.
-- seals: file_versions.data
-- seals: file_texts.content
WITH made AS (
    INSERT INTO /*schema*/files (
        namespace, path, directory, version, size, line_count, is_text, created_at, modified_at
    )
    SELECT :namespace::text[], :path::text, :directory::text, 1, :size::bigint, :line_count::integer,
        :is_text::boolean, now(), now()
    WHERE :version::integer = 1
    ON CONFLICT (namespace, path) DO NOTHING
    RETURNING modified_at
), changed AS (
    UPDATE /*schema*/files SET version = :version, size = :size, line_count = :line_count, is_text = :is_text,
        modified_at = now(), deleted_at = NULL
    WHERE namespace OPERATOR(pg_catalog.=) :namespace AND path = :path AND version = :version - 1
    RETURNING modified_at
), head AS MATERIALIZED (
    SELECT m.modified_at FROM made m UNION ALL SELECT c.modified_at FROM changed c
), added AS (
    INSERT INTO /*schema*/file_versions (
        namespace, path, version, operation, change_id, created_at, size, line_count, is_text, restored_version,
        changed_by, thread_id, checkpoint_ns, checkpoint_id, run_id, value_type, data
    )
    SELECT :namespace::text[], :path::text, :version::integer, :operation::text, :change_id::text, h.modified_at,
        :size::bigint, :line_count::integer, :is_text::boolean, :restored_version::integer, :changed_by::text,
        :thread_id::text, :checkpoint_ns::text, :checkpoint_id::text, :run_id::text, :value_type::text, :data::bytea
    FROM head h
), searched AS (
    INSERT INTO /*schema*/file_texts (namespace, path, content)
    SELECT :namespace::text[], :path::text, :content::text FROM head WHERE :content::text IS NOT NULL
    ON CONFLICT (namespace, path) DO UPDATE SET content = excluded.content
), unsearched AS (
    DELETE FROM /*schema*/file_texts t USING head
    WHERE t.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND t.path = :path::text AND :content::text IS NULL
)
SELECT h.modified_at FROM head h;

-- name: get_file_change
-- Return the time of a version if an earlier attempt of the same change has stored it.
SELECT v.created_at FROM /*schema*/file_versions v
WHERE v.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND v.path = :path::text AND v.version = :version::integer
    AND v.change_id = :change_id::text;

-- name: delete_files
-- Mark a file, or all files in a directory, as deleted, and return their paths. Each gets a version without content.
-- The rows of the files are locked in order of their paths.
WITH head AS MATERIALIZED (
    SELECT f.path, f.version + 1 AS version, now() AS deleted_at FROM /*schema*/files f
    WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.deleted_at IS NULL
        AND f.path >= :path::text AND f.path < :after::text
        AND (f.path = :path::text OR f.path >= :first::text)
    ORDER BY f.path FOR NO KEY UPDATE
), deleted AS (
    UPDATE /*schema*/files f SET version = h.version, modified_at = h.deleted_at, deleted_at = h.deleted_at, size = 0,
        line_count = 0
    FROM head h WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.path = h.path
), unsearched AS (
    DELETE FROM /*schema*/file_texts t USING head h
    WHERE t.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND t.path = h.path
), added AS (
    INSERT INTO /*schema*/file_versions (
        namespace, path, version, operation, change_id, created_at, size, line_count, is_text, changed_by, thread_id,
        checkpoint_ns, checkpoint_id, run_id
    )
    SELECT :namespace::text[], h.path, h.version, 'delete', :change_id::text, h.deleted_at, 0, 0, false,
        :changed_by::text, :thread_id::text, :checkpoint_ns::text, :checkpoint_id::text, :run_id::text
    FROM head h
)
SELECT h.path FROM head h ORDER BY h.path;

-- name: get_deleted_files
-- Return the paths of files that an earlier attempt of the same deletion has deleted.
SELECT v.path FROM /*schema*/file_versions v
WHERE v.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND v.path >= :path::text AND v.path < :after::text
    AND (v.path = :path::text OR v.path >= :first::text) AND v.change_id = :change_id::text
ORDER BY v.path;

-- name: list_file_versions
-- Return versions of a file, newest first, from a cursor.
SELECT v.namespace, v.path, v.version, v.operation, v.created_at, v.size, v.line_count, v.is_text, v.restored_version,
    v.changed_by, v.thread_id, v.checkpoint_ns, v.checkpoint_id, v.run_id
FROM /*schema*/file_versions v
WHERE v.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND v.path = :path::text AND v.version < :before::integer
ORDER BY v.version DESC
LIMIT :page_size;

-- name: list_file_changes
-- Return the versions of files that runs of a thread have written, oldest first, from a cursor.
SELECT v.namespace, v.path, v.version, v.operation, v.created_at, v.size, v.line_count, v.is_text, v.restored_version,
    v.changed_by, v.thread_id, v.checkpoint_ns, v.checkpoint_id, v.run_id
FROM /*schema*/file_versions v
WHERE v.thread_id = :thread_id::text AND (:run_id::text IS NULL OR v.run_id = :run_id)
    AND (:checkpoint_id::text IS NULL OR v.checkpoint_id = :checkpoint_id)
    AND v.created_at >= :cursor_at::timestamptz
    AND (
        v.created_at > :cursor_at OR v.namespace OPERATOR(pg_catalog.>) :cursor_namespace::text[]
        OR v.namespace OPERATOR(pg_catalog.=) :cursor_namespace
            AND (v.path, v.version) > (:cursor_path::text, :cursor_version::integer)
    )
ORDER BY v.created_at, v.namespace, v.path, v.version
LIMIT :page_size;

-- name: purge_files
-- Delete files with all versions, including files that are marked as deleted, and return their number. The rows of the
-- files are locked in order of their paths.
WITH head AS MATERIALIZED (
    SELECT f.path FROM /*schema*/files f
    WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.path >= :path::text AND f.path < :after::text
        AND (f.path = :path::text OR f.path >= :first::text)
    ORDER BY f.path FOR UPDATE
), versions AS (
    DELETE FROM /*schema*/file_versions v USING head h
    WHERE v.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND v.path = h.path
), texts AS (
    DELETE FROM /*schema*/file_texts t USING head h
    WHERE t.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND t.path = h.path
)
DELETE FROM /*schema*/files f USING head h
WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.path = h.path;

-- name: purge_file_versions
-- Delete versions of files that are older than a time, except the newest version of each file.
DELETE FROM /*schema*/file_versions v USING /*schema*/files f
WHERE v.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND v.path >= :path::text AND v.path < :after::text
    AND (v.path = :path::text OR v.path >= :first::text)
    AND f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.path = v.path AND v.version < f.version
    AND (v.created_at < :since::timestamptz OR v.created_at < now() - :age::interval);

-- name: list_file_namespaces
-- Return the namespaces with files, including deleted files, in order, after a cursor. Each step of the recursion finds
-- the next namespace by one search of the index.
WITH RECURSIVE found (namespace) AS (
    (
        SELECT f.namespace FROM /*schema*/files f WHERE f.namespace OPERATOR(pg_catalog.>) :after::text[]
        ORDER BY f.namespace LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT f.namespace FROM /*schema*/files f WHERE f.namespace OPERATOR(pg_catalog.>) o.namespace
        ORDER BY f.namespace LIMIT 1
    )
    FROM found o WHERE o.namespace IS NOT NULL
)
SELECT o.namespace FROM found o WHERE o.namespace IS NOT NULL LIMIT :page_size;
