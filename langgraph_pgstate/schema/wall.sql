-- Adds row-level security (walls between tenants) to all tables of the schema. Idempotent; runs in setup, for each
-- table that is made later, and at the end of a move to tenants. Tables without a tenant column must be empty.
-- `plan_walls` sets the parameters.
DO $wall$
DECLARE
    home pg_catalog.regnamespace := (
        SELECT c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = '/*schema*/threads'::regclass
    );
    given text := 'pg_catalog.current_setting(''pgstate.tenant'', true)';
    -- Policies read the setting in a sub-select, which PostgreSQL evaluates only once. So an index can serve the
    -- comparison.
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
    is_moving boolean := current_setting('pgstate.is_moving') = 'on';
    references_of text[] := '{}';
    has_rows boolean;
    item record;
    part record;
    leaf record;
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
        SELECT c.oid, c.oid::regclass::text AS name, c.relname::text AS plain_name, c.relkind, EXISTS (
                SELECT 1 FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND a.attname = 'pgstate_tenant' AND NOT a.attisdropped
            ) AS has_column
        FROM pg_catalog.pg_class c
        WHERE c.relnamespace = home AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'tenants'
            AND NOT c.relname::text = ANY(current_setting('pgstate.of_no_tenant')::text[]) AND NOT EXISTS (
                SELECT 1 FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'pgstate_tenant'
            )
        ORDER BY c.relname
    LOOP
        IF item.has_column AND NOT is_moving THEN
            RAISE EXCEPTION 'the rows of this schema are being moved to tenants' USING
                ERRCODE = 'object_not_in_prerequisite_state', CONSTRAINT = 'pgstate_tenant';
        END IF;
        IF NOT item.has_column THEN
            EXECUTE format('SELECT EXISTS (SELECT FROM %s)', item.name) INTO has_rows;
            IF has_rows THEN
                RAISE EXCEPTION 'table % has rows of no tenant', item.name USING
                    ERRCODE = 'object_not_in_prerequisite_state', CONSTRAINT = 'pgstate_tenant';
            END IF;
        END IF;
        -- Foreign keys are replaced first, because keys to which they refer cannot be dropped.
        FOR part IN
            SELECT k.conname, k.conrelid::regclass::text AS referrer, regexp_replace(
                pg_get_constraintdef(k.oid), E'(FOREIGN KEY |REFERENCES [^(]*)\\(', E'\\1(pgstate_tenant, ', 'g'
            ) AS definition
            FROM pg_catalog.pg_constraint k WHERE k.confrelid = item.oid AND k.contype = 'f' AND k.conparentid = 0
        LOOP
            EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', part.referrer, part.conname);
            references_of := references_of || format(
                'ALTER TABLE %s ADD CONSTRAINT %I %s%s', part.referrer, part.conname,
                regexp_replace(part.definition, ' NOT VALID$', ''), CASE WHEN is_moving THEN ' NOT VALID' ELSE '' END
            );
        END LOOP;
        IF NOT item.has_column THEN
            EXECUTE format('ALTER TABLE %s ADD COLUMN pgstate_tenant text COLLATE pg_catalog."C" NOT NULL', item.name);
        END IF;
        EXECUTE format(
            'COMMENT ON COLUMN %s.pgstate_tenant IS %L', item.name,
            'tenant of the row, from the setting of the transaction that stored it; only its transactions see the row'
        );
        FOR part IN
            SELECT k.* FROM jsonb_to_recordset(current_setting('pgstate.keys')::jsonb) AS k (
                table_name text, index_name text, conname text, definition text, making text
            )
            WHERE k.table_name = item.plain_name
        LOOP
            IF part.conname IS NULL THEN
                EXECUTE format('DROP INDEX %s.%I', home, part.index_name);
            ELSE
                EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', item.name, part.conname);
            END IF;
            -- Use the indexes that a move has built. The index of a partitioned table, made below, takes over the
            -- indexes of its partitions.
            FOR leaf IN
                SELECT c.oid::regclass::text AS name, i.indexrelid::regclass::text AS built,
                    c.relname || substr(part.index_name, length(item.plain_name) + 1) AS index_name
                FROM (
                    SELECT item.oid AS relid WHERE item.relkind = 'r'
                    UNION ALL
                    SELECT t.relid FROM pg_partition_tree(item.oid) AS t WHERE t.isleaf
                ) AS t
                    JOIN pg_catalog.pg_class c ON c.oid = t.relid
                    JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisvalid
                    JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
                WHERE is_moving AND x.relname = 'pgstate_move_' || left(
                        encode(sha256(convert_to(c.relname || part.making, 'UTF8')), 'hex'), 24
                    )
            LOOP
                IF part.conname IS NULL THEN
                    EXECUTE format('ALTER INDEX %s RENAME TO %I', leaf.built, leaf.index_name);
                ELSE
                    EXECUTE format(
                        'ALTER TABLE %s ADD CONSTRAINT %I %s USING INDEX %s', leaf.name, leaf.index_name,
                        regexp_replace(part.definition, E' \\(.*', ''), regexp_replace(leaf.built, E'^.*\\.', '')
                    );
                END IF;
            END LOOP;
            IF to_regclass(format('%s.%I', home, part.index_name)) IS NOT NULL THEN
                CONTINUE;
            ELSIF part.conname IS NULL THEN
                EXECUTE part.making;
            ELSE
                EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I %s', item.name, part.conname, part.definition);
            END IF;
        END LOOP;
    END LOOP;
    FOR item IN SELECT unnest(references_of) AS making LOOP
        EXECUTE item.making;
    END LOOP;
    -- Make the policies last. Under policies, the build of a key would see no rows.
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
