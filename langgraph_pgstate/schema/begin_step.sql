-- Before a migration: look for operators and types in `pg_catalog` alone until it ends, whatever the session's path.
SELECT
    set_config('pgstate.search_path', current_setting('search_path'), true),
    set_config('search_path', 'pg_catalog', true);
