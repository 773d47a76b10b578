-- name: get_walls
-- Return whether the tables keep tenants apart, whether the role sees all tenants nevertheless, the server's version,
-- whether this transaction may write, and whether the database has Citus.
SELECT EXISTS (
        SELECT 1 FROM pg_catalog.pg_class c
        WHERE c.oid = to_regclass(:threads::text) AND c.relrowsecurity AND c.relforcerowsecurity
    ), EXISTS (
        SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname = current_user AND (r.rolsuper OR r.rolbypassrls)
    ) OR EXISTS (
        SELECT 1 FROM pg_catalog.pg_policy p CROSS JOIN LATERAL unnest(p.polroles) AS o (role)
        WHERE p.polrelid = to_regclass(:threads) AND p.polname = 'pgstate_operators' AND pg_has_role(o.role, 'USAGE')
    ), current_setting('server_version_num')::integer, current_setting('transaction_read_only') = 'off',
    EXISTS (SELECT 1 FROM pg_catalog.pg_extension e WHERE e.extname = 'citus');

-- name: plan_walls
-- Set the parameters of `wall.sql` in this transaction: roles that may see all tenants, roles that may list their
-- names, the tables that tenants share, the new forms of indexes, and whether rows were moved.
SELECT set_config('pgstate.operators', :operators::text, true), set_config('pgstate.workers', :workers::text, true),
    set_config('pgstate.of_no_tenant', (:of_no_tenant::text[])::text, true),
    set_config('pgstate.keys', :keys::text, true),
    set_config('pgstate.is_moving', CASE WHEN :is_moving::boolean THEN 'on' ELSE 'off' END, true);

-- name: list_keys
-- Return the indexes that must change in tables that do not keep tenants apart yet: table, index, constraint, and the
-- definitions of the constraint and of the index in their new form, which begins with the tenant.
SELECT c.relname::text, x.relname::text, k.conname::text,
    regexp_replace(pg_get_constraintdef(k.oid), E'\\(', '(pgstate_tenant, '),
    replace(
        regexp_replace(pg_get_indexdef(i.indexrelid), E'USING btree \\(', 'USING btree (pgstate_tenant, '),
        ' ON ONLY ', ' ON '
    )
FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
    JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
    JOIN pg_catalog.pg_am m ON m.oid = x.relam
    LEFT JOIN pg_catalog.pg_constraint k ON k.conindid = i.indexrelid AND k.contype IN ('p', 'u')
WHERE c.relnamespace = to_regnamespace(:schema::text) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND NOT c.relname::text = ANY(:of_no_tenant::text[]) AND NOT EXISTS (
        SELECT 1 FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'pgstate_tenant'
    )
    -- Leave out indexes that begin with an id and are not unique. If such an index began with the tenant, a planner
    -- without statistics could use the index to search by tenant alone.
    AND m.amname = 'btree' AND pg_get_indexdef(i.indexrelid, 1, true) <> 'pgstate_tenant'
    AND (i.indisunique OR NOT pg_get_indexdef(i.indexrelid) ~ E'USING btree \\(\\w*_id\\M')
ORDER BY c.relname, x.relname;
