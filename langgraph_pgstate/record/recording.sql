-- name: put_runs
-- Insert or update the rows of runs that begin or end. Existing rows are locked, so that no run is deleted meanwhile. A
-- deleted run is not inserted again. A late journal entry does not reopen an ended run. The queue sets the
-- status, attempt, end and error of an enqueued run. The first `traceparent` is kept, so that the ids of exported spans
-- stay the same.
-- seals: runs.input from rows.input
-- seals: runs.output from rows.output
-- seals: runs.error_message from rows.error_message
-- seals: runs.error_traceback from rows.error_traceback
WITH begun AS MATERIALIZED (
    SELECT
        s.thread_id, s.run_id, coalesce(s.attempt, 1), s.status, coalesce(s.agent, t.agent),
        coalesce(s.tenant_id, t.tenant_id), coalesce(s.user_id, t.user_id), s.holder_id,
        CASE WHEN s.ended_at IS NULL THEN now() + make_interval(secs => :ttl::double precision) END,
        to_timestamp(s.started_at), to_timestamp(s.ended_at), s.first_checkpoint_id, s.last_checkpoint_id, s.steps,
        s.error_type, s.error_message, s.error_traceback, s.input, s.output, to_timestamp(s.started_at), s.traceparent,
        coalesce(s.is_encrypted, false), s.release
    FROM (
        -- If a run has several rows, the last row is used; a row with the run's end has precedence.
        SELECT DISTINCT ON (thread_id COLLATE "C", run_id COLLATE "C")
            r.*, bool_or(r.is_new) OVER (PARTITION BY r.thread_id, r.run_id) AS is_first
        FROM ROWS FROM (jsonb_to_recordset(:rows::jsonb) AS (
            thread_id text, run_id text, is_new boolean, attempt integer, status text, agent text, tenant_id text,
            user_id text, holder_id text, started_at double precision, ended_at double precision, first_checkpoint_id text,
            last_checkpoint_id text, steps integer, error_type text, error_message text, error_traceback text, input jsonb,
            output jsonb, traceparent text, is_encrypted boolean, release text
        )) WITH ORDINALITY AS r (
            thread_id, run_id, is_new, attempt, status, agent, tenant_id, user_id, holder_id, started_at, ended_at,
            first_checkpoint_id, last_checkpoint_id, steps, error_type, error_message, error_traceback, input, output,
            traceparent, is_encrypted, release, place
        )
        ORDER BY thread_id COLLATE "C", run_id COLLATE "C", ended_at IS NULL, place DESC
    ) AS s
    LEFT JOIN /*schema*/threads t ON t.thread_id = s.thread_id AND t.thread_id = ANY(:thread_ids::text[])
    -- Lock the run. Otherwise a row that is being deleted would be inserted again.
    WHERE (
        SELECT true FROM /*schema*/runs r
        WHERE r.thread_id = s.thread_id AND r.run_id = s.run_id AND r.thread_id = ANY(:thread_ids)
        FOR NO KEY UPDATE
    ) OR (s.is_first AND NOT EXISTS (
        SELECT 1 FROM /*schema*/tombstones d
        WHERE d.thread_id = s.thread_id AND d.thread_id = ANY(:thread_ids) AND d.expires_at > now()
    ))
)
INSERT INTO /*schema*/runs AS stored (
    thread_id, run_id, attempt, status, agent, tenant_id, user_id, holder_id, alive_until, started_at, ended_at,
    first_checkpoint_id, last_checkpoint_id, steps, error_type, error_message, error_traceback, input, output,
    first_started_at, traceparent, is_encrypted, release
)
SELECT b.* FROM begun b
ORDER BY b.thread_id COLLATE "C", b.run_id COLLATE "C"
ON CONFLICT (thread_id, run_id) DO UPDATE SET
    attempt = CASE WHEN stored.queue IS NOT NULL OR excluded.started_at = stored.started_at THEN stored.attempt
        ELSE greatest(stored.attempt + 1, excluded.attempt) END,
    status = CASE WHEN stored.queue IS NULL THEN excluded.status ELSE stored.status END,
    agent = coalesce(excluded.agent, stored.agent),
    tenant_id = coalesce(excluded.tenant_id, stored.tenant_id),
    user_id = coalesce(excluded.user_id, stored.user_id),
    holder_id = excluded.holder_id,
    alive_until = CASE WHEN stored.queue IS NULL OR stored.status = 'running' THEN excluded.alive_until END,
    started_at = excluded.started_at,
    ended_at = CASE WHEN stored.queue IS NULL THEN excluded.ended_at ELSE stored.ended_at END,
    first_checkpoint_id = coalesce(stored.first_checkpoint_id, excluded.first_checkpoint_id),
    last_checkpoint_id = coalesce(excluded.last_checkpoint_id, stored.last_checkpoint_id),
    steps = excluded.steps
        + CASE WHEN excluded.started_at = stored.started_at THEN stored.steps_before ELSE stored.steps END,
    steps_before = CASE WHEN excluded.started_at = stored.started_at THEN stored.steps_before ELSE stored.steps END,
    first_started_at = CASE WHEN stored.first_started_at IS NULL AND stored.queue IS NOT NULL THEN excluded.started_at
        ELSE coalesce(stored.first_started_at, stored.started_at) END,
    error_type = CASE WHEN stored.queue IS NULL THEN excluded.error_type ELSE stored.error_type END,
    error_message = CASE WHEN stored.queue IS NULL THEN excluded.error_message ELSE stored.error_message END,
    error_traceback = CASE WHEN stored.queue IS NULL THEN excluded.error_traceback ELSE stored.error_traceback END,
    input = coalesce(excluded.input, stored.input),
    output = excluded.output,
    is_encrypted = stored.is_encrypted OR excluded.is_encrypted,
    release = excluded.release
