-- name: find_missing_months
-- Return the months without a partition of spans, of this month and the next months.
SELECT to_char(month, 'YYYY_MM'), to_char(month, 'YYYY-MM-DD'), to_char(month + interval '1 month', 'YYYY-MM-DD')
FROM (
    SELECT date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => ahead) AS month
    FROM generate_series(0, :ahead::integer) AS ahead
) AS months
WHERE to_regclass(:prefix::text || to_char(month, 'YYYY_MM')) IS NULL
ORDER BY 1;

-- name: find_missing_days
-- Return the days without a partition of stream_batches, of this day and the next days.
SELECT to_char(day, 'YYYY_MM_DD'), to_char(day, 'YYYY-MM-DD'), to_char(day + interval '1 day', 'YYYY-MM-DD')
FROM (
    SELECT date_trunc('day', now() AT TIME ZONE 'UTC') + make_interval(days => ahead) AS day
    FROM generate_series(0, :ahead::integer) AS ahead
) AS days
WHERE to_regclass(:prefix::text || to_char(day, 'YYYY_MM_DD')) IS NULL
ORDER BY 1;

-- name: find_strayed_months
-- Return the months of the spans in the default partition.
SELECT DISTINCT to_char(date_trunc('month', started_at AT TIME ZONE 'UTC'), 'YYYY_MM'),
    to_char(date_trunc('month', started_at AT TIME ZONE 'UTC'), 'YYYY-MM-DD'),
    to_char(date_trunc('month', started_at AT TIME ZONE 'UTC') + interval '1 month', 'YYYY-MM-DD')
FROM /*schema*/spans_default ORDER BY 1;

-- name: find_strayed_days
-- Return the days of the batches in the default partition.
SELECT DISTINCT to_char(created_at AT TIME ZONE 'UTC', 'YYYY_MM_DD'),
    to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'),
    to_char((created_at AT TIME ZONE 'UTC') + interval '1 day', 'YYYY-MM-DD')
FROM /*schema*/stream_batches_default ORDER BY 1;

-- name: find_partition
-- Return the number (oid) of a partition, or null. A partition that is made again has another number.
SELECT to_regclass(:partition::text)::oid::bigint;

-- name: list_old_months
-- Return the partitions of spans that are entirely older than a number of months before this one.
SELECT c.relname::text
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass(:table::text) AND c.relname ~ '^spans_[0-9]{4}_[0-9]{2}$'
    AND to_date(right(c.relname, 7), 'YYYY_MM')
        < date_trunc('month', now() AT TIME ZONE 'UTC') - make_interval(months => :months::integer)
ORDER BY 1;

-- name: list_old_days
-- Return the partitions of stream_batches that ended a given time ago and have no batch of a run in the queue.
SELECT o.name
FROM (
    SELECT c.relname::text AS name, to_date(right(c.relname, 10), 'YYYY_MM_DD') AS day
    FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = to_regclass(:table::text) AND c.relname ~ '^stream_batches_[0-9]{4}_[0-9]{2}_[0-9]{2}$'
) AS o
WHERE (o.day + 1) AT TIME ZONE 'UTC' <= now() - make_interval(secs => :seconds::double precision) AND NOT EXISTS (
    SELECT 1 FROM /*schema*/queue q JOIN /*schema*/stream_batches b ON b.thread_id = q.thread_id AND b.run_id = q.run_id
    WHERE b.created_at >= o.day AT TIME ZONE 'UTC' AND b.created_at < (o.day + 1) AT TIME ZONE 'UTC'
)
ORDER BY 1;

-- name: get_lock_timeout
-- Return the session's lock timeout.
SELECT current_setting('lock_timeout');

-- name: set_lock_timeout
-- Set the transaction's lock timeout.
SELECT set_config('lock_timeout', :timeout::text, true);
