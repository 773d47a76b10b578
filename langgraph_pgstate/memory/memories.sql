-- name: put_memories
-- Store items, keep replaced values as earlier versions, and return a row for each stored item. Locks the replaced rows
-- in a fixed order, so that calls cannot deadlock. Leaves out items that another call has just made, and items of an
-- unexpected version. Expired values are not kept. Every version of progress notes is kept.
-- seals: memories.value from contents with namespace = namespaces, key = keys
-- seals: memories.words from words with namespace = namespaces, key = keys
-- seals: memories.digest from digest with namespace = namespaces
-- leaves: memory_versions.value
WITH clock AS MATERIALIZED (
    SELECT now() AS at
), given AS MATERIALIZED (
    SELECT g.namespace::text[] COLLATE "C" AS namespace, g.key COLLATE "C" AS key, g.content::jsonb AS value,
        make_interval(secs => nullif(g.ttl, -1::float8)) AS ttl, to_tsvector(:language::text::regconfig, nullif(g.words, '')) AS words,
        nullif(g.index_fields, '')::text[] AS index_fields, nullif(g.changed_by, '') AS changed_by,
        nullif(g.thread_id, '') AS thread_id, nullif(g.run_id, '') AS run_id, nullif(g.checkpoint_id, '') AS checkpoint_id,
        nullif(g.message_id, '') AS message_id
    FROM unnest(
        :namespaces::text[], :keys::text[], :contents::text[], :ttls::float8[], :words::text[], :index_fields::text[],
        :changed_by::text[], :thread_ids::text[], :run_ids::text[], :checkpoint_ids::text[], :message_ids::text[]
    ) AS g (
        namespace, key, content, ttl, words, index_fields, changed_by, thread_id, run_id, checkpoint_id, message_id
    )
), old AS MATERIALIZED (
    SELECT m.namespace, m.key, m.version, m.value, m.kind, m.user_id, m.agent, m.tenant_id, m.importance, m.valid_from,
        m.changed_by, m.thread_id, m.run_id, m.checkpoint_id, m.message_id,
        (m.value <> g.value OR coalesce(m.expires_at <= now(), false))
            AND coalesce(m.version = :expected_version::integer, true) AS is_changed,
        coalesce(m.expires_at <= now(), false) AS is_expired
    FROM given g JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) g.namespace AND m.key = g.key
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
    WHERE o.is_changed AND NOT o.is_expired AND (:history::integer > 0 OR o.kind = 'notes')
    ON CONFLICT (namespace, key, version) DO NOTHING
), trimmed AS (
    DELETE FROM /*schema*/memory_versions v USING old o
    WHERE v.namespace OPERATOR(pg_catalog.=) o.namespace AND v.key = o.key
        AND (o.is_changed AND v.version <= o.version - :history AND coalesce(o.kind <> 'notes', true) OR o.is_expired)
), written AS (
    INSERT INTO /*schema*/memories AS m (
        namespace, key, version, value, created_at, updated_at, expires_at, ttl, words, index_fields, is_large,
        is_waiting, is_unindexed, kind, user_id, agent, tenant_id, importance, digest, duplicates, valid_from, changed_by,
        thread_id, run_id, checkpoint_id, message_id
    )
    SELECT g.namespace, g.key, CASE
            WHEN o.version IS NULL THEN 1 + coalesce((
                SELECT max(v.version) FROM /*schema*/memory_versions v WHERE v.namespace OPERATOR(pg_catalog.=) g.namespace AND v.key = g.key
            ), 0)
            WHEN o.is_changed THEN o.version + 1
            ELSE o.version
        END, g.value, c.at, c.at, coalesce(:expires_at::timestamptz, c.at + g.ttl), g.ttl, g.words, g.index_fields, false,
        EXISTS (SELECT 1 FROM /*schema*/large_namespaces l WHERE l.namespace OPERATOR(pg_catalog.=) g.namespace),
        coalesce(cardinality(g.index_fields), 1) > 0 AND (:is_unindexed::boolean OR EXISTS (
            SELECT 1 FROM /*schema*/memory_indexes i WHERE NOT i.name = ANY(:index_names::text[])
        )),
        :kind::text, :user_id::text, :agent::text, :tenant_id::text, :importance::real, :digest::text,
        :duplicates::integer, greatest(c.at, o.valid_from), g.changed_by, g.thread_id, g.run_id, g.checkpoint_id,
        g.message_id
    FROM given g CROSS JOIN clock c LEFT JOIN old o ON o.namespace OPERATOR(pg_catalog.=) g.namespace AND o.key = g.key
    WHERE coalesce(coalesce(o.version, 0) = :expected_version, true)
    ORDER BY g.namespace, g.key
    ON CONFLICT (namespace, key) DO UPDATE SET
        version = excluded.version, value = excluded.value, updated_at = excluded.updated_at,
        created_at = CASE WHEN m.expires_at <= excluded.updated_at THEN excluded.created_at ELSE m.created_at END,
        expires_at = excluded.expires_at, ttl = excluded.ttl, words = excluded.words,
        index_fields = excluded.index_fields, is_large = excluded.is_large, is_waiting = excluded.is_waiting,
        is_unindexed = excluded.is_unindexed,
        kind = coalesce(excluded.kind, CASE WHEN m.expires_at <= excluded.updated_at THEN NULL ELSE m.kind END),
        user_id = coalesce(excluded.user_id, CASE WHEN m.expires_at <= excluded.updated_at THEN NULL ELSE m.user_id END),
        agent = coalesce(excluded.agent, CASE WHEN m.expires_at <= excluded.updated_at THEN NULL ELSE m.agent END),
        tenant_id = coalesce(excluded.tenant_id, CASE WHEN m.expires_at <= excluded.updated_at THEN NULL ELSE m.tenant_id END),
        importance = coalesce(excluded.importance, CASE WHEN m.expires_at <= excluded.updated_at THEN NULL ELSE m.importance END),
        digest = CASE WHEN m.version = excluded.version THEN m.digest ELSE excluded.digest END,
        duplicates = excluded.duplicates
            + CASE WHEN m.expires_at <= excluded.updated_at THEN 0 ELSE m.duplicates END,
        valid_from = CASE WHEN m.version = excluded.version THEN m.valid_from ELSE excluded.valid_from END,
        changed_by = CASE WHEN m.version = excluded.version THEN m.changed_by ELSE excluded.changed_by END,
        thread_id = CASE WHEN m.version = excluded.version THEN m.thread_id ELSE excluded.thread_id END,
        run_id = CASE WHEN m.version = excluded.version THEN m.run_id ELSE excluded.run_id END,
        checkpoint_id = CASE WHEN m.version = excluded.version THEN m.checkpoint_id ELSE excluded.checkpoint_id END,
        message_id = CASE WHEN m.version = excluded.version THEN m.message_id ELSE excluded.message_id END
    WHERE m.version = excluded.version
        - (m.value <> excluded.value OR coalesce(m.expires_at <= excluded.updated_at, false))::integer
    RETURNING m.namespace
)
SELECT w.namespace FROM written w;

