-- name: get_time
-- Return the time.
SELECT now();

-- name: put_schedule
-- Store a schedule. One of the same name is replaced; it stays paused if it is, and keeps its next tick unless its ticks
-- are other ones.
INSERT INTO /*schema*/schedules AS stored (
    name, graph, queue, thread_id, cron, timezone, missed, options, data, next_at
) VALUES (
    :name::text, :graph::text, :queue::text, :thread_id::text, :cron::text, :timezone::text, :missed::text,
    :options::jsonb, :data::bytea, :next_at::timestamptz
)
ON CONFLICT (name) DO UPDATE SET
    graph = excluded.graph, queue = excluded.queue, thread_id = excluded.thread_id, cron = excluded.cron,
    timezone = excluded.timezone, missed = excluded.missed, options = excluded.options, data = excluded.data,
    next_at = CASE
        WHEN stored.next_at IS NULL OR stored.cron = excluded.cron AND stored.timezone = excluded.timezone
        THEN stored.next_at ELSE excluded.next_at END,
    updated_at = excluded.updated_at;

-- name: list_schedules
-- Return a page of schedules by name, after a cursor, or those of one name.
SELECT s.name, s.graph, s.queue, s.thread_id, s.cron, s.timezone, s.missed, s.next_at, s.last_at, s.last_thread_id,
    s.last_run_id, s.last_error, s.created_at, s.updated_at
FROM /*schema*/schedules s
WHERE s.name > :cursor_name::text COLLATE "C" AND (:name::text IS NULL OR s.name = :name)
    AND (:graph::text IS NULL OR s.graph = :graph)
ORDER BY s.name
LIMIT :page_size;

-- name: get_schedule_request
-- Return what the runs of a schedule are to do, and the time.
SELECT s.queue, s.thread_id, s.timezone, s.options::text, s.data, now() FROM /*schema*/schedules s
WHERE s.name = :name::text;

-- name: lock_schedule
-- Lock a schedule until the transaction ends. Return its ticks, the next one, and the time.
SELECT s.cron, s.timezone, s.next_at, now() FROM /*schema*/schedules s WHERE s.name = :name::text FOR NO KEY UPDATE;

-- name: set_next_tick
-- Set the next tick of a schedule; none pauses it.
UPDATE /*schema*/schedules SET next_at = :next_at::timestamptz, updated_at = now() WHERE name = :name::text;

-- name: delete_schedule
-- Delete a schedule.
DELETE FROM /*schema*/schedules WHERE name = :name::text;

-- name: find_due_schedules
-- Return schedules whose next tick has come, the longest due first.
SELECT s.name FROM /*schema*/schedules s WHERE s.next_at <= now() ORDER BY s.next_at LIMIT :page_size;

-- name: lock_due_schedule
-- Lock a schedule until the transaction ends, and return it and the time, if its next tick has come and no other
-- transaction has locked it.
SELECT s.queue, s.thread_id, s.cron, s.timezone, s.missed, s.options::text, s.data, s.next_at, now()
FROM /*schema*/schedules s
WHERE s.name = :name::text AND s.next_at <= now()
FOR NO KEY UPDATE SKIP LOCKED;

-- name: move_schedule
-- Set the next tick of a schedule, and what came of the last one, unless it was skipped.
UPDATE /*schema*/schedules SET
    next_at = :next_at::timestamptz, last_at = coalesce(:last_at::timestamptz, last_at),
    last_thread_id = coalesce(:thread_id::text, last_thread_id), last_run_id = coalesce(:run_id::text, last_run_id),
    last_error = CASE WHEN :last_at IS NULL THEN last_error ELSE :error::text END
WHERE name = :name::text;
