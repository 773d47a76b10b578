-- name: import_memories
-- Store items of another store with their times, unless this schema's items were stored later. Keep replaced values as
-- earlier versions. Lock the replaced rows in a fixed order. Store an expired item only if it replaces an item. Return
-- the stored items.
-- seals: memories.value from contents with namespace = namespaces, key = keys
-- seals: memories.words from words with namespace = namespaces, key = keys
-- leaves: memory_versions.value
-- leaves: memories.digest
WITH clock AS MATERIALIZED (
    SELECT now() AS at
), given AS MATERIALIZED (
    SELECT g.namespace::text[] COLLATE "C" AS namespace, g.key COLLATE "C" AS key, g.content::jsonb AS value,
        g.created_at, g.updated_at, nullif(g.expires_at, '')::timestamptz AS expires_at,
        make_interval(secs => nullif(g.ttl, -1::float8) * 60::float8) AS ttl,
        to_tsvector(:language::text::regconfig, nullif(g.words, '')) AS words, g.is_unindexed
    FROM unnest(
        :namespaces::text[], :keys::text[], :contents::text[], :created::timestamptz[], :updated::timestamptz[],
        :ends::text[], :ttls::float8[], :words::text[], :unindexed::boolean[]
    ) AS g (namespace, key, content, created_at, updated_at, expires_at, ttl, words, is_unindexed)
), old AS MATERIALIZED (
    SELECT m.namespace, m.key, m.version, m.value, m.kind, m.user_id, m.agent, m.tenant_id, m.importance, m.valid_from,
        m.changed_by, m.thread_id, m.run_id, m.checkpoint_id, m.message_id,
        e.is_expired, m.value::text <> g.value::text OR e.is_expired AS is_changed
    FROM given g JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) g.namespace AND m.key = g.key
        CROSS JOIN LATERAL (
            SELECT (m.expires_at <= greatest(now(), m.valid_from)) IS TRUE AS is_expired
        ) AS e
    WHERE m.updated_at < g.updated_at OR m.updated_at = g.updated_at
        AND (m.value::text <> g.value::text OR m.expires_at < g.expires_at)
    ORDER BY m.namespace, m.key
    FOR UPDATE OF m
), kept AS (
    INSERT INTO /*schema*/memory_versions (
        namespace, key, version, value, kind, user_id, agent, tenant_id, importance, valid_from, valid_to, is_deleted,
        changed_by, thread_id, run_id, checkpoint_id, message_id
    )
    SELECT o.namespace, o.key, o.version, o.value, o.kind, o.user_id, o.agent, o.tenant_id, o.importance, o.valid_from,
        greatest(c.at, o.valid_from), false, o.changed_by, o.thread_id, o.run_id, o.checkpoint_id, o.message_id
    FROM old o CROSS JOIN clock c
    WHERE o.is_changed AND NOT o.is_expired
    ON CONFLICT (namespace, key, version) DO NOTHING
)
INSERT INTO /*schema*/memories AS m (
    namespace, key, version, value, created_at, updated_at, expires_at, ttl, words, is_large, is_waiting,
    is_unindexed, valid_from, changed_by
)
SELECT g.namespace, g.key, CASE
        WHEN o.version IS NULL THEN 1 + coalesce((
            SELECT max(v.version) FROM /*schema*/memory_versions v
            WHERE v.namespace OPERATOR(pg_catalog.=) g.namespace AND v.key = g.key
        ), 0)
        ELSE o.version + o.is_changed::integer
    END, g.value, g.created_at, g.updated_at, g.expires_at, g.ttl, g.words, false,
    EXISTS (SELECT 1 FROM /*schema*/large_namespaces l WHERE l.namespace OPERATOR(pg_catalog.=) g.namespace),
    g.is_unindexed, greatest(c.at, o.valid_from), :changed_by::text
