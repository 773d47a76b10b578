-- name: delete_thread
-- Delete the rows of some threads, except their segments, and return the numbers of threads, checkpoints and writes,
-- and their bytes.
WITH gone AS (
    DELETE FROM /*schema*/checkpoints WHERE thread_id = ANY(:thread_ids::text[])
    RETURNING thread_id, octet_length(state) AS bytes
), gone_writes AS (
    DELETE FROM /*schema*/writes WHERE thread_id = ANY(:thread_ids::text[])
    RETURNING thread_id, octet_length(data) AS bytes
), gone_threads AS (
    DELETE FROM /*schema*/threads WHERE thread_id = ANY(:thread_ids::text[])
    RETURNING thread_id
)
SELECT
    (SELECT count(*) FROM (
        SELECT thread_id FROM gone_threads UNION SELECT thread_id FROM gone UNION SELECT thread_id FROM gone_writes
    ) AS t),
    (SELECT count(*) FROM gone),
    (SELECT count(*) FROM gone_writes),
    (SELECT coalesce(sum(bytes), 0)::bigint FROM gone) + (SELECT coalesce(sum(bytes), 0)::bigint FROM gone_writes);

-- name: delete_lease
-- Delete the lease of a thread, so that writes under the lease are refused. Waits for such writes in progress.
DELETE FROM /*schema*/leases WHERE thread_id = :thread_id::text;

-- name: delete_record
-- Delete all records of a thread other than its checkpoints. With `keeps_ends`, keep webhooks, and runs with a
-- `delete_at`. Keep the event of the person who deleted the thread, unless the thread exists again.
-- leaves: events.payload
WITH gone_projection AS (
    DELETE FROM /*schema*/projections WHERE thread_id = :thread_id
), gone_runs AS (
    DELETE FROM /*schema*/runs WHERE thread_id = :thread_id AND NOT (:keeps_ends::boolean AND delete_at IS NOT NULL)
), gone_spans AS (
    DELETE FROM /*schema*/spans WHERE thread_id = :thread_id
), gone_exports AS (
    DELETE FROM /*schema*/span_exports WHERE thread_id = :thread_id
), gone_answers AS (
    DELETE FROM /*schema*/answers WHERE thread_id = :thread_id
), gone_executions AS (
    DELETE FROM /*schema*/tool_executions WHERE thread_id = :thread_id
), gone_events AS (
    DELETE FROM /*schema*/events
    WHERE thread_id = :thread_id AND (:was_there::boolean OR kind <> 'action' OR payload ->> 'action' <> 'delete')
), gone_labels AS (
    DELETE FROM /*schema*/labels WHERE thread_id = :thread_id
), gone_webhooks AS (
    DELETE FROM /*schema*/webhooks WHERE thread_id = :thread_id AND NOT :keeps_ends
)
DELETE FROM /*schema*/messages WHERE thread_id = :thread_id;

-- name: note_prune
-- Record in a thread's events that the thread was pruned, and how much was deleted.
-- leaves: events.payload
INSERT INTO /*schema*/events (thread_id, event_id, kind, payload)
VALUES (
    :thread_id::text,
    to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISSUS') || '-prune-' || :suffix::text,
    'prune',
    jsonb_build_object('checkpoints', :checkpoints::integer, 'writes', :writes::integer)
)
RETURNING thread_id, event_id;

-- name: count_thread
-- Return the numbers of rows and bytes that a deletion of some threads would delete, including segments.
SELECT
    (SELECT count(*) FROM (
        SELECT thread_id FROM /*schema*/threads WHERE thread_id = ANY(:thread_ids::text[])
        UNION SELECT thread_id FROM /*schema*/checkpoints WHERE thread_id = ANY(:thread_ids::text[])
        UNION SELECT thread_id FROM /*schema*/writes WHERE thread_id = ANY(:thread_ids::text[])
    ) AS t),
    (SELECT count(*) FROM /*schema*/checkpoints WHERE thread_id = ANY(:thread_ids::text[])),
    (SELECT count(*) FROM /*schema*/writes WHERE thread_id = ANY(:thread_ids::text[])),
    (SELECT count(*) FROM /*schema*/segments WHERE thread_id = ANY(:thread_ids::text[])),
    (SELECT coalesce(sum(octet_length(state)), 0)::bigint FROM /*schema*/checkpoints
        WHERE thread_id = ANY(:thread_ids::text[]))
    + (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM /*schema*/writes
        WHERE thread_id = ANY(:thread_ids::text[]))
    + (SELECT coalesce(sum(octet_length(data)), 0)::bigint FROM /*schema*/segments
        WHERE thread_id = ANY(:thread_ids::text[]));

-- name: find_strangers
-- Return at most one checkpoint of the target thread that the source does not have.
WITH known AS MATERIALIZED (
    SELECT s.checkpoint_ns, s.checkpoint_id FROM /*schema*/checkpoints s WHERE s.thread_id = :source_id
)
SELECT t.checkpoint_ns, t.checkpoint_id FROM /*schema*/checkpoints t
WHERE t.thread_id = :target_id AND NOT EXISTS (
    SELECT 1 FROM known k WHERE k.checkpoint_ns = t.checkpoint_ns AND k.checkpoint_id = t.checkpoint_id
)
LIMIT 1;

