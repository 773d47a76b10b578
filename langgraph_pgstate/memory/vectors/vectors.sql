-- name: lock_memory_indexes
-- Let one setup at a time make indexes.
LOCK TABLE /*schema*/memory_indexes IN SHARE ROW EXCLUSIVE MODE;

-- name: create_vector_extension
-- Install pgvector.
CREATE EXTENSION IF NOT EXISTS vector;

-- name: create_vectors
-- Make the table of an index. The number of dimensions is part of the type.
CREATE TABLE IF NOT EXISTS /*schema*/memory_vectors_0 (
    namespace text[] COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    field text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    is_large boolean NOT NULL,
    embedding /*vector*/vector (3) NOT NULL,
    PRIMARY KEY (namespace, key, field)
);

-- name: create_vector_index
-- Make the approximate index of the vectors of large namespaces.
CREATE INDEX IF NOT EXISTS memory_vectors_0_embedding_idx ON /*schema*/memory_vectors_0
    USING hnsw (embedding /*vector*/vector_cosine_ops)
    WHERE is_large;

-- name: store_vectors_inline
-- Store vectors in the rows themselves, where a search reads them fastest.
ALTER TABLE /*schema*/memory_vectors_0 ALTER COLUMN embedding SET STORAGE PLAIN;

-- name: put_vectors
-- Store the embeddings of items that this transaction has stored. Delete embeddings of other fields of the items.
WITH given AS MATERIALIZED (
    SELECT m.namespace, m.key, m.version, m.is_large, g.number
    FROM unnest(:namespaces::text[], :keys::text[]) WITH ORDINALITY AS g (namespace, key, number)
        JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND m.key = g.key
            AND m.updated_at = now()
), vectors AS MATERIALIZED (
    SELECT e.number, e.field COLLATE "C" AS field, e.embedding
    FROM unnest(:numbers::integer[], :fields::text[], :embeddings::/*vector*/vector[]) AS e (number, field, embedding)
), gone AS (
    DELETE FROM /*schema*/memory_vectors_0 o USING given g
    WHERE o.namespace OPERATOR(pg_catalog.=) g.namespace AND o.key = g.key AND NOT EXISTS (
        SELECT 1 FROM vectors e WHERE e.number = g.number AND e.field = o.field
    )
)
INSERT INTO /*schema*/memory_vectors_0 AS o (namespace, key, field, version, is_large, embedding)
SELECT g.namespace, g.key, e.field, g.version, g.is_large, e.embedding
FROM vectors e JOIN given g ON g.number = e.number
ORDER BY g.namespace, g.key, e.field
ON CONFLICT (namespace, key, field) DO UPDATE SET
    version = excluded.version, is_large = excluded.is_large, embedding = excluded.embedding;

-- name: drop_vectors
-- Delete the table of an index.
DROP TABLE IF EXISTS /*schema*/memory_vectors_0;

-- name: lock_orphaned_vectors
-- Return the next embeddings, in the order of their keys, and whether an embedding is orphaned. No item has the version
-- of an orphaned embedding. Lock the orphaned embeddings. Embeddings that another transaction has locked do not count
-- as orphaned.
WITH page AS MATERIALIZED (
    SELECT v.namespace, v.key, v.field, v.version FROM /*schema*/memory_vectors_0 v
    WHERE (v.namespace, v.key, v.field) OPERATOR(pg_catalog.>) (:namespace::text[], :key::text, :field::text)
    ORDER BY v.namespace, v.key, v.field LIMIT :count::integer
), orphaned AS MATERIALIZED (
    SELECT o.namespace, o.key, o.field FROM page p JOIN /*schema*/memory_vectors_0 o
        ON o.namespace OPERATOR(pg_catalog.=) p.namespace AND o.key = p.key AND o.field = p.field
    WHERE NOT EXISTS (
        SELECT 1 FROM /*schema*/memories m
        WHERE m.namespace OPERATOR(pg_catalog.=) p.namespace AND m.key = p.key AND m.version = p.version
    )
    FOR UPDATE OF o SKIP LOCKED
)
SELECT p.namespace, p.key, p.field, o.field IS NOT NULL
FROM page p LEFT JOIN orphaned o
    ON o.namespace OPERATOR(pg_catalog.=) p.namespace AND o.key = p.key AND o.field = p.field
