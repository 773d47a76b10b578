-- Sets the tenants of those rows of a table that have none yet, in some blocks or in all. Locked rows are left out.
DO $move$
DECLARE
    home pg_catalog.regnamespace := (
        SELECT c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = '/*schema*/threads'::regclass
    );
    plain_name text := current_setting('pgstate.relation');
    relation pg_catalog.regclass := format('%s.%I', home, plain_name);
    rule jsonb := current_setting('pgstate.rule');
    source text := rule ->> 'tenant_from';
    path text := quote_literal((string_to_array(source, '.'))[2:]);
    part integer := rule ->> 'namespace_part';
    is_last boolean := current_setting('pgstate.is_last') = 'on';
    first text := current_setting('pgstate.first');
    columns text[] := ARRAY(
        SELECT a.attname::text FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped
    );
    place text := '';
    -- Tenants that come from other rows. Such a tenant is '*' until the other row has a tenant.
    others text[] := '{}';
    -- Tenants that come from the row itself. An application wrote them, so some may not be valid names of tenants.
    own text[] := '{}';
    otherwise text := quote_nullable(rule ->> 'otherwise');
    own_one text;
    moved bigint;
    remaining bigint;
BEGIN
    IF columns @> '{namespace,key}' AND plain_name <> 'memories' THEN
        others := others || format(
            '(SELECT m.pgstate_tenant FROM %s.memories m WHERE m.namespace = r.namespace AND m.key = r.key)', home
        );
    ELSIF columns @> '{namespace,path}' AND plain_name <> 'files' THEN
        others := others || format(
            '(SELECT f.pgstate_tenant FROM %s.files f WHERE f.namespace = r.namespace AND f.path = r.path)', home
        );
    ELSIF plain_name = 'large_namespaces' THEN
        others := others || format(
            '(SELECT pg_catalog.max(m.pgstate_tenant) FROM %s.memories m WHERE m.namespace = r.namespace)', home
        );
    ELSIF plain_name = 'assistant_versions' THEN
        others := others || format(
            '(SELECT a.pgstate_tenant FROM %s.assistants a WHERE a.assistant_id = r.assistant_id)', home
        );
    END IF;
    IF columns @> '{namespace}' AND part IS NOT NULL THEN
        own := own || format('r.namespace[%s]', part);
    END IF;
    IF columns @> '{thread_id}' AND plain_name <> 'threads' AND own = '{}' THEN
        others := others || format('(SELECT t.pgstate_tenant FROM %s.threads t WHERE t.thread_id = r.thread_id)', home);
    ELSIF columns @> '{thread_id}' AND plain_name <> 'threads' THEN
        own := own || format(
            '(SELECT nullif(t.pgstate_tenant, ''*'') FROM %s.threads t WHERE t.thread_id = r.thread_id)', home
        );
    ELSIF plain_name = 'files' THEN
        own := own || format(
            '(SELECT nullif(t.pgstate_tenant, ''*'') FROM %1$s.file_versions v JOIN %1$s.threads t USING (thread_id) '
                'WHERE v.namespace = r.namespace AND v.path = r.path ORDER BY v.version DESC LIMIT 1)', home
        );
    END IF;
    IF source = 'user_id' AND columns && '{user_id,owner_id}' THEN
        own := own || CASE WHEN columns @> '{user_id}' THEN 'r.user_id' ELSE 'r.owner_id' END;
    ELSIF source = 'tenant_id' AND columns @> '{tenant_id}' THEN
        own := own || 'r.tenant_id'::text;
    ELSIF source LIKE 'metadata.%' AND columns @> '{metadata}' THEN
        own := own || format('r.metadata OPERATOR(pg_catalog.#>>) %s', path);
    ELSIF source LIKE 'metadata.%' AND plain_name = 'assistants' THEN
        own := own || format(
            '(SELECT v.metadata OPERATOR(pg_catalog.#>>) %s FROM %s.assistant_versions v '
                'WHERE v.assistant_id = r.assistant_id AND v.version = r.version)', path, home
        );
    ELSIF plain_name = 'budgets' THEN
        own := own || format('CASE WHEN r.scope || ''_id'' = %L THEN r.name END', source);
    END IF;
    IF plain_name = 'schedules' THEN
        own := own || format('r.options OPERATOR(pg_catalog.#>>) ARRAY[''owner'', %L]', source);
    END IF;
    FOREACH own_one IN ARRAY own LOOP
        others := others || format(
            '(SELECT o.name FROM (SELECT %s) AS o (name) WHERE pg_catalog.octet_length(o.name) BETWEEN 1 AND 64 AND o.name <> ''*'')',
            own_one
        );
    END LOOP;
    -- Before the last step, rows of a new thread wait, because the thread may get its tenant a moment later.
    IF NOT is_last AND columns @> '{thread_id}' THEN
        otherwise := CASE
            WHEN columns @> '{created_at}' THEN
                format('CASE WHEN r.created_at < pg_catalog.now() - interval ''1 hour'' THEN %s END', otherwise)
            ELSE 'NULL'
        END;
    END IF;
    IF first <> '' THEN
        place := format(
            ' AND r.ctid >= %L::tid AND r.ctid < %L::tid', format('(%s,0)', first),
            format('(%s,0)', current_setting('pgstate.following'))
        );
    END IF;
    EXECUTE format(
        $update$
        WITH chosen AS MATERIALIZED (
            SELECT r.ctid AS place, coalesce(%s) AS tenant FROM %s r WHERE r.pgstate_tenant = '*'%s
            FOR UPDATE OF r SKIP LOCKED
        ), known AS (
            INSERT INTO /*schema*/tenants (pgstate_tenant)
            SELECT DISTINCT c.tenant FROM chosen c WHERE c.tenant <> '*' ON CONFLICT DO NOTHING
        ), changed AS (
            UPDATE %s r SET pgstate_tenant = c.tenant FROM chosen c WHERE r.ctid = c.place AND c.tenant <> '*'
            RETURNING 1
        )
        SELECT (SELECT count(*) FROM changed), (SELECT count(*) FROM chosen c WHERE c.tenant IS NULL)
        $update$,
        concat_ws(', ', nullif(array_to_string(others, ', '), ''), otherwise, 'NULL'), relation, place, relation
    ) INTO moved, remaining;
    IF plain_name IN ('exporters', 'leases', 'queue_keys', 'tombstones', 'workers') THEN
        -- Processes without a tenant wrote these rows. The last script deletes the rows, because processes with a
        -- tenant write their own rows.
        remaining := 0;
        IF is_last THEN
            EXECUTE format('DELETE FROM %s WHERE pgstate_tenant = ''*''', relation);
        END IF;
    ELSIF is_last THEN
        EXECUTE format('SELECT count(*) FROM %s WHERE pgstate_tenant = ''*''', relation) INTO remaining;
    END IF;
    PERFORM set_config('pgstate.moved', moved::text, true), set_config('pgstate.left', remaining::text, true);
END
$move$;
