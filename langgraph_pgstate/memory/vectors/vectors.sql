-- name: lock_memory_indexes
-- Let one setup at a time make indexes.
LOCK TABLE /*schema*/memory_indexes IN SHARE ROW EXCLUSIVE MODE;

-- name: create_vector_extension
-- Install pgvector.
CREATE EXTENSION IF NOT EXISTS vector;

-- name: create_vectors
-- Make the table of an index. An index belongs to a model, whose number of dimensions is part of the type.
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
-- Store the embeddings of items that this transaction has stored, and delete those of fields that they lack now.
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

-- name: delete_vectors
-- Delete the embeddings of items.
DELETE FROM /*schema*/memory_vectors_0 o USING unnest(:namespaces::text[], :keys::text[]) AS g (namespace, key)
WHERE o.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND o.key = g.key;

-- name: search_vectors
-- Return a page of the items of a range of namespaces: those nearest to an embedding first or, if `uses_words`, fused with
-- those that have words of the query, rare words before common ones (BM25 with each word counted once), by the reciprocals
-- of their ranks.
WITH candidates AS MATERIALIZED (
    SELECT m.namespace, m.key, m.version, m.words, m.updated_at, m.kind, m.importance FROM /*schema*/memories m
    WHERE m.namespace OPERATOR(pg_catalog.>=) :lower::text[] AND m.namespace OPERATOR(pg_catalog.<) :upper::text[]
        AND (m.expires_at IS NULL OR m.expires_at > now()) AND (:kinds::text[] IS NULL OR m.kind = ANY(:kinds))
        AND NOT EXISTS (
            SELECT 1 FROM unnest(:paths::text[], :operators::text[], :operands::text[]) AS f (path, operator, operand)
            WHERE NOT coalesce(CASE f.operator
                WHEN '$eq' THEN coalesce(jsonb_extract_path(m.value, VARIADIC f.path::text[]), 'null') = f.operand::jsonb
                WHEN '$ne' THEN coalesce(jsonb_extract_path(m.value, VARIADIC f.path::text[]), 'null') <> f.operand::jsonb
                ELSE jsonb_typeof(jsonb_extract_path(m.value, VARIADIC f.path::text[])) = jsonb_typeof(f.operand::jsonb)
                    AND CASE f.operator
                        WHEN '$gt' THEN jsonb_extract_path(m.value, VARIADIC f.path::text[]) > f.operand::jsonb
                        WHEN '$gte' THEN jsonb_extract_path(m.value, VARIADIC f.path::text[]) >= f.operand::jsonb
                        WHEN '$lt' THEN jsonb_extract_path(m.value, VARIADIC f.path::text[]) < f.operand::jsonb
                        ELSE jsonb_extract_path(m.value, VARIADIC f.path::text[]) <= f.operand::jsonb
                    END
            END, false)
        )
), distances AS MATERIALIZED (
    SELECT v.namespace, v.key, min(v.embedding OPERATOR(/*vector*/<=>) (:embedding::/*vector*/vector)) AS distance
    FROM candidates c JOIN /*schema*/memory_vectors_0 v
        ON v.namespace OPERATOR(pg_catalog.=) c.namespace AND v.key = c.key AND v.version = c.version
    WHERE v.namespace OPERATOR(pg_catalog.>=) :lower AND v.namespace OPERATOR(pg_catalog.<) :upper
    GROUP BY v.namespace, v.key
), near AS (
    SELECT d.namespace, d.key, d.distance, rank() OVER (ORDER BY d.distance) AS vector_rank FROM distances d
), terms AS MATERIALIZED (
    SELECT plainto_tsquery('pg_catalog.simple', t.lexeme) AS term, t.lexeme
    FROM unnest(to_tsvector(:language::text::regconfig, :query::text)) AS t (lexeme, positions, weights)
    WHERE :uses_words::boolean
), sizes AS MATERIALIZED (
    SELECT count(*)::float8 AS count, avg(greatest(length(c.words), 1))::float8 AS words FROM candidates c
    WHERE c.words IS NOT NULL
), hits AS MATERIALIZED (
    SELECT c.namespace, c.key, t.lexeme, length(c.words)::float8 AS words
    FROM candidates c JOIN terms t ON c.words @@ t.term
), rarities AS (
    SELECT h.lexeme, ln(1::float8 + (s.count - count(*)::float8 + 0.5::float8) / (count(*)::float8 + 0.5::float8)) AS rarity
    FROM hits h CROSS JOIN sizes s GROUP BY h.lexeme, s.count
), scores AS (
    SELECT h.namespace, h.key, sum(
        r.rarity * 2.2::float8 / (1::float8 + 1.2::float8 * (0.25::float8 + 0.75::float8 * h.words / s.words))
    ) AS score
    FROM hits h JOIN rarities r ON r.lexeme = h.lexeme CROSS JOIN sizes s GROUP BY h.namespace, h.key
), ranks AS (
    SELECT s.namespace, s.key, rank() OVER (ORDER BY s.score DESC) AS words_rank FROM scores s
), page AS MATERIALIZED (
    SELECT c.namespace, c.key, n.distance, n.vector_rank, r.words_rank,
        (coalesce(1::float8 / (60 + n.vector_rank)::float8, 0::float8)
            + coalesce(1::float8 / (60 + r.words_rank)::float8, 0::float8))
        * (1::float8 + :importance_weight::float8 * (coalesce(c.importance, 0.5::real)::float8 - 0.5::float8))
        * power(0.5::float8, coalesce(
            extract(epoch FROM now() - c.updated_at)::float8
                / (SELECT h.seconds FROM unnest(:half_life_kinds::text[], :half_lives::float8[]) AS h (kind, seconds)
                    WHERE h.kind = c.kind), 0::float8
        )) AS fused
    FROM candidates c LEFT JOIN near n ON n.namespace OPERATOR(pg_catalog.=) c.namespace AND n.key = c.key
        LEFT JOIN ranks r ON r.namespace OPERATOR(pg_catalog.=) c.namespace AND r.key = c.key
    WHERE n.key IS NOT NULL OR r.key IS NOT NULL
    ORDER BY fused DESC, n.distance, c.namespace, c.key
    LIMIT :page_size::integer OFFSET :offset::integer
)
SELECT m.namespace, m.key, m.value, m.created_at, m.updated_at, m.ttl IS NOT NULL OR m.kind IS NOT NULL, p.distance,
    p.vector_rank, p.words_rank, m.kind, m.importance, p.fused
FROM page p JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) p.namespace AND m.key = p.key
ORDER BY p.fused DESC, p.distance, p.namespace, p.key;
