-- name: put_feedback
-- Store feedback on a run or on one of its spans, or replace the feedback under its id. Return the feedback, or no row
-- if there is no such run or span.
-- seals: feedback.comment
-- seals: feedback.value
-- opens: feedback.comment
-- opens: feedback.value
WITH target AS MATERIALIZED (
    SELECT now() AS at FROM /*schema*/runs
    WHERE thread_id = :thread_id::text AND run_id = :run_id::text AND (:span_id::text IS NULL OR EXISTS (
        SELECT 1 FROM /*schema*/spans s
        WHERE s.thread_id = :thread_id AND s.run_id = :run_id AND s.span_id = :span_id
    ))
)
INSERT INTO /*schema*/feedback AS stored (
    thread_id, run_id, feedback_id, span_id, created_at, created_by, source, name, score, comment, value_type, value
)
SELECT :thread_id, :run_id, :feedback_id::text, :span_id, t.at, :created_by::text, :source::text, :name::text,
    :score::double precision, :comment::text, :value_type::text, :value::bytea
FROM target t
ON CONFLICT (thread_id, run_id, feedback_id) DO UPDATE SET
    span_id = excluded.span_id, created_by = excluded.created_by, source = excluded.source, name = excluded.name,
    score = excluded.score, comment = excluded.comment, value_type = excluded.value_type, value = excluded.value
RETURNING stored.thread_id, stored.run_id, stored.feedback_id, stored.span_id, stored.created_at, stored.created_by,
    stored.source, stored.name, stored.score, stored.comment, stored.value_type, stored.value;

-- name: list_feedback
-- Return a page of feedback, newest first, below a cursor.
-- opens: feedback.comment
-- opens: feedback.value
-- plan: at each call
SELECT f.thread_id, f.run_id, f.feedback_id, f.span_id, f.created_at, f.created_by, f.source, f.name, f.score,
    f.comment, f.value_type, f.value
FROM /*schema*/feedback f
WHERE f.created_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
    AND (:thread_id::text IS NULL OR f.thread_id = :thread_id)
    AND f.created_at <= :cursor_at::timestamptz
    AND (f.created_at < :cursor_at
        OR (f.thread_id, f.run_id, f.feedback_id) > (:cursor_thread::text, :cursor_run::text, :cursor_id::text))
    AND (:run_id::text IS NULL OR f.run_id = :run_id)
    AND (:name::text IS NULL OR f.name = :name)
    AND (:source::text IS NULL OR f.source = :source)
ORDER BY f.created_at DESC, f.thread_id, f.run_id, f.feedback_id
LIMIT :page_size;

-- name: delete_feedback
-- Delete feedback.
DELETE FROM /*schema*/feedback
WHERE thread_id = :thread_id::text AND run_id = :run_id::text AND feedback_id = :feedback_id::text;

-- name: average_feedback
-- Return counts and mean scores of a period's feedback, grouped by name and by the keys in `:by`, largest group first.
-- Reads at most `:most` of the newest rows. The last column is the number of rows that were read.
-- leaves: feedback.comment
-- leaves: feedback.value
SELECT j.name,
    CASE WHEN 'agent' = ANY(:by::text[]) THEN j.agent END,
    m.model,
    CASE WHEN 'release' = ANY(:by) THEN j.release END,
    count(*), count(j.score), avg(j.score), count(*) FILTER (WHERE j.has_comment),
    max(j.total)
FROM (
    SELECT f.thread_id, f.run_id, f.span_id, f.name, f.score,
        f.comment IS NOT NULL OR f.value IS NOT NULL AS has_comment, r.agent, r.release, count(*) OVER () AS total
    FROM (
        SELECT g.*
        FROM /*schema*/feedback g
        WHERE g.created_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
            AND (:until::timestamptz IS NULL OR g.created_at < :until)
        ORDER BY g.created_at DESC LIMIT :most
    ) AS f CROSS JOIN LATERAL (
        -- `OFFSET 0` prevents a join that reads all runs.
        SELECT n.agent, n.release, n.user_id, n.tenant_id FROM /*schema*/runs n
        WHERE n.thread_id = f.thread_id AND n.run_id = f.run_id OFFSET 0
    ) AS r
    WHERE (:agent::text IS NULL OR r.agent = :agent)
        AND (:user_id::text IS NULL OR r.user_id = :user_id)
        AND (:tenant_id::text IS NULL OR r.tenant_id = :tenant_id)
) AS j LEFT JOIN LATERAL (
    SELECT DISTINCT s.model FROM /*schema*/spans s
    WHERE 'model' = ANY(:by) AND s.thread_id = j.thread_id AND s.run_id = j.run_id AND s.kind = 'llm'
        AND s.model IS NOT NULL AND (j.span_id IS NULL OR s.span_id = j.span_id)
) AS m ON true
GROUP BY 1, 2, 3, 4
ORDER BY 5 DESC, 1, 2, 3, 4
LIMIT :page_size;

-- name: average_feedback_with_scope
-- Return the columns of `average_feedback` for threads that a caller may see. Reads at most `:most` of these threads,
-- the last updated ones.
-- matches: threads.metadata from scope
-- leaves: feedback.comment
-- leaves: feedback.value
SELECT j.name,
    CASE WHEN 'agent' = ANY(:by::text[]) THEN j.agent END,
    m.model,
    CASE WHEN 'release' = ANY(:by) THEN j.release END,
    count(*), count(j.score), avg(j.score), count(*) FILTER (WHERE j.has_comment),
    max(j.total)
FROM (
    SELECT f.thread_id, f.run_id, f.span_id, f.name, f.score,
        f.comment IS NOT NULL OR f.value IS NOT NULL AS has_comment, r.agent, r.release, count(*) OVER () AS total
    FROM (
        SELECT g.*
        FROM (
            SELECT o.thread_id FROM (
                SELECT t.thread_id, t.updated_at FROM /*schema*/threads t
                WHERE t.metadata @> ANY(:scope::text[]::jsonb[]) OFFSET 0
            ) AS o ORDER BY o.updated_at DESC LIMIT :most
        ) AS seen JOIN /*schema*/feedback g ON g.thread_id = seen.thread_id
        WHERE g.created_at >= coalesce(:since::timestamptz, now() - :age::interval, '-infinity')
            AND (:until::timestamptz IS NULL OR g.created_at < :until)
        ORDER BY g.created_at DESC LIMIT :most
    ) AS f CROSS JOIN LATERAL (
        -- `OFFSET 0` prevents a join that reads all runs.
        SELECT n.agent, n.release, n.user_id, n.tenant_id FROM /*schema*/runs n
        WHERE n.thread_id = f.thread_id AND n.run_id = f.run_id OFFSET 0
    ) AS r
    WHERE (:agent::text IS NULL OR r.agent = :agent)
        AND (:user_id::text IS NULL OR r.user_id = :user_id)
        AND (:tenant_id::text IS NULL OR r.tenant_id = :tenant_id)
) AS j LEFT JOIN LATERAL (
    SELECT DISTINCT s.model FROM /*schema*/spans s
    WHERE 'model' = ANY(:by) AND s.thread_id = j.thread_id AND s.run_id = j.run_id AND s.kind = 'llm'
        AND s.model IS NOT NULL AND (j.span_id IS NULL OR s.span_id = j.span_id)
) AS m ON true
GROUP BY 1, 2, 3, 4
ORDER BY 5 DESC, 1, 2, 3, 4
LIMIT :page_size;