ORDER BY p.namespace, p.key, p.field;

-- name: delete_orphaned_vectors
-- Delete embeddings that this transaction has locked, if they are still orphaned.
DELETE FROM /*schema*/memory_vectors_0 o
USING unnest(:namespaces::text[], :keys::text[], :fields::text[]) AS g (namespace, key, field)
WHERE o.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND o.key = g.key AND o.field = g.field AND NOT EXISTS (
    SELECT 1 FROM /*schema*/memories m
    WHERE m.namespace OPERATOR(pg_catalog.=) o.namespace AND m.key = o.key AND m.version = o.version
);

-- name: delete_vectors
-- Delete the embeddings of items.
DELETE FROM /*schema*/memory_vectors_0 o USING unnest(:namespaces::text[], :keys::text[]) AS g (namespace, key)
WHERE o.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND o.key = g.key;

-- name: find_similar_memories
-- Return the memories of a namespace and kind whose contents are nearest to an embedding, with their distances.
-- leaves: memories.digest
-- opens: memories.value from value
SELECT m.key, m.value, v.embedding OPERATOR(/*vector*/<=>) (:embedding::/*vector*/vector) AS distance
FROM /*schema*/memory_vectors_0 v JOIN /*schema*/memories m
    ON m.namespace OPERATOR(pg_catalog.=) v.namespace AND m.key = v.key AND m.version = v.version
WHERE v.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND m.namespace OPERATOR(pg_catalog.=) :namespace
    AND v.field = 'content' AND m.kind = :kind::text AND m.digest IS NOT NULL
    AND (m.expires_at IS NULL OR m.expires_at > now())
ORDER BY distance, m.key LIMIT 5;

-- name: find_similar_large
-- Return the memories of a large namespace and of a kind whose contents are nearest to an embedding, with their
-- distances. Search the approximate index, and items that wait to be put into this index.
-- leaves: memories.digest
-- opens: memories.value from value
(
    SELECT m.key, m.value, v.embedding OPERATOR(/*vector*/<=>) (:embedding::/*vector*/vector) AS distance
    FROM /*schema*/memory_vectors_0 v JOIN /*schema*/memories m
        ON m.namespace OPERATOR(pg_catalog.=) v.namespace AND m.key = v.key AND m.version = v.version
    WHERE v.is_large AND v.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND v.field = 'content'
        AND m.kind = :kind::text AND m.digest IS NOT NULL AND (m.expires_at IS NULL OR m.expires_at > now())
    ORDER BY v.embedding OPERATOR(/*vector*/<=>) (:embedding::/*vector*/vector) LIMIT 5
) UNION ALL (
    SELECT m.key, m.value, v.embedding OPERATOR(/*vector*/<=>) (:embedding::/*vector*/vector) AS distance
    FROM /*schema*/memories m JOIN /*schema*/memory_vectors_0 v
        ON v.namespace OPERATOR(pg_catalog.=) m.namespace AND v.key = m.key AND v.version = m.version
    WHERE m.is_waiting AND m.namespace OPERATOR(pg_catalog.=) :namespace AND v.namespace OPERATOR(pg_catalog.=) :namespace
        AND v.field = 'content' AND m.kind = :kind AND m.digest IS NOT NULL
        AND (m.expires_at IS NULL OR m.expires_at > now())
    ORDER BY distance LIMIT 5
)
ORDER BY distance LIMIT 5;