FROM given g CROSS JOIN clock c
    LEFT JOIN old o ON o.namespace OPERATOR(pg_catalog.=) g.namespace AND o.key = g.key
WHERE o.key IS NOT NULL OR coalesce(g.expires_at > c.at, true)
ORDER BY g.namespace, g.key
ON CONFLICT (namespace, key) DO UPDATE SET
    version = excluded.version, value = excluded.value, created_at = excluded.created_at,
    updated_at = excluded.updated_at, expires_at = excluded.expires_at, ttl = excluded.ttl, words = excluded.words,
    is_large = excluded.is_large, is_waiting = excluded.is_waiting,
    is_unindexed = CASE WHEN m.version = excluded.version THEN m.is_unindexed ELSE excluded.is_unindexed END,
    valid_from = CASE WHEN m.version = excluded.version THEN m.valid_from ELSE excluded.valid_from END,
    changed_by = CASE WHEN m.version = excluded.version THEN m.changed_by ELSE excluded.changed_by END,
    digest = CASE WHEN m.version = excluded.version THEN m.digest END,
    thread_id = CASE WHEN m.version = excluded.version THEN m.thread_id END,
    run_id = CASE WHEN m.version = excluded.version THEN m.run_id END,
    checkpoint_id = CASE WHEN m.version = excluded.version THEN m.checkpoint_id END,
    message_id = CASE WHEN m.version = excluded.version THEN m.message_id END
WHERE (m.updated_at < excluded.updated_at OR m.updated_at = excluded.updated_at
        AND (m.value::text <> excluded.value::text OR m.expires_at < excluded.expires_at))
    AND m.version = excluded.version
        - (m.value::text <> excluded.value::text OR (m.expires_at <= excluded.valid_from) IS TRUE)::integer
RETURNING m.namespace, m.key, m.version;

-- name: get_stored_memories
-- Return the contents of items, including expired ones.
-- opens: memories.value from value
SELECT m.namespace, m.key, m.value::text, m.created_at, m.updated_at, m.expires_at
FROM unnest(:namespaces::text[], :keys::text[]) AS g (namespace, key)
    JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND m.key = g.key;

-- name: count_memories
-- Return the number of items that have not expired. With `since`, count only items stored at this time or later.
SELECT count(*) FROM /*schema*/memories m
WHERE (m.expires_at IS NULL OR m.expires_at > now()) AND (:since::timestamptz IS NULL OR m.updated_at >= :since);

-- name: list_memories_to_export
-- Return the next items that have not expired, in the order of their keys: at most `max_bytes`, but at least one item.
-- With `since`, return only items that changed since. Items that changed between `until` and now are left out.
-- opens: memories.value from value
SELECT p.namespace, p.key, p.value::text, p.created_at, p.updated_at, p.expires_at,
    extract(epoch FROM p.ttl)::float8 / 60::float8
FROM (
    SELECT s.namespace, s.key, s.value, s.created_at, s.updated_at, s.expires_at, s.ttl,
        row_number() OVER (ORDER BY s.namespace, s.key) AS number,
        sum(pg_column_size(s.value)) OVER (ORDER BY s.namespace, s.key) AS size
    FROM (
        SELECT i.namespace, i.key, i.value, i.created_at, i.updated_at, i.expires_at, i.ttl
        FROM /*schema*/memories i
        WHERE i.namespace OPERATOR(pg_catalog.>=) :namespace::text[]
            AND (i.namespace OPERATOR(pg_catalog.>) :namespace OR i.key > :key::text)
            AND (:since::timestamptz IS NULL OR i.updated_at >= :since)
            AND (i.updated_at < :until::timestamptz OR i.updated_at > now())
            AND (i.expires_at IS NULL OR i.expires_at > now())
        ORDER BY i.namespace, i.key LIMIT :page_size::integer
    ) AS s
) AS p
WHERE p.number = 1 OR p.size <= :max_bytes::bigint
ORDER BY p.namespace, p.key;
