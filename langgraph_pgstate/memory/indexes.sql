-- name: find_vector_type
-- Return the schema of pgvector and the type's number; no row if it is not installed.
SELECT n.nspname::text, t.oid::bigint
FROM pg_catalog.pg_extension e
    JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    JOIN pg_catalog.pg_type t ON t.typnamespace = n.oid AND t.typname = 'vector'
WHERE e.extname = 'vector';

-- name: has_pgvector
-- Return a row if pgvector can be installed.
SELECT 1 FROM pg_catalog.pg_available_extensions WHERE name = 'vector';

-- name: list_memory_indexes
-- Return all indexes of embeddings.
SELECT i.name, i.number, i.dims, i.vector_type, i.distance, i.fields, i.parameters, i.is_complete
FROM /*schema*/memory_indexes i ORDER BY i.number;

-- name: add_memory_index
-- Register an index of embeddings, unless it is there; the first one of an empty store is complete.
INSERT INTO /*schema*/memory_indexes (name, number, dims, vector_type, distance, fields, parameters, is_complete)
SELECT :name::text, 1 + coalesce((SELECT max(o.number) FROM /*schema*/memory_indexes o), 0), :dims::integer,
    :vector_type::text, :distance::text, :fields::text[], :parameters::jsonb,
    NOT EXISTS (SELECT 1 FROM /*schema*/memories)
ON CONFLICT (name) DO NOTHING;
