-- name: list_events
-- Return a page of a thread's events, oldest first, after a cursor.
SELECT v.thread_id, v.event_id, v.created_at, v.kind, v.run_id, v.checkpoint_ns, v.checkpoint_id, v.agent, v.payload
FROM /*schema*/events v
WHERE v.thread_id = :thread_id::text AND v.event_id > :cursor_id::text
    AND (:kind::text IS NULL OR v.kind = :kind)
    AND (:run_id::text IS NULL OR v.run_id = :run_id)
ORDER BY v.event_id
LIMIT :page_size;

-- name: count_handoffs
-- Return the number of handoffs between each pair of agents, and the seconds until the thread's next handoff; most
-- frequent first.
SELECT h.source, h.target, count(*), count(DISTINCT h.thread_id), avg(h.seconds_to_next)::double precision,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY h.seconds_to_next), max(h.created_at)
FROM /*schema*/handoffs h
WHERE h.created_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
    AND (:until::timestamptz IS NULL OR h.created_at < :until)
GROUP BY h.source, h.target
ORDER BY count(*) DESC, h.source, h.target
LIMIT :page_size;

-- name: note_action
-- Record among a thread's events that a person did something.
INSERT INTO /*schema*/events (thread_id, event_id, kind, run_id, payload)
VALUES (
    :thread_id::text,
    to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS') || '-' || :kind::text || '-' || :suffix::text,
    :kind,
    :run_id::text,
    :payload::jsonb || jsonb_build_object('by', :by::text)
)
ON CONFLICT (thread_id, event_id) DO NOTHING;
