-- name: set_statement_timeout
-- Set the transaction's statement timeout.
SELECT set_config('statement_timeout', :timeout::text, true);

-- name: measure_queue
-- Return, by queue, graph, version and status, the number of runs in the queue, the longest waiting or running time in
-- seconds, and whether a living worker accepts the runs. Reads at most `most` runs.
SELECT q.queue, q.graph, q.status, count(*), max(q.seconds), EXISTS (
    SELECT 1 FROM /*schema*/workers w
    WHERE w.seen_at > now() - interval '30 seconds' AND q.queue = ANY(w.queues) AND q.graph = ANY(w.graphs)
        AND (q.version = '' OR w.versions -> q.graph ? q.version)
)
FROM (
    SELECT o.queue, o.graph, o.version,
        CASE WHEN o.run_after > now() THEN 'delayed' ELSE o.status END AS status,
        extract(epoch FROM now() - coalesce(o.claimed_at, greatest(o.enqueued_at, o.run_after)))::double precision
            AS seconds
    FROM /*schema*/queue o LIMIT :most
) AS q
GROUP BY q.queue, q.graph, q.version, q.status;

-- name: count_workers
-- Return the number of living workers, and the maximum number of runs that they run at once, by queue.
SELECT served.queue, count(*), sum(w.concurrency)::bigint
FROM /*schema*/workers w CROSS JOIN LATERAL unnest(w.queues) AS served (queue)
WHERE w.seen_at > now() - interval '30 seconds'
GROUP BY served.queue;

-- name: measure_running
-- Return the number of running runs, the number of those with a dead process, and the age in seconds of the oldest.
-- Reads at most `most` runs.
SELECT count(*), count(*) FILTER (WHERE r.alive_until < now()),
    coalesce(max(extract(epoch FROM now() - r.started_at)), 0)::double precision
FROM (
    SELECT n.alive_until, n.started_at FROM /*schema*/runs n WHERE n.status = 'running' LIMIT :most
) AS r;

-- name: count_recent_runs
-- Return the number of runs that began in the last hour, by agent and status. The 50 agents with most runs have rows of
-- their own, and all other agents are `other`. Reads at most `most` runs.
SELECT CASE WHEN a.place <= 50 THEN a.agent ELSE 'other' END, a.status, sum(a.runs)::bigint
FROM (
    SELECT c.agent, c.status, c.runs, dense_rank() OVER (ORDER BY c.total DESC, c.agent) AS place
    FROM (
        SELECT g.agent, g.status, g.runs, sum(g.runs) OVER (PARTITION BY g.agent) AS total
        FROM (
            SELECT coalesce(r.agent, '') AS agent, r.status, count(*) AS runs
            FROM (
                SELECT n.agent, n.status FROM /*schema*/runs n
                WHERE n.started_at >= now() - interval '1 hour' ORDER BY n.started_at DESC LIMIT :most
            ) AS r
            GROUP BY 1, 2
        ) AS g
    ) AS c
) AS a
GROUP BY 1, 2;

-- name: measure_recent_calls
-- Return, by agent and model, the number, cost and tokens of the model calls that began in the last hour, and the
-- number of calls without a price. The 50 pairs with most calls have rows of their own, and all other pairs are
-- `other`. Reads at most `most` calls.
SELECT CASE WHEN c.place <= 50 THEN c.agent ELSE 'other' END, CASE WHEN c.place <= 50 THEN c.model ELSE 'other' END,
    sum(c.calls)::bigint, coalesce(sum(c.cost), 0)::double precision, coalesce(sum(c.input_tokens), 0)::bigint,
    coalesce(sum(c.output_tokens), 0)::bigint, sum(c.unpriced)::bigint
