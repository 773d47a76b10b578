-- Makes what walls between tenants need: an error, and a table of the tenants. Idempotent.
CREATE OR REPLACE FUNCTION /*schema*/no_tenant() RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS $function$
BEGIN
    RAISE EXCEPTION 'no tenant is named, and the tables of this schema keep tenants apart' USING
        ERRCODE = 'insufficient_privilege', CONSTRAINT = 'pgstate_tenant',
        HINT = 'Begin the transaction with: SELECT set_config(''pgstate.tenant'', ''the tenant'', true)';
END
$function$;
COMMENT ON FUNCTION /*schema*/no_tenant() IS 'Raises: the transaction names no tenant in its setting pgstate.tenant.';
-- Tenants are known from their first use. Workers and maintain, which work for one tenant after the other, list them.
CREATE TABLE IF NOT EXISTS /*schema*/tenants (
    pgstate_tenant text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pgstate_tenant)
);
COMMENT ON TABLE /*schema*/tenants IS 'The tenants that were ever named. Each sees its own row.';
COMMENT ON COLUMN /*schema*/tenants.pgstate_tenant IS 'name of the tenant';
COMMENT ON COLUMN /*schema*/tenants.created_at IS 'time it was named first';
DO $grants$
DECLARE
    item record;
BEGIN
    -- Whoever may use threads of a schema that has roles already.
    FOR item IN
        SELECT t.oid::regclass::text AS name, coalesce(nullif(quote_ident(r.rolname), ''), 'PUBLIC') AS role,
            string_agg(g.privilege_type, ', ') AS privileges
        FROM pg_catalog.pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS g
            JOIN pg_catalog.pg_class t ON t.oid = '/*schema*/tenants'::regclass
            LEFT JOIN pg_catalog.pg_roles r ON r.oid = g.grantee
        WHERE c.oid = '/*schema*/threads'::regclass AND g.grantee <> c.relowner
            AND g.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
            AND NOT EXISTS (
                SELECT FROM aclexplode(t.relacl) AS h
                WHERE h.grantee = g.grantee AND h.privilege_type = g.privilege_type
            )
        GROUP BY t.oid, r.rolname
    LOOP
        EXECUTE format('GRANT %s ON %s TO %s', item.privileges, item.name, item.role);
    END LOOP;
END
$grants$;
