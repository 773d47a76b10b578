-- name: put_policy
-- Store a policy, or replace the policy of this name. The policy then visits all threads again. If a version is
-- expected, replace only that version. With encryption, `stored` has metadata whose values are digests already.
-- matches: threads.metadata from metadata
INSERT INTO /*schema*/retention_policies (
    name, agent, tenant_id, user_id, status, metadata, content_after, prune_after, keep_last, archive_after, archive_to,
    delete_after
)
VALUES (
    :name::text, :agent::text, :tenant_id::text, :user_id::text, :status::text, :metadata::jsonb || :stored::jsonb,
    :content_after::interval, :prune_after::interval, :keep_last::integer, :archive_after::interval, :archive_to::text,
    :delete_after::interval
)
ON CONFLICT (name) DO UPDATE SET
    agent = excluded.agent,
    tenant_id = excluded.tenant_id,
    user_id = excluded.user_id,
    status = excluded.status,
    metadata = excluded.metadata,
    content_after = excluded.content_after,
    prune_after = excluded.prune_after,
    keep_last = excluded.keep_last,
    archive_after = excluded.archive_after,
    archive_to = excluded.archive_to,
    delete_after = excluded.delete_after,
    updated_at = excluded.updated_at,
    version = retention_policies.version + 1,
    applied_at = NULL,
    last_error = NULL,
    cursor_id = '',
    began_at = NULL,
    last_began_at = NULL
WHERE :expected::integer IS NULL OR retention_policies.version = :expected;

-- name: list_policies
-- Return all policies by name, and a policy `ttl` if there are threads with a time to live.
SELECT p.name, p.agent, p.tenant_id, p.user_id, p.status, p.metadata, p.content_after, p.prune_after, p.keep_last,
    p.archive_after, p.archive_to, p.delete_after, p.created_at, p.updated_at, p.version, p.applied_at,
    p.last_error
FROM /*schema*/retention_policies p
UNION ALL
SELECT 'ttl', NULL::text, NULL::text, NULL::text, NULL::text, NULL::jsonb, NULL::interval, NULL::interval, 1,
    NULL::interval, NULL::text, NULL::interval, now(), now(), 0, NULL::timestamptz, NULL::text
WHERE EXISTS (SELECT 1 FROM /*schema*/threads t WHERE t.expires_at IS NOT NULL)
ORDER BY 1;

-- name: lock_policy
-- Return the version of a policy, and lock its row until the transaction ends.
SELECT p.version FROM /*schema*/retention_policies p WHERE p.name = :name::text FOR UPDATE;

-- name: note_applied
-- Store that a policy was applied to all threads, and why threads were left, unless the policy was changed meanwhile.
UPDATE /*schema*/retention_policies SET applied_at = now(), last_error = :last_error::text
WHERE name = :name::text AND version = :version::integer;

-- name: note_last_error
-- Store why a policy was not applied to all threads, unless the policy was changed meanwhile.
UPDATE /*schema*/retention_policies SET last_error = :last_error::text
WHERE name = :name::text AND version = :version::integer;

-- name: delete_policy
-- Delete a policy.
DELETE FROM /*schema*/retention_policies WHERE name = :name::text;

-- name: list_idle_threads
-- Return a page of threads that a policy selects and that were not active for a time. Each row says whether the thread
-- is archived, is held, and has copies in archives.
-- leaves: threads.metadata
-- plan: at each call
SELECT t.thread_id, t.archived_at IS NOT NULL,
    EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = t.thread_id),
    EXISTS (SELECT 1 FROM /*schema*/archived_threads c WHERE c.thread_id = t.thread_id)
FROM /*schema*/retention_policies p CROSS JOIN /*schema*/threads t
WHERE p.name = :name::text AND t.updated_at <= now() - :after::interval AND t.thread_id > :cursor_id::text
    AND (:with_archived::boolean OR t.archived_at IS NULL)
    AND /*is_selected*/true AND /*is_idle*/true
ORDER BY t.thread_id
LIMIT :page_size;

-- name: hold_idle
-- Lock a thread's row until the transaction ends, if a policy still selects the thread and the thread was not active
-- for a time. Skip locked rows, held threads, and threads with copies in archives. Return the action: delete.
-- leaves: threads.metadata
SELECT 'delete'::text, false
FROM /*schema*/retention_policies p CROSS JOIN /*schema*/threads t
WHERE p.name = :name::text AND t.thread_id = :thread_id::text AND t.updated_at <= now() - :after::interval
    AND t.archived_at IS NULL AND /*is_selected*/true AND /*is_idle*/true
    AND NOT EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = t.thread_id)
    AND NOT EXISTS (SELECT 1 FROM /*schema*/archived_threads c WHERE c.thread_id = t.thread_id)
FOR UPDATE OF t SKIP LOCKED;

