-- name: list_directory
-- Return the files of a directory, and the directories in it that have files. For each directory, one search of the
-- index finds the directory and skips the directory's files.
WITH RECURSIVE below AS (
    (
        SELECT f.directory FROM /*schema*/files f
        WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.deleted_at IS NULL
            AND f.directory > :first::text
            AND f.directory < :after::text
        ORDER BY f.directory LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT f.directory FROM /*schema*/files f
        WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.deleted_at IS NULL
            AND f.directory >= :first::text || split_part(substr(b.directory, length(:first::text) + 1), '/', 1) || '0'
            AND f.directory < :after::text
        ORDER BY f.directory LIMIT 1
    )
    FROM below b WHERE b.directory IS NOT NULL
)
SELECT :first::text || split_part(substr(b.directory, length(:first::text) + 1), '/', 1) || '/' AS path, 0::bigint,
    0, NULL::integer, NULL::timestamptz
FROM below b WHERE b.directory IS NOT NULL
UNION ALL
SELECT f.path, f.size, f.line_count, f.version, f.modified_at FROM /*schema*/files f
WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.directory = :first::text AND f.deleted_at IS NULL;

-- name: find_file
-- Return whether there is a file under a path.
SELECT 1 FROM /*schema*/files f
WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.path = :path::text AND f.deleted_at IS NULL;

-- name: list_files
-- Return the files in a range of paths whose path matches a pattern, newest first. LIKE excludes most paths before the
-- regular expression, which is slower, is matched.
SELECT f.path, f.size, f.line_count, f.version, f.modified_at FROM /*schema*/files f
WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.path >= :first::text AND f.path < :after::text
    AND f.deleted_at IS NULL
    AND f.path LIKE :suffix::text AND (:expression::text IS NULL OR f.path ~ :expression)
ORDER BY f.modified_at DESC, f.path;

-- name: search_files
-- Return the lines with a text in the files of a range of paths. `position` is faster than LIKE, but only LIKE
-- can use the index of trigrams, so the statement has both conditions.
-- leaves: file_texts.content
SELECT t.path, l.number, l.line
FROM /*schema*/file_texts t
    CROSS JOIN LATERAL unnest(string_to_array(t.content, E'\n')) WITH ORDINALITY AS l (line, number)
WHERE t.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND t.path >= :first::text AND t.path < :after::text
    AND t.path LIKE :suffix::text AND (:expression::text IS NULL OR t.path ~ :expression)
    AND (:paths::text[] IS NULL OR t.path = ANY(:paths))
    AND position(:pattern::text IN t.content) > 0 AND t.content LIKE :containing::text
    AND position(:pattern::text IN l.line) > 0
ORDER BY t.path, l.number
LIMIT :most;

-- name: search_files_by_regex
-- Return the lines that match a regular expression in the files of a range of paths. The expression is also matched
-- with an empty text, so that an invalid expression is an error even if there is no file.
-- leaves: file_texts.content
SELECT t.path, l.number, l.line
FROM /*schema*/file_texts t
    CROSS JOIN LATERAL unnest(string_to_array(t.content, E'\n')) WITH ORDINALITY AS l (line, number)
WHERE ('' ~ :pattern::text) IS NOT NULL
    AND t.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND t.path >= :first::text AND t.path < :after::text
    AND t.path LIKE :suffix::text AND (:expression::text IS NULL OR t.path ~ :expression)
    AND (:paths::text[] IS NULL OR t.path = ANY(:paths))
    AND position(:literal::text IN t.content) > 0 AND t.content LIKE :containing::text
    AND t.content ~ :pattern::text AND l.line ~ :pattern::text
ORDER BY t.path, l.number
LIMIT :most;

-- name: list_encoded_files
-- Return the text files in a range of paths whose path matches a pattern, with their encoded contents: files that the
-- caller's own serializer has encoded or, with encryption, all files.
-- opens: file_versions.data
SELECT f.path, f.version, v.value_type, v.data
FROM /*schema*/files f
    JOIN /*schema*/file_versions v
        ON v.namespace OPERATOR(pg_catalog.=) f.namespace AND v.path = f.path AND v.version = f.version
WHERE f.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND f.path >= :first::text AND f.path < :after::text
    AND f.deleted_at IS NULL
    AND f.is_text AND (:encrypted::boolean OR v.value_type IS NOT NULL)
    AND f.path LIKE :suffix::text AND (:expression::text IS NULL OR f.path ~ :expression)
    AND (:paths::text[] IS NULL OR f.path = ANY(:paths))
ORDER BY f.path
LIMIT :most;