-- name: delete_memories
-- Delete items, and return the deleted items. A deleted item is kept as an earlier version, unless the item has
-- expired. Versions beyond `history` are deleted and, if `purges`, all versions.
-- leaves: memories.value
-- leaves: memory_versions.value
WITH clock AS MATERIALIZED (
    SELECT now() AS at
), given AS MATERIALIZED (
    SELECT g.namespace::text[] COLLATE "C" AS namespace, g.key COLLATE "C" AS key
    FROM unnest(:namespaces::text[], :keys::text[]) AS g (namespace, key)
), purged AS (
    DELETE FROM /*schema*/memory_versions v USING given g
    WHERE v.namespace OPERATOR(pg_catalog.=) g.namespace AND v.key = g.key AND (:purges::boolean OR EXISTS (
        SELECT 1 FROM /*schema*/memories m
        WHERE m.namespace OPERATOR(pg_catalog.=) g.namespace AND m.key = g.key
            AND (m.expires_at <= now() OR v.version <= m.version - :history AND coalesce(m.kind <> 'notes', true))
    ))
), gone AS (
    DELETE FROM /*schema*/memories m USING given g WHERE m.namespace OPERATOR(pg_catalog.=) g.namespace AND m.key = g.key
    RETURNING m.namespace, m.key, m.version, m.value, m.kind, m.user_id, m.agent, m.tenant_id, m.importance, m.valid_from,
        m.changed_by, m.thread_id, m.run_id, m.checkpoint_id, m.message_id,
        coalesce(m.expires_at <= now(), false) AS is_expired
), kept AS (
    INSERT INTO /*schema*/memory_versions (
        namespace, key, version, value, kind, user_id, agent, tenant_id, importance, valid_from, valid_to, is_deleted,
        deleted_by, changed_by, thread_id, run_id, checkpoint_id, message_id
    )
    SELECT o.namespace, o.key, o.version, o.value, o.kind, o.user_id, o.agent, o.tenant_id, o.importance, o.valid_from,
        greatest(c.at, o.valid_from), true, :deleted_by::text, o.changed_by, o.thread_id, o.run_id, o.checkpoint_id,
        o.message_id
    FROM gone o CROSS JOIN clock c
    WHERE (:history::integer > 0 OR o.kind = 'notes') AND NOT :purges AND NOT o.is_expired
    ON CONFLICT (namespace, key, version) DO NOTHING
)
SELECT gone.namespace, gone.key FROM gone WHERE NOT gone.is_expired;

