-- name: lock_streams
-- Lock running runs until the transaction ends, so that one transaction at a time numbers the events of a run, and none
-- when its worker has lost it. Return for each whether it is still its worker's, and whether it was locked; one that
-- another transaction has locked is not waited for.
WITH given AS (
    SELECT * FROM unnest(:thread_ids::text[], :run_ids::text[], :fencing_tokens::bigint[])
        AS g (thread_id, run_id, fencing_token)
), locked AS MATERIALIZED (
    SELECT q.thread_id, q.run_id FROM given g
        JOIN /*schema*/queue q ON q.thread_id = g.thread_id AND q.run_id = g.run_id
            AND q.fencing_token = g.fencing_token AND q.status = 'running'
    FOR NO KEY UPDATE OF q SKIP LOCKED
)
SELECT g.thread_id, g.run_id, q.thread_id IS NOT NULL, l.thread_id IS NOT NULL
FROM given g
    LEFT JOIN /*schema*/queue q ON q.thread_id = g.thread_id AND q.run_id = g.run_id
        AND q.fencing_token = g.fencing_token AND q.status = 'running'
    LEFT JOIN locked l ON l.thread_id = g.thread_id AND l.run_id = g.run_id;

-- name: lock_stream
-- Lock a running run as `lock_streams` does, but wait for other transactions.
SELECT 1 FROM /*schema*/queue
WHERE thread_id = :thread_id::text AND run_id = :run_id::text AND fencing_token = :fencing_token::bigint
    AND status = 'running'
FOR NO KEY UPDATE;

-- name: append_batch
-- Store a batch of events with the numbers that follow those of the run's other events; once, and not if the worker has
-- lost the run. Runs after `lock_stream`, because only the next statement sees batches committed during its wait.
INSERT INTO /*schema*/stream_batches (
    thread_id, run_id, first_seq, last_seq, attempt, fencing_token, position, step, replayed_step, data
)
SELECT q.thread_id, q.run_id, greatest(b.last_seq, r.last_event, 0) + 1,
    greatest(b.last_seq, r.last_event, 0) + :length::bigint, :attempt::integer, q.fencing_token, :position::bigint,
    :step::integer,
    CASE WHEN b.fencing_token = q.fencing_token THEN b.replayed_step ELSE greatest(b.step, b.replayed_step) END,
    :data::bytea
FROM /*schema*/queue q
    LEFT JOIN LATERAL (
        SELECT n.last_seq, n.fencing_token, n.position, n.step, n.replayed_step FROM /*schema*/stream_batches n
        WHERE n.thread_id = :thread_id AND n.run_id = :run_id ORDER BY n.last_seq DESC LIMIT 1
    ) AS b ON true
    LEFT JOIN /*schema*/runs r ON r.thread_id = q.thread_id AND r.run_id = q.run_id
WHERE q.thread_id = :thread_id::text AND q.run_id = :run_id::text AND q.fencing_token = :fencing_token::bigint
    AND q.status = 'running'
    AND (b.fencing_token IS NULL OR b.fencing_token <> :fencing_token OR b.position < :position);

-- name: append_batches
-- Store batches of several runs as `append_batch` does. Apart, because arrays are planned each time. Runs after
-- `lock_streams`.
WITH given AS (
    SELECT * FROM unnest(
        :thread_ids::text[], :run_ids::text[], :fencing_tokens::bigint[], :attempts::integer[], :positions::bigint[],
        :lengths::integer[], :steps::integer[], :data::bytea[]
    ) AS g (thread_id, run_id, fencing_token, attempt, position, length, step, data)
)
INSERT INTO /*schema*/stream_batches (
    thread_id, run_id, first_seq, last_seq, attempt, fencing_token, position, step, replayed_step, data
)
SELECT g.thread_id, g.run_id, s.before + g.upto - g.length + 1, s.before + g.upto, g.attempt, g.fencing_token,
    g.position, g.step, s.replayed_step, g.data
