-- name: list_archived_threads_of_user
-- Return a page of archived threads that belonged to a user when they were archived, or in which the user had runs,
-- answers, feedback or actions, in order.
SELECT t.thread_id FROM /*schema*/threads t
JOIN /*schema*/archived_threads c ON c.thread_id = t.thread_id AND c.archive_id = t.archive_id
WHERE t.archived_at IS NOT NULL AND (c.user_id = :user_id::text OR c.users @> ARRAY[:user_id])
    AND t.thread_id > :cursor_id::text
ORDER BY t.thread_id LIMIT :page_size;

-- name: begin_erasure
-- Store the beginning of an erasure.
INSERT INTO /*schema*/erasures (erasure_id, kind, salt, subject)
VALUES (:erasure_id::text, :kind::text, :salt::bytea, :subject::bytea)
ON CONFLICT (erasure_id) DO NOTHING;

-- name: list_open_erasures
-- Return the erasures of a kind that are not finished.
SELECT r.erasure_id, r.salt, r.subject, r.started_at FROM /*schema*/erasures r
WHERE r.ended_at IS NULL AND r.kind = :kind::text
ORDER BY r.started_at;

-- name: count_erased
-- Add to the counts of an erasure, in the transaction that erases.
UPDATE /*schema*/erasures SET counts = (
    SELECT coalesce(jsonb_object_agg(s.name, s.total), '{}') FROM (
        SELECT e.key AS name, sum(e.value::bigint) AS total FROM (
            SELECT * FROM jsonb_each_text(erasures.counts) UNION ALL SELECT * FROM jsonb_each_text(:counts::jsonb)
        ) AS e GROUP BY e.key
    ) AS s
)
WHERE erasure_id = :erasure_id::text;

-- name: get_erasure
-- Return kind, start, counts and receipt of an erasure, and the time now.
SELECT r.kind, r.started_at, r.counts, r.receipt, now() FROM /*schema*/erasures r
WHERE r.erasure_id = :erasure_id::text;

-- name: end_erasure
-- Store the receipt of an erasure, and delete the hash of what was erased.
UPDATE /*schema*/erasures SET ended_at = :ended_at::timestamptz, salt = NULL, subject = NULL, receipt = :receipt::jsonb
WHERE erasure_id = :erasure_id::text AND ended_at IS NULL;

-- name: find_erasure
-- Return an erasure.
SELECT r.erasure_id, r.kind, r.started_at, r.ended_at, r.counts, r.receipt FROM /*schema*/erasures r
WHERE r.erasure_id = :erasure_id::text;

-- name: list_erasures
-- Return a page of erasures, newest first.
SELECT r.erasure_id, r.kind, r.started_at, r.ended_at, r.counts, r.receipt FROM /*schema*/erasures r
WHERE (r.started_at, r.erasure_id) < (:cursor_at::timestamptz, :cursor_id::text)
ORDER BY r.started_at DESC, r.erasure_id DESC LIMIT :page_size;

-- name: list_threads_of_user
-- Return a page of a user's threads, in order.
SELECT t.thread_id FROM /*schema*/threads t
WHERE t.user_id = :user_id::text AND t.thread_id > :cursor_id::text
ORDER BY t.thread_id LIMIT :page_size;

-- name: list_threads_with_runs_of_user
-- Return a page of threads that have runs of a user but do not belong to the user, in order. Also return threads
-- without a row in `threads`, because these threads belong to no user.
SELECT DISTINCT r.thread_id FROM /*schema*/runs r LEFT JOIN /*schema*/threads t ON t.thread_id = r.thread_id
WHERE r.user_id = :user_id::text AND t.user_id IS DISTINCT FROM :user_id AND r.thread_id > :cursor_id::text
ORDER BY r.thread_id LIMIT :page_size;

-- name: get_owner
-- Return the user of a thread, and lock the thread's row until the transaction ends. Return no row if there is no such
-- thread.
SELECT t.user_id FROM /*schema*/threads t WHERE t.thread_id = :thread_id::text FOR NO KEY UPDATE;

