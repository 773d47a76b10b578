-- name: get_time
-- Return the current time.
SELECT now();

-- name: put_schedule
-- Store a schedule, or replace the schedule of this name. A paused schedule stays paused unless `is_paused` is given.
-- The next tick is kept unless the expression or the time zone changes.
-- seals: schedules.data
-- seals: schedules.metadata
INSERT INTO /*schema*/schedules AS stored (
    name, graph, queue, thread_id, cron, timezone, missed, options, data, next_at, is_paused, end_at, thread_ttl,
    metadata, owner_id
) VALUES (
    :name::text, :graph::text, :queue::text, :thread_id::text, :cron::text, :timezone::text, :missed::text,
    :options::jsonb, :data::bytea, CASE WHEN :is_paused::boolean IS NOT TRUE THEN :next_at::timestamptz END,
    :is_paused IS TRUE, :end_at::timestamptz, :thread_ttl::interval, :metadata::jsonb, :owner_id::text
)
ON CONFLICT (name) DO UPDATE SET
    graph = excluded.graph, queue = excluded.queue, thread_id = excluded.thread_id, cron = excluded.cron,
    timezone = excluded.timezone, missed = excluded.missed, options = excluded.options, data = excluded.data,
    is_paused = coalesce(:is_paused, stored.is_paused), end_at = excluded.end_at, thread_ttl = excluded.thread_ttl,
    metadata = excluded.metadata, owner_id = excluded.owner_id,
    next_at = CASE
        WHEN coalesce(:is_paused, stored.is_paused) THEN NULL
        WHEN stored.cron = excluded.cron AND stored.timezone = excluded.timezone AND stored.next_at IS NOT NULL
        THEN CASE WHEN (stored.next_at > excluded.end_at) IS NOT TRUE THEN stored.next_at END
        ELSE :next_at END,
    updated_at = excluded.updated_at;

-- name: change_schedule
-- Change a schedule. Execute the query after `lock_schedule`.
-- seals: schedules.data
-- seals: schedules.metadata
UPDATE /*schema*/schedules SET
    queue = :queue::text, cron = :cron::text, timezone = :timezone::text, missed = :missed::text,
    options = :options::jsonb, data = :data::bytea, next_at = :next_at::timestamptz, is_paused = :is_paused::boolean,
    end_at = :end_at::timestamptz, thread_ttl = :thread_ttl::interval, metadata = :metadata::jsonb,
    owner_id = :owner_id::text, updated_at = now()
WHERE name = :name::text;

-- name: list_schedules
-- Return a page of schedules by name, after a cursor, or the schedule of one name.
-- opens: schedules.metadata
SELECT s.name, s.graph, s.queue, s.thread_id, s.cron, s.timezone, s.missed, s.next_at, s.last_at, s.last_thread_id,
    s.last_run_id, s.last_error, s.created_at, s.updated_at, s.is_paused, s.end_at, s.thread_ttl, s.metadata,
    s.options -> 'owner' ->> 'user_id'
FROM /*schema*/schedules s
WHERE s.name > :cursor_name::text COLLATE "C" AND (:name::text IS NULL OR s.name = :name)
    AND (:graph::text IS NULL OR s.graph = :graph)
ORDER BY s.name
LIMIT :page_size;

-- name: sort_schedules
-- Return schedules in the order of one column, from an offset, with the arguments of their runs.
-- matches: threads.metadata from thread_scope
-- opens: schedules.data
-- opens: schedules.metadata
-- matches: schedules.metadata from metadata
-- matches: schedules.metadata from scope
SELECT s.name, s.graph, s.queue, s.thread_id, s.cron, s.timezone, s.missed, s.next_at, s.last_at,
    s.last_thread_id, s.last_run_id, s.last_error, s.created_at, s.updated_at, s.is_paused, s.end_at,
    s.thread_ttl, s.metadata, s.options -> 'owner' ->> 'user_id', s.data
