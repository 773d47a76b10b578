-- name: hold_exporter
-- Let a process export, unless another process exports. Return whether the spans of earlier runs must still be queued.
-- Return no row if another process exports.
INSERT INTO /*schema*/exporters AS held (name, endpoint, holder_id, expires_at)
VALUES ('otlp', :endpoint::text, :holder_id::text, now() + make_interval(secs => :ttl::double precision))
ON CONFLICT (name) DO UPDATE SET
    endpoint = excluded.endpoint, holder_id = excluded.holder_id, expires_at = excluded.expires_at
WHERE held.holder_id = excluded.holder_id OR held.expires_at < excluded.created_at
RETURNING caught_up_at IS NULL;

-- name: note_caught_up
-- Store that the spans of earlier runs were queued.
UPDATE /*schema*/exporters SET caught_up_at = now()
WHERE name = 'otlp' AND holder_id = :holder_id::text AND caught_up_at IS NULL;

-- name: release_exporter
-- Let another process export from now on.
UPDATE /*schema*/exporters SET expires_at = now() WHERE name = 'otlp' AND holder_id = :holder_id::text;

-- name: queue_runs
-- Queue the ended spans of a page of runs, newest first, below a cursor. Return the runs of the page.
WITH page AS MATERIALIZED (
    SELECT r.started_at, r.thread_id, r.run_id FROM /*schema*/runs r
    WHERE r.started_at >= coalesce(:since::timestamptz, now() - :age::interval)
        AND r.started_at <= :cursor_started_at::timestamptz
        AND (r.started_at < :cursor_started_at OR (r.thread_id, r.run_id) > (:cursor_thread::text, :cursor_run::text))
    ORDER BY r.started_at DESC, r.thread_id, r.run_id LIMIT :page_size
), batches AS MATERIALIZED (
    SELECT n.thread_id, gen_random_uuid()::text, n.run_id, array_agg(n.span_id), array_agg(n.started_at), now()
    FROM (
        SELECT s.thread_id, s.run_id, s.span_id, s.started_at, (
            row_number() OVER (PARTITION BY s.thread_id, s.run_id ORDER BY s.started_at, s.span_id) - 1
        ) / :most_spans::integer AS part
        FROM page p JOIN /*schema*/spans s ON s.thread_id = p.thread_id AND s.run_id = p.run_id
        WHERE s.ended_at IS NOT NULL
    ) AS n
    GROUP BY n.thread_id, n.run_id, n.part
), queued AS (
    INSERT INTO /*schema*/span_exports (thread_id, export_id, run_id, span_ids, started_ats, created_at)
    SELECT b.* FROM batches b
)
SELECT p.started_at, p.thread_id, p.run_id FROM page p ORDER BY p.started_at DESC, p.thread_id, p.run_id;

-- name: list_exports
-- Return the oldest batches of queued spans, with about the given number of spans.
SELECT e.thread_id, e.export_id, e.run_id, e.span_ids, e.started_ats
FROM (
    SELECT o.*, sum(cardinality(o.span_ids)) OVER (ORDER BY o.created_at, o.thread_id, o.export_id) AS total
    FROM (
        SELECT x.* FROM /*schema*/span_exports x ORDER BY x.created_at, x.thread_id, x.export_id
        LIMIT :most_spans::integer
    ) AS o
) AS e
WHERE e.total - cardinality(e.span_ids) < :most_spans
ORDER BY e.created_at, e.thread_id, e.export_id;

-- name: read_ended_spans
-- Return some spans that have ended, with data of their runs and parents, and with content if requested. A root span
-- has one row for each attempt. The parent of a span is the last of these rows that began before the span.
-- opens: spans.input if intact
-- opens: spans.output if intact
-- opens: spans.error_message if intact
-- opens: spans.attributes if intact
-- opens: runs.input from run_input if intact
-- opens: runs.output from run_output if intact
-- leaves: runs.error_message
SELECT s.thread_id, s.run_id, s.span_id, s.started_at, s.ended_at, s.parent_span_id, p.started_at, s.kind, s.name,
    s.status, s.checkpoint_ns, s.step, s.node, s.agent, s.cost::double precision, s.error_type, s.attributes,
    s.semconv_version, r.tenant_id, r.user_id, r.traceparent,
    CASE WHEN c.is_shown THEN s.error_message END AS error_message,
    CASE WHEN c.is_shown THEN s.input END AS input,
    CASE WHEN c.is_shown THEN s.output END AS output,
    CASE WHEN c.is_shown AND s.input IS NULL AND s.parent_span_id IS NULL THEN r.input END AS run_input,
    CASE WHEN c.is_shown AND s.output IS NULL AND s.parent_span_id IS NULL THEN r.output END AS run_output
FROM unnest(:thread_ids::text[], :run_ids::text[], :span_ids::text[], :started_ats::timestamptz[])
    AS k (thread_id, run_id, span_id, started_at)
-- `OFFSET 0` prevents a join that reads all spans of the threads.
CROSS JOIN LATERAL (
    SELECT e.* FROM /*schema*/spans e
    WHERE e.thread_id = k.thread_id AND e.run_id = k.run_id AND e.span_id = k.span_id AND e.started_at = k.started_at
        AND e.ended_at IS NOT NULL
    OFFSET 0
) AS s
CROSS JOIN LATERAL (
    SELECT o.* FROM /*schema*/runs o WHERE o.thread_id = k.thread_id AND o.run_id = k.run_id OFFSET 0
) AS r
CROSS JOIN LATERAL (SELECT :with_content::boolean AND NOT r.is_encrypted AS is_shown) AS c
LEFT JOIN LATERAL (
    SELECT b.started_at FROM /*schema*/spans b
    WHERE b.thread_id = s.thread_id AND b.run_id = s.run_id AND b.span_id = s.parent_span_id
        AND b.started_at <= s.started_at
    ORDER BY b.started_at DESC LIMIT 1
) AS p ON true
ORDER BY s.thread_id, s.run_id, s.started_at, s.span_id;

-- name: delete_exports
-- Delete queued spans that have been exported.
DELETE FROM /*schema*/span_exports e
USING unnest(:thread_ids::text[], :export_ids::text[]) AS k (thread_id, export_id)
WHERE e.thread_id = k.thread_id AND e.export_id = k.export_id AND e.thread_id = ANY(:thread_ids);

-- name: forget_exporters
-- Delete the exporters that have not exported for some time.
DELETE FROM /*schema*/exporters WHERE expires_at < now() - :age::interval;

-- name: drop_exports
-- Delete some queued spans that no exporter will export.
DELETE FROM /*schema*/span_exports e
USING (
    SELECT x.thread_id, x.export_id FROM /*schema*/span_exports x
    WHERE NOT EXISTS (SELECT 1 FROM /*schema*/exporters) ORDER BY x.created_at LIMIT :page_size
) AS k
WHERE e.thread_id = k.thread_id AND e.export_id = k.export_id;
