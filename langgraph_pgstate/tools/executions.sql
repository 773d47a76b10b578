-- name: begin_tool_execution
-- Record the intent to run a tool, unless the action exists already or its thread was deleted. Return a row if the
-- intent was recorded.
-- seals: tool_executions.fingerprint
-- seals: tool_executions.arguments
WITH intended AS MATERIALIZED (
    SELECT now() AS at, now() + make_interval(secs => :ttl_seconds::float8) AS alive_until
    WHERE NOT EXISTS (
        SELECT 1 FROM /*schema*/tombstones WHERE thread_id = :thread_id::text AND expires_at > now()
    )
)
INSERT INTO /*schema*/tool_executions (
    thread_id, idempotency_key, fingerprint, intent_id, tool, status, agent, tool_call_id, run_id, task_id,
    checkpoint_ns, checkpoint_id, root_checkpoint_id, step, holder_id, alive_until, started_at, arguments, compensates
)
SELECT
    :thread_id, :idempotency_key::text, :fingerprint::text, :intent_id::text, :tool::text, 'running',
    :agent::text, :tool_call_id::text, :run_id::text, :task_id::text, :checkpoint_ns::text, :checkpoint_id::text,
    :root_checkpoint_id::text, :step::integer, :holder_id::text, i.alive_until, i.at,
    :arguments::text::jsonb, :compensates::text
FROM intended i
ON CONFLICT (thread_id, idempotency_key) DO NOTHING
RETURNING attempt;

-- name: get_tool_execution
-- Return one tool execution with its exact result, and whether its `alive_until` has passed.
-- opens: tool_executions.fingerprint
-- opens: tool_executions.arguments
-- opens: tool_executions.result
-- opens: tool_executions.preview
-- opens: tool_executions.error_message
SELECT thread_id, idempotency_key, tool, status, attempt, agent, tool_call_id, run_id, task_id, checkpoint_ns,
    checkpoint_id, step, holder_id, alive_until, started_at, ended_at, arguments::text, preview, error_type,
    error_message, compensates, compensated_at, origin_thread_id,
    fingerprint, intent_id, answers, (alive_until <= now()) IS NOT FALSE, result_type, result
FROM /*schema*/tool_executions
WHERE thread_id = :thread_id AND idempotency_key = :idempotency_key;

-- name: take_over_tool_execution
-- Begin another attempt at an action, if its row is unchanged and no live process runs it. If several calls are
-- concurrent, one succeeds.
-- seals: tool_executions.arguments
-- leaves: tool_executions.result
-- leaves: tool_executions.preview
-- leaves: tool_executions.error_message
UPDATE /*schema*/tool_executions SET
    status = 'running',
    attempt = attempt + 1,
    intent_id = :intent_id,
    is_copy = false,
    arguments = :arguments::text::jsonb,
    agent = :agent,
    tool_call_id = :tool_call_id,
    run_id = :run_id,
    task_id = :task_id,
    checkpoint_ns = :checkpoint_ns,
    checkpoint_id = :checkpoint_id,
    root_checkpoint_id = :root_checkpoint_id,
    step = :step,
    holder_id = :holder_id,
    alive_until = now() + make_interval(secs => :ttl_seconds::float8),
    started_at = now(),
    ended_at = NULL,
    result_type = NULL,
    result = NULL,
    preview = NULL,
    error_type = NULL,
    error_message = NULL,
    answers = :answers
WHERE thread_id = :thread_id AND idempotency_key = :idempotency_key
    AND status = :seen_status AND intent_id IS NOT DISTINCT FROM :seen_intent_id
    AND (status <> 'running' OR :is_gone::boolean OR (alive_until <= now()) IS NOT FALSE)
RETURNING attempt;

-- name: settle_tool_execution
-- Set the outcome of an action that no live process runs, if its row is unchanged. Its former process can no longer
-- write an outcome. A successful compensation marks the action that it compensates.
-- seals: tool_executions.result
-- seals: tool_executions.preview
-- seals: tool_executions.error_message
WITH ended AS (
    UPDATE /*schema*/tool_executions SET
        status = :status,
        intent_id = :intent_id,
        alive_until = NULL,
        ended_at = now(),
        result_type = :result_type,
        result = :result,
        preview = :preview,
        error_type = :error_type,
        error_message = :error_message,
        answers = :answers
    WHERE thread_id = :thread_id AND idempotency_key = :idempotency_key
        AND status = :seen_status AND intent_id IS NOT DISTINCT FROM :seen_intent_id
        AND (status <> 'running' OR :is_gone::boolean OR (alive_until <= now()) IS NOT FALSE)
    RETURNING thread_id, attempt, status, compensates
), compensated AS (
    UPDATE /*schema*/tool_executions e SET compensated_at = now() FROM ended
    WHERE ended.status = 'success' AND e.thread_id = ended.thread_id AND e.idempotency_key = ended.compensates
        AND e.compensated_at IS NULL
)
SELECT attempt FROM ended;

-- name: note_answers
-- Store how many resume values the task of a settled action had been given when it called the action again.
UPDATE /*schema*/tool_executions SET answers = :answers::integer
WHERE thread_id = :thread_id AND idempotency_key = :idempotency_key AND intent_id = :intent_id;

