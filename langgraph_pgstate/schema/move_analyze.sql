-- Gathers statistics of a table, which is an example.
ANALYZE /*schema*/threads;
