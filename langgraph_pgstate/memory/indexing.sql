-- name: find_large_namespaces
-- Register namespaces that have become large.
WITH found AS MATERIALIZED (
    SELECT m.namespace, now() AS at
    FROM /*schema*/memories m GROUP BY m.namespace HAVING count(*) >= :large_size::bigint
)
INSERT INTO /*schema*/large_namespaces (namespace, is_ready, created_at) SELECT f.namespace, false, f.at FROM found f
ON CONFLICT (namespace) DO NOTHING;

-- name: list_unmoved_namespaces
-- Return the large namespaces with items outside the approximate indexes, and whether each is searched approximately.
SELECT l.namespace, l.is_ready FROM /*schema*/large_namespaces l
WHERE NOT l.is_ready OR EXISTS (
    SELECT 1 FROM /*schema*/memories m WHERE m.is_waiting AND m.namespace OPERATOR(pg_catalog.=) l.namespace
)
ORDER BY l.namespace;

-- name: mark_memories
-- Put some items of a large namespace into the index of words, and return their keys. Locks the items, so that
-- puts of these items wait.
UPDATE /*schema*/memories m SET is_large = true, is_waiting = false
FROM (
    SELECT o.key FROM /*schema*/memories o
    WHERE o.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND o.key > :after::text AND NOT o.is_large
    ORDER BY o.key LIMIT :count::integer FOR NO KEY UPDATE
) chosen
WHERE m.namespace OPERATOR(pg_catalog.=) :namespace AND m.key = chosen.key
RETURNING m.key;

-- name: mark_waiting_memories
-- Put some waiting items into the index of words, and return their keys. Locks the items, as `mark_memories` does.
UPDATE /*schema*/memories m SET is_large = true, is_waiting = false
FROM (
    SELECT o.key FROM /*schema*/memories o
    WHERE o.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND o.key > :after::text AND o.is_waiting
    ORDER BY o.key LIMIT :count::integer FOR NO KEY UPDATE
) chosen
WHERE m.namespace OPERATOR(pg_catalog.=) :namespace AND m.key = chosen.key
RETURNING m.key;

-- name: has_unmarked
-- Return a row if an item of a large namespace is neither in the indexes nor marked as waiting.
SELECT 1 FROM /*schema*/memories m WHERE m.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND NOT m.is_large
    AND NOT m.is_waiting
LIMIT 1;

-- name: set_ready
-- Let searches of a large namespace be approximate.
UPDATE /*schema*/large_namespaces SET is_ready = true WHERE namespace OPERATOR(pg_catalog.=) :namespace::text[];

-- name: is_large_namespace
-- Return a row if a namespace is searched approximately.
SELECT 1 FROM /*schema*/large_namespaces l WHERE l.is_ready AND l.namespace OPERATOR(pg_catalog.=) :namespace::text[];

-- name: has_large_namespace
-- Return a row if a namespace of a range is searched approximately.
SELECT 1 FROM /*schema*/large_namespaces l
WHERE l.is_ready AND l.namespace OPERATOR(pg_catalog.>=) :lower::text[] AND l.namespace OPERATOR(pg_catalog.<) :upper::text[]
LIMIT 1;