-- name: mark_tool_execution_unknown
-- Record that the process of an action has died. A process that turns out to be alive may still write the outcome.
UPDATE /*schema*/tool_executions SET status = 'unknown'
WHERE thread_id = :thread_id AND idempotency_key = :idempotency_key
    AND status = 'running' AND intent_id IS NOT DISTINCT FROM :seen_intent_id
    AND (:is_gone::boolean OR (alive_until <= now()) IS NOT FALSE)
RETURNING attempt;

-- name: finish_tool_execution
-- Store the outcome of an attempt, unless another process has taken the action over. A successful compensation marks
-- the action that it compensates.
-- seals: tool_executions.result
-- seals: tool_executions.preview
-- seals: tool_executions.error_message
WITH ended AS (
    UPDATE /*schema*/tool_executions SET
        status = :status,
        ended_at = now(),
        result_type = :result_type,
        result = :result,
        preview = :preview,
        error_type = :error_type,
        error_message = :error_message,
        answers = greatest(answers, :answers::integer)
    WHERE thread_id = :thread_id AND idempotency_key = :idempotency_key AND intent_id = :intent_id
    RETURNING thread_id, attempt, status, compensates
), compensated AS (
    UPDATE /*schema*/tool_executions e SET compensated_at = now() FROM ended
    WHERE ended.status = 'success' AND e.thread_id = ended.thread_id AND e.idempotency_key = ended.compensates
        AND e.compensated_at IS NULL
)
SELECT attempt FROM ended;

-- name: release_tool_execution
-- Allow an action whose attempt has no outcome to begin again. Waits for a transaction that may be writing the outcome.
UPDATE /*schema*/tool_executions SET status = 'pending', ended_at = now()
WHERE thread_id = :thread_id AND idempotency_key = :idempotency_key AND intent_id = :intent_id AND status = 'running';

-- name: limit_transaction
-- Make the server end a transaction that is stuck in a statement or between two statements. A shorter timeout that is
-- already set is kept.
SELECT set_config(s.name, ceil(least(
    :milliseconds::float8,
    nullif(extract(epoch FROM current_setting(s.name)::interval) * 1000::numeric, 0::numeric)::float8
))::bigint::text, true)
FROM (VALUES ('statement_timeout'), ('idle_in_transaction_session_timeout')) AS s (name);

-- name: renew_tool_executions
-- Renew `alive_until` of the attempts that one process is running on one thread.
UPDATE /*schema*/tool_executions SET alive_until = now() + make_interval(secs => :ttl_seconds::float8)
WHERE thread_id = :thread_id AND idempotency_key = ANY(:idempotency_keys::text[])
    AND intent_id = ANY(:intent_ids::text[]) AND status = 'running';

-- name: get_task_interrupts
-- Return the number of resume values that a task's settled executions have used, and which of its executions have no
-- outcome.
SELECT greatest(max(answers), 0), array_agg(idempotency_key || '#' || attempt ORDER BY idempotency_key)
    FILTER (WHERE status IN ('running', 'unknown', 'timeout'))
FROM /*schema*/tool_executions
WHERE thread_id = :thread_id AND task_id = :task_id;

-- name: count_stored_checkpoints
-- Return how many of two checkpoints are stored: the checkpoint of the task's graph and that of the root graph. While
-- the task runs, LangGraph may still be writing these checkpoints.
SELECT count(*) FROM /*schema*/checkpoints
WHERE thread_id = :thread_id
    AND ((checkpoint_ns = :checkpoint_ns AND checkpoint_id = :checkpoint_id)
        OR (checkpoint_ns = '' AND checkpoint_id = :root_checkpoint_id));

-- name: find_root_checkpoint
-- Return a row if a thread's root namespace has the given checkpoint.
SELECT 1 FROM /*schema*/checkpoints
WHERE thread_id = :thread_id AND checkpoint_ns = '' AND checkpoint_id = :checkpoint_id;

-- name: list_effects
-- Return a thread's tool executions that were not compensated, last outcome first. If a run is given, return only
-- executions of the run. If a checkpoint is given, return only executions on the branches that begin at this
-- checkpoint.
-- opens: tool_executions.arguments
-- opens: tool_executions.preview
-- opens: tool_executions.error_message
WITH RECURSIVE later AS (
    SELECT checkpoint_id FROM /*schema*/checkpoints
    WHERE thread_id = :thread_id AND checkpoint_ns = '' AND checkpoint_id = :to_checkpoint::text
    UNION
    SELECT child.checkpoint_id FROM /*schema*/checkpoints child
    JOIN later ON child.parent_checkpoint_id = later.checkpoint_id
    WHERE child.thread_id = :thread_id AND child.checkpoint_ns = ''
)
SELECT thread_id, idempotency_key, tool, status, attempt, agent, tool_call_id, run_id, task_id, checkpoint_ns,
    checkpoint_id, step, holder_id, alive_until, started_at, ended_at, arguments::text, preview, error_type,
    error_message, compensates, compensated_at, origin_thread_id, is_copy
FROM /*schema*/tool_executions
WHERE thread_id = :thread_id AND compensates IS NULL AND compensated_at IS NULL AND status <> 'error'
    AND (:run_id::text IS NULL OR run_id = :run_id)
    AND (:to_checkpoint IS NULL OR coalesce(root_checkpoint_id, checkpoint_id) IN (SELECT checkpoint_id FROM later))
ORDER BY ended_at DESC NULLS FIRST, started_at DESC, idempotency_key DESC;
