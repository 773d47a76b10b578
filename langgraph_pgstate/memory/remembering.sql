-- name: lock_memories
-- Lock a namespace, so that only one transaction at a time searches it for duplicates of a new memory.
SELECT pg_advisory_xact_lock(hashtextextended(:key::text, 0));

-- name: find_told
-- Return the memory of a namespace that has the given key. If the caller named no key, also return the memories that
-- have the given kind and digest. Memories with this kind and digest come first.
-- opens: memories.value from value with namespace = namespace
-- seals: memories.digest from digest
SELECT m.key, m.kind = :kind::text AND m.digest = :digest::text AS is_equal, m.value
FROM /*schema*/memories m
WHERE m.namespace OPERATOR(pg_catalog.=) :namespace::text[]
    AND (m.key = :key::text OR m.digest = :digest AND m.kind = :kind AND NOT :is_named::boolean)
    AND (m.expires_at IS NULL OR m.expires_at > now())
ORDER BY is_equal DESC NULLS LAST, m.created_at, m.key;

-- name: repeat_memory
-- Count a duplicate of a memory. The memory gets the greater importance and the later end.
WITH due AS MATERIALIZED (
    SELECT now() AS at, coalesce(:expires_at::timestamptz, now() + make_interval(secs => :ttl::float8)) AS expires_at
)
UPDATE /*schema*/memories m SET
    duplicates = m.duplicates + 1, updated_at = due.at, importance = greatest(m.importance, :importance::real),
    expires_at = CASE WHEN m.expires_at IS NULL OR due.expires_at IS NULL THEN NULL
        ELSE greatest(m.expires_at, due.expires_at) END
FROM due
WHERE m.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND m.key = :key::text;

-- name: get_remembered
-- Return memories by their namespaces and keys, unless they have expired.
-- opens: memories.value from value
SELECT g.number, m.namespace, m.key, m.version, m.value, m.kind, m.user_id, m.agent, m.tenant_id, m.importance,
    m.duplicates, m.created_at, m.updated_at, m.valid_from, NULL::timestamptz, m.expires_at, m.changed_by, m.thread_id,
    m.run_id, m.checkpoint_id, m.message_id
FROM unnest(:namespaces::text[], :keys::text[]) WITH ORDINALITY AS g (namespace, key, number)
    JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND m.key = g.key
WHERE m.kind IS NOT NULL AND (m.expires_at IS NULL OR m.expires_at > now())
ORDER BY g.number;

-- name: recall_as_of
-- Return a page of the memories of a range of namespaces that were valid at a time. Memories are sorted by the number
-- of words of the query, importance and age. Memories that have expired by now are left out.
-- opens: memories.value from value
-- leaves: memory_versions.value
-- searches: memory_versions.value from query
WITH valid AS MATERIALIZED (
    SELECT DISTINCT ON (a.namespace, a.key) a.*
    FROM (
        SELECT m.namespace, m.key, m.version, m.value, m.kind, m.user_id, m.agent, m.tenant_id, m.importance,
            m.duplicates, m.created_at, m.updated_at, m.valid_from, NULL::timestamptz AS valid_to, m.expires_at,
            m.changed_by, m.thread_id, m.run_id, m.checkpoint_id, m.message_id
        FROM /*schema*/memories m
        WHERE m.namespace OPERATOR(pg_catalog.>=) :lower::text[] AND m.namespace OPERATOR(pg_catalog.<) :upper::text[]
            AND m.valid_from <= :as_of::timestamptz AND (m.expires_at IS NULL OR m.expires_at > now())
        UNION ALL
        SELECT v.namespace, v.key, v.version, v.value, v.kind, v.user_id, v.agent, v.tenant_id, v.importance,
            0, v.valid_from, v.valid_from, v.valid_from, v.valid_to, NULL::timestamptz,
            v.changed_by, v.thread_id, v.run_id, v.checkpoint_id, v.message_id
        FROM /*schema*/memory_versions v
        WHERE v.namespace OPERATOR(pg_catalog.>=) :lower AND v.namespace OPERATOR(pg_catalog.<) :upper
            AND v.valid_from <= :as_of AND v.valid_to > :as_of AND NOT EXISTS (
                SELECT 1 FROM /*schema*/memories x
                WHERE x.namespace OPERATOR(pg_catalog.=) v.namespace AND x.key = v.key AND x.expires_at <= now()
            )
    ) AS a
    WHERE a.kind IS NOT NULL AND (a.kind = ANY(:kinds::text[]) OR '*' = ANY(:kinds))
    ORDER BY a.namespace, a.key, a.version DESC
), terms AS MATERIALIZED (
    SELECT plainto_tsquery('pg_catalog.simple', t.lexeme) AS term
    FROM unnest(to_tsvector(:language::text::regconfig, :query::text)) AS t (lexeme, positions, weights)
), ranked AS MATERIALIZED (
    SELECT v.*, (CASE WHEN :query = '' THEN 1::float8 ELSE (
            SELECT count(*) FROM terms t
            WHERE to_tsvector(:language::text::regconfig, v.value ->> 'content') @@ t.term
        )::float8 END)
        * (1::float8 + :importance_weight::float8 * (coalesce(v.importance, 0.5::real)::float8 - 0.5::float8))
        * power(0.5::float8, coalesce(
            extract(epoch FROM :as_of - v.valid_from)::float8
                / (SELECT h.seconds FROM unnest(:half_life_kinds::text[], :half_lives::float8[]) AS h (kind, seconds)
                    WHERE h.kind = v.kind), 0::float8
        )) AS rank_score
    FROM valid v
)
SELECT r.rank_score, r.namespace, r.key, r.version, r.value, r.kind, r.user_id, r.agent, r.tenant_id, r.importance,
    r.duplicates, r.created_at, r.updated_at, r.valid_from, r.valid_to, r.expires_at, r.changed_by, r.thread_id,
    r.run_id, r.checkpoint_id, r.message_id
