-- name: knows_tenant
-- Return whether the tenant was named before.
SELECT EXISTS (SELECT 1 FROM /*schema*/tenants t WHERE t.pgstate_tenant = :tenant::text);

-- name: add_tenant
-- Remember a tenant that is named for the first time.
INSERT INTO /*schema*/tenants (pgstate_tenant) VALUES (:tenant::text) ON CONFLICT DO NOTHING;

-- name: list_tenants
-- Return a page of the names of tenants, after a cursor.
SELECT t.pgstate_tenant FROM /*schema*/tenants t
WHERE t.pgstate_tenant > :after::text COLLATE "C" ORDER BY t.pgstate_tenant LIMIT :page_size::integer;

-- name: has_strayed_rows
-- Return whether a default partition has rows, or had some.
SELECT pg_relation_size(to_regclass(:partition::text)) > 0;

-- name: count_tenants
-- Return the number of tenants that are known.
SELECT count(*) FROM /*schema*/tenants;

-- name: has_held_spans_of_tenants
-- Return whether a month, like `2026_01`, has spans of a thread of any tenant under a legal hold.
SELECT EXISTS (
    SELECT 1 FROM (
        SELECT to_date(:month::text, 'YYYY_MM')::timestamp AT TIME ZONE 'UTC' AS first_at,
            (to_date(:month, 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC' AS last_at
    ) AS m, /*schema*/holds h
        JOIN /*schema*/spans s ON s.pgstate_tenant = h.pgstate_tenant AND s.thread_id = h.thread_id
    WHERE s.started_at >= m.first_at AND s.started_at < m.last_at
);

-- name: may_list_tenants
-- Return whether the role may list all tenants.
SELECT EXISTS (
    SELECT 1 FROM pg_catalog.pg_policy p CROSS JOIN LATERAL unnest(p.polroles) AS r (role)
    WHERE p.polrelid = to_regclass(:tenants_table::text) AND p.polname = 'pgstate_workers' AND pg_has_role(r.role, 'USAGE')
);

-- name: find_work
-- Return the work of some tenants.
SELECT w.tenant, w.is_ready, w.seconds, w.webhook_seconds, w.worker_ids
FROM /*schema*/find_work(:tenants::text[], :queues::text[], :graphs::text[], :adopts::boolean) AS w;