-- name: copy_thread
-- Copy a thread with its messages, projection, labels and tool executions. Copied checkpoints keep their ids. Runs,
-- spans and events are not copied. If a checkpoint's metadata have the thread's id, the copy has the new id instead. An
-- owner is an object with `metadata`, `user_id` and `tenant_id`; null is the source's owner.
-- leaves: checkpoints.state
-- leaves: checkpoints.metadata
-- leaves: segments.data
-- leaves: writes.data
-- seals: threads.metadata from owner.metadata with thread_id = target_id
-- leaves: threads.title
-- leaves: messages.content
-- leaves: messages.tool_calls
-- leaves: projections.state
-- leaves: answers.value
-- leaves: tool_executions.fingerprint
-- leaves: tool_executions.arguments
-- leaves: tool_executions.result
-- leaves: tool_executions.preview
-- leaves: tool_executions.error_message
WITH source AS MATERIALIZED (
    SELECT agent,
        -- Set the owner at once, because users who may see the source may not see the copy.
        CASE WHEN :owner::text::jsonb IS NULL THEN user_id ELSE :owner::text::jsonb ->> 'user_id' END,
        CASE WHEN :owner::text::jsonb IS NULL THEN tenant_id ELSE :owner::text::jsonb ->> 'tenant_id' END,
        now(), now(), title, coalesce(:owner::text::jsonb -> 'metadata', metadata), forked_from_thread_id,
        forked_from_checkpoint_id, ttl, ttl_strategy,
        -- With a time to live, the copy expires that long from now, otherwise at the source's fixed time.
        coalesce(now() + ttl, expires_at), array_append(origin_thread_ids, thread_id)
    FROM /*schema*/threads WHERE thread_id = :source_id
), copied_thread AS (
    INSERT INTO /*schema*/threads AS stored (
        thread_id, agent, user_id, tenant_id, created_at, updated_at, title, metadata, forked_from_thread_id,
        forked_from_checkpoint_id, ttl, ttl_strategy, expires_at, origin_thread_ids
    )
    SELECT :target_id, s.* FROM source s
    ON CONFLICT (thread_id) DO UPDATE SET
        origin_thread_ids = array_cat(stored.origin_thread_ids, excluded.origin_thread_ids)
    WHERE (stored.origin_thread_ids @> excluded.origin_thread_ids) IS NOT TRUE
), copied_segments AS (
    INSERT INTO /*schema*/segments (thread_id, segment_id, data)
    SELECT :target_id, segment_id, data FROM /*schema*/segments WHERE thread_id = :source_id
    ON CONFLICT (thread_id, segment_id) DO NOTHING
), copied_writes AS (
    INSERT INTO /*schema*/writes (
        thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, created_at, data, is_copy
    )
    SELECT :target_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, run_id, created_at, data, true
    FROM /*schema*/writes WHERE thread_id = :source_id
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING
), copied_messages AS (
    INSERT INTO /*schema*/messages (
        thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role,
        agent, content, tool_calls, tool_call_id, input_tokens, output_tokens
    )
    SELECT :target_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role,
        agent, content, tool_calls, tool_call_id, input_tokens, output_tokens
    FROM /*schema*/messages WHERE thread_id = :source_id
    ON CONFLICT (thread_id, message_id, checkpoint_id, channel) DO NOTHING
), copied_projection AS (
    INSERT INTO /*schema*/projections (thread_id, checkpoint_id, updated_at, state)
    SELECT :target_id, checkpoint_id, updated_at, state FROM /*schema*/projections WHERE thread_id = :source_id
    ON CONFLICT (thread_id) DO NOTHING
), copied_executions AS (
    INSERT INTO /*schema*/tool_executions (
        thread_id, idempotency_key, tool, status, attempt, agent, tool_call_id, run_id, task_id, checkpoint_ns,
        checkpoint_id, step, holder_id, alive_until, started_at, ended_at, arguments, result_type, result, preview,
        error_type, error_message, compensates, compensated_at, fingerprint, intent_id, root_checkpoint_id, answers,
        origin_thread_id, is_copy
    )
    SELECT :target_id, idempotency_key, tool, status, attempt, agent, tool_call_id, run_id, task_id, checkpoint_ns,
        checkpoint_id, step, holder_id, alive_until, started_at, ended_at, arguments, result_type, result, preview,
        error_type, error_message, compensates, compensated_at, fingerprint, intent_id, root_checkpoint_id, answers,
        coalesce(origin_thread_id, thread_id), true
    FROM /*schema*/tool_executions WHERE thread_id = :source_id
    ON CONFLICT (thread_id, idempotency_key) DO NOTHING
), copied_answers AS (
    INSERT INTO /*schema*/answers (
        thread_id, checkpoint_ns, checkpoint_id, interrupt_id, answer_id, task_id, answered_at, answered_by, value_type,
        value, is_default
    )
    SELECT :target_id, checkpoint_ns, checkpoint_id, interrupt_id, answer_id, task_id, answered_at, answered_by,
        value_type, value, is_default
    FROM /*schema*/answers WHERE thread_id = :source_id
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, interrupt_id) DO NOTHING
), copied_labels AS (
    INSERT INTO /*schema*/labels (thread_id, checkpoint_ns, checkpoint_id, label, created_at)
    SELECT :target_id, checkpoint_ns, checkpoint_id, label, created_at FROM /*schema*/labels
    WHERE thread_id = :source_id
    ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING
)
INSERT INTO /*schema*/checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, revision,
    segment_ids, metadata, state, next_checkpoint_id, state_version, is_copy
)
SELECT :target_id::text, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, source, step, created_at, revision,
    segment_ids, CASE WHEN metadata ? 'thread_id' THEN metadata || :renaming::jsonb ELSE metadata END, state, next_checkpoint_id, state_version, true
