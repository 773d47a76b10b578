-- name: get_walls
-- Return whether the tables keep tenants apart, whether the role passes walls, the server's version, and whether this
-- transaction may write.
SELECT EXISTS (
        SELECT 1 FROM pg_catalog.pg_class c
        WHERE c.oid = to_regclass(:threads::text) AND c.relrowsecurity AND c.relforcerowsecurity
    ), EXISTS (
        SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname = current_user AND (r.rolsuper OR r.rolbypassrls)
    ) OR EXISTS (
        SELECT 1 FROM pg_catalog.pg_policy p CROSS JOIN LATERAL unnest(p.polroles) AS o (role)
        WHERE p.polrelid = to_regclass(:threads) AND p.polname = 'pgstate_operators' AND pg_has_role(o.role, 'USAGE')
    ), current_setting('server_version_num')::integer, current_setting('transaction_read_only') = 'off';

-- name: plan_walls
-- Name roles that are to see all tenants, or their names, and the tables that tenants share, for the walls that this
-- transaction makes.
SELECT set_config('pgstate.operators', :operators::text, true), set_config('pgstate.workers', :workers::text, true),
    set_config('pgstate.of_no_tenant', (:of_no_tenant::text[])::text, true);
