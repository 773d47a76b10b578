-- name: lock_streams
-- Lock running runs, so that one transaction at a time numbers the events of a run. Runs that the worker has lost, or
-- that another transaction has locked, are skipped. Return for each run whether the worker still has the run, and
-- whether this transaction has locked the run.
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

-- name: append_batch
-- Store a batch of events once, if the worker still has the run. The numbers continue those of the run's earlier
-- events. The query waits for other transactions that store events of the run.
-- seals: stream_batches.data
WITH counted AS (
    UPDATE /*schema*/queue SET last_event = queue.last_event + :length::bigint, streamed = queue.streamed + :length
    WHERE queue.thread_id = :thread_id AND queue.run_id = :run_id AND queue.fencing_token = :fencing_token
        AND queue.status = 'running' AND queue.streamed = :position
    RETURNING queue.last_event, queue.replayed_step
), batch AS MATERIALIZED (
    SELECT c.*, now() AS at FROM counted c
)
INSERT INTO /*schema*/stream_batches (
    thread_id, run_id, first_seq, last_seq, attempt, fencing_token, position, step, replayed_step, data, created_at
)
SELECT :thread_id::text, :run_id::text, b.last_event - :length + 1, b.last_event, :attempt::integer,
    :fencing_token::bigint, :position::bigint, :step::integer, b.replayed_step, :data::bytea, b.at
FROM batch b;

-- name: append_batches
-- Store batches of several runs as `append_batch` does. Execute the query after `lock_streams`.
-- seals: stream_batches.data with thread_id = thread_ids, run_id = run_ids, fencing_token = fencing_tokens, position = positions
WITH given AS MATERIALIZED (
    SELECT g.*, q.last_event - q.streamed AS before, q.replayed_step, now() AS at
    FROM unnest(
        :thread_ids::text[], :run_ids::text[], :fencing_tokens::bigint[], :attempts::integer[], :positions::bigint[],
        :lengths::integer[], :steps::integer[], :data::bytea[]
    ) AS g (thread_id, run_id, fencing_token, attempt, position, length, step, data)
        JOIN /*schema*/queue q ON q.thread_id = g.thread_id AND q.run_id = g.run_id
            AND q.fencing_token = g.fencing_token AND q.status = 'running' AND q.streamed <= g.position
), counted AS (
    UPDATE /*schema*/queue SET last_event = s.before + s.streamed, streamed = s.streamed
    FROM (
        SELECT g.thread_id, g.run_id, g.before, max(g.position + g.length) AS streamed FROM given g
        GROUP BY g.thread_id, g.run_id, g.before
    ) AS s
    WHERE queue.thread_id = s.thread_id AND queue.run_id = s.run_id
)
INSERT INTO /*schema*/stream_batches (
    thread_id, run_id, first_seq, last_seq, attempt, fencing_token, position, step, replayed_step, data, created_at
)
SELECT g.thread_id, g.run_id, g.before + g.position + 1, g.before + g.position + g.length, g.attempt, g.fencing_token,
    g.position, g.step, g.replayed_step, g.data, g.at
FROM given g;

-- name: read_streams
-- Return the status of runs, and their batches of events after a number. Both are of one moment, so that the events of
-- an ended run are complete. A run that does not exist has no status. A page ends after `page_bytes`.
-- opens: runs.error_message if intact
-- opens: stream_batches.data if intact
SELECT g.number, r.status, r.error_type, r.error_message, r.last_event, r.ended_at, b.first_seq, b.last_seq, b.attempt,
    b.replayed_step, b.data, b.created_at, r.thread_id, r.run_id, b.fencing_token, b.position
FROM unnest(:thread_ids::text[], :run_ids::text[], :afters::bigint[]) WITH ORDINALITY
        AS g (thread_id, run_id, after, number)
    LEFT JOIN /*schema*/runs r ON r.thread_id = g.thread_id AND r.run_id = g.run_id
    LEFT JOIN LATERAL (
        SELECT m.* FROM (
            SELECT n.*, sum(octet_length(n.data)) OVER (ORDER BY n.last_seq) - octet_length(n.data) AS bytes_before
            FROM /*schema*/stream_batches n
            WHERE n.thread_id = g.thread_id AND n.run_id = g.run_id AND n.last_seq > g.after
            ORDER BY n.last_seq LIMIT :page_size::integer
        ) AS m WHERE m.bytes_before < :page_bytes::integer
    ) AS b ON true
ORDER BY g.number, b.last_seq;

-- name: read_threads
-- Return the time, and enqueued runs of threads: at most a hundred runs that have not ended, and a hundred that started
-- after a moment. The moment is described at `WantedRuns`. A minute is subtracted, because the clocks of processes
-- differ. Runs that have deleted their thread are skipped, because a new thread may have the id.
SELECT g.number, now(), r.run_id, coalesce(r.agent, ''), r.status, r.started_at, r.ended_at, r.last_event
FROM unnest(:thread_ids::text[], :sinces::text[], :run_ids::text[], :ended_sinces::text[]) WITH ORDINALITY
        AS g (thread_id, since, run_id, ended_since, number)
    LEFT JOIN LATERAL (
        SELECT n.* FROM (
            (SELECT q.run_id FROM /*schema*/queue q WHERE q.thread_id = g.thread_id ORDER BY q.number LIMIT 100)
            UNION
            (
                SELECT s.run_id FROM /*schema*/runs s
                WHERE s.thread_id = g.thread_id AND s.started_at >= coalesce(nullif(g.since, '')::timestamptz, (
                    SELECT o.started_at FROM /*schema*/runs o WHERE o.thread_id = g.thread_id AND o.run_id = g.run_id
                ), (
                    SELECT min(o.started_at) FROM /*schema*/runs o
                    WHERE o.thread_id = g.thread_id AND o.ended_at > nullif(g.ended_since, '')::timestamptz
                ), (
                    SELECT max(o.started_at) FROM /*schema*/runs o WHERE o.thread_id = g.thread_id
                )) - interval '1 minute'
                ORDER BY s.started_at DESC LIMIT 100
            )
        ) AS f JOIN /*schema*/runs n ON n.thread_id = g.thread_id AND n.run_id = f.run_id
        WHERE n.queue IS NOT NULL AND n.delete_at IS NULL
    ) AS r ON true
ORDER BY g.number, r.ended_at, r.started_at;

-- name: delete_streams
-- Delete the events of some or all runs of a thread. With `keeps_ends`, keep the events of a run that deletes the
-- thread.
DELETE FROM /*schema*/stream_batches b
WHERE b.thread_id = :thread_id::text AND (:run_ids::text[] IS NULL OR b.run_id = ANY(:run_ids)) AND NOT (
    :keeps_ends::boolean AND b.run_id IN (
        SELECT r.run_id FROM /*schema*/runs r WHERE r.thread_id = :thread_id AND r.delete_at IS NOT NULL
    )
);