WHERE excluded.started_at > stored.started_at
    -- The first start of an enqueued run is stored even if the clock of its process is behind the time of enqueueing.
    OR (stored.queue IS NOT NULL AND stored.first_started_at IS NULL)
    OR (excluded.started_at = stored.started_at AND (stored.ended_at IS NULL OR excluded.ended_at IS NOT NULL));

-- name: put_new_threads
-- Insert the rows of threads on which a run starts and that have no row yet, except deleted threads.
WITH new AS MATERIALIZED (
    SELECT s.thread_id, s.agent, s.user_id, s.tenant_id, now(), now()
    FROM jsonb_to_recordset(:rows::jsonb) AS s (
        thread_id text, agent text, user_id text, tenant_id text, is_new boolean, has_thread boolean
    )
    WHERE s.is_new AND s.has_thread AND NOT EXISTS (
        SELECT 1 FROM /*schema*/tombstones d WHERE d.thread_id = s.thread_id AND d.expires_at > now()
    )
)
INSERT INTO /*schema*/threads (thread_id, agent, user_id, tenant_id, created_at, updated_at)
SELECT n.* FROM new n
ORDER BY n.thread_id COLLATE "C"
ON CONFLICT (thread_id) DO NOTHING;

-- name: put_spans
-- Insert or update spans that begin or end, with the cost of their tokens. Only spans of existing runs are stored; the
-- runs are locked against deletion. A late journal entry does not reopen an ended span. If there is an exporter, each
-- span that ends is queued for export once.
-- seals: spans.input from rows.input
-- seals: spans.output from rows.output
-- seals: spans.error_message from rows.error_message
-- seals: spans.attributes from rows.attributes
-- leaves: runs.error_message
-- leaves: runs.input
-- leaves: runs.output
WITH given AS MATERIALIZED (
    SELECT
        s.thread_id, s.run_id, s.span_id, to_timestamp(s.started_at), to_timestamp(s.ended_at), s.parent_span_id,
        s.kind, s.name, s.status, s.checkpoint_ns, s.placed_at, s.step, s.node, s.task_id, s.agent, s.provider, s.model,
        s.input_tokens, s.output_tokens, s.cache_read_tokens, s.reasoning_tokens,
        CASE WHEN s.input_tokens IS NOT NULL OR s.output_tokens IS NOT NULL THEN (
            SELECT (
                (coalesce(s.input_tokens, 0) - coalesce(s.cache_read_tokens, 0))::numeric * p.input
                + coalesce(s.cache_read_tokens, 0)::numeric * coalesce(p.cache_read, p.input)
                + (coalesce(s.output_tokens, 0) - coalesce(s.reasoning_tokens, 0))::numeric * p.output
                + coalesce(s.reasoning_tokens, 0)::numeric * coalesce(p.reasoning, p.output)
            ) / 1000000::numeric
            FROM /*schema*/prices p
            WHERE p.model = s.model AND p.provider IN ('', coalesce(s.provider, ''))
                AND p.valid_from <= to_timestamp(s.started_at)
            ORDER BY p.provider <> '' DESC, p.valid_from DESC
            LIMIT 1
        ) END,
        s.tool_call_id, s.error_type, s.error_message, s.input, s.output, coalesce(s.attributes, '{}'),
        :semconv_version::text
    FROM (
        -- If a span has several rows, use the row with the last end. Take the checkpoint's id from any of the rows,
        -- because concurrent puts may store the rows in another order.
        SELECT DISTINCT ON (thread_id COLLATE "C", run_id COLLATE "C", span_id COLLATE "C")
            r.*, max(r.checkpoint_id) OVER (
                PARTITION BY r.thread_id COLLATE "C", r.run_id COLLATE "C", r.span_id COLLATE "C"
            ) AS placed_at
        FROM ROWS FROM (jsonb_to_recordset(:rows::jsonb) AS (
            thread_id text, run_id text, span_id text, started_at double precision, ended_at double precision,
            parent_span_id text, kind text, name text, status text, checkpoint_ns text, checkpoint_id text,
            step integer, node text, task_id text, agent text, provider text, model text, input_tokens bigint,
            output_tokens bigint, cache_read_tokens bigint, reasoning_tokens bigint, tool_call_id text,
            error_type text, error_message text, input jsonb, output jsonb, attributes jsonb
        )) WITH ORDINALITY AS r (
            thread_id, run_id, span_id, started_at, ended_at, parent_span_id, kind, name, status, checkpoint_ns,
            checkpoint_id, step, node, task_id, agent, provider, model, input_tokens, output_tokens, cache_read_tokens,
            reasoning_tokens, tool_call_id, error_type, error_message, input, output, attributes, place
        )
        ORDER BY thread_id COLLATE "C", run_id COLLATE "C", span_id COLLATE "C", ended_at DESC NULLS LAST, place DESC
    ) AS s
    -- The sub-select looks up each run separately, because a join would read all runs of the thread.
    WHERE s.thread_id = ANY(:thread_ids::text[])
        AND (
            -- Lock the run. Otherwise spans could outlive a run that is being deleted.
            SELECT true FROM /*schema*/runs r WHERE r.thread_id = s.thread_id AND r.run_id = s.run_id FOR KEY SHARE
        )
), written AS (
    INSERT INTO /*schema*/spans AS stored (
        thread_id, run_id, span_id, started_at, ended_at, parent_span_id, kind, name, status, checkpoint_ns,
        checkpoint_id, step, node, task_id, agent, provider, model, input_tokens, output_tokens, cache_read_tokens,
        reasoning_tokens, cost, tool_call_id, error_type, error_message, input, output, attributes, semconv_version
    )
    SELECT g.* FROM given g
    ORDER BY g.thread_id COLLATE "C", g.run_id COLLATE "C", g.span_id COLLATE "C"
    ON CONFLICT (thread_id, run_id, span_id, started_at) DO UPDATE SET
        ended_at = excluded.ended_at,
        kind = excluded.kind,
        status = excluded.status,
        checkpoint_id = coalesce(excluded.checkpoint_id, stored.checkpoint_id),
        agent = excluded.agent,
        provider = excluded.provider,
        model = excluded.model,
        input_tokens = excluded.input_tokens,
        output_tokens = excluded.output_tokens,
        cache_read_tokens = excluded.cache_read_tokens,
        reasoning_tokens = excluded.reasoning_tokens,
        cost = excluded.cost,
        tool_call_id = excluded.tool_call_id,
        error_type = excluded.error_type,
        error_message = excluded.error_message,
        input = excluded.input,
        output = excluded.output,
        attributes = excluded.attributes
    WHERE stored.ended_at IS NULL OR excluded.ended_at >= stored.ended_at
    RETURNING thread_id, run_id, span_id, started_at, ended_at
), batches AS MATERIALIZED (
    SELECT w.thread_id, gen_random_uuid()::text, w.run_id, array_agg(w.span_id), array_agg(w.started_at), now()
    FROM written w
    WHERE w.ended_at IS NOT NULL AND EXISTS (SELECT 1 FROM /*schema*/exporters) AND (
        -- The span's end as stored before this statement. Like the run above, each span is looked up separately.
        SELECT o.ended_at FROM /*schema*/spans o
        WHERE o.thread_id = w.thread_id AND o.run_id = w.run_id AND o.span_id = w.span_id
            AND o.started_at = w.started_at
    ) IS NULL
    GROUP BY w.thread_id, w.run_id
)
INSERT INTO /*schema*/span_exports (thread_id, export_id, run_id, span_ids, started_ats, created_at)
SELECT b.* FROM batches b;