-- name: replace_words
-- Replace the words of an item that still has the given value. If `are_missing`, the item must have no words yet.
-- leaves: memories.value
-- seals: memories.words from words
WITH given AS MATERIALIZED (
    SELECT to_tsvector(:language::text::regconfig, nullif(:words::text, '')) AS words
)
UPDATE /*schema*/memories m SET words = g.words FROM given g
WHERE m.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND m.key = :key::text AND m.value = :value::jsonb
    AND (m.words IS NULL) = :are_missing::boolean;

-- name: set_planning
-- Set how prepared statements of this transaction are planned: once (`force_generic_plan`), if planning takes longer
-- than execution, or at each call for the number of items (`force_custom_plan`). Turn JIT compilation off.
SELECT set_config('plan_cache_mode', :mode::text, true), set_config('jit', 'off', true);

-- name: get_memory
-- Return an item, unless it has expired.
-- opens: memories.value from value
SELECT m.namespace, m.key, m.value, m.created_at, m.updated_at, m.ttl IS NOT NULL OR m.kind IS NOT NULL
FROM /*schema*/memories m
WHERE m.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND m.key = :key::text AND (m.expires_at IS NULL OR m.expires_at > now());

-- name: get_memories
-- Return the requested items that have not expired, each with its number in the request.
-- opens: memories.value from value
SELECT m.namespace, m.key, m.value, m.created_at, m.updated_at, m.ttl IS NOT NULL OR m.kind IS NOT NULL, g.number
FROM unnest(:namespaces::text[], :keys::text[]) WITH ORDINALITY AS g (namespace, key, number)
    JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND m.key = g.key
WHERE m.expires_at IS NULL OR m.expires_at > now();

-- name: list_memories
-- Return a page of the items of a range of namespaces, last stored first.
-- opens: memories.value from value
-- matches: memories.value from operands
SELECT m.namespace, m.key, m.value, m.created_at, m.updated_at, m.ttl IS NOT NULL OR m.kind IS NOT NULL
FROM /*schema*/memories m
WHERE m.namespace OPERATOR(pg_catalog.>=) :lower::text[] AND m.namespace OPERATOR(pg_catalog.<) :upper::text[] AND (m.expires_at IS NULL OR m.expires_at > now())
    AND /*meets_filter*/true
