-- Locks all tables of tenants. Fails after the transaction's timeout, so that other transactions do not wait longer.
DO $lock$
BEGIN
    EXECUTE (
        SELECT 'LOCK TABLE ' || string_agg(c.oid::regclass::text, ', ' ORDER BY c.relname) || ' IN ACCESS EXCLUSIVE MODE'
        FROM pg_catalog.pg_class c
        WHERE c.relnamespace = (
                SELECT t.relnamespace FROM pg_catalog.pg_class t WHERE t.oid = '/*schema*/threads'::regclass
            ) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
            AND NOT c.relname::text = ANY(current_setting('pgstate.of_no_tenant')::text[])
    );
END
$lock$;
