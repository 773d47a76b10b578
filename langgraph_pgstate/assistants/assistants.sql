-- name: create_assistant
-- Insert an assistant with its first version, unless its id is in use.
-- seals: assistant_versions.data
-- seals: assistant_versions.description
-- seals: assistant_versions.metadata
WITH made AS (
    INSERT INTO /*schema*/assistants (assistant_id, version, owner_id) VALUES (:assistant_id::text, 1, :owner_id::text)
    ON CONFLICT (assistant_id) DO NOTHING RETURNING assistant_id, created_at
)
INSERT INTO /*schema*/assistant_versions (assistant_id, version, graph, name, description, metadata, data, created_at)
SELECT m.assistant_id, 1, :graph::text, :name::text, :description::text, :metadata::jsonb, :data::bytea, m.created_at
FROM made m;

-- name: lock_assistant
-- Lock an assistant until the transaction ends.
SELECT 1 FROM /*schema*/assistants WHERE assistant_id = :assistant_id::text FOR NO KEY UPDATE;

-- name: get_current_version
-- Return the current version of an assistant that a caller may change. Execute `lock_assistant` before, because a
-- statement does not see versions that are committed while it waits for a lock.
-- opens: assistant_versions.data
-- opens: assistant_versions.description
-- opens: assistant_versions.metadata
-- matches: assistant_versions.metadata from scope
SELECT v.graph, v.name, v.description, v.metadata, v.data
FROM /*schema*/assistants a
    JOIN /*schema*/assistant_versions v ON v.assistant_id = a.assistant_id AND v.version = a.version
WHERE a.assistant_id = :assistant_id::text AND (:scope::text[] IS NULL OR v.metadata @> ANY(:scope::text[]::jsonb[]))
    AND (:owner_id::text IS NULL OR a.owner_id = :owner_id);

-- name: add_version
-- Insert a version of an assistant, and make this version current. Execute `lock_assistant` before.
-- seals: assistant_versions.data
-- seals: assistant_versions.description
-- seals: assistant_versions.metadata
WITH following AS MATERIALIZED (
    SELECT max(o.version) + 1 AS version, now() AS at
    FROM /*schema*/assistant_versions o WHERE o.assistant_id = :assistant_id::text
), added AS (
    INSERT INTO /*schema*/assistant_versions (
        assistant_id, version, graph, name, description, metadata, data, created_at
    )
    SELECT :assistant_id, f.version, :graph::text, :name::text, :description::text, :metadata::jsonb, :data::bytea, f.at
    FROM following f
    RETURNING version
)
UPDATE /*schema*/assistants SET version = added.version, updated_at = now() FROM added
WHERE assistants.assistant_id = :assistant_id;

-- name: set_version
-- Make a version of an assistant current, if the version exists. Execute `lock_assistant` before.
UPDATE /*schema*/assistants SET version = :version::integer, updated_at = now()
WHERE assistant_id = :assistant_id::text AND EXISTS (
    SELECT 1 FROM /*schema*/assistant_versions v WHERE v.assistant_id = :assistant_id AND v.version = :version
);

-- name: find_schedules_of_others
-- Return a row if a schedule that the caller may not delete names the assistant.
-- matches: threads.metadata from thread_scope
-- matches: schedules.metadata from scope
SELECT 1 FROM /*schema*/schedules s
WHERE s.metadata ->> 'assistant_id' = :assistant_id::text AND NOT (
    (:scope::text[] IS NULL OR s.metadata @> ANY(:scope::text[]::jsonb[]))
    AND (:owner_id::text IS NULL OR s.thread_id IS NOT NULL OR s.owner_id IS NOT DISTINCT FROM :owner_id)
    AND (:thread_scope::text[] IS NULL OR s.thread_id IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = s.thread_id
            AND t.metadata @> ANY(:thread_scope::text[]::jsonb[])
    ))
)
LIMIT 1;

-- name: delete_assistant
-- Delete an assistant with its versions and schedules. Execute `find_schedules_of_others` before.
-- leaves: schedules.metadata
-- leaves: assistant_versions.metadata
WITH versions AS (
    DELETE FROM /*schema*/assistant_versions WHERE assistant_id = :assistant_id
), schedules AS (
    DELETE FROM /*schema*/schedules WHERE metadata ->> 'assistant_id' = :assistant_id
)
DELETE FROM /*schema*/assistants WHERE assistant_id = :assistant_id::text;

