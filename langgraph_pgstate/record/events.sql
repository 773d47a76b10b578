-- name: list_events
-- Return a page of a thread's events, oldest first after a cursor, or newest first before a cursor.
-- opens: events.payload
-- plan: at each call
SELECT v.thread_id, v.event_id, v.created_at, v.kind, v.run_id, v.checkpoint_ns, v.checkpoint_id, v.agent, v.payload
FROM /*schema*/events v
WHERE v.thread_id = :thread_id::text
    AND CASE WHEN :newest_first::boolean THEN v.event_id < :cursor_id::text ELSE v.event_id > :cursor_id END
    AND (:kind::text IS NULL OR v.kind = :kind)
    AND (:run_id::text IS NULL OR v.run_id = :run_id)
ORDER BY CASE WHEN :newest_first THEN v.event_id END DESC, v.event_id
LIMIT :page_size;

-- name: add_event
-- Record an event of a thread. If an event with the same suffix was stored in the last hour, the call is repeated, and
-- nothing is stored.
-- seals: events.payload
WITH new AS MATERIALIZED (
    SELECT now() AS at,
        to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS') || '-' || :kind::text || '-' || :suffix::text AS event_id
    WHERE NOT EXISTS (
        SELECT 1 FROM /*schema*/events v
        WHERE v.thread_id = :thread_id::text
            AND v.event_id > to_char((now() AT TIME ZONE 'UTC') - interval '1 hour', 'YYYYMMDDHH24MISSUS')
            AND v.event_id LIKE '%-' || :suffix
    )
)
INSERT INTO /*schema*/events (thread_id, event_id, created_at, kind, run_id, checkpoint_ns, checkpoint_id, payload)
SELECT :thread_id, n.event_id, n.at, :kind, :run_id::text, CASE WHEN :checkpoint_id::text IS NOT NULL THEN '' END,
    :checkpoint_id, :payload::text::jsonb
FROM new n
RETURNING thread_id, event_id;

-- name: lock_action
-- Take an advisory lock on an action, so that only one transaction at a time does the action. Locks no row.
SELECT pg_advisory_xact_lock(hashtextextended(:key::text, 0));

-- name: find_action
-- Return the newest event, not older than `:within`, of an action on a thread or on one of its checkpoints. Leave out
-- events of the given run. Runs after `lock_action`.
-- opens: events.payload with kind = 'action'
SELECT v.created_at, v.payload FROM /*schema*/events v
WHERE v.thread_id = :thread_id::text
    AND v.event_id > to_char((now() - :within::interval) AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS')
    AND v.kind = 'action' AND v.payload ->> 'action' = :action::text
    AND (:checkpoint_id::text IS NULL OR v.checkpoint_id = :checkpoint_id)
    AND (:run_id::text IS NULL OR v.run_id IS DISTINCT FROM :run_id)
ORDER BY v.event_id DESC
LIMIT 1;

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