-- name: put_events
-- Insert events of existing runs and threads. Locks the run of an event, or the thread if the event has no run.
-- seals: events.payload from rows.payload
WITH new AS MATERIALIZED (
    SELECT s.thread_id, s.event_id, to_timestamp(s.created_at), s.kind, s.run_id, s.checkpoint_ns, s.checkpoint_id,
        s.agent, s.payload
    FROM jsonb_to_recordset(:rows::jsonb) AS s (
        thread_id text, event_id text, created_at double precision, kind text, run_id text, checkpoint_ns text,
        checkpoint_id text, agent text, payload jsonb
    )
    WHERE CASE
        WHEN s.run_id IS NOT NULL THEN (
            SELECT true FROM /*schema*/runs r
            WHERE r.thread_id = s.thread_id AND r.run_id = s.run_id AND r.thread_id = ANY(:thread_ids::text[])
            FOR KEY SHARE
        )
        ELSE (
            SELECT true FROM /*schema*/threads t WHERE t.thread_id = s.thread_id AND t.thread_id = ANY(:thread_ids)
            FOR KEY SHARE
        )
    END
)
INSERT INTO /*schema*/events (
    thread_id, event_id, created_at, kind, run_id, checkpoint_ns, checkpoint_id, agent, payload
)
SELECT n.* FROM new n
ORDER BY n.thread_id COLLATE "C", n.event_id COLLATE "C"
ON CONFLICT (thread_id, event_id) DO NOTHING;

