-- name: has_trigrams
-- Return a row if pg_trgm can be installed.
SELECT 1 FROM pg_catalog.pg_available_extensions WHERE name = 'pg_trgm';

-- name: create_trigram_extension
-- Install pg_trgm.
CREATE EXTENSION IF NOT EXISTS pg_trgm;

-- name: find_trigrams
-- Return the schema of pg_trgm.
SELECT n.nspname::text
FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = 'pg_trgm';

-- name: create_file_index
-- Make the index of the trigrams of all texts of files. The index speeds up searches for lines, and slows every write
-- of a file.
CREATE INDEX IF NOT EXISTS file_texts_content_idx ON /*schema*/file_texts USING gin (content /*trigrams*/gin_trgm_ops);
