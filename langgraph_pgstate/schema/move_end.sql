-- Validates the foreign keys that a move has made. Reads and writes go on meanwhile. The policies hide all rows from the
-- owner. Keys without the tenant, which the switch has replaced, had checked these rows.
DO $end$
DECLARE
    item record;
BEGIN
    PERFORM pg_catalog.set_config('pgstate.tenant', '*', true);
    FOR item IN
        SELECT k.conrelid::regclass::text AS name, k.conname FROM pg_catalog.pg_constraint k
        WHERE k.connamespace = (
                SELECT c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = '/*schema*/threads'::regclass
            ) AND k.contype = 'f' AND NOT k.convalidated AND k.conparentid = 0
    LOOP
        EXECUTE format('ALTER TABLE %s VALIDATE CONSTRAINT %I', item.name, item.conname);
    END LOOP;
END
$end$;
