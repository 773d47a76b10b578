-- Makes what the walls between tenants need: a function that raises an error, and a table of tenants. Idempotent.
CREATE OR REPLACE FUNCTION /*schema*/no_tenant() RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS $function$
BEGIN
    RAISE EXCEPTION 'no tenant is named, and the tables of this schema keep tenants apart' USING
        ERRCODE = 'insufficient_privilege', CONSTRAINT = 'pgstate_tenant',
        HINT = 'Begin the transaction with: SELECT set_config(''pgstate.tenant'', ''the tenant'', true)';
END
$function$;
COMMENT ON FUNCTION /*schema*/no_tenant() IS 'Raises: the transaction names no tenant in its setting pgstate.tenant.';
-- A tenant is stored at its first use. Workers and `maintain` list the tenants, and work for each in turn.
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
    -- Roles that may already use the schema's threads may use this table, too.
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
-- Finds work in the queues of tenants, for workers of all tenants. Returns no content.
CREATE OR REPLACE FUNCTION /*schema*/find_work(tenants text[], queues text[], graphs text[], adopts boolean)
RETURNS TABLE (
    tenant text, is_ready boolean, seconds double precision, webhook_seconds double precision, worker_ids text[]
) LANGUAGE plpgsql AS $function$
#variable_conflict use_column
DECLARE
    running_at timestamptz;
    adopted_at timestamptz;
BEGIN
    FOREACH tenant IN ARRAY tenants LOOP
        PERFORM pg_catalog.set_config('pgstate.tenant', tenant, true);
        SELECT array_agg(DISTINCT q.worker_id), min(CASE WHEN l.holder_id IS NULL THEN now() ELSE l.expires_at END)
            INTO worker_ids, running_at
        FROM /*schema*/queue q
            LEFT JOIN /*schema*/leases l ON l.thread_id = q.thread_id AND l.fencing_token = q.fencing_token
        WHERE q.status = 'running';
        IF adopts THEN
            SELECT min(coalesce(r.alive_until, now())) INTO adopted_at
            FROM /*schema*/runs r WHERE r.status = 'running' AND r.queue IS NULL;
        END IF;
        SELECT
            EXISTS (
                SELECT 1 FROM /*schema*/queue q
                WHERE q.is_ready AND q.status = 'pending' AND NOT q.is_limited
                    AND q.queue = ANY(find_work.queues) AND q.graph = ANY(find_work.graphs)
            ) OR EXISTS (
                SELECT 1 FROM /*schema*/queue q
                WHERE q.is_limited AND q.queue = ANY(find_work.queues) AND q.graph = ANY(find_work.graphs)
            ),
            extract(epoch FROM least(
                running_at, adopted_at,
                (SELECT min(q.run_after) FROM /*schema*/queue q WHERE q.run_after IS NOT NULL),
                (SELECT min(s.next_at) FROM /*schema*/schedules s WHERE s.next_at IS NOT NULL),
                (
                    SELECT min(d.answer_at) FROM /*schema*/run_requests d
                    WHERE d.answer_at IS NOT NULL AND d.options ->> 'graph' = ANY(find_work.graphs)
                ),
                (
                    SELECT min(r.delete_at) FROM /*schema*/runs r
                    WHERE r.delete_at IS NOT NULL AND NOT EXISTS (
                        SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = r.thread_id
                    )
                )
            ) - now()),
            extract(epoch FROM (
                SELECT min(w.deliver_after) FROM /*schema*/webhooks w WHERE w.deliver_after IS NOT NULL
            ) - now())
            INTO is_ready, seconds, webhook_seconds;
        worker_ids := coalesce(worker_ids, '{}');
        IF is_ready OR seconds IS NOT NULL OR webhook_seconds IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
    PERFORM pg_catalog.set_config('pgstate.tenant', '*', true);
END
$function$;
COMMENT ON FUNCTION /*schema*/find_work(text[], text[], text[], boolean) IS
    'For each of some tenants: whether runs can be claimed, and when other work of workers is due.';