-- name: list_aging_threads
-- Return the next threads that a policy selects, by id, and whether a thread is held. Leave out threads whose last
-- change was more than `:longest` before the last visit, because that visit has applied the whole policy to them. If
-- the clock was set back since the last visit, leave out no thread.
-- leaves: threads.metadata
-- plan: at each call
SELECT t.thread_id, EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = t.thread_id)
FROM /*schema*/retention_policies p CROSS JOIN /*schema*/threads t
WHERE p.name = :name::text AND t.archived_at IS NULL AND t.created_at <= now() - :after::interval
    AND (
        p.last_began_at IS NULL OR p.last_began_at > now() OR t.updated_at > p.last_began_at - :longest::interval
    )
    AND (:from_start::boolean OR p.began_at IS NOT NULL)
    AND t.thread_id > CASE WHEN :from_start THEN :cursor_id::text ELSE p.cursor_id END
    AND /*is_selected*/true
ORDER BY t.thread_id
LIMIT :page_size;

-- name: note_visit
-- Store the position of a policy. An empty cursor says that the policy has visited all threads. If threads were left
-- because of an error, the policy next visits all threads of this visit again.
UPDATE /*schema*/retention_policies SET
    cursor_id = :cursor_id::text,
    last_began_at = CASE
        WHEN :cursor_id = '' AND NOT :has_left::boolean THEN nullif(began_at, '-infinity') ELSE last_began_at
    END,
    began_at = CASE
        WHEN :cursor_id = '' THEN NULL
        WHEN :has_left THEN coalesce(last_began_at, '-infinity')
        ELSE began_at
    END
WHERE name = :name::text AND began_at IS NOT NULL;

-- name: visit_again
-- Let all policies visit all threads again. A visit in progress continues, but another visit of all threads follows it.
UPDATE /*schema*/retention_policies SET
    last_began_at = NULL,
    began_at = CASE WHEN began_at IS NOT NULL THEN '-infinity'::timestamptz END
WHERE last_began_at IS NOT NULL OR began_at > '-infinity';

-- name: begin_visits
-- Store that a policy begins to visit all threads, unless a visit is in progress or began less than `:pause` ago.
UPDATE /*schema*/retention_policies SET began_at = now()
WHERE name = :name::text AND began_at IS NULL
    AND (last_began_at IS NULL OR last_began_at <= now() - :pause::interval OR last_began_at > now());

-- name: forget_content
-- Remove content from spans, messages and runs of a thread that are older than a time, and return the number of rows
-- and bytes. If `dry_run`, only count.
-- leaves: messages.content
-- leaves: messages.tool_calls
-- leaves: runs.input
-- leaves: runs.output
-- leaves: spans.input
-- leaves: spans.output
WITH old_spans AS (
    SELECT s.run_id, s.span_id, s.started_at,
        coalesce(pg_column_size(s.input), 0) + coalesce(pg_column_size(s.output), 0) AS bytes
    FROM /*schema*/spans s
    WHERE s.thread_id = :thread_id::text AND s.started_at < now() - :after::interval
        AND (s.input IS NOT NULL OR s.output IS NOT NULL)
), of_spans AS (
    UPDATE /*schema*/spans s SET input = NULL, output = NULL FROM old_spans o
    WHERE s.thread_id = :thread_id AND s.run_id = o.run_id AND s.span_id = o.span_id AND s.started_at = o.started_at
        AND NOT :dry_run::boolean
), old_messages AS (
    SELECT m.message_id, m.checkpoint_id, m.channel,
        coalesce(pg_column_size(m.content), 0) + coalesce(pg_column_size(m.tool_calls), 0) AS bytes
    FROM /*schema*/messages m
    WHERE m.thread_id = :thread_id AND m.created_at < now() - :after
        AND (m.content IS NOT NULL OR m.tool_calls IS NOT NULL)
), of_messages AS (
    UPDATE /*schema*/messages m SET content = NULL, tool_calls = NULL FROM old_messages o
    WHERE m.thread_id = :thread_id AND m.message_id = o.message_id AND m.checkpoint_id = o.checkpoint_id
        AND m.channel = o.channel AND NOT :dry_run
), old_runs AS (
    SELECT r.run_id, coalesce(pg_column_size(r.input), 0) + coalesce(pg_column_size(r.output), 0) AS bytes
    FROM /*schema*/runs r
    WHERE r.thread_id = :thread_id AND r.ended_at < now() - :after AND (r.input IS NOT NULL OR r.output IS NOT NULL)
), of_runs AS (
    UPDATE /*schema*/runs r SET input = NULL, output = NULL FROM old_runs o
    WHERE r.thread_id = :thread_id AND r.run_id = o.run_id AND NOT :dry_run
)
SELECT count(*), coalesce(sum(a.bytes), 0)::bigint FROM (
    SELECT o.bytes FROM old_spans o UNION ALL SELECT m.bytes FROM old_messages m UNION ALL SELECT n.bytes FROM old_runs n
) AS a;
