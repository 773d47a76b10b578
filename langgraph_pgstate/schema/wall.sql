-- Walls tenants off from each other, in all tables of the schema. Idempotent; run by setup, and for each table that is
-- made later. A table without a tenant column must be empty. Settings name roles and the tables that tenants share.
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
DO $wall$
DECLARE
    home pg_catalog.regnamespace := (
        SELECT c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = '/*schema*/threads'::regclass
    );
    given text := 'pg_catalog.current_setting(''pgstate.tenant'', true)';
    -- The sub-select is evaluated once, and the comparison is one that an index answers.
    named text := format('coalesce(nullif(%s, ''''), %s.no_tenant())', given, home);
    own text := format('pgstate_tenant OPERATOR(pg_catalog.=) (SELECT %s)', named);
    -- Neither '' nor '*' is a tenant.
    written text := format('pgstate_tenant OPERATOR(pg_catalog.=) (SELECT nullif(nullif(%s, ''''), ''*''))', given);
    owner text := (
        SELECT quote_ident(pg_get_userbyid(c.relowner)) FROM pg_catalog.pg_class c
        WHERE c.oid = '/*schema*/threads'::regclass
    );
    operators text;
    listers text;
    keys text[] := '{}';
    has_rows boolean;
    item record;
    part record;
BEGIN
    SELECT string_agg(DISTINCT quote_ident(o.name), ', ') INTO operators FROM (
        SELECT pg_get_userbyid(r.role)::text AS name
        FROM pg_catalog.pg_policy p CROSS JOIN LATERAL unnest(p.polroles) AS r (role)
        WHERE p.polrelid = '/*schema*/threads'::regclass AND p.polname = 'pgstate_operators'
        UNION ALL
        SELECT jsonb_array_elements_text(current_setting('pgstate.operators')::jsonb)
    ) AS o;
    SELECT string_agg(DISTINCT quote_ident(o.name), ', ') INTO listers FROM (
        SELECT pg_get_userbyid(r.role)::text AS name
        FROM pg_catalog.pg_policy p CROSS JOIN LATERAL unnest(p.polroles) AS r (role)
        WHERE p.polrelid = '/*schema*/tenants'::regclass AND p.polname = 'pgstate_workers'
        UNION ALL
        SELECT jsonb_array_elements_text(current_setting('pgstate.workers')::jsonb)
    ) AS o;
    FOR item IN
        SELECT c.oid, c.oid::regclass::text AS name FROM pg_catalog.pg_class c
        WHERE c.relnamespace = home AND c.relkind IN ('r', 'p') AND NOT c.relispartition
            AND NOT c.relname::text = ANY(current_setting('pgstate.of_no_tenant')::text[]) AND NOT EXISTS (
                SELECT 1 FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'pgstate_tenant'
            )
        ORDER BY c.relname
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', item.name) INTO has_rows;
        IF has_rows THEN
            RAISE EXCEPTION 'table % has rows of no tenant', item.name USING
                ERRCODE = 'object_not_in_prerequisite_state', CONSTRAINT = 'pgstate_tenant';
        END IF;
        -- References first: they hold the keys that they point to.
        FOR part IN
            SELECT k.conname, k.conrelid::regclass::text AS referrer, regexp_replace(
                pg_get_constraintdef(k.oid), '(FOREIGN KEY |REFERENCES [^(]*)\(', '\1(pgstate_tenant, ', 'g'
            ) AS definition
            FROM pg_catalog.pg_constraint k WHERE k.confrelid = item.oid AND k.contype = 'f' AND k.conparentid = 0
        LOOP
            EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', part.referrer, part.conname);
            keys := keys || format(
                'ALTER TABLE %s ADD CONSTRAINT %I %s', part.referrer, part.conname, part.definition
            );
        END LOOP;
        EXECUTE format('ALTER TABLE %s ADD COLUMN pgstate_tenant text COLLATE pg_catalog."C" NOT NULL', item.name);
        EXECUTE format(
            'COMMENT ON COLUMN %s.pgstate_tenant IS %L', item.name,
            'tenant whose row it is, by the setting of the transaction that made it; only its transactions see it'
        );
        FOR part IN
            SELECT k.conname, i.indexrelid::regclass::text AS name,
                regexp_replace(pg_get_constraintdef(k.oid), '\(', '(pgstate_tenant, ') AS definition,
                replace(
                    regexp_replace(pg_get_indexdef(i.indexrelid), 'USING btree \(', 'USING btree (pgstate_tenant, '),
                    ' ON ONLY ', ' ON '
                ) AS making
            FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
                JOIN pg_catalog.pg_am m ON m.oid = c.relam
                LEFT JOIN pg_catalog.pg_constraint k ON k.conindid = i.indexrelid AND k.contype IN ('p', 'u')
            -- An index that begins with an id is selective without the tenant. With it, the planner would take each
            -- such index for one by tenant, as long as it has no statistics.
            WHERE i.indrelid = item.oid AND m.amname = 'btree'
                AND (i.indisunique OR NOT pg_get_indexdef(i.indexrelid) ~ 'USING btree \(\w*_id\M')
        LOOP
            IF part.conname IS NULL THEN
                EXECUTE format('DROP INDEX %s', part.name);
                EXECUTE part.making;
            ELSE
                EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', item.name, part.conname);
                EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I %s', item.name, part.conname, part.definition);
            END IF;
        END LOOP;
    END LOOP;
    FOR item IN SELECT unnest(keys) AS making LOOP
        EXECUTE item.making;
    END LOOP;
    -- Policies last: a key that is made would see no row.
    FOR item IN
        SELECT c.oid::regclass::text AS name, c.relforcerowsecurity AS is_forced,
            EXISTS (
                SELECT 1 FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'pgstate_tenant'
            ) AS has_policy,
            EXISTS (
                SELECT 1 FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'pgstate_operators'
            ) AS has_operators
        FROM pg_catalog.pg_class c
        WHERE c.relnamespace = home AND c.relkind IN ('r', 'p')
            AND NOT c.relname::text = ANY(current_setting('pgstate.of_no_tenant')::text[])
        ORDER BY c.relname
    LOOP
        IF NOT item.has_policy THEN
            EXECUTE format('ALTER TABLE %s ALTER COLUMN pgstate_tenant SET DEFAULT %s', item.name, given);
            EXECUTE format(
                'CREATE POLICY pgstate_tenant ON %s USING (%s) WITH CHECK (%s)',
                item.name, own, written
            );
        END IF;
        IF NOT item.has_policy OR NOT item.is_forced THEN
            EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', item.name);
        END IF;
        IF operators IS NOT NULL THEN
            IF item.has_operators THEN
                EXECUTE format('ALTER POLICY pgstate_operators ON %s TO %s', item.name, operators);
            ELSE
                EXECUTE format(
                    'CREATE POLICY pgstate_operators ON %s TO %s USING (true) WITH CHECK '
                        '(pgstate_tenant OPERATOR(pg_catalog.<>) ALL (ARRAY[''*'', '''']))',
                    item.name, operators
                );
            END IF;
        END IF;
    END LOOP;
    IF EXISTS (
        SELECT 1 FROM pg_catalog.pg_policy p
        WHERE p.polrelid = '/*schema*/tenants'::regclass AND p.polname = 'pgstate_workers'
    ) THEN
        EXECUTE format('ALTER POLICY pgstate_workers ON %s.tenants TO %s', home, listers);
    ELSE
        EXECUTE format(
            'CREATE POLICY pgstate_workers ON %s.tenants FOR SELECT TO %s USING ((SELECT %s) OPERATOR(pg_catalog.=) ''*'')',
            home, concat_ws(', ', owner, listers), given
        );
    END IF;
    FOR item IN
        SELECT c.oid::regclass::text AS name FROM pg_catalog.pg_class c
        WHERE c.relnamespace = home AND c.relkind = 'v'
            AND NOT coalesce(c.reloptions, '{}') @> '{security_invoker=true}'::text[]
    LOOP
        EXECUTE format('ALTER VIEW %s SET (security_invoker = true)', item.name);
    END LOOP;
END
$wall$;