FROM ranked r
ORDER BY r.rank_score DESC, r.valid_from DESC, r.namespace, r.key
LIMIT :page_size::integer;

-- name: find_memories
-- Return the keys of memories of a range of namespaces, with the given key and kinds if given. Expired memories are
-- included only if `purges`.
SELECT m.namespace, m.key FROM /*schema*/memories m
WHERE m.namespace OPERATOR(pg_catalog.>=) :lower::text[] AND m.namespace OPERATOR(pg_catalog.<) :upper::text[]
    AND coalesce(m.key = :key::text, true) AND m.kind IS NOT NULL
    AND (m.kind = ANY(:kinds::text[]) OR '*' = ANY(:kinds))
    AND (:purges::boolean OR m.expires_at IS NULL OR m.expires_at > now())
ORDER BY m.namespace, m.key LIMIT :page_size::integer;

-- name: purge_versions
-- Delete some earlier versions of memories of a range of namespaces, with the given key and kinds if given.
DELETE FROM /*schema*/memory_versions v USING (
    SELECT o.namespace, o.key, o.version FROM /*schema*/memory_versions o
    WHERE o.namespace OPERATOR(pg_catalog.>=) :lower::text[] AND o.namespace OPERATOR(pg_catalog.<) :upper::text[]
        AND coalesce(o.key = :key::text, true) AND o.kind IS NOT NULL
        AND (o.kind = ANY(:kinds::text[]) OR '*' = ANY(:kinds))
    LIMIT :page_size::integer
) AS d
WHERE v.namespace OPERATOR(pg_catalog.=) d.namespace AND v.key = d.key AND v.version = d.version;

-- name: list_memory_versions
-- Return a page of the current and earlier versions of an item, newest first; no row if the item has expired.
-- opens: memories.value from value
-- leaves: memory_versions.value
SELECT a.namespace, a.key, a.version, a.value, a.kind, a.importance, a.valid_from, a.valid_to, a.is_deleted,
    a.deleted_by, a.changed_by, a.thread_id, a.run_id, a.checkpoint_id, a.message_id
FROM (
    SELECT m.namespace, m.key, m.version, m.value, m.kind, m.importance, m.valid_from, NULL::timestamptz AS valid_to,
        false AS is_deleted, NULL::text AS deleted_by, m.changed_by, m.thread_id, m.run_id, m.checkpoint_id,
        m.message_id
    FROM /*schema*/memories m
    WHERE m.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND m.key = :key::text
    UNION ALL
    SELECT v.namespace, v.key, v.version, v.value, v.kind, v.importance, v.valid_from, v.valid_to, v.is_deleted,
        v.deleted_by, v.changed_by, v.thread_id, v.run_id, v.checkpoint_id, v.message_id
    FROM /*schema*/memory_versions v
    WHERE v.namespace OPERATOR(pg_catalog.=) :namespace AND v.key = :key
) AS a
WHERE coalesce(a.version = :version::integer, a.version < :before::integer, true) AND NOT EXISTS (
    SELECT 1 FROM /*schema*/memories x
    WHERE x.namespace OPERATOR(pg_catalog.=) :namespace AND x.key = :key AND x.expires_at <= now()
)
ORDER BY a.version DESC
LIMIT :page_size::integer;

-- name: get_version_to_restore
-- Return a version of an item, with the item's present index fields and expiry.
-- opens: memories.value from value
-- leaves: memory_versions.value
SELECT a.value, a.kind, a.user_id, a.agent, a.tenant_id, a.importance, n.index_fields,
    extract(epoch FROM n.ttl)::float8, n.expires_at, n.key IS NOT NULL
FROM (
    SELECT m.version, m.value, m.kind, m.user_id, m.agent, m.tenant_id, m.importance FROM /*schema*/memories m
    WHERE m.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND m.key = :key::text
    UNION ALL
    SELECT v.version, v.value, v.kind, v.user_id, v.agent, v.tenant_id, v.importance FROM /*schema*/memory_versions v
    WHERE v.namespace OPERATOR(pg_catalog.=) :namespace AND v.key = :key
) AS a LEFT JOIN /*schema*/memories n ON n.namespace OPERATOR(pg_catalog.=) :namespace AND n.key = :key
WHERE a.version = :version::integer AND coalesce(n.expires_at > now(), true);

-- name: lock_memory
-- Lock an item until the transaction ends, and return its version; no row if the item has expired.
SELECT m.version FROM /*schema*/memories m
WHERE m.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND m.key = :key::text
    AND (m.expires_at IS NULL OR m.expires_at > now())
FOR UPDATE;
