-- name: get_schedule_request
-- Return the arguments of a schedule's runs, and the current time.
-- opens: schedules.data
-- opens: schedules.metadata
SELECT s.queue, s.thread_id, s.timezone, s.options::text, s.data, s.metadata, s.thread_ttl, now()
FROM /*schema*/schedules s WHERE s.name = :name::text;

-- name: find_due_schedules
-- Return a page of the schedules whose next tick has come, after a cursor: those with an error last, so that they do not
-- fill the page, otherwise the longest due first.
SELECT s.last_error IS NOT NULL, s.next_at::text, s.name, s.cron, s.timezone, s.last_error FROM /*schema*/schedules s
WHERE s.next_at <= now() AND (s.last_error IS NOT NULL, s.next_at, s.name)
    > (:cursor_failed::boolean, :cursor_at::timestamptz, :cursor_name::text)
ORDER BY s.last_error IS NOT NULL, s.next_at, s.name LIMIT :page_size;

-- name: lock_due_schedule
-- Lock a schedule whose next tick has come. A locked schedule is skipped. Return the schedule and the current time.
-- opens: schedules.data
-- opens: schedules.metadata
SELECT s.queue, s.thread_id, s.cron, s.timezone, s.missed, s.options::text, s.data, s.next_at, s.end_at, s.metadata,
    s.thread_ttl, now()
FROM /*schema*/schedules s
WHERE s.name = :name::text AND s.next_at <= now()
FOR NO KEY UPDATE SKIP LOCKED;

-- name: move_schedule
-- Set the next tick of a schedule. If a tick was due, also set the run or the error of the tick.
UPDATE /*schema*/schedules SET
    next_at = :next_at::timestamptz, last_at = coalesce(:last_at::timestamptz, last_at),
    last_thread_id = coalesce(:thread_id::text, last_thread_id), last_run_id = coalesce(:run_id::text, last_run_id),
    last_error = CASE WHEN :last_at IS NULL THEN last_error ELSE :error::text END
WHERE name = :name::text;

-- name: set_schedule_error
-- Store the reason why this machine cannot fire a schedule. The schedule stays due for other machines.
UPDATE /*schema*/schedules SET last_error = :error::text
WHERE name = :name::text AND last_error IS DISTINCT FROM :error;
