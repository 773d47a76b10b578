-- Removes the views and the comments.

DROP VIEW /*schema*/unknown_effects;
DROP VIEW /*schema*/waiting_threads;
DROP VIEW /*schema*/stuck_runs;

DO $$
DECLARE
    target text;
BEGIN
    FOR target IN
        SELECT CASE
            WHEN d.objsubid > 0 THEN format('COLUMN %s.%I', c.oid::regclass, a.attname)
            WHEN c.relkind = 'v' THEN format('VIEW %s', c.oid::regclass)
            ELSE format('TABLE %s', c.oid::regclass)
        END
        FROM pg_class c
            JOIN pg_description d ON d.classoid = 'pg_class'::regclass AND d.objoid = c.oid
            LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid
        WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = '/*schema*/threads'::regclass)
            AND c.relname IN (
                'answers', 'checkpoints', 'conversations', 'events', 'failed_runs', 'handoffs', 'journal', 'labels',
                'leases', 'messages', 'migrations', 'model_calls', 'prices', 'projections', 'provenance',
                'runaway_threads', 'runs', 'segments', 'spans', 'threads', 'tombstones', 'tool_calls',
                'tool_executions', 'tool_statistics', 'usage_by_day', 'writes'
            )
    LOOP
        EXECUTE format('COMMENT ON %s IS NULL', target);
    END LOOP;
END
$$;
