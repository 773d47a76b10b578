-- name: list_slow_statements
-- Return the statements on the tables of a schema that took the most time in total, as pg_stat_statements has counted:
-- calls, milliseconds and rows.
SELECT left(regexp_replace(s.query, E'\\s+', ' ', 'g'), :length::integer), s.calls, s.total_exec_time,
    s.mean_exec_time, s.max_exec_time, s.rows
FROM /*schema*/pg_stat_statements s
WHERE s.dbid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
    AND s.query LIKE '%' || :tables::text || '%' AND s.query NOT LIKE '%pg_stat_statements%'
ORDER BY s.total_exec_time DESC
LIMIT :page_size;
