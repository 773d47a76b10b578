-- name: find_store
-- Return the columns of the store's tables, each with its type, the type's schema, and the type's modifier, which is
-- the number of dimensions of an embedding.
SELECT c.relname::text, a.attname::text, t.typname::text, n.nspname::text, a.atttypmod
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE c.relnamespace = to_regnamespace(:schema::text) AND a.attnum > 0 AND NOT a.attisdropped
    AND c.relname IN ('store', 'store_vectors');

-- name: count_items
-- Return the number of items, or of items that were stored at a time or later.
SELECT count(*) FROM /*schema*/store s WHERE :since::timestamptz IS NULL OR s.updated_at >= :since;

-- name: list_items
-- Return the next items in the order of their keys: all, or only items that changed since a time. Items that changed
-- between `until` and now are left out. Return as many items as fit into a number of bytes, but at least one.
SELECT p.prefix, p.key, p.value::text, p.created_at, p.updated_at, p.expires_at, p.ttl_minutes::float8
FROM (
    SELECT s.prefix, s.key, s.value, s.created_at, s.updated_at, s.expires_at, s.ttl_minutes,
        row_number() OVER (ORDER BY s.prefix, s.key) AS number,
        sum(pg_column_size(s.value)) OVER (ORDER BY s.prefix, s.key) AS size
    FROM (
        SELECT i.prefix, i.key, i.value, i.created_at, i.updated_at, i.expires_at, i.ttl_minutes
        FROM /*schema*/store i
        WHERE (i.prefix, i.key) > (:prefix::text, :key::text)
            AND (:since::timestamptz IS NULL OR i.updated_at >= :since)
            AND (i.updated_at < :until::timestamptz OR i.updated_at > now())
        ORDER BY i.prefix, i.key LIMIT :page_size::integer
    ) AS s
) AS p
WHERE p.number = 1 OR p.size <= :max_bytes::bigint
ORDER BY p.prefix, p.key;

-- name: list_item_vectors
-- Return the embeddings of items, except embeddings that are older than the item's value.
SELECT v.prefix, v.key, v.field_name, v.embedding::real[]
FROM unnest(:prefixes::text[], :keys::text[]) AS g (prefix, key)
    JOIN /*schema*/store s ON s.prefix = g.prefix AND s.key = g.key
    JOIN /*schema*/store_vectors v ON v.prefix = s.prefix AND v.key = s.key AND v.updated_at >= s.updated_at;

-- name: get_items
-- Return the contents of items.
SELECT s.prefix, s.key, s.value::text, s.created_at, s.updated_at, s.expires_at
FROM unnest(:prefixes::text[], :keys::text[]) AS g (prefix, key)
    JOIN /*schema*/store s ON s.prefix = g.prefix AND s.key = g.key;

-- name: put_items
-- Store items of another store with their times, unless an item here was stored later. Return the stored items.
INSERT INTO /*schema*/store AS s (prefix, key, value, created_at, updated_at, expires_at, ttl_minutes)
SELECT g.prefix, g.key, g.value::jsonb, g.created_at, g.updated_at, nullif(g.expires_at, '')::timestamptz,
    nullif(g.ttl, -1::float8)::integer
FROM unnest(
    :prefixes::text[], :keys::text[], :contents::text[], :created::timestamptz[], :updated::timestamptz[], :ends::text[],
    :ttls::float8[]
) AS g (prefix, key, value, created_at, updated_at, expires_at, ttl)
ORDER BY g.prefix, g.key
ON CONFLICT (prefix, key) DO UPDATE SET
    value = excluded.value, created_at = excluded.created_at, updated_at = excluded.updated_at,
    expires_at = excluded.expires_at, ttl_minutes = excluded.ttl_minutes
WHERE s.updated_at < excluded.updated_at OR s.updated_at = excluded.updated_at
    AND (s.value::text <> excluded.value::text OR s.expires_at < excluded.expires_at)
RETURNING s.prefix, s.key;

-- name: delete_item_vectors
-- Delete the embeddings of items.
DELETE FROM /*schema*/store_vectors v USING unnest(:prefixes::text[], :keys::text[]) AS g (prefix, key)
WHERE v.prefix = g.prefix AND v.key = g.key;

-- name: put_item_vectors
-- Store the embeddings of items.
INSERT INTO /*schema*/store_vectors (prefix, key, field_name, embedding)
SELECT g.prefix, g.key, e.field, e.embedding
FROM unnest(:numbers::integer[], :fields::text[], :embeddings::/*vector*/vector[]) AS e (number, field, embedding)
    JOIN unnest(:prefixes::text[], :keys::text[]) WITH ORDINALITY AS g (prefix, key, number) ON g.number = e.number
ON CONFLICT (prefix, key, field_name) DO UPDATE SET embedding = excluded.embedding, updated_at = excluded.updated_at;