-- name: has_thread
-- Return whether one of these tables has a row of a thread, or an archive has a copy of the thread or of its fork.
SELECT EXISTS (SELECT 1 FROM /*schema*/threads WHERE thread_id = :thread_id::text)
    OR EXISTS (SELECT 1 FROM /*schema*/checkpoints WHERE thread_id = :thread_id)
    OR EXISTS (SELECT 1 FROM /*schema*/writes WHERE thread_id = :thread_id)
    OR EXISTS (SELECT 1 FROM /*schema*/runs WHERE thread_id = :thread_id)
    OR EXISTS (SELECT 1 FROM /*schema*/journal WHERE thread_id = :thread_id)
    OR EXISTS (SELECT 1 FROM /*schema*/events WHERE thread_id = :thread_id)
    OR EXISTS (SELECT 1 FROM /*schema*/messages WHERE thread_id = :thread_id)
    OR EXISTS (SELECT 1 FROM /*schema*/tool_executions WHERE thread_id = :thread_id)
    OR EXISTS (
        SELECT 1 FROM /*schema*/archived_threads WHERE thread_id = :thread_id OR origin_thread_ids @> ARRAY[:thread_id]
    );

-- name: list_heirs
-- Return the threads that have inherited from a thread, directly or through other forks and copies, and their users.
SELECT t.thread_id, t.user_id FROM /*schema*/threads t
WHERE t.origin_thread_ids @> ARRAY[:thread_id::text] AND t.thread_id <> :thread_id
ORDER BY t.thread_id;

-- name: count_thread_rows
-- Return, for each table, how many rows the erasure of a thread deletes.
SELECT 'threads', count(*) FROM /*schema*/threads WHERE thread_id = :thread_id::text
UNION ALL SELECT 'checkpoints', count(*) FROM /*schema*/checkpoints WHERE thread_id = :thread_id
UNION ALL SELECT 'segments', count(*) FROM /*schema*/segments WHERE thread_id = :thread_id
UNION ALL SELECT 'writes', count(*) FROM /*schema*/writes WHERE thread_id = :thread_id
UNION ALL SELECT 'labels', count(*) FROM /*schema*/labels WHERE thread_id = :thread_id
UNION ALL SELECT 'answers', count(*) FROM /*schema*/answers WHERE thread_id = :thread_id
UNION ALL SELECT 'projections', count(*) FROM /*schema*/projections WHERE thread_id = :thread_id
UNION ALL SELECT 'runs', count(*) FROM /*schema*/runs WHERE thread_id = :thread_id
UNION ALL SELECT 'feedback', count(*) FROM /*schema*/feedback WHERE thread_id = :thread_id
UNION ALL SELECT 'queue', count(*) FROM /*schema*/queue WHERE thread_id = :thread_id
UNION ALL SELECT 'run_requests', count(*) FROM /*schema*/run_requests WHERE thread_id = :thread_id
UNION ALL SELECT 'stream_batches', count(*) FROM /*schema*/stream_batches WHERE thread_id = :thread_id
UNION ALL SELECT 'webhooks', count(*) FROM /*schema*/webhooks WHERE thread_id = :thread_id
UNION ALL SELECT 'spans', count(*) FROM /*schema*/spans WHERE thread_id = :thread_id
UNION ALL SELECT 'span_exports', count(*) FROM /*schema*/span_exports WHERE thread_id = :thread_id
UNION ALL SELECT 'tool_executions', count(*) FROM /*schema*/tool_executions WHERE thread_id = :thread_id
UNION ALL SELECT 'messages', count(*) FROM /*schema*/messages WHERE thread_id = :thread_id
UNION ALL SELECT 'events', count(*) FROM /*schema*/events WHERE thread_id = :thread_id
UNION ALL SELECT 'event_hashes', count(*) FROM /*schema*/event_hashes WHERE thread_id = :thread_id
UNION ALL SELECT 'journal', count(*) FROM /*schema*/journal WHERE thread_id = :thread_id
UNION ALL SELECT 'schedules', count(*) FROM /*schema*/schedules WHERE thread_id = :thread_id
UNION ALL SELECT 'tombstones', count(*) FROM /*schema*/tombstones WHERE thread_id = :thread_id;