-- name: put_forks
-- Record an event of kind `fork` for each given checkpoint that is not its parent's first child.
-- leaves: events.payload
WITH new AS MATERIALIZED (
    SELECT s.thread_id, s.event_id, made.created_at, 'fork', s.run_id, s.checkpoint_ns, s.checkpoint_id,
        jsonb_build_object('from', s.parent_checkpoint_id, 'source', s.source)
    FROM jsonb_to_recordset(:rows::jsonb) AS s (
        thread_id text, event_id text, run_id text, checkpoint_ns text, checkpoint_id text, parent_checkpoint_id text,
        source text
    )
    CROSS JOIN LATERAL (
        SELECT c.created_at FROM /*schema*/checkpoints c
        WHERE c.thread_id = s.thread_id AND c.thread_id = ANY(:thread_ids::text[])
            AND c.checkpoint_ns = s.checkpoint_ns AND c.checkpoint_id = s.checkpoint_id
    ) AS made
    WHERE EXISTS (
        SELECT 1 FROM /*schema*/checkpoints c
        WHERE c.thread_id = s.thread_id AND c.thread_id = ANY(:thread_ids) AND c.checkpoint_ns = s.checkpoint_ns
            AND c.checkpoint_id > s.parent_checkpoint_id AND c.checkpoint_id < s.checkpoint_id
            AND c.parent_checkpoint_id = s.parent_checkpoint_id
    )
)
INSERT INTO /*schema*/events (thread_id, event_id, created_at, kind, run_id, checkpoint_ns, checkpoint_id, payload)
SELECT n.* FROM new n
ORDER BY n.thread_id COLLATE "C", n.event_id COLLATE "C"
ON CONFLICT (thread_id, event_id) DO NOTHING;

