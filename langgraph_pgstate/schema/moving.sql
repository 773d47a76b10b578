-- name: get_move
-- Return the rule of the move that was begun, as JSON; null if no move was begun.
SELECT col_description(a.attrelid, a.attnum) FROM pg_catalog.pg_attribute a
WHERE a.attrelid = to_regclass(:threads::text) AND a.attname = 'pgstate_tenant' AND NOT a.attisdropped;

-- name: find_missing_roles
-- Return names of roles that do not exist.
SELECT n.name FROM unnest(:names::text[]) AS n (name)
WHERE NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles r WHERE r.rolname = n.name);

-- name: find_shared_rows
-- Return tables with rows that cannot be divided among tenants, because they serve threads of several tenants.
SELECT 'data_keys' WHERE EXISTS (SELECT 1 FROM /*schema*/data_keys)
UNION ALL SELECT 'archives' WHERE EXISTS (SELECT 1 FROM /*schema*/archives)
UNION ALL SELECT 'event_chaining' WHERE EXISTS (SELECT 1 FROM /*schema*/event_chaining);

-- name: list_unprepared
-- Return the tables without a tenant column, the table of threads first.
SELECT c.relname::text FROM pg_catalog.pg_class c
WHERE c.relnamespace = to_regnamespace(:schema::text) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND NOT c.relname::text = ANY(:of_no_tenant::text[]) AND NOT EXISTS (
        SELECT 1 FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attname = 'pgstate_tenant' AND NOT a.attisdropped
    )
ORDER BY c.relname <> 'threads', c.relname;

-- name: list_moved_tables
-- Return the tables and partitions whose rows are moved, with their sizes in blocks. Tables from which other tables
-- take their tenants come first.
SELECT c.relname::text, pg_relation_size(c.oid) / current_setting('block_size')::integer FROM pg_catalog.pg_class c
WHERE c.relnamespace = to_regnamespace(:schema::text) AND c.relkind = 'r' AND c.relname <> 'tenants'
    AND NOT c.relname::text = ANY(:of_no_tenant::text[])
ORDER BY array_position(ARRAY['threads', 'memories', 'files', 'assistants'], c.relname::text), c.relname;

-- name: plan_move
-- Set the parameters of the next script of a move: its table and blocks, the rule, and whether this script is the last.
SELECT set_config('pgstate.relation', :relation::text, true), set_config('pgstate.first', :first::text, true),
    set_config('pgstate.following', :following::text, true), set_config('pgstate.rule', :rule::text, true),
    set_config('pgstate.is_last', CASE WHEN :is_last::boolean THEN 'on' ELSE 'off' END, true),
    set_config('pgstate.of_no_tenant', (:of_no_tenant::text[])::text, true),
    -- Scans and joins of whole tables are off, because a batch reads few rows.
    set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
    set_config('enable_mergejoin', 'off', true);

-- name: get_moved
-- Return the number of rows that got a tenant, and the number of rows for which the rule finds no tenant.
SELECT current_setting('pgstate.moved')::bigint, current_setting('pgstate.left')::bigint;

-- name: limit_wait
-- Limit the waits for locks, and how long one statement takes, within this transaction.
SELECT set_config('lock_timeout', :lock::text, true), set_config('statement_timeout', :statement::text, true);

-- name: list_built_keys
-- Return keys that a move must build: name, statement, size of the table in bytes, whether the key is complete, and
-- whether a process is building the key.
SELECT n.name, regexp_replace(
        k.making, E'^CREATE (UNIQUE )?INDEX ("[^"]*"|\\S+) ON \\S+ ',
        format(E'CREATE \\1INDEX CONCURRENTLY %I ON %s ', n.name, c.oid::regclass)
    ), pg_relation_size(c.oid), coalesce(i.indisvalid, false), EXISTS (
        SELECT 1 FROM pg_catalog.pg_stat_progress_create_index p WHERE p.index_relid = x.oid
    )
FROM unnest(:tables::text[], :makings::text[]) AS k (table_name, making)
    JOIN pg_catalog.pg_class t ON t.relnamespace = to_regnamespace(:schema::text) AND t.relname = k.table_name
    CROSS JOIN LATERAL (
        SELECT t.oid WHERE t.relkind = 'r' UNION ALL SELECT p.relid FROM pg_partition_tree(t.oid) AS p WHERE p.isleaf
    ) AS l
    JOIN pg_catalog.pg_class c ON c.oid = l.oid
    CROSS JOIN LATERAL (
        SELECT 'pgstate_move_' || left(encode(sha256(convert_to(c.relname || k.making, 'UTF8')), 'hex'), 24) AS name
    ) AS n
    LEFT JOIN pg_catalog.pg_class x ON x.relnamespace = t.relnamespace AND x.relname = n.name
    LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = x.oid
WHERE EXISTS (
        SELECT 1 FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attname = 'pgstate_tenant' AND NOT a.attisdropped
    )
ORDER BY c.relname, n.name;