-- name: search_vectors
-- Return a page of the items of a range of namespaces, the nearest to an embedding first. If `uses_words`, items are
-- sorted by the sum of the reciprocals of two ranks: by distance, and by words of the query (BM25 with each word
-- counted once). The fewer of the query's rare words an item has, the less its rank by words counts. If `avoids_large`
-- and a namespace is large, no item is returned. No two sets of items are joined, because the planner might choose a
-- slow join.
-- opens: memories.value from value
-- matches: memories.value from operands
-- searches: memories.words from query
WITH terms AS MATERIALIZED (
    SELECT plainto_tsquery('pg_catalog.simple', t.lexeme) AS term, row_number() OVER () AS number
    FROM unnest(to_tsvector(:language::text::regconfig, :query::text)) AS t (lexeme, positions, weights)
    WHERE :uses_words::boolean
), candidates AS MATERIALIZED (
    SELECT m.namespace, m.key, m.updated_at, m.kind, m.importance, length(m.words)::float8 AS length, (
            SELECT min(v.embedding OPERATOR(/*vector*/<=>) (:embedding::/*vector*/vector)) FROM /*schema*/memory_vectors_0 v
            WHERE v.namespace OPERATOR(pg_catalog.=) m.namespace AND v.key = m.key AND v.version = m.version
        ) AS distance,
        ARRAY(SELECT t.number FROM terms t WHERE m.words @@ t.term) AS found
    FROM /*schema*/memories m
    WHERE m.namespace OPERATOR(pg_catalog.>=) :lower::text[] AND m.namespace OPERATOR(pg_catalog.<) :upper::text[]
        AND (NOT :avoids_large::boolean OR NOT EXISTS (
            SELECT 1 FROM /*schema*/large_namespaces l
            WHERE l.is_ready AND l.namespace OPERATOR(pg_catalog.>=) :lower
                AND l.namespace OPERATOR(pg_catalog.<) :upper
        ))
        AND /*is_wanted*/true AND /*meets_filter*/true
), sizes AS MATERIALIZED (
    SELECT count(*)::float8 AS count, avg(greatest(c.length, 1))::float8 AS length
    FROM candidates c WHERE c.length IS NOT NULL
), rarities AS MATERIALIZED (
    SELECT t.number, s.length,
        ln(1::float8 + (greatest(s.count - coalesce(f.count, 0::float8), 0::float8) + 0.5::float8)
            / (coalesce(f.count, 0::float8) + 0.5::float8)) AS rarity
    FROM terms t CROSS JOIN sizes s LEFT JOIN (
        SELECT h.number, count(*)::float8 AS count FROM candidates c CROSS JOIN LATERAL unnest(c.found) AS h (number)
        GROUP BY h.number
    ) AS f ON f.number = t.number
), scores AS MATERIALIZED (
    SELECT c.*, b.score, sqrt(b.rarity / (SELECT sum(r.rarity) FROM rarities r)) AS share
    FROM candidates c CROSS JOIN LATERAL (
        SELECT sum(r.rarity * 2.2::float8 / (1::float8 + 1.2::float8 * (0.25::float8 + 0.75::float8 * c.length / r.length)))
            AS score, sum(r.rarity) AS rarity
        FROM rarities r WHERE r.number = ANY(c.found)
    ) AS b
), ranks AS (
    SELECT s.*, CASE WHEN s.distance IS NOT NULL THEN rank() OVER (ORDER BY s.distance) END AS vector_rank,
        CASE WHEN s.score IS NOT NULL THEN rank() OVER (ORDER BY s.score DESC NULLS LAST) END AS words_rank
    FROM scores s WHERE s.distance IS NOT NULL OR s.score IS NOT NULL
), page AS MATERIALIZED (
    SELECT c.namespace, c.key, c.distance, c.vector_rank, c.words_rank,
        (coalesce(1::float8 / (10 + c.vector_rank)::float8, 0::float8)
            + coalesce(c.share / (10 + c.words_rank)::float8, 0::float8))
        * (1::float8 + :importance_weight::float8 * (coalesce(c.importance, 0.5::real)::float8 - 0.5::float8))
        * CASE WHEN cardinality(:half_life_kinds::text[]) = 0 THEN 1::float8 ELSE power(0.5::float8, coalesce(
            extract(epoch FROM now() - c.updated_at)::float8
                / (SELECT h.seconds FROM unnest(:half_life_kinds, :half_lives::float8[]) AS h (kind, seconds)
                    WHERE h.kind = c.kind), 0::float8
        )) END AS fused
    FROM ranks c
    ORDER BY fused DESC, c.distance, c.namespace, c.key
    LIMIT :page_size::integer OFFSET :offset::integer
)
SELECT m.namespace, m.key, m.value, m.created_at, m.updated_at, m.ttl IS NOT NULL OR m.kind IS NOT NULL, p.distance,
    p.vector_rank, p.words_rank, m.kind, m.importance, p.fused