-- name: get_owner_of
-- Return the user of a thread. Return no row if there is no such thread.
SELECT t.user_id FROM /*schema*/threads t WHERE t.thread_id = :thread_id::text;

-- name: erase_thread_events
-- Delete all events of a thread, including events that earlier deletions of the thread have left.
DELETE FROM /*schema*/events WHERE thread_id = :thread_id::text;

-- name: erase_thread_rest
-- Erase what remains after the deletion of a thread. Delete the thread's schedules, lease and tombstone. Destroy its
-- data keys. Remove its id from forks, versions of files, tool executions and errors of policies.
WITH gone_schedules AS (
    DELETE FROM /*schema*/schedules WHERE thread_id = :thread_id::text
), last_runs AS (
    UPDATE /*schema*/schedules SET last_thread_id = NULL, last_run_id = NULL
    WHERE last_thread_id = :thread_id AND thread_id IS DISTINCT FROM :thread_id
), policies AS (
    UPDATE /*schema*/retention_policies SET last_error = NULL WHERE strpos(last_error, :thread_id) > 0
), gone_lease AS (
    DELETE FROM /*schema*/leases WHERE thread_id = :thread_id
), heirs AS (
    UPDATE /*schema*/threads SET
        origin_thread_ids = CASE
            WHEN cardinality(origin_thread_ids) > 1 THEN array_remove(origin_thread_ids, :thread_id)
        END,
        forked_from_checkpoint_id = CASE WHEN forked_from_thread_id <> :thread_id THEN forked_from_checkpoint_id END,
        forked_from_thread_id = nullif(forked_from_thread_id, :thread_id)
    WHERE origin_thread_ids @> ARRAY[:thread_id]
), files AS (
    UPDATE /*schema*/file_versions SET thread_id = NULL, checkpoint_ns = NULL, checkpoint_id = NULL, run_id = NULL
    WHERE thread_id = :thread_id
), keys AS (
    UPDATE /*schema*/data_keys SET
        wrapped = NULL, is_current = false, destroyed_at = least(destroyed_at, now()), scope = 'erased:' || key_id
    WHERE scope = 'thread:' || :thread_id
), executions AS (
    UPDATE /*schema*/tool_executions SET origin_thread_id = NULL WHERE origin_thread_id = :thread_id
)
DELETE FROM /*schema*/tombstones WHERE thread_id = :thread_id;

-- name: erase_memories_of_thread
-- Delete memories that were stored in a thread, and return their keys.
DELETE FROM /*schema*/memories m WHERE m.thread_id = :thread_id::text
    AND (:message_id::text IS NULL OR m.message_id = :message_id)
RETURNING m.namespace, m.key;

-- name: erase_memory_versions_of_thread
-- Delete earlier versions of memories that were stored in a thread.
DELETE FROM /*schema*/memory_versions v WHERE v.thread_id = :thread_id::text
    AND (:message_id::text IS NULL OR v.message_id = :message_id);

-- name: erase_memories_of_user
-- Delete a user's memories: memories about the user, and memories in the user's namespaces that name no user. Return
-- their keys.
DELETE FROM /*schema*/memories o
WHERE o.user_id = :user_id::text OR o.user_id IS NULL AND /*is_of_user*/true
RETURNING o.namespace, o.key;

-- name: erase_memory_versions_of_user
-- Delete earlier versions of a user's memories.
DELETE FROM /*schema*/memory_versions o
WHERE o.user_id = :user_id::text OR o.user_id IS NULL AND /*is_of_user*/true;

