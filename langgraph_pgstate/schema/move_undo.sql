-- Undoes a move that has not ended: drops the tenant columns, and with them the keys that begin with the tenant.
DO $undo$
DECLARE
    item record;
BEGIN
    FOR item IN
        SELECT c.oid::regclass::text AS name FROM pg_catalog.pg_class c
            JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = 'pgstate_tenant' AND NOT a.attisdropped
        WHERE c.relnamespace = (
                SELECT t.relnamespace FROM pg_catalog.pg_class t WHERE t.oid = '/*schema*/threads'::regclass
            ) AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'tenants'
        ORDER BY c.relname = 'threads', c.relname
    LOOP
        EXECUTE format('ALTER TABLE %s DROP COLUMN pgstate_tenant', item.name);
    END LOOP;
END
$undo$;
DROP TABLE IF EXISTS /*schema*/tenants;
DROP FUNCTION IF EXISTS /*schema*/no_tenant();