-- name: total_runs
-- Sum the tokens and the cost of some runs from the LLM spans of all attempts. If a run has several attempts or its
-- process died, also count the supersteps from spans, because a killed attempt has stored no count. Supersteps that the
-- next attempt repeated do not count.
UPDATE /*schema*/runs SET
    input_tokens = sums.input_tokens, output_tokens = sums.output_tokens, cost = sums.cost,
    steps = greatest(runs.steps, seen.steps)
FROM unnest(:thread_ids::text[], :run_ids::text[]) AS ended (thread_id, run_id)
JOIN /*schema*/runs r ON r.thread_id = ended.thread_id AND r.run_id = ended.run_id AND r.thread_id = ANY(:thread_ids)
CROSS JOIN LATERAL (
    SELECT coalesce(sum(s.input_tokens), 0) AS input_tokens, coalesce(sum(s.output_tokens), 0) AS output_tokens,
        coalesce(sum(s.cost), 0) AS cost
    FROM /*schema*/spans s
    WHERE s.thread_id = ended.thread_id AND s.run_id = ended.run_id AND s.kind = 'llm'
        AND s.started_at >= coalesce(r.first_started_at, r.started_at)
) AS sums
CROSS JOIN LATERAL (
    SELECT sum(a.steps) AS steps FROM (
        SELECT max(n.step) - min(n.step) + 1 AS steps FROM (
            -- Each attempt begins with a root span, so the number of root spans so far is the number of the attempt.
            SELECT s.kind, s.checkpoint_ns, s.step, s.ended_at, count(*) FILTER (WHERE s.parent_span_id IS NULL)
                OVER (ORDER BY s.started_at, s.parent_span_id IS NOT NULL) AS attempt, min(s.started_at)
                FILTER (WHERE s.parent_span_id IS NULL) OVER (
                    ORDER BY s.started_at, s.parent_span_id IS NOT NULL
                    ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
                ) AS followed_at
            FROM /*schema*/spans s
            WHERE s.thread_id = ended.thread_id AND s.run_id = ended.run_id
                AND s.started_at >= coalesce(r.first_started_at, r.started_at)
                AND (r.attempt > 1 OR r.error_type IN ('ProcessDied', 'WorkerDied'))
        ) AS n
        WHERE n.kind = 'node' AND n.checkpoint_ns = '' AND (n.followed_at IS NULL OR n.ended_at < n.followed_at)
        GROUP BY n.attempt
    ) AS a
) AS seen
WHERE runs.thread_id = ended.thread_id AND runs.run_id = ended.run_id AND runs.thread_id = ANY(:thread_ids);

