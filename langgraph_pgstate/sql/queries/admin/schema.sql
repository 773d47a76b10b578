-- name: find_schema
-- Whether the schema exists, and whether it has a table of migrations.
SELECT to_regnamespace(:schema::text) IS NOT NULL, to_regclass(:migrations_table::text) IS NOT NULL;

-- name: find_strange_tables
-- Tables of somebody else that have one of our names.
SELECT relname::text FROM pg_catalog.pg_class
WHERE relnamespace = to_regnamespace(:schema::text) AND relkind IN ('r', 'p', 'v', 'm')
    AND relname = ANY(ARRAY['checkpoints', 'threads', 'segments', 'writes'])
ORDER BY relname;

-- name: list_migrations
-- The migrations applied so far.
SELECT version, name, checksum FROM /*schema*/migrations ORDER BY version;

-- name: record_migration
-- Notes that a migration was applied.
INSERT INTO /*schema*/migrations (version, name, checksum) VALUES (:version::integer, :name::text, :checksum::text);

-- name: forget_migration
-- Notes that a migration was taken back.
DELETE FROM /*schema*/migrations WHERE version = :version::integer;

-- name: take_turns
-- Lets setups queue instead of colliding; they would be correct, if noisier, without it.
SELECT pg_advisory_xact_lock(hashtextextended(:key::text, 0));