-- name: sort_assistants
-- Return a page of assistants, sorted by one of their columns. The assistants in `others` are not stored.
-- opens: assistant_versions.data
-- opens: assistant_versions.description
-- opens: assistant_versions.metadata
-- matches: assistant_versions.metadata from metadata
-- matches: assistant_versions.metadata from scope
WITH found AS (
    SELECT g.assistant_id COLLATE "C" AS assistant_id, g.graph, g.name, g.description, g.metadata, NULL::bytea AS data,
        1 AS version, g.created_at, g.created_at AS updated_at, NULL::text AS owner_id
    FROM jsonb_to_recordset(:others::jsonb) AS g (
        assistant_id text, graph text, name text, description text, metadata jsonb, created_at timestamptz
    )
    UNION ALL
    SELECT a.assistant_id, v.graph, v.name, v.description, v.metadata, v.data, a.version, a.created_at, a.updated_at,
        a.owner_id
    FROM /*schema*/assistants a
        JOIN /*schema*/assistant_versions v ON v.assistant_id = a.assistant_id AND v.version = a.version
)
SELECT f.assistant_id, f.graph, f.name, f.description, f.metadata, f.data, f.version, f.created_at, f.updated_at,
    f.owner_id
FROM found f
WHERE (:assistant_id::text IS NULL OR f.assistant_id = :assistant_id)
    AND (:graph::text IS NULL OR f.graph = :graph)
    AND (:name::text IS NULL OR position(lower(:name) IN lower(f.name)) > 0)
    AND (:metadata::jsonb IS NULL OR f.metadata @> :metadata)
    AND (:scope::text[] IS NULL OR f.metadata @> ANY(:scope::text[]::jsonb[]))
    AND (:owner_id::text IS NULL OR f.owner_id IS NULL OR f.owner_id = :owner_id)
ORDER BY
    CASE WHEN :ascending::boolean THEN CASE :by::text WHEN 'assistant_id' THEN f.assistant_id
        WHEN 'graph' THEN f.graph WHEN 'name' THEN f.name END END,
    CASE WHEN NOT :ascending THEN CASE :by WHEN 'assistant_id' THEN f.assistant_id
        WHEN 'graph' THEN f.graph WHEN 'name' THEN f.name END END DESC,
    CASE WHEN :ascending THEN CASE :by
        WHEN 'created_at' THEN f.created_at WHEN 'updated_at' THEN f.updated_at END END,
    CASE WHEN NOT :ascending THEN CASE :by
        WHEN 'created_at' THEN f.created_at WHEN 'updated_at' THEN f.updated_at END END DESC, f.assistant_id
LIMIT :page_size OFFSET :offset;

-- name: count_selected_assistants
-- Return the number of assistants that match the filters of `sort_assistants`.
-- leaves: assistant_versions.data
-- leaves: assistant_versions.description
-- matches: assistant_versions.metadata from metadata
-- matches: assistant_versions.metadata from scope
WITH found AS (
    SELECT g.assistant_id COLLATE "C" AS assistant_id, g.graph, g.name, g.description, g.metadata, NULL::bytea AS data,
        1 AS version, g.created_at, g.created_at AS updated_at, NULL::text AS owner_id
    FROM jsonb_to_recordset(:others::jsonb) AS g (
        assistant_id text, graph text, name text, description text, metadata jsonb, created_at timestamptz
    )
    UNION ALL
    SELECT a.assistant_id, v.graph, v.name, v.description, v.metadata, v.data, a.version, a.created_at, a.updated_at,
        a.owner_id
    FROM /*schema*/assistants a
        JOIN /*schema*/assistant_versions v ON v.assistant_id = a.assistant_id AND v.version = a.version
)
SELECT count(*)
FROM found f
WHERE (:assistant_id::text IS NULL OR f.assistant_id = :assistant_id)
    AND (:graph::text IS NULL OR f.graph = :graph)
    AND (:name::text IS NULL OR position(lower(:name) IN lower(f.name)) > 0)
    AND (:metadata::jsonb IS NULL OR f.metadata @> :metadata)
    AND (:scope::text[] IS NULL OR f.metadata @> ANY(:scope::text[]::jsonb[]))
    AND (:owner_id::text IS NULL OR f.owner_id IS NULL OR f.owner_id = :owner_id);

-- name: list_versions
-- Return versions of an assistant, newest first, from an offset.
-- opens: assistant_versions.data
-- opens: assistant_versions.description
-- opens: assistant_versions.metadata
-- matches: assistant_versions.metadata from metadata
SELECT v.assistant_id, v.graph, v.name, v.description, v.metadata, v.data, v.version, v.created_at, v.created_at,
    a.owner_id
FROM /*schema*/assistant_versions v JOIN /*schema*/assistants a ON a.assistant_id = v.assistant_id
WHERE v.assistant_id = :assistant_id::text AND (:metadata::jsonb IS NULL OR v.metadata @> :metadata)
ORDER BY v.version DESC
LIMIT :page_size OFFSET :offset;