FROM (
    SELECT g.*, row_number() OVER (ORDER BY g.calls DESC, g.agent, g.model) AS place
    FROM (
        SELECT coalesce(s.agent, '') AS agent, coalesce(s.model, '') AS model, count(*) AS calls, sum(s.cost) AS cost,
            sum(s.input_tokens) AS input_tokens, sum(s.output_tokens) AS output_tokens,
            count(*) FILTER (WHERE s.cost IS NULL AND s.ended_at IS NOT NULL) AS unpriced
        FROM (
            SELECT n.agent, n.model, n.cost, n.input_tokens, n.output_tokens, n.ended_at FROM /*schema*/spans n
            WHERE n.kind = 'llm' AND n.started_at >= now() - interval '1 hour' ORDER BY n.started_at DESC LIMIT :most
        ) AS s
        GROUP BY 1, 2
    ) AS g
) AS c
GROUP BY 1, 2;

-- name: count_recent_refusals
-- Return the number of runs that were refused in the last hour, by error. Reads at most `most` events.
-- leaves: events.payload
SELECT coalesce(e.payload ->> 'error_type', ''), count(*)
FROM (
    SELECT v.payload FROM /*schema*/events v
    WHERE v.kind = 'refused' AND v.created_at >= now() - interval '1 hour' ORDER BY v.created_at DESC LIMIT :most
) AS e
GROUP BY 1;

-- name: measure_interrupts
-- Return the number of interrupted threads, and the seconds since the last activity of the thread that has waited
-- longest. Counts at most `most` threads.
SELECT count(*), coalesce(extract(epoch FROM now() - (
    SELECT min(l.updated_at) FROM /*schema*/threads l WHERE l.status = 'interrupted'
)), 0)::double precision
FROM (
    SELECT 1 FROM /*schema*/threads n WHERE n.status = 'interrupted' LIMIT :most
) AS t;

-- name: measure_unknown_effects
-- Return the number of actions with an unknown outcome, and the seconds since the oldest began, by tool. Reads at most
-- `most` actions.
SELECT e.tool, count(*), coalesce(max(extract(epoch FROM now() - e.started_at)), 0)::double precision
FROM (
    SELECT u.tool, u.started_at FROM /*schema*/unknown_effects u LIMIT :most
) AS e
GROUP BY e.tool;

-- name: measure_journal
-- Return the number of journal rows, and the age in seconds of the oldest. Reads at most `most` rows.
SELECT count(*), coalesce(max(extract(epoch FROM now() - j.created_at)), 0)::double precision
FROM (
    SELECT n.created_at FROM /*schema*/journal n LIMIT :most
) AS j;

-- name: measure_expired
-- Return the number of expired threads that still exist, and the seconds since the first expiry. Reads at most `most`
-- threads.
SELECT count(*), coalesce(max(extract(epoch FROM now() - t.expires_at)), 0)::double precision
FROM (
    SELECT n.expires_at FROM /*schema*/threads n WHERE n.expires_at <= now() ORDER BY n.expires_at LIMIT :most
) AS t;

-- name: measure_webhooks
-- Return the number of webhooks to deliver, the seconds since the first of their runs ended, and the number of failed
-- webhooks of runs that ended in the last day. Reads at most `most` rows of each kind.
SELECT count(*), coalesce(max(extract(epoch FROM now() - w.ended_at)), 0)::double precision, (
    SELECT count(*) FROM (
        SELECT 1 FROM /*schema*/webhooks f
        WHERE f.deliver_after IS NULL AND f.ended_at >= now() - interval '1 day' LIMIT :most
    ) AS failed
)
FROM (
    SELECT n.ended_at FROM /*schema*/webhooks n WHERE n.deliver_after IS NOT NULL LIMIT :most
) AS w;

-- name: measure_exports
-- Return the number of queued rows of spans to export, and the age in seconds of the oldest. Reads at most `most` rows.
SELECT count(*), coalesce(max(extract(epoch FROM now() - e.created_at)), 0)::double precision
FROM (
    SELECT n.created_at FROM /*schema*/span_exports n ORDER BY n.created_at LIMIT :most
) AS e;