ORDER BY m.updated_at DESC, m.namespace, m.key
LIMIT :page_size::integer OFFSET :offset::integer;

-- name: list_namespaces
-- Return a page of the namespaces of a range, truncated to a number of labels, in order. Each step of the recursion
-- finds the next namespace by the primary key, which is faster than reading all items. A star in `:matches` is any
-- label.
WITH RECURSIVE found (namespace) AS (
    (
        SELECT m.namespace[1:coalesce(:max_depth::integer, 1000)] FROM /*schema*/memories m
        WHERE m.namespace OPERATOR(pg_catalog.>=) :lower::text[] AND m.namespace OPERATOR(pg_catalog.<) :upper::text[]
        ORDER BY m.namespace LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT m.namespace[1:coalesce(:max_depth, 1000)] FROM /*schema*/memories m
        WHERE m.namespace OPERATOR(pg_catalog.>=) CASE
                WHEN cardinality(f.namespace) >= :max_depth
                    THEN f.namespace[1:(:max_depth - 1)] || (f.namespace[:max_depth] || chr(1))
                ELSE f.namespace
            END
            AND m.namespace OPERATOR(pg_catalog.>) f.namespace AND m.namespace OPERATOR(pg_catalog.<) :upper::text[]
        ORDER BY m.namespace LIMIT 1
    )
    FROM found f WHERE f.namespace IS NOT NULL
)
SELECT f.namespace FROM found f
WHERE f.namespace IS NOT NULL
    AND EXISTS (
        SELECT 1 FROM /*schema*/memories m
        WHERE (m.namespace OPERATOR(pg_catalog.=) f.namespace OR cardinality(f.namespace) = :max_depth AND m.namespace OPERATOR(pg_catalog.>=) f.namespace
                AND m.namespace
                    OPERATOR(pg_catalog.<) (f.namespace[1:(:max_depth - 1)] || (f.namespace[:max_depth] || chr(1))))
            AND (m.expires_at IS NULL OR m.expires_at > now())
            AND NOT EXISTS (
                SELECT 1 FROM unnest(:matches::text[], :ends::boolean[]) AS c (path, is_end)
                WHERE cardinality(c.path::text[]) > cardinality(m.namespace) OR EXISTS (
                    SELECT 1 FROM unnest(c.path::text[]) WITH ORDINALITY AS l (label, place)
                    WHERE l.label <> '*' AND l.label <> m.namespace[
                        l.place + CASE WHEN c.is_end THEN cardinality(m.namespace) - cardinality(c.path::text[]) ELSE 0 END
                    ]
                )
            )
    )
ORDER BY f.namespace
LIMIT :page_size::integer OFFSET :offset::integer;

-- name: touch_memories
-- Add counts of reads to items, and extend times to live.
UPDATE /*schema*/memories m SET
    accessed_at = now(), access_count = m.access_count + g.count,
    -- Use UTC, because Citus requires an immutable expression. Addition in the session's time zone is not immutable.
    expires_at = CASE WHEN g.refreshes AND m.expires_at IS NOT NULL
        THEN greatest(m.expires_at, (g.at AT TIME ZONE 'UTC' + m.ttl) AT TIME ZONE 'UTC') ELSE m.expires_at END
FROM (SELECT now() AS at, r.* FROM unnest(:namespaces::text[], :keys::text[], :counts::integer[], :refreshed::boolean[])
    AS r (namespace, key, count, refreshes)) AS g
WHERE m.namespace OPERATOR(pg_catalog.=) g.namespace::text[] AND m.key = g.key AND (m.expires_at IS NULL OR m.expires_at > now());

