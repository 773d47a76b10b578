-- name: find_vector_type
-- Return the schema of pgvector and the OID of its type; no row if pgvector is not installed.
SELECT n.nspname::text, t.oid::bigint
FROM pg_catalog.pg_extension e
    JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
    JOIN pg_catalog.pg_type t ON t.typnamespace = n.oid AND t.typname = 'vector'
WHERE e.extname = 'vector';

-- name: has_pgvector
-- Return a row if pgvector can be installed.
SELECT 1 FROM pg_catalog.pg_available_extensions WHERE name = 'vector';

-- name: has_memories
-- Return a row if there is a memory.
SELECT 1 FROM /*schema*/memories LIMIT 1;

-- name: list_memory_indexes
-- Return all indexes of embeddings.
SELECT i.name, i.number, i.dims, i.vector_type, i.distance, i.fields, i.parameters, i.is_complete
FROM /*schema*/memory_indexes i ORDER BY i.number;

-- name: add_memory_index
-- Register an index of embeddings, unless the name is registered. Without items, the index is complete at once.
WITH new AS MATERIALIZED (
    SELECT now() AS at, 1 + coalesce((SELECT max(o.number) FROM /*schema*/memory_indexes o), 0) AS number,
        NOT EXISTS (SELECT 1 FROM /*schema*/memories) AS is_complete
)
INSERT INTO /*schema*/memory_indexes (
    name, number, dims, vector_type, distance, fields, parameters, is_complete, created_at
)
SELECT :name::text, n.number, :dims::integer, :vector_type::text, :distance::text, :fields::text[], :parameters::jsonb,
    n.is_complete, n.at
FROM new n
ON CONFLICT (name) DO NOTHING;

-- name: is_indexing_needed
-- Return a row if an item waits for its embeddings, or an index is not complete.
SELECT 1 WHERE EXISTS (SELECT 1 FROM /*schema*/memories m WHERE m.is_unindexed)
    OR EXISTS (SELECT 1 FROM /*schema*/memory_indexes i WHERE NOT i.is_complete AND i.name = ANY(:names::text[]));

-- name: claim_indexing
-- Claim the embedding of items that indexes lack, or renew the claim. Only one call at a time has the claim, until two
-- minutes after its last renewal.
UPDATE /*schema*/memory_indexes i SET indexer = :indexer::text, indexing_until = now() + interval '2 minutes'
WHERE i.name = ANY(:names::text[]) AND (i.indexer = :indexer OR (i.indexing_until < now()) IS NOT FALSE) AND NOT EXISTS (
    SELECT 1 FROM /*schema*/memory_indexes o
    WHERE o.name = ANY(:names) AND o.indexer <> :indexer AND o.indexing_until >= now()
);

-- name: release_indexing
-- Release the claim to embed items that indexes lack.
UPDATE /*schema*/memory_indexes SET indexer = NULL, indexing_until = NULL WHERE indexer = :indexer::text;

-- name: delete_memory_index
-- Delete the registration of an index of embeddings.
DELETE FROM /*schema*/memory_indexes WHERE name = :name::text;

-- name: complete_memory_indexes
-- Mark indexes that have all items as complete, so that searches use them.
UPDATE /*schema*/memory_indexes SET is_complete = true WHERE name = ANY(:names::text[]) AND NOT is_complete;

-- name: settle_unindexed
-- Unmark items that waited for embeddings, and mark all other indexes as incomplete, because they may lack these items.
-- While another call embeds for another index, unmark nothing. Items of the last minute before `until` stay marked,
-- because their transactions may not have been committed when items were read. An imported item keeps its old
-- `updated_at`, but its `valid_from` is the time of the import.
WITH others AS (
    UPDATE /*schema*/memory_indexes SET is_complete = false
    WHERE is_complete AND NOT name = ANY(:names::text[]) AND EXISTS (
        SELECT 1 FROM /*schema*/memories m
        WHERE m.is_unindexed AND greatest(m.updated_at, m.valid_from) <= :until::timestamptz - interval '1 minute'
    )
)
UPDATE /*schema*/memories SET is_unindexed = false
WHERE is_unindexed AND greatest(updated_at, valid_from) <= :until::timestamptz - interval '1 minute' AND NOT EXISTS (
    SELECT 1 FROM /*schema*/memory_indexes i WHERE NOT i.name = ANY(:names) AND i.indexing_until >= now()
);
