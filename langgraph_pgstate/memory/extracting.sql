-- name: get_extracted_run
-- Return the owner of a run, and its last checkpoint in the root namespace.
SELECT r.user_id, r.tenant_id, (
    SELECT max(c.checkpoint_id) FROM /*schema*/checkpoints c
    WHERE c.thread_id = :thread_id AND c.checkpoint_ns = '' AND c.run_id = :run_id AND c.is_copy IS NOT TRUE
)
FROM /*schema*/runs r WHERE r.thread_id = :thread_id::text AND r.run_id = :run_id::text;

-- name: list_extracted
-- Return the memories of a namespace that were extracted from a run, including earlier versions.
-- opens: memories.value from value
-- leaves: memory_versions.value
SELECT m.kind, m.value, m.namespace, m.key FROM /*schema*/memories m
WHERE m.namespace OPERATOR(pg_catalog.=) :namespace::text[] AND m.thread_id = :thread_id::text
    AND m.run_id = :run_id::text AND m.changed_by = :changed_by::text
UNION ALL
SELECT v.kind, v.value, v.namespace, v.key FROM /*schema*/memory_versions v
WHERE v.namespace OPERATOR(pg_catalog.=) :namespace AND v.thread_id = :thread_id AND v.run_id = :run_id
    AND v.changed_by = :changed_by;