-- name: erase_large_namespaces_of_user
-- Delete the registrations of a user's large namespaces.
DELETE FROM /*schema*/large_namespaces o WHERE /*is_of_user*/true;

-- name: erase_files_of_user
-- Delete the files in namespaces that have a user's id as a label.
DELETE FROM /*schema*/files o WHERE /*is_of_user*/true;

-- name: erase_file_texts_of_user
-- Delete the texts of files in namespaces that have a user's id as a label.
DELETE FROM /*schema*/file_texts o WHERE /*is_of_user*/true;

-- name: erase_file_versions_of_user
-- Delete the versions of files in namespaces that have a user's id as a label.
DELETE FROM /*schema*/file_versions o WHERE /*is_of_user*/true;

-- name: erase_schedules_of_user
-- Delete the schedules that a user owns, or whose runs are the user's.
DELETE FROM /*schema*/schedules s
WHERE s.owner_id = :user_id::text OR s.options -> 'owner' ->> 'user_id' = :user_id;

-- name: erase_assistant_versions_of_user
-- Delete the versions of a user's assistants.
DELETE FROM /*schema*/assistant_versions v WHERE EXISTS (
    SELECT 1 FROM /*schema*/assistants a WHERE a.assistant_id = v.assistant_id AND a.owner_id = :user_id::text
);

-- name: erase_assistants_of_user
-- Delete a user's assistants.
DELETE FROM /*schema*/assistants a WHERE a.owner_id = :user_id::text;

-- name: list_data_keys_of_user
-- Return the ids of the data keys of a user.
SELECT k.key_id FROM /*schema*/data_keys k WHERE k.scope = 'user:' || :user_id::text AND k.destroyed_at IS NULL;

-- name: list_archives_of_keys
-- Return the archives with content under some data keys, each with the threads whose stubs name it.
SELECT a.url, array_agg(t.thread_id ORDER BY t.thread_id)
FROM /*schema*/archives a JOIN /*schema*/threads t ON t.archive_id = a.archive_id
WHERE a.key_ids && :key_ids::text[]
GROUP BY a.archive_id, a.url
ORDER BY a.archive_id;

-- name: destroy_data_keys_of_user
-- Destroy the data keys of a user. Content that is encrypted under them, also in dumps, can never be read again.
UPDATE /*schema*/data_keys SET
    wrapped = NULL, is_current = false, destroyed_at = least(destroyed_at, now()), scope = 'erased:' || key_id
WHERE scope = 'user:' || :user_id::text;

-- name: erase_budgets_of_user
-- Delete the budgets of a user.
DELETE FROM /*schema*/budgets b WHERE b.name = :user_id::text AND b.scope IN ('user', 'key');

-- name: erase_policies_of_user
-- Delete the policies for a user's threads.
DELETE FROM /*schema*/retention_policies p WHERE p.user_id = :user_id::text;

-- name: erase_queue_limits_of_user
-- Delete the limits of runs with a user's id as their key.
DELETE FROM /*schema*/queue_limits l WHERE l.key = :user_id::text;

-- name: erase_queue_keys_of_user
-- Delete the counts of runs with a user's id as their key.
DELETE FROM /*schema*/queue_keys k WHERE k.key = :user_id::text;

-- name: erase_deleted_costs_of_user
-- Remove a user from the costs of deleted runs.
UPDATE /*schema*/deleted_costs SET user_id = NULL, key = nullif(key, :user_id)
WHERE user_id = :user_id::text OR key = :user_id;

-- name: erase_feedback_by_user
-- Delete the feedback that a user has given on other users' runs.
DELETE FROM /*schema*/feedback f WHERE f.created_by = :user_id::text
    AND NOT EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = f.thread_id);

-- name: erase_answers_by_user
-- Remove a user's name from answers to interrupts of other users' threads.
UPDATE /*schema*/answers SET answered_by = '[erased]' WHERE answered_by = :user_id::text
    AND NOT EXISTS (SELECT 1 FROM /*schema*/holds h WHERE h.thread_id = answers.thread_id);

