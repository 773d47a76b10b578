-- name: get_answers
-- Return the answers given at some checkpoints of the root namespace, oldest first.
-- opens: answers.value with checkpoint_ns = ''
SELECT a.thread_id, a.checkpoint_id, a.interrupt_id, a.answer_id, a.answered_at, a.answered_by, a.value_type, a.value,
    a.is_default, r.run_id
FROM unnest(:thread_ids::text[], :checkpoint_ids::text[]) AS h (thread_id, checkpoint_id)
    JOIN /*schema*/answers a
        ON a.thread_id = h.thread_id AND a.checkpoint_ns = '' AND a.checkpoint_id = h.checkpoint_id
    -- A run that resumes with an answer has the answer's id.
    LEFT JOIN /*schema*/runs r ON r.thread_id = a.thread_id AND r.run_id = a.answer_id
WHERE a.thread_id = ANY(:thread_ids)
ORDER BY a.answered_at, a.interrupt_id;

-- name: get_newest_run
-- Return the run that began last among the runs of a thread.
SELECT run_id FROM /*schema*/runs WHERE thread_id = :thread_id::text ORDER BY started_at DESC NULLS LAST, run_id DESC LIMIT 1;

-- name: put_answer
-- Store an answer and its event, unless the interrupt has an answer or is no longer open, or another run has asked since.
-- leaves: events.payload
-- seals: answers.value with checkpoint_ns = ''
WITH asked AS MATERIALIZED (
    SELECT now() AS at FROM /*schema*/writes w
    WHERE w.thread_id = :thread_id::text AND w.checkpoint_ns = '' AND w.checkpoint_id = :checkpoint_id::text
        AND w.task_id = :task_id::text AND w.idx = -3 AND w.run_id IS NOT DISTINCT FROM :run_id::text
        AND NOT EXISTS (
            SELECT 1 FROM /*schema*/checkpoints n
            WHERE n.thread_id = :thread_id AND n.checkpoint_ns = '' AND n.checkpoint_id > :checkpoint_id
        ) AND NOT EXISTS (
            SELECT 1 FROM /*schema*/writes d
            WHERE d.thread_id = :thread_id AND d.checkpoint_ns = '' AND d.checkpoint_id = :checkpoint_id
                AND d.task_id = :task_id AND d.idx >= 0
        )
), put AS (
    INSERT INTO /*schema*/answers (
        thread_id, checkpoint_ns, checkpoint_id, interrupt_id, answer_id, task_id, answered_at, answered_by, value_type,
        value, is_default
    )
    SELECT :thread_id, '', :checkpoint_id, :interrupt_id::text, :answer_id::text, :task_id, a.at, :answered_by::text,
        :value_type::text, :value::bytea, :is_default::boolean
    FROM asked a
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, interrupt_id) DO NOTHING
    RETURNING answered_at
), event AS MATERIALIZED (
    SELECT to_char(p.answered_at AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS') || '-answer-' || :answer_id AS event_id,
        p.answered_at, jsonb_build_object('interrupt_id', :interrupt_id, 'by', :answered_by)
            || CASE WHEN :is_default THEN '{"is_default": true}'::jsonb ELSE '{}' END AS payload
    FROM put p
)
INSERT INTO /*schema*/events (thread_id, event_id, created_at, kind, checkpoint_ns, checkpoint_id, payload)
SELECT :thread_id, e.event_id, e.answered_at, 'answer', '', :checkpoint_id, e.payload FROM event e
ON CONFLICT (thread_id, event_id) DO NOTHING
RETURNING thread_id, event_id;

-- name: find_other_run
-- Return a run in the queue of a thread, other than given runs and the runs of answers at a checkpoint, and the time of
-- its claim or enqueueing. Runs that were enqueued for later are left out.
SELECT q.run_id, coalesce(q.claimed_at, q.enqueued_at) FROM /*schema*/queue q
WHERE q.thread_id = :thread_id::text AND q.number IS NOT NULL AND q.run_id <> ALL(:run_ids::text[])
    AND NOT EXISTS (
        SELECT 1 FROM /*schema*/answers a WHERE a.thread_id = :thread_id AND a.checkpoint_ns = ''
            AND a.checkpoint_id = :checkpoint_id::text AND a.answer_id = q.run_id
    )
ORDER BY q.number LIMIT 1;

-- name: find_due_answers
-- Return interrupted runs of some graphs whose default answer is due, the longest due first.
SELECT due.thread_id, due.run_id FROM unnest(:graphs::text[]) AS g (graph) CROSS JOIN LATERAL (
    SELECT d.thread_id, d.run_id, d.answer_at FROM /*schema*/run_requests d
    WHERE d.options ->> 'graph' = g.graph AND d.answer_at <= now()
    ORDER BY d.answer_at LIMIT :page_size::bigint
) AS due
ORDER BY due.answer_at LIMIT :page_size;

-- name: get_default_answer
-- Return the default answer of a run, its options, the time, and whether the run has ended as interrupted.
-- opens: run_requests.data if intact
SELECT d.data, d.options::text, now(), EXISTS (
    SELECT 1 FROM /*schema*/runs r
    WHERE r.thread_id = :thread_id AND r.run_id = :run_id AND r.status = 'interrupted'
)
FROM /*schema*/run_requests d
WHERE d.thread_id = :thread_id::text AND d.run_id = :run_id::text AND d.answer_at <= now();

-- name: postpone_answer
-- Postpone the due default answer of a run.
UPDATE /*schema*/run_requests SET answer_at = now() + :time::interval
WHERE thread_id = :thread_id::text AND run_id = :run_id::text AND answer_at <= now();

-- name: set_answer_at
-- Set the time at which the interrupts of a run get its default answer.
UPDATE /*schema*/run_requests SET answer_at = :answer_at::timestamptz
WHERE thread_id = :thread_id::text AND run_id = :run_id::text;