FROM /*schema*/checkpoints WHERE thread_id = :source_id
ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO NOTHING;

-- name: copy_late_messages
-- Copy messages that were stored after their checkpoints had been copied.
-- leaves: messages.content
-- leaves: messages.tool_calls
INSERT INTO /*schema*/messages (
    thread_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role,
    agent, content, tool_calls, tool_call_id, input_tokens, output_tokens
)
WITH copied AS MATERIALIZED (
    SELECT c.checkpoint_ns, c.checkpoint_id FROM /*schema*/checkpoints c WHERE c.thread_id = :target_id
)
SELECT :target_id, message_id, checkpoint_id, checkpoint_ns, channel, position, change, created_at, run_id, role,
    agent, content, tool_calls, tool_call_id, input_tokens, output_tokens
FROM /*schema*/messages m
WHERE m.thread_id = :source_id AND EXISTS (
    SELECT 1 FROM copied c WHERE c.checkpoint_ns = m.checkpoint_ns AND c.checkpoint_id = m.checkpoint_id
)
ON CONFLICT (thread_id, message_id, checkpoint_id, channel) DO NOTHING;

-- name: count_visited_threads
-- Return the number of threads that have a row in any table.
SELECT count(*) FROM (
    SELECT thread_id FROM /*schema*/threads
    UNION SELECT thread_id FROM /*schema*/checkpoints
    UNION SELECT thread_id FROM /*schema*/segments
    UNION SELECT thread_id FROM /*schema*/writes
    UNION SELECT thread_id FROM /*schema*/tool_executions
    UNION SELECT thread_id FROM /*schema*/run_requests
) AS visited;

-- name: list_thread_ids
-- Return a page of thread ids, in order, after a cursor. Threads with only pending writes are included.
(SELECT thread_id FROM /*schema*/threads WHERE thread_id > :cursor_id::text ORDER BY thread_id LIMIT :page_size)
UNION
(SELECT DISTINCT thread_id FROM /*schema*/writes WHERE thread_id > :cursor_id ORDER BY thread_id LIMIT :page_size)
ORDER BY thread_id LIMIT :page_size;

-- name: lock_thread_for_update
-- Lock a thread's row against all other locks on it (prunes, labels, guarded writes) until the transaction ends.
SELECT 1 FROM /*schema*/threads WHERE thread_id = :thread_id::text FOR UPDATE;

-- name: settle_thread
-- Set the status of a thread without a run, after an update of its state.
UPDATE /*schema*/threads SET status = :status::text
WHERE thread_id = :thread_id::text AND archived_at IS NULL AND status NOT IN (:status, 'busy')
RETURNING 1;

-- name: create_thread
-- Insert a thread, unless the thread exists or was deleted. Return one row: the time of the deletion, and the columns
-- of the new thread, which are null if no row was inserted.
-- seals: threads.title
-- seals: threads.metadata
-- opens: threads.title
-- opens: threads.metadata
WITH gone AS MATERIALIZED (
    SELECT d.deleted_at FROM /*schema*/tombstones d WHERE d.thread_id = :thread_id::text AND d.expires_at > now()
), new AS MATERIALIZED (
    SELECT now() AS at, now() + :ttl::interval AS expires_at WHERE NOT EXISTS (SELECT 1 FROM gone)
), made AS (
    INSERT INTO /*schema*/threads (
        thread_id, agent, user_id, tenant_id, created_at, updated_at, title, metadata, ttl, ttl_strategy, expires_at
    )
    SELECT :thread_id, :agent::text, :user_id::text, :tenant_id::text, n.at, n.at, :title::text, :metadata::jsonb, :ttl,
        :ttl_strategy::text, n.expires_at
    FROM new n
    ON CONFLICT (thread_id) DO NOTHING
    RETURNING threads.*
)
SELECT g.deleted_at, t.thread_id, t.agent, t.user_id, t.created_at, t.updated_at, t.tenant_id, t.status, t.title,
    t.metadata, t.version, t.expires_at, t.ttl_strategy, t.forked_from_thread_id, t.forked_from_checkpoint_id
FROM (SELECT 1) AS one LEFT JOIN gone g ON true LEFT JOIN made t ON true;