-- name: sweep_memories
-- Delete some expired items that are not locked, with their versions, and return them.
WITH expired AS MATERIALIZED (
    SELECT m.namespace, m.key FROM /*schema*/memories m WHERE m.expires_at <= now()
    ORDER BY m.expires_at LIMIT :count::integer FOR UPDATE SKIP LOCKED
), versions AS (
    DELETE FROM /*schema*/memory_versions v USING expired e WHERE v.namespace OPERATOR(pg_catalog.=) e.namespace AND v.key = e.key
), gone AS (
    DELETE FROM /*schema*/memories m USING expired e WHERE m.namespace OPERATOR(pg_catalog.=) e.namespace AND m.key = e.key
    RETURNING m.namespace, m.key
)
SELECT g.namespace, g.key FROM gone g;

-- name: search_words
-- Return a page of the items of a range of namespaces. Items with words of the query come first, sorted by BM25 with
-- each word counted once. The other items follow, last stored first.
-- opens: memories.value from value
-- matches: memories.value from operands
-- searches: memories.words from query
WITH terms AS MATERIALIZED (
    SELECT plainto_tsquery('pg_catalog.simple', t.lexeme) AS term, row_number() OVER () AS number
    FROM unnest(to_tsvector(:language::text::regconfig, :query::text)) AS t (lexeme, positions, weights)
), candidates AS MATERIALIZED (
    SELECT m.namespace, m.key, m.updated_at, m.kind, m.importance, length(m.words)::float8 AS length,
        ARRAY(SELECT t.number FROM terms t WHERE m.words @@ t.term) AS found
    FROM /*schema*/memories m
    WHERE m.namespace OPERATOR(pg_catalog.>=) :lower::text[] AND m.namespace OPERATOR(pg_catalog.<) :upper::text[]
        AND /*is_wanted*/true AND /*meets_filter*/true
), sizes AS MATERIALIZED (
    SELECT count(*)::float8 AS count, avg(greatest(c.length, 1))::float8 AS length FROM candidates c
    WHERE c.length IS NOT NULL
), rarities AS MATERIALIZED (
    SELECT h.number, s.length,
        2.2::float8 * ln(1::float8 + (s.count - count(*)::float8 + 0.5::float8) / (count(*)::float8 + 0.5::float8)) AS rarity
    FROM candidates c CROSS JOIN LATERAL unnest(c.found) AS h (number) CROSS JOIN sizes s
    GROUP BY h.number, s.count, s.length
), scores AS MATERIALIZED (
    SELECT c.*, (
            SELECT sum(r.rarity / (1::float8 + 1.2::float8 * (0.25::float8 + 0.75::float8 * c.length / r.length)))
            FROM rarities r WHERE r.number = ANY(c.found)
        ) AS score
    FROM candidates c
), page AS MATERIALIZED (
    SELECT c.namespace, c.key, CASE WHEN c.score IS NOT NULL THEN rank() OVER (ORDER BY c.score DESC NULLS LAST) END AS words_rank,
        coalesce(c.score, CASE WHEN :query = '' THEN 1::float8 ELSE 0::float8 END)
        * (1::float8 + :importance_weight::float8 * (coalesce(c.importance, 0.5::real)::float8 - 0.5::float8))
        * CASE WHEN cardinality(:half_life_kinds::text[]) = 0 THEN 1::float8 ELSE power(0.5::float8, coalesce(
            extract(epoch FROM now() - c.updated_at)::float8
                / (SELECT h.seconds FROM unnest(:half_life_kinds, :half_lives::float8[]) AS h (kind, seconds)
                    WHERE h.kind = c.kind), 0::float8
        )) END AS fused, c.updated_at
    FROM scores c
    ORDER BY fused DESC, c.updated_at DESC, c.namespace, c.key
    LIMIT :page_size::integer OFFSET :offset::integer
)
SELECT m.namespace, m.key, m.value, m.created_at, m.updated_at, m.ttl IS NOT NULL OR m.kind IS NOT NULL, NULL::float8,
    NULL::bigint, p.words_rank, m.kind, m.importance, p.fused
FROM page p JOIN /*schema*/memories m ON m.namespace OPERATOR(pg_catalog.=) p.namespace AND m.key = p.key
ORDER BY p.fused DESC, p.updated_at DESC, p.namespace, p.key;