FROM page p JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) p.namespace AND m.key = p.key
ORDER BY p.fused DESC, p.distance, p.namespace, p.key;

-- name: allow_scans
-- In this transaction, let a scan of the approximate index continue until enough rows are found. The planner's
-- estimates are wrong here. Without `enable_sort = off`, the planner would sort all items of a namespace instead of
-- using the approximate index. Without `enable_seqscan = off`, the planner would read the whole table to find items
-- outside of large namespaces. Plans are made for the given namespaces.
SELECT set_config('hnsw.iterative_scan', 'strict_order', true), set_config('hnsw.ef_search', :reach::text, true),
    set_config('hnsw.max_scan_tuples', '100000', true), set_config('enable_sort', 'off', true),
    set_config('enable_seqscan', 'off', true),
    set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true);

-- name: search_large
-- Return a page of the items of a range of namespaces, some of which are large, in the order of `search_vectors`. In
-- large namespaces, only the nearest items by the approximate index, and items with rare words of the query, are
-- searched. Other namespaces, and items that wait to be put into the indexes, are searched exactly.
-- opens: memories.value from value
-- matches: memories.value from operands
-- searches: memories.words from query
WITH terms AS MATERIALIZED (
    SELECT plainto_tsquery('pg_catalog.simple', t.lexeme) AS term, row_number() OVER () AS number
    FROM unnest(to_tsvector(:language::text::regconfig, :query::text)) AS t (lexeme, positions, weights)
    WHERE :uses_words::boolean
), large AS MATERIALIZED (
    SELECT l.namespace FROM /*schema*/large_namespaces l
    WHERE l.is_ready AND l.namespace OPERATOR(pg_catalog.>=) :lower::text[]
        AND l.namespace OPERATOR(pg_catalog.<) :upper::text[]
), gaps AS MATERIALIZED (
    SELECT p.first, coalesce(lead(p.namespace) OVER (ORDER BY p.namespace, p.first), :upper) AS until
    FROM (
        SELECT :lower COLLATE "C" AS namespace, :lower COLLATE "C" AS first
        UNION ALL
        SELECT l.namespace, l.namespace || ''::text FROM large l
    ) p
), rare AS MATERIALIZED (
    SELECT t.term, t.number FROM terms t WHERE 5000 > (
        SELECT count(*) FROM (
            SELECT 1 FROM /*schema*/memories m
            WHERE m.is_large AND m.words @@ t.term AND m.namespace OPERATOR(pg_catalog.>=) :lower
                AND m.namespace OPERATOR(pg_catalog.<) :upper
            LIMIT 5000
        ) AS counted
    )
), nearest AS MATERIALIZED (
    SELECT v.namespace, v.key, v.embedding OPERATOR(/*vector*/<=>) (:embedding::/*vector*/vector) AS distance
    FROM /*schema*/memory_vectors_0 v JOIN /*schema*/memories m
        ON m.namespace OPERATOR(pg_catalog.=) v.namespace AND m.key = v.key AND m.version = v.version
    WHERE v.is_large AND v.namespace OPERATOR(pg_catalog.>=) :lower AND v.namespace OPERATOR(pg_catalog.<) :upper
        AND /*is_wanted*/true AND /*meets_filter*/true
    ORDER BY v.embedding OPERATOR(/*vector*/<=>) (:embedding::/*vector*/vector)
    LIMIT :reach::text::integer
), chosen AS MATERIALIZED (
    SELECT m.namespace, m.key
    FROM gaps g JOIN /*schema*/memories m
        ON m.namespace OPERATOR(pg_catalog.>=) g.first AND m.namespace OPERATOR(pg_catalog.<) g.until
    WHERE /*is_wanted*/true AND /*meets_filter*/true
    UNION
    SELECT m.namespace, m.key FROM rare t JOIN /*schema*/memories m ON m.is_large AND m.words @@ t.term
    WHERE m.namespace OPERATOR(pg_catalog.>=) :lower AND m.namespace OPERATOR(pg_catalog.<) :upper
        AND /*is_wanted*/true AND /*meets_filter*/true
    UNION
    SELECT m.namespace, m.key FROM /*schema*/memories m
    WHERE m.is_waiting AND m.namespace OPERATOR(pg_catalog.>=) :lower AND m.namespace OPERATOR(pg_catalog.<) :upper
        AND /*is_wanted*/true AND /*meets_filter*/true
    UNION
    SELECT n.namespace, n.key FROM nearest n
), candidates AS MATERIALIZED (
    SELECT m.namespace, m.key, m.updated_at, m.kind, m.importance, length(m.words)::float8 AS length, (
            SELECT min(v.embedding OPERATOR(/*vector*/<=>) (:embedding::/*vector*/vector)) FROM /*schema*/memory_vectors_0 v
            WHERE v.namespace OPERATOR(pg_catalog.=) m.namespace AND v.key = m.key AND v.version = m.version
        ) AS distance,
        ARRAY(SELECT t.number FROM rare t WHERE m.words @@ t.term) AS found
    -- `LATERAL` makes the planner look up each item by its key, even if the planner expects many items.
    FROM chosen c CROSS JOIN LATERAL (
        SELECT i.* FROM /*schema*/memories i
        WHERE i.namespace OPERATOR(pg_catalog.=) c.namespace AND i.key = c.key LIMIT 1
    ) AS m
), sizes AS MATERIALIZED (
    SELECT :large_size::float8 AS count, avg(greatest(c.length, 1))::float8 AS length
    FROM candidates c WHERE c.length IS NOT NULL
), rarities AS MATERIALIZED (
    SELECT t.number, s.length,
        ln(1::float8 + (greatest(s.count - coalesce(f.count, 0::float8), 0::float8) + 0.5::float8)
            / (coalesce(f.count, 0::float8) + 0.5::float8)) AS rarity
    FROM rare t CROSS JOIN sizes s LEFT JOIN (
        SELECT h.number, count(*)::float8 AS count FROM candidates c CROSS JOIN LATERAL unnest(c.found) AS h (number)
        GROUP BY h.number
    ) AS f ON f.number = t.number
), scores AS MATERIALIZED (
    SELECT c.*, b.score, sqrt(b.rarity / (SELECT sum(r.rarity) FROM rarities r)) AS share
    FROM candidates c CROSS JOIN LATERAL (
        SELECT sum(r.rarity * 2.2::float8 / (1::float8 + 1.2::float8 * (0.25::float8 + 0.75::float8 * c.length / r.length)))
            AS score, sum(r.rarity) AS rarity
        FROM rarities r WHERE r.number = ANY(c.found)
    ) AS b
), ranks AS (
    SELECT s.*, CASE WHEN s.distance IS NOT NULL THEN rank() OVER (ORDER BY s.distance) END AS vector_rank,
        CASE WHEN s.score IS NOT NULL THEN rank() OVER (ORDER BY s.score DESC NULLS LAST) END AS words_rank
    FROM scores s WHERE s.distance IS NOT NULL OR s.score IS NOT NULL
), page AS MATERIALIZED (
    SELECT c.namespace, c.key, c.distance, c.vector_rank, c.words_rank,
        (coalesce(1::float8 / (10 + c.vector_rank)::float8, 0::float8)
            + coalesce(c.share / (10 + c.words_rank)::float8, 0::float8))
        * (1::float8 + :importance_weight::float8 * (coalesce(c.importance, 0.5::real)::float8 - 0.5::float8))
        * CASE WHEN cardinality(:half_life_kinds::text[]) = 0 THEN 1::float8 ELSE power(0.5::float8, coalesce(
            extract(epoch FROM now() - c.updated_at)::float8
                / (SELECT h.seconds FROM unnest(:half_life_kinds, :half_lives::float8[]) AS h (kind, seconds)
                    WHERE h.kind = c.kind), 0::float8
        )) END AS fused
    FROM ranks c
    ORDER BY fused DESC, c.distance, c.namespace, c.key
    LIMIT :page_size::integer OFFSET :offset::integer
)
SELECT m.namespace, m.key, m.value, m.created_at, m.updated_at, m.ttl IS NOT NULL OR m.kind IS NOT NULL, p.distance,
    p.vector_rank, p.words_rank, m.kind, m.importance, p.fused
