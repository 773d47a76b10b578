-- Adds the tenant column to a table. All present and new rows get its default: the tenant of all rows, or '*' for no
-- tenant.
DO $prepare$
DECLARE
    home pg_catalog.regnamespace := (
        SELECT c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = '/*schema*/threads'::regclass
    );
    rule jsonb := current_setting('pgstate.rule');
BEGIN
    EXECUTE format(
        'ALTER TABLE %s.%I ADD COLUMN pgstate_tenant text COLLATE pg_catalog."C" NOT NULL DEFAULT %L',
        home, current_setting('pgstate.relation'), coalesce(rule ->> 'tenant', '*')
    );
    IF current_setting('pgstate.relation') = 'threads' THEN
        EXECUTE format('COMMENT ON COLUMN %s.threads.pgstate_tenant IS %L', home, rule::text);
    END IF;
    INSERT INTO /*schema*/tenants (pgstate_tenant)
    SELECT rule ->> 'tenant' WHERE rule ->> 'tenant' IS NOT NULL ON CONFLICT DO NOTHING;
END
$prepare$;
