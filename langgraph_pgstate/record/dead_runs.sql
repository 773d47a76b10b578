-- name: find_running
-- Return the running runs of some threads, with the id of their process and whether its time limit (`alive_until`) has
-- passed.
SELECT thread_id, run_id, holder_id, coalesce(alive_until < now(), true)
FROM /*schema*/runs WHERE thread_id = ANY(:thread_ids::text[]) AND status = 'running';

-- name: list_running
-- Return a page of all running runs, by thread id and run id.
SELECT thread_id, run_id, holder_id, coalesce(alive_until < now(), true)
FROM /*schema*/runs
WHERE status = 'running' AND (thread_id, run_id) > (:cursor_thread_id::text, :cursor_run_id::text)
ORDER BY thread_id, run_id LIMIT :page_size;

-- name: find_wrongly_busy
-- Return a page of the threads that are `busy` although no run is running or in the queue, after a cursor. Leave out
-- archived threads.
SELECT t.thread_id FROM /*schema*/threads t
WHERE t.status = 'busy' AND t.archived_at IS NULL AND t.thread_id > :cursor_thread::text
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/runs r WHERE r.thread_id = t.thread_id AND r.status IN ('running', 'pending')
    )
    AND NOT EXISTS (SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = t.thread_id)
ORDER BY t.thread_id LIMIT :page_size;

-- name: settle_runs
-- End the given runs of a thread whose process has died, with their spans, and return the ended runs. Enqueued runs are
-- left out, because another worker resumes them.
-- leaves: events.payload
-- leaves: runs.error_message
-- leaves: spans.error_message
WITH dead AS (
    UPDATE /*schema*/runs SET
        status = 'error', ended_at = least(now(), alive_until), alive_until = NULL,
        error_type = 'ProcessDied', error_message = 'the process that ran it has died'
    FROM unnest(:run_ids::text[], :holder_ids::text[]) AS given (run_id, holder_id)
    WHERE runs.thread_id = :thread_id AND runs.run_id = given.run_id
        AND coalesce(runs.holder_id, '') = given.holder_id AND runs.status = 'running' AND runs.queue IS NULL
        AND (runs.run_id = ANY(:known_dead::text[]) OR (runs.alive_until < now()) IS NOT FALSE)
        AND NOT EXISTS (
            -- Leave out a run whose end is in the journal and was not moved to `runs` yet.
            SELECT 1 FROM /*schema*/journal j
            WHERE j.thread_id = :thread_id AND j.run_id = runs.run_id AND j.is_alone
        )
    RETURNING runs.thread_id, runs.run_id, runs.ended_at
), ended AS (
    UPDATE /*schema*/spans SET
        status = 'error', ended_at = greatest(spans.started_at, dead.ended_at), error_type = 'ProcessDied',
        error_message = 'the process that ran it has died'
    FROM dead
    WHERE spans.thread_id = :thread_id AND dead.thread_id = :thread_id AND spans.run_id = dead.run_id
        AND spans.ended_at IS NULL
    RETURNING spans.run_id, spans.span_id, spans.started_at
), batches AS MATERIALIZED (
    SELECT gen_random_uuid()::text, e.run_id, array_agg(e.span_id), array_agg(e.started_at), now()
    FROM ended e WHERE EXISTS (SELECT 1 FROM /*schema*/exporters) GROUP BY e.run_id
), exported AS (
    INSERT INTO /*schema*/span_exports (thread_id, export_id, run_id, span_ids, started_ats, created_at)
    SELECT :thread_id, b.* FROM batches b
), deaths AS MATERIALIZED (
    SELECT to_char(dead.ended_at AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS') || '-died-' || dead.run_id, now(), dead.run_id
    FROM dead
), noted AS (
    INSERT INTO /*schema*/events (thread_id, event_id, created_at, run_id, kind, payload)
    SELECT :thread_id, d.*, 'status', '{"status": "error", "error_type": "ProcessDied"}'::jsonb FROM deaths d
    ON CONFLICT (thread_id, event_id) DO NOTHING
    RETURNING run_id, event_id
)
SELECT d.run_id, n.event_id FROM dead d LEFT JOIN noted n ON n.run_id = d.run_id;