FROM page p JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) p.namespace AND m.key = p.key
ORDER BY p.fused DESC, p.distance, p.namespace, p.key;

-- name: mark_vectors
-- Put the vectors of some items of a large namespace into the approximate index.
UPDATE /*schema*/memory_vectors_0 o SET is_large = true
WHERE o.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND o.key = ANY(:keys::text[]) AND NOT o.is_large;

-- name: lock_memories
-- Wait for the end of all transactions that store memories. Other transactions cannot store memories until this
-- transaction ends.
LOCK TABLE /*schema*/memories IN SHARE MODE;

-- name: list_unembedded
-- Return the next items that an index lacks, in the order of their keys. If `all` is false, search only marked
-- items.
-- opens: memories.value from value
SELECT m.namespace, m.key, m.version, m.value, m.index_fields
FROM /*schema*/memories m
WHERE m.namespace OPERATOR(pg_catalog.>=) :namespace::text[]
    AND (m.namespace OPERATOR(pg_catalog.>) :namespace OR m.key > :key::text)
    AND (:all::boolean OR m.is_unindexed)
    AND (m.expires_at IS NULL OR m.expires_at > now()) AND (m.index_fields IS NULL OR cardinality(m.index_fields) > 0)
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/memory_vectors_0 v
        WHERE v.namespace OPERATOR(pg_catalog.=) m.namespace AND v.key = m.key AND v.version = m.version
    )
