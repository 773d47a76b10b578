-- name: find_schema
-- Return whether the schema exists, whether it has a table of migrations, and whether this table is this package's.
SELECT to_regnamespace(:schema::text) IS NOT NULL, to_regclass(:migrations_table::text) IS NOT NULL, EXISTS (
    SELECT FROM pg_catalog.pg_attribute
    WHERE attrelid = to_regclass(:migrations_table) AND attname = 'checksum' AND NOT attisdropped
);

-- name: find_missing
-- Return which of some tables and views the schema lacks.
SELECT n.name FROM unnest(:names::text[]) AS n (name)
WHERE to_regclass(:schema::text || '.' || quote_ident(n.name)) IS NULL
ORDER BY n.name;

-- name: list_migrations
-- Return the migrations applied so far.
SELECT version, name, checksum, applied_at, is_additive FROM /*schema*/migrations ORDER BY version;

-- name: record_migration
-- Record that a migration was applied.
INSERT INTO /*schema*/migrations (version, name, checksum, is_additive)
VALUES (:version::integer, :name::text, :checksum::text, :is_additive::boolean);

-- name: forget_migration
-- Record that a migration was reverted.
DELETE FROM /*schema*/migrations WHERE version = :version::integer;

-- name: take_turns
-- Take the lock that makes concurrent setups wait for each other. Without the lock, a setup may fail and be retried.
SELECT pg_advisory_xact_lock(hashtextextended(:key::text, 0));
