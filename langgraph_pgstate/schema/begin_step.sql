-- Runs before a migration: until `end_step.sql`, operators and types are looked up only in `pg_catalog`.
SELECT
    set_config('pgstate.search_path', current_setting('search_path'), true),
    set_config('search_path', 'pg_catalog', true);
