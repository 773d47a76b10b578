-- name: knows_tenant
-- Return whether the tenant was named before.
SELECT EXISTS (SELECT 1 FROM /*schema*/tenants t WHERE t.pgstate_tenant = :tenant::text);

-- name: add_tenant
-- Remember a tenant that is named for the first time.
INSERT INTO /*schema*/tenants (pgstate_tenant) VALUES (:tenant::text) ON CONFLICT DO NOTHING;

-- name: list_tenants
-- Return a page of the names of tenants, after one.
SELECT t.pgstate_tenant FROM /*schema*/tenants t
WHERE t.pgstate_tenant > :after::text COLLATE "C" ORDER BY t.pgstate_tenant LIMIT :page_size::integer;

-- name: has_strayed_rows
-- Return whether a default partition has rows, or had some.
SELECT pg_relation_size(to_regclass(:partition::text)) > 0;

-- name: count_tenants
-- Return the number of tenants that are known.
SELECT count(*) FROM /*schema*/tenants;