FROM (
    SELECT f.*, b.last_seq, b.fencing_token AS last_token, b.step AS last_step, b.replayed_step AS last_replayed,
        sum(f.length) OVER (PARTITION BY f.thread_id, f.run_id ORDER BY f.position) AS upto
    FROM given f LEFT JOIN LATERAL (
        SELECT n.last_seq, n.fencing_token, n.position, n.step, n.replayed_step FROM /*schema*/stream_batches n
        WHERE n.thread_id = f.thread_id AND n.run_id = f.run_id ORDER BY n.last_seq DESC LIMIT 1
    ) AS b ON true
    WHERE b.fencing_token IS NULL OR b.fencing_token <> f.fencing_token OR b.position < f.position
) AS g
    JOIN /*schema*/queue q ON q.thread_id = g.thread_id AND q.run_id = g.run_id AND q.fencing_token = g.fencing_token
        AND q.status = 'running'
    LEFT JOIN /*schema*/runs r ON r.thread_id = g.thread_id AND r.run_id = g.run_id
    CROSS JOIN LATERAL (
        SELECT greatest(g.last_seq, r.last_event, 0) AS before,
            CASE WHEN g.last_token = g.fencing_token THEN g.last_replayed
                ELSE greatest(g.last_step, g.last_replayed) END AS replayed_step
    ) AS s;

-- name: read_streams
-- Return the status of runs and their batches of events after a number, as of one moment, so that the events of a run
-- that has ended are complete. A run that no longer exists has no status.
SELECT g.number, r.status, r.error_type, r.error_message, r.last_event, r.ended_at, b.first_seq, b.last_seq, b.attempt,
    b.replayed_step, b.data, b.created_at
FROM unnest(:thread_ids::text[], :run_ids::text[], :afters::bigint[]) WITH ORDINALITY
        AS g (thread_id, run_id, after, number)
    LEFT JOIN /*schema*/runs r ON r.thread_id = g.thread_id AND r.run_id = g.run_id
    LEFT JOIN LATERAL (
        SELECT n.* FROM /*schema*/stream_batches n
        WHERE n.thread_id = g.thread_id AND n.run_id = g.run_id AND n.last_seq > g.after
        ORDER BY n.last_seq LIMIT :page_size::integer
    ) AS b ON true
ORDER BY g.number, b.last_seq;

-- name: read_threads
-- Return the time, and enqueued runs of threads: those that have not ended, and those that started since a time, since
-- a run did, or since the thread's newest run did. A hundred of either at most. Some time is taken off, because a run's
-- start may be of another process's clock.
SELECT g.number, now(), r.run_id, coalesce(r.agent, ''), r.status, r.started_at, r.ended_at
FROM unnest(:thread_ids::text[], :sinces::text[], :run_ids::text[]) WITH ORDINALITY
        AS g (thread_id, since, run_id, number)
    LEFT JOIN LATERAL (
        SELECT n.* FROM (
            (SELECT q.run_id FROM /*schema*/queue q WHERE q.thread_id = g.thread_id ORDER BY q.number LIMIT 100)
            UNION
            (
                SELECT s.run_id FROM /*schema*/runs s
                WHERE s.thread_id = g.thread_id AND s.started_at >= coalesce(nullif(g.since, '')::timestamptz, (
                    SELECT o.started_at FROM /*schema*/runs o WHERE o.thread_id = g.thread_id AND o.run_id = g.run_id
                ), (
                    SELECT max(o.started_at) FROM /*schema*/runs o WHERE o.thread_id = g.thread_id
                )) - interval '1 minute'
                ORDER BY s.started_at DESC LIMIT 100
            )
        ) AS f JOIN /*schema*/runs n ON n.thread_id = g.thread_id AND n.run_id = f.run_id
        WHERE n.queue IS NOT NULL
    ) AS r ON true
ORDER BY g.number, r.ended_at, r.started_at;

-- name: delete_streams
-- Delete the events of some of a thread's runs, or of all.
DELETE FROM /*schema*/stream_batches
WHERE thread_id = :thread_id::text AND (:run_ids::text[] IS NULL OR run_id = ANY(:run_ids));