ORDER BY m.namespace, m.key
LIMIT :count::integer;

-- name: add_vectors
-- Store the embeddings of items that have not changed. Locks the items until the transaction ends.
WITH given AS MATERIALIZED (
    SELECT m.namespace, m.key, m.version, m.is_large, g.number
    FROM unnest(:namespaces::text[], :keys::text[], :versions::integer[]) WITH ORDINALITY AS g (namespace, key, version, number)
        JOIN /*schema*/memories m
            ON m.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND m.key = g.key AND m.version = g.version
    FOR SHARE OF m
)
INSERT INTO /*schema*/memory_vectors_0 AS o (namespace, key, field, version, is_large, embedding)
SELECT g.namespace, g.key, e.field, g.version, g.is_large, e.embedding
FROM unnest(:numbers::integer[], :fields::text[], :embeddings::/*vector*/vector[]) AS e (number, field, embedding)
    JOIN given g ON g.number = e.number
ON CONFLICT (namespace, key, field) DO UPDATE SET
    version = excluded.version, is_large = excluded.is_large, embedding = excluded.embedding;

-- name: delete_old_vectors
-- Delete the embeddings of items, except embeddings of the given versions.
DELETE FROM /*schema*/memory_vectors_0 o
USING unnest(:namespaces::text[], :keys::text[], :versions::integer[]) AS g (namespace, key, version)
WHERE o.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND o.key = g.key AND o.version <> g.version;

-- name: list_vectors
-- Return the embeddings of items.
SELECT v.namespace, v.key, v.field, v.embedding::real[]
FROM unnest(:namespaces::text[], :keys::text[]) AS g (namespace, key)
    JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND m.key = g.key
    JOIN /*schema*/memory_vectors_0 v
        ON v.namespace OPERATOR(pg_catalog.=) m.namespace AND v.key = m.key AND v.version = m.version;