-- name: list_held_acts_of_user
-- Return other users' held threads in which a user has answered or given feedback, with the persons who hold them.
SELECT DISTINCT ON (h.thread_id) h.thread_id, h.held_by, h.reason, h.created_at
FROM (
    SELECT a.thread_id FROM /*schema*/answers a WHERE a.answered_by = :user_id::text
    UNION
    SELECT f.thread_id FROM /*schema*/feedback f WHERE f.created_by = :user_id
) AS s JOIN /*schema*/holds h ON h.thread_id = s.thread_id
ORDER BY h.thread_id, h.created_at;

-- name: erase_memory_changes_by_user
-- Remove a user's name from other users' memories.
UPDATE /*schema*/memories SET changed_by = '[erased]' WHERE changed_by = :user_id::text;

-- name: erase_memory_version_changes_by_user
-- Remove a user's name from versions of other users' memories.
UPDATE /*schema*/memory_versions SET
    changed_by = CASE WHEN changed_by = :user_id::text THEN '[erased]' ELSE changed_by END,
    deleted_by = CASE WHEN deleted_by = :user_id THEN '[erased]' ELSE deleted_by END
WHERE changed_by = :user_id OR deleted_by = :user_id;

-- name: erase_file_changes_by_user
-- Remove a user's name from versions of other users' files.
UPDATE /*schema*/file_versions SET changed_by = '[erased]' WHERE changed_by = :user_id::text;

-- name: list_events_by_user
-- Return a page of the events that name a user as the acting person, in order.
-- leaves: events.payload
SELECT v.thread_id, v.event_id FROM /*schema*/events v
WHERE v.kind IN ('action', 'answer') AND v.payload ->> 'by' = :user_id::text
    AND (v.thread_id, v.event_id) > (:cursor_thread::text, :cursor_id::text)
ORDER BY v.thread_id, v.event_id LIMIT :page_size;

-- name: erase_events_by_user
-- Remove the name of the acting person from some events of a thread.
-- leaves: events.payload
UPDATE /*schema*/events SET payload = payload || '{"by": "[erased]"}'::jsonb
WHERE thread_id = :thread_id::text AND event_id = ANY(:event_ids::text[]) AND payload ->> 'by' = :user_id::text;

-- name: list_relatives
-- Return the threads from which a thread was forked or copied, and the forks and copies of it, at any distance.
SELECT o.thread_id FROM /*schema*/threads t CROSS JOIN unnest(t.origin_thread_ids) AS o (thread_id)
WHERE t.thread_id = :thread_id::text
UNION
SELECT t.thread_id FROM /*schema*/threads t
WHERE t.origin_thread_ids @> ARRAY[:thread_id] AND t.thread_id <> :thread_id
ORDER BY 1;

-- name: list_fork_events
-- Return the events of a thread that name a given other thread as the source or the target of a fork or copy.
-- leaves: events.payload
SELECT v.event_id FROM /*schema*/events v
WHERE v.thread_id = :thread_id::text AND v.kind IN ('fork', 'action') AND :other_id::text IN (
    v.payload -> 'forked_from' ->> 'thread_id', v.payload -> 'forked_to' ->> 'thread_id',
    v.payload ->> 'source', v.payload ->> 'target'
)
ORDER BY v.event_id;

-- name: erase_fork_events
-- Remove the id of another thread from some events of a thread.
-- leaves: events.payload
UPDATE /*schema*/events SET payload = (
    SELECT jsonb_object_agg(e.key, CASE
        WHEN e.key IN ('source', 'target') AND payload ->> e.key = :other_id::text THEN 'null'
        WHEN e.key IN ('forked_from', 'forked_to') AND e.value ->> 'thread_id' = :other_id
            THEN e.value || '{"thread_id": null}'
        ELSE e.value
    END) FROM jsonb_each(payload) AS e
)
WHERE thread_id = :thread_id::text AND event_id = ANY(:event_ids::text[]);