-- name: refresh_thread_statuses
-- Set the status of threads: `busy` if a run is running or in the queue, otherwise the status that follows from the
-- newest run. Runs that failed because another run advanced the thread or took its lease do not count. If the state was
-- updated after the end of the newest run, the status that the update has set is kept.
UPDATE /*schema*/threads AS t SET status = newest.status
FROM (
    SELECT k.thread_id, CASE WHEN r.status IN ('running', 'pending') OR EXISTS (
            SELECT 1 FROM /*schema*/runs o
            WHERE o.thread_id = k.thread_id AND o.status = 'running' AND o.alive_until > now()
        ) OR EXISTS (
            SELECT 1 FROM /*schema*/queue q WHERE q.thread_id = k.thread_id
        ) THEN 'busy' WHEN r.status IN ('interrupted', 'error') THEN r.status WHEN r.status = 'timeout' THEN 'error'
            ELSE 'idle' END AS status, r.ended_at
    FROM /*schema*/threads k LEFT JOIN LATERAL (
        SELECT status, ended_at FROM /*schema*/runs
        WHERE runs.thread_id = k.thread_id AND NOT (
            runs.status = 'error' AND runs.error_type IN (
                'langgraph_pgstate.errors.StaleHeadError', 'langgraph_pgstate.errors.LeaseLostError'
            )
        )
        ORDER BY started_at DESC LIMIT 1
    ) AS r ON true
    WHERE k.thread_id = ANY(:thread_ids::text[])
        AND EXISTS (SELECT 1 FROM /*schema*/runs any_of WHERE any_of.thread_id = k.thread_id)
) AS newest
WHERE t.thread_id = newest.thread_id AND t.thread_id = ANY(:thread_ids) AND t.status <> newest.status
    AND (t.status = 'busy' OR newest.status = 'busy' OR NOT EXISTS (
        SELECT 1 FROM (
            SELECT c.source, c.created_at FROM /*schema*/checkpoints c
            WHERE c.thread_id = t.thread_id AND c.checkpoint_ns = ''
            ORDER BY c.checkpoint_id DESC LIMIT 1
        ) AS head
        WHERE head.source = 'update' AND head.created_at > newest.ended_at
    ));

-- name: renew_runs
-- Renew `alive_until` of running runs of a process.
UPDATE /*schema*/runs SET alive_until = now() + make_interval(secs => :ttl::double precision)
FROM unnest(:thread_ids::text[], :run_ids::text[]) AS mine (thread_id, run_id)
WHERE runs.thread_id = mine.thread_id AND runs.run_id = mine.run_id AND runs.thread_id = ANY(:thread_ids)
    AND runs.status = 'running' AND runs.holder_id = :holder_id::text;

-- name: settle_attempts
-- End the spans that earlier attempts of some runs left running.
-- leaves: spans.error_message
-- leaves: runs.error_message
WITH ended AS (
    UPDATE /*schema*/spans SET
        status = 'error', ended_at = greatest(spans.started_at, r.started_at), error_type = 'ProcessDied',
        error_message = 'the process that ran it has died'
    FROM unnest(:thread_ids::text[], :run_ids::text[]) AS begun (thread_id, run_id)
    JOIN /*schema*/runs r ON r.thread_id = begun.thread_id AND r.run_id = begun.run_id AND r.thread_id = ANY(:thread_ids)
    WHERE spans.thread_id = begun.thread_id AND spans.run_id = begun.run_id AND spans.thread_id = ANY(:thread_ids)
        AND spans.ended_at IS NULL AND r.attempt > 1 AND spans.started_at < r.started_at
    RETURNING spans.thread_id, spans.run_id, spans.span_id, spans.started_at
), batches AS MATERIALIZED (
    SELECT e.thread_id, gen_random_uuid()::text, e.run_id, array_agg(e.span_id), array_agg(e.started_at), now()
    FROM ended e WHERE EXISTS (SELECT 1 FROM /*schema*/exporters) GROUP BY e.thread_id, e.run_id
)
INSERT INTO /*schema*/span_exports (thread_id, export_id, run_id, span_ids, started_ats, created_at)
SELECT b.* FROM batches b;

-- name: tell_time
-- Return the database's clock, in seconds since 1970.
SELECT extract(epoch FROM clock_timestamp())::double precision;