FROM /*schema*/schedules s
WHERE (:name::text IS NULL OR s.name = :name)
    AND (:graph::text IS NULL OR s.graph = :graph)
    AND (:thread_id::text IS NULL OR s.thread_id = :thread_id)
    AND (:is_paused::boolean IS NULL OR s.is_paused = :is_paused)
    AND (:metadata::jsonb IS NULL OR s.metadata @> :metadata)
    AND (:scope::text[] IS NULL OR s.metadata @> ANY(:scope::text[]::jsonb[]))
    AND (:owner_id::text IS NULL OR s.thread_id IS NOT NULL OR s.owner_id = :owner_id)
    AND (:thread_scope::text[] IS NULL OR s.thread_id IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = s.thread_id
            AND t.metadata @> ANY(:thread_scope::text[]::jsonb[])
    ))
ORDER BY
    CASE WHEN :ascending::boolean THEN CASE :by::text
        WHEN 'name' THEN s.name WHEN 'graph' THEN s.graph WHEN 'thread_id' THEN s.thread_id END END,
    CASE WHEN NOT :ascending THEN CASE :by
        WHEN 'name' THEN s.name WHEN 'graph' THEN s.graph WHEN 'thread_id' THEN s.thread_id END END DESC,
    CASE WHEN :ascending THEN CASE :by
        WHEN 'created_at' THEN s.created_at WHEN 'updated_at' THEN s.updated_at
        WHEN 'next_at' THEN s.next_at WHEN 'end_at' THEN s.end_at END END,
    CASE WHEN NOT :ascending THEN CASE :by
        WHEN 'created_at' THEN s.created_at WHEN 'updated_at' THEN s.updated_at
        WHEN 'next_at' THEN s.next_at WHEN 'end_at' THEN s.end_at END END DESC, s.name
LIMIT :page_size OFFSET :offset;

-- name: count_selected_schedules
-- Return the number of schedules that pass the filters of `sort_schedules`.
-- matches: threads.metadata from thread_scope
-- matches: schedules.metadata from metadata
-- matches: schedules.metadata from scope
SELECT count(*)
FROM /*schema*/schedules s
WHERE (:name::text IS NULL OR s.name = :name)
    AND (:graph::text IS NULL OR s.graph = :graph)
    AND (:thread_id::text IS NULL OR s.thread_id = :thread_id)
    AND (:is_paused::boolean IS NULL OR s.is_paused = :is_paused)
    AND (:metadata::jsonb IS NULL OR s.metadata @> :metadata)
    AND (:scope::text[] IS NULL OR s.metadata @> ANY(:scope::text[]::jsonb[]))
    AND (:owner_id::text IS NULL OR s.thread_id IS NOT NULL OR s.owner_id = :owner_id)
    AND (:thread_scope::text[] IS NULL OR s.thread_id IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/threads t WHERE t.thread_id = s.thread_id
            AND t.metadata @> ANY(:thread_scope::text[]::jsonb[])
    ));

-- name: lock_schedule
-- Lock a schedule whose metadata contain `scope`. Return the schedule and the current time.
-- opens: schedules.data
-- opens: schedules.metadata
-- matches: schedules.metadata from scope
SELECT s.queue, s.cron, s.timezone, s.missed, s.options::text, s.data, s.next_at, s.is_paused, s.end_at, s.thread_ttl,
    s.metadata, s.owner_id, now()
FROM /*schema*/schedules s
WHERE s.name = :name::text AND (:scope::text[] IS NULL OR s.metadata @> ANY(:scope::text[]::jsonb[]))
FOR NO KEY UPDATE;

-- name: set_next_tick
-- Pause a schedule, or set its next tick.
UPDATE /*schema*/schedules SET next_at = :next_at::timestamptz, is_paused = :is_paused::boolean, updated_at = now()
WHERE name = :name::text;

-- name: delete_schedule
-- Delete a schedule whose metadata contain `scope`.
-- matches: schedules.metadata from scope
DELETE FROM /*schema*/schedules
WHERE name = :name::text AND (:scope::text[] IS NULL OR metadata @> ANY(:scope::text[]::jsonb[]));

-- name: delete_schedules_of
-- Delete the schedules of a thread that clients of the server have created.
-- leaves: schedules.metadata
DELETE FROM /*schema*/schedules
WHERE thread_id = :thread_id::text AND (owner_id IS NOT NULL OR metadata ? 'assistant_id');
