-- Runs after a migration: restores the `search_path` of the session or of the caller's transaction.
SELECT set_config('search_path', current_setting('pgstate.search_path'), true);
