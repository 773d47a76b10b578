-- name: note_maintenance
-- Store the results of maintenance, with the bytes of the tables. Delete rows that are older than 400 days.
WITH old AS (
    DELETE FROM /*schema*/maintenance WHERE maintained_at < now() - interval '400 days'
), measured AS MATERIALIZED (
    SELECT now() AS at, coalesce(jsonb_object_agg(s.name, s.bytes), '{}') AS sizes
    FROM (
        SELECT coalesce(p.relname, c.relname) AS name, sum(coalesce(pg_total_relation_size(c.oid), 0)) AS bytes
        FROM pg_catalog.pg_class c
            LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
            LEFT JOIN pg_catalog.pg_class p ON p.oid = i.inhparent
        WHERE c.relnamespace = to_regnamespace(:schema::text) AND c.relkind = 'r'
        GROUP BY 1
    ) AS s
)
INSERT INTO /*schema*/maintenance (maintained_at, seconds, report, sizes)
SELECT m.at, :seconds::double precision, :report::jsonb, m.sizes FROM measured m
ON CONFLICT (maintained_at) DO NOTHING;

-- name: list_maintenance
-- Return the latest results of maintenance, newest first.
SELECT m.maintained_at, m.seconds, m.report, m.sizes FROM /*schema*/maintenance m
ORDER BY m.maintained_at DESC LIMIT :page_size;
