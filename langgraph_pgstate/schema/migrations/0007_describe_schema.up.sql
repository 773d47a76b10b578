-- Adds views for what somebody must look at, and a comment to every table, view and column.

-- Runs that are running by their row although their process died, until `maintain` or the thread's next run ends them.
CREATE VIEW /*schema*/stuck_runs AS
SELECT r.thread_id, r.run_id, r.agent, r.tenant_id, r.user_id, r.attempt, r.holder_id, r.started_at, r.alive_until,
    r.steps, r.last_checkpoint_id
FROM /*schema*/runs r
WHERE r.status = 'running' AND r.alive_until < now() AND NOT EXISTS (
    -- Its end is in the journal, and not in this table yet.
    SELECT 1 FROM /*schema*/journal j WHERE j.thread_id = r.thread_id AND j.run_id = r.run_id AND j.is_alone
);

-- Interrupted threads: tasks of their newest checkpoint wait for an answer, and have written no result.
CREATE VIEW /*schema*/waiting_threads AS
SELECT w.thread_id, t.agent, t.tenant_id, t.user_id, t.title, w.checkpoint_id, min(w.created_at) AS since,
    count(*) AS tasks, sum((
        SELECT count(*) FROM /*schema*/answers a
        WHERE a.thread_id = w.thread_id AND a.checkpoint_ns = '' AND a.checkpoint_id = w.checkpoint_id
            AND a.task_id = w.task_id AND a.answered_at >= w.created_at
    ))::bigint AS answers
FROM /*schema*/writes w
    JOIN /*schema*/checkpoints c
        ON c.thread_id = w.thread_id AND c.checkpoint_ns = '' AND c.checkpoint_id = w.checkpoint_id
    LEFT JOIN /*schema*/threads t ON t.thread_id = w.thread_id
WHERE w.idx = -3 AND w.checkpoint_ns = '' AND NOT EXISTS (
    SELECT 1 FROM /*schema*/checkpoints n
    WHERE n.thread_id = w.thread_id AND n.checkpoint_ns = '' AND n.checkpoint_id > w.checkpoint_id
) AND NOT EXISTS (
    SELECT 1 FROM /*schema*/writes d
    WHERE d.thread_id = w.thread_id AND d.checkpoint_ns = '' AND d.checkpoint_id = w.checkpoint_id
        AND d.task_id = w.task_id AND d.idx >= 0
)
GROUP BY w.thread_id, t.agent, t.tenant_id, t.user_id, t.title, w.checkpoint_id;

-- Actions of the tool ledger with an unknown outcome.
CREATE VIEW /*schema*/unknown_effects AS
SELECT e.thread_id, e.idempotency_key, e.tool, e.status, e.attempt, e.agent, e.tool_call_id, e.run_id, e.arguments,
    e.holder_id, e.started_at, e.ended_at, e.compensates, e.is_copy, e.origin_thread_id
FROM /*schema*/tool_executions e
WHERE e.status IN ('running', 'timeout', 'unknown') AND (e.status <> 'running' OR e.alive_until < now());

COMMENT ON TABLE /*schema*/migrations IS 'Migrations that were applied to this schema.';
COMMENT ON COLUMN /*schema*/migrations.version IS 'number of the migration';
COMMENT ON COLUMN /*schema*/migrations.name IS 'name of its file';
COMMENT ON COLUMN /*schema*/migrations.checksum IS 'SHA-256 of its SQL, hexadecimal';
COMMENT ON COLUMN /*schema*/migrations.applied_at IS 'time it was applied';

COMMENT ON TABLE /*schema*/threads IS 'One row for each conversation or task. The first checkpoint makes it.';
COMMENT ON COLUMN /*schema*/threads.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/threads.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/threads.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/threads.created_at IS 'time of the first checkpoint';
COMMENT ON COLUMN /*schema*/threads.updated_at IS 'last activity; at most five seconds behind the newest checkpoint';
COMMENT ON COLUMN /*schema*/threads.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/threads.status IS
    'idle, busy (a run is on it), interrupted (its last run waits) or error (its last run failed); always idle '
    'without the record';
COMMENT ON COLUMN /*schema*/threads.title IS 'title, set by the application';
COMMENT ON COLUMN /*schema*/threads.metadata IS 'set by the application; indexed for @>';
COMMENT ON COLUMN /*schema*/threads.version IS 'number of updates of title and metadata, from 1';
COMMENT ON COLUMN /*schema*/threads.expires_at IS
    'time from which maintain may delete it; moves with updated_at if there is a ttl; null: never';
COMMENT ON COLUMN /*schema*/threads.forked_from_thread_id IS 'thread it was forked from';
COMMENT ON COLUMN /*schema*/threads.forked_from_checkpoint_id IS 'checkpoint it was forked from';
COMMENT ON COLUMN /*schema*/threads.ttl IS 'how long it is kept after its last activity; null: no limit';

COMMENT ON TABLE /*schema*/checkpoints IS 'One row for each state of a graph after a superstep.';
COMMENT ON COLUMN /*schema*/checkpoints.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/checkpoints.checkpoint_ns IS
    'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/checkpoints.checkpoint_id IS
    'the checkpoint; ids sort by time within a thread and namespace';
COMMENT ON COLUMN /*schema*/checkpoints.parent_checkpoint_id IS 'checkpoint it was made from; null for the first';
COMMENT ON COLUMN /*schema*/checkpoints.run_id IS 'run that made it; null if the config named none';
COMMENT ON COLUMN /*schema*/checkpoints.source IS 'input, loop (a superstep), update (update_state) or fork';
COMMENT ON COLUMN /*schema*/checkpoints.step IS 'superstep: -1 for the input, 0 for the first';
COMMENT ON COLUMN /*schema*/checkpoints.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/checkpoints.revision IS 'random number, new whenever the row is written';
COMMENT ON COLUMN /*schema*/checkpoints.segment_ids IS 'rows of segments that state refers to';
COMMENT ON COLUMN /*schema*/checkpoints.metadata IS 'metadata of LangGraph';
COMMENT ON COLUMN /*schema*/checkpoints.state IS 'versions, small values and references to segments; encoded';
COMMENT ON COLUMN /*schema*/checkpoints.next_checkpoint_id IS
    'a child that a prune removed: the branch went on from here';
COMMENT ON COLUMN /*schema*/checkpoints.state_version IS 'version of the state of the application; null: the first';

COMMENT ON TABLE /*schema*/segments IS
    'Immutable pieces of channel values, shared by checkpoints: some elements of a list, or a large value.';
COMMENT ON COLUMN /*schema*/segments.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/segments.segment_id IS 'random number';
COMMENT ON COLUMN /*schema*/segments.data IS 'elements or value; encoded';

COMMENT ON TABLE /*schema*/writes IS
    'Pending writes: results of tasks in a superstep that has no checkpoint yet. They may arrive before their '
    'checkpoint.';
COMMENT ON COLUMN /*schema*/writes.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/writes.checkpoint_ns IS 'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/writes.checkpoint_id IS 'checkpoint the task started from';
COMMENT ON COLUMN /*schema*/writes.task_id IS 'the task';
COMMENT ON COLUMN /*schema*/writes.idx IS
    '0 or more: ordinary writes of one call; -1 error, -2 scheduled, -3 interrupt, -4 resume';
COMMENT ON COLUMN /*schema*/writes.task_path IS 'orders the tasks of a superstep';
COMMENT ON COLUMN /*schema*/writes.run_id IS 'the run; null if the config named none';
COMMENT ON COLUMN /*schema*/writes.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/writes.data IS 'channels and values; encoded';

COMMENT ON TABLE /*schema*/labels IS 'Names of checkpoints. A prune keeps a checkpoint that has one.';
COMMENT ON COLUMN /*schema*/labels.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/labels.checkpoint_ns IS 'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/labels.checkpoint_id IS 'the checkpoint';
COMMENT ON COLUMN /*schema*/labels.label IS 'its name';
COMMENT ON COLUMN /*schema*/labels.created_at IS 'time the name was given';

COMMENT ON TABLE /*schema*/projections IS
    'Channels named with project=, as JSON: one row for each thread, with the values of its newest checkpoint.';
COMMENT ON COLUMN /*schema*/projections.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/projections.checkpoint_id IS 'checkpoint the values are from';
COMMENT ON COLUMN /*schema*/projections.updated_at IS 'time they were stored';
COMMENT ON COLUMN /*schema*/projections.state IS 'channel names and values; indexed for @> and @@';

COMMENT ON TABLE /*schema*/leases IS 'The right to advance a thread.';
COMMENT ON COLUMN /*schema*/leases.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/leases.holder_id IS
    'process: host, boot, process ids, start time and a number; null: given back';
COMMENT ON COLUMN /*schema*/leases.fencing_token IS 'number of the lease; grows with every lease of the thread';
COMMENT ON COLUMN /*schema*/leases.acquired_at IS 'time it was taken';
COMMENT ON COLUMN /*schema*/leases.renewed_at IS 'time its holder last renewed it';
COMMENT ON COLUMN /*schema*/leases.expires_at IS 'time from which it is free unless it is renewed';

COMMENT ON TABLE /*schema*/tombstones IS 'Deleted threads to which late writes are refused.';
COMMENT ON COLUMN /*schema*/tombstones.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/tombstones.deleted_at IS 'time it was deleted';
COMMENT ON COLUMN /*schema*/tombstones.expires_at IS 'time from which maintain may remove the tombstone';

COMMENT ON TABLE /*schema*/answers IS 'Answers to interrupts, at most one for each.';
COMMENT ON COLUMN /*schema*/answers.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/answers.checkpoint_ns IS
    'namespace of the checkpoint; empty: interrupts of subgraphs stand in the root namespace, too';
COMMENT ON COLUMN /*schema*/answers.checkpoint_id IS 'interrupted checkpoint';
COMMENT ON COLUMN /*schema*/answers.interrupt_id IS 'id that LangGraph gave the interrupt';
COMMENT ON COLUMN /*schema*/answers.answer_id IS 'random; lets a repeated call find its own answer';
COMMENT ON COLUMN /*schema*/answers.task_id IS 'interrupted task';
COMMENT ON COLUMN /*schema*/answers.answered_at IS 'time of the answer';
COMMENT ON COLUMN /*schema*/answers.answered_by IS 'person who answered, if given';
COMMENT ON COLUMN /*schema*/answers.value_type IS 'encoding of value';
COMMENT ON COLUMN /*schema*/answers.value IS 'the answer; encoded';

COMMENT ON TABLE /*schema*/runs IS
    'One row for each invocation of a graph on a thread. Steps, tokens and cost are those of all attempts; other '
    'columns describe the last attempt.';
COMMENT ON COLUMN /*schema*/runs.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/runs.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/runs.attempt IS '1, and one more each time the run is invoked again under its id';
COMMENT ON COLUMN /*schema*/runs.status IS 'pending, running, success, interrupted, error or cancelled';
COMMENT ON COLUMN /*schema*/runs.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/runs.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/runs.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/runs.holder_id IS 'process that runs it';
COMMENT ON COLUMN /*schema*/runs.alive_until IS
    'a running run whose alive_until has passed was left by a process that died';
COMMENT ON COLUMN /*schema*/runs.started_at IS 'start of the last attempt';
COMMENT ON COLUMN /*schema*/runs.ended_at IS 'end of the last attempt; null while it runs';
COMMENT ON COLUMN /*schema*/runs.first_checkpoint_id IS 'first checkpoint it made in the root namespace';
COMMENT ON COLUMN /*schema*/runs.last_checkpoint_id IS 'newest checkpoint it made in the root namespace';
COMMENT ON COLUMN /*schema*/runs.steps IS 'supersteps with a checkpoint in the root namespace';
COMMENT ON COLUMN /*schema*/runs.input_tokens IS 'tokens read by its model calls';
COMMENT ON COLUMN /*schema*/runs.output_tokens IS 'tokens written by its model calls';
COMMENT ON COLUMN /*schema*/runs.cost IS 'of its model calls, in the currency of prices';
COMMENT ON COLUMN /*schema*/runs.error_type IS 'exception; ProcessDied: its process was killed';
COMMENT ON COLUMN /*schema*/runs.error_message IS 'message of the exception';
COMMENT ON COLUMN /*schema*/runs.error_traceback IS 'traceback of the exception';
COMMENT ON COLUMN /*schema*/runs.input IS 'input as JSON, cut at RecorderSettings.limit bytes';
COMMENT ON COLUMN /*schema*/runs.output IS 'output as JSON, cut at RecorderSettings.limit bytes';
COMMENT ON COLUMN /*schema*/runs.first_started_at IS 'start of the first attempt';
COMMENT ON COLUMN /*schema*/runs.steps_before IS 'supersteps of the attempts before the last';

COMMENT ON TABLE /*schema*/spans IS 'One row for each timed operation in a run. Partitioned by month of started_at.';
COMMENT ON COLUMN /*schema*/spans.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/spans.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/spans.span_id IS 'the span';
COMMENT ON COLUMN /*schema*/spans.started_at IS 'start';
COMMENT ON COLUMN /*schema*/spans.ended_at IS 'end; null while it runs';
COMMENT ON COLUMN /*schema*/spans.parent_span_id IS 'span that called it; null for the root of a run';
COMMENT ON COLUMN /*schema*/spans.kind IS 'graph, node, chain, llm, tool or retriever';
COMMENT ON COLUMN /*schema*/spans.name IS 'name of the graph, node, model class, tool or retriever';
COMMENT ON COLUMN /*schema*/spans.status IS 'running, success, error, interrupted or cancelled';
COMMENT ON COLUMN /*schema*/spans.checkpoint_ns IS 'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/spans.checkpoint_id IS 'checkpoint its superstep started from';
COMMENT ON COLUMN /*schema*/spans.step IS 'superstep';
COMMENT ON COLUMN /*schema*/spans.node IS 'node of the graph';
COMMENT ON COLUMN /*schema*/spans.task_id IS 'task of the superstep';
COMMENT ON COLUMN /*schema*/spans.agent IS 'the agent';
COMMENT ON COLUMN /*schema*/spans.provider IS 'provider of the model, with the names of OpenTelemetry';
COMMENT ON COLUMN /*schema*/spans.model IS 'the model, as the provider names it';
COMMENT ON COLUMN /*schema*/spans.input_tokens IS 'tokens read, cached ones included';
COMMENT ON COLUMN /*schema*/spans.output_tokens IS 'tokens written, reasoning included';
COMMENT ON COLUMN /*schema*/spans.cache_read_tokens IS 'tokens read from a cache; part of input_tokens';
COMMENT ON COLUMN /*schema*/spans.reasoning_tokens IS 'tokens of reasoning; part of output_tokens';
COMMENT ON COLUMN /*schema*/spans.cost IS
    'in the currency of prices, computed when the span is stored; null: the model had no price';
COMMENT ON COLUMN /*schema*/spans.tool_call_id IS 'id that the model gave the tool call';
COMMENT ON COLUMN /*schema*/spans.error_type IS 'exception';
COMMENT ON COLUMN /*schema*/spans.error_message IS 'message of the exception';
COMMENT ON COLUMN /*schema*/spans.input IS 'input as JSON, cut at RecorderSettings.limit bytes';
COMMENT ON COLUMN /*schema*/spans.output IS 'output as JSON, cut at RecorderSettings.limit bytes';
COMMENT ON COLUMN /*schema*/spans.attributes IS 'other attributes, with the GenAI names of OpenTelemetry';
COMMENT ON COLUMN /*schema*/spans.semconv_version IS 'version of these names';

COMMENT ON TABLE /*schema*/tool_executions IS
    'One row for each action of the tool ledger: written before the tool runs, completed after it.';
COMMENT ON COLUMN /*schema*/tool_executions.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/tool_executions.idempotency_key IS
    'identity of the action: the same key is the same action';
COMMENT ON COLUMN /*schema*/tool_executions.fingerprint IS 'tells apart actions under one tool-call id';
COMMENT ON COLUMN /*schema*/tool_executions.intent_id IS 'random for each attempt; only its owner writes the outcome';
COMMENT ON COLUMN /*schema*/tool_executions.tool IS 'name of the tool';
COMMENT ON COLUMN /*schema*/tool_executions.status IS
    'pending (may run again: nothing happened), running, success, error, timeout (took too long: outcome unknown) or '
    'unknown (its process died: outcome unknown)';
COMMENT ON COLUMN /*schema*/tool_executions.attempt IS 'number of attempts, from 1';
COMMENT ON COLUMN /*schema*/tool_executions.agent IS 'agent that called it';
COMMENT ON COLUMN /*schema*/tool_executions.tool_call_id IS 'id that the model gave the tool call';
COMMENT ON COLUMN /*schema*/tool_executions.run_id IS 'run of the last attempt';
COMMENT ON COLUMN /*schema*/tool_executions.task_id IS 'task that called it';
COMMENT ON COLUMN /*schema*/tool_executions.checkpoint_ns IS
    'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/tool_executions.checkpoint_id IS 'checkpoint its superstep started from, in checkpoint_ns';
COMMENT ON COLUMN /*schema*/tool_executions.root_checkpoint_id IS
    'checkpoint its superstep started from, in the root namespace';
COMMENT ON COLUMN /*schema*/tool_executions.step IS 'superstep';
COMMENT ON COLUMN /*schema*/tool_executions.holder_id IS 'process that runs it, or ran it last';
COMMENT ON COLUMN /*schema*/tool_executions.alive_until IS 'time until which the process counts as alive';
COMMENT ON COLUMN /*schema*/tool_executions.started_at IS 'start of the last attempt';
COMMENT ON COLUMN /*schema*/tool_executions.ended_at IS 'time of the outcome; null while it runs';
COMMENT ON COLUMN /*schema*/tool_executions.arguments IS 'arguments of the tool, as JSON';
COMMENT ON COLUMN /*schema*/tool_executions.result_type IS 'encoding of result';
COMMENT ON COLUMN /*schema*/tool_executions.result IS 'exact result; encoded';
COMMENT ON COLUMN /*schema*/tool_executions.preview IS 'beginning of the result as text';
COMMENT ON COLUMN /*schema*/tool_executions.error_type IS 'exception';
COMMENT ON COLUMN /*schema*/tool_executions.error_message IS 'message of the exception';
COMMENT ON COLUMN /*schema*/tool_executions.answers IS 'answers to interrupts of its task that were used to settle it';
COMMENT ON COLUMN /*schema*/tool_executions.compensates IS 'idempotency_key of the action that this one takes back';
COMMENT ON COLUMN /*schema*/tool_executions.compensated_at IS 'time it was taken back';
COMMENT ON COLUMN /*schema*/tool_executions.origin_thread_id IS 'thread it was begun on, if a fork or copy brought it';
COMMENT ON COLUMN /*schema*/tool_executions.is_copy IS
    'true: brought by a fork or copy, and not begun again on this thread';

COMMENT ON TABLE /*schema*/messages IS
    'One row for each chat message where it first appeared, and one for each edit or removal. Read the current branch'
    ' with the view conversations.';
COMMENT ON COLUMN /*schema*/messages.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/messages.message_id IS 'id of the message';
COMMENT ON COLUMN /*schema*/messages.checkpoint_id IS 'checkpoint it appeared in';
COMMENT ON COLUMN /*schema*/messages.checkpoint_ns IS 'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/messages.channel IS 'channel of the state';
COMMENT ON COLUMN /*schema*/messages.position IS 'place in the channel at that checkpoint, from 0';
COMMENT ON COLUMN /*schema*/messages.change IS 'added, edited or removed';
COMMENT ON COLUMN /*schema*/messages.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/messages.run_id IS 'run that made it';
COMMENT ON COLUMN /*schema*/messages.role IS 'system, human, ai, tool or another';
COMMENT ON COLUMN /*schema*/messages.agent IS 'agent that said it, if named';
COMMENT ON COLUMN /*schema*/messages.content IS 'its text; indexed as to_tsvector(''simple'', left(content, 100000))';
COMMENT ON COLUMN /*schema*/messages.tool_calls IS 'tool calls that it asks for';
COMMENT ON COLUMN /*schema*/messages.tool_call_id IS 'tool call that it answers';
COMMENT ON COLUMN /*schema*/messages.input_tokens IS 'tokens read, as its model counted them';
COMMENT ON COLUMN /*schema*/messages.output_tokens IS 'tokens written, as its model counted them';

COMMENT ON TABLE /*schema*/events IS 'Events of threads. Rows are only added.';
COMMENT ON COLUMN /*schema*/events.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/events.event_id IS 'the event; ids sort by time';
COMMENT ON COLUMN /*schema*/events.created_at IS 'time of the event';
COMMENT ON COLUMN /*schema*/events.kind IS
    'status, handoff, interrupt, resume, answer, fork, prune, refused (a guard refused the run) or corrupt';
COMMENT ON COLUMN /*schema*/events.run_id IS 'run it happened in';
COMMENT ON COLUMN /*schema*/events.checkpoint_ns IS 'empty for the root graph, parent:task|child:task for a subgraph';
COMMENT ON COLUMN /*schema*/events.checkpoint_id IS 'the checkpoint';
COMMENT ON COLUMN /*schema*/events.agent IS 'the agent';
COMMENT ON COLUMN /*schema*/events.payload IS 'details';

COMMENT ON TABLE /*schema*/journal IS
    'Recorded entries that are not in the other tables yet. A writer moves each entry once, also after a crash.';
COMMENT ON COLUMN /*schema*/journal.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/journal.entry_id IS 'the entry';
COMMENT ON COLUMN /*schema*/journal.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/journal.is_alone IS 'true: written without a checkpoint, like the end of a run';
COMMENT ON COLUMN /*schema*/journal.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/journal.data IS 'runs, spans, events and messages; encoded';

COMMENT ON TABLE /*schema*/prices IS
    'Prices of a million tokens, yours to edit. Changes count for spans that are stored from then on.';
COMMENT ON COLUMN /*schema*/prices.model IS 'the model, as the provider names it';
COMMENT ON COLUMN /*schema*/prices.provider IS 'the provider; empty for any';
COMMENT ON COLUMN /*schema*/prices.valid_from IS 'time from which the price holds';
COMMENT ON COLUMN /*schema*/prices.input IS 'price of a million tokens read';
COMMENT ON COLUMN /*schema*/prices.output IS 'price of a million tokens written';
COMMENT ON COLUMN /*schema*/prices.cache_read IS 'price of a million tokens read from a cache; null: as input';
COMMENT ON COLUMN /*schema*/prices.reasoning IS 'price of a million tokens of reasoning; null: as output';

COMMENT ON VIEW /*schema*/failed_runs IS 'Runs that ended with an error, and runs whose process died.';
COMMENT ON COLUMN /*schema*/failed_runs.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/failed_runs.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/failed_runs.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/failed_runs.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/failed_runs.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/failed_runs.started_at IS 'start of the last attempt';
COMMENT ON COLUMN /*schema*/failed_runs.ended_at IS 'end; null if nobody noted it';
COMMENT ON COLUMN /*schema*/failed_runs.duration IS 'ended_at - started_at';
COMMENT ON COLUMN /*schema*/failed_runs.is_crashed IS 'true: its process died';
COMMENT ON COLUMN /*schema*/failed_runs.error_type IS 'exception; ProcessDied: its process was killed';
COMMENT ON COLUMN /*schema*/failed_runs.error_message IS 'message of the exception';
COMMENT ON COLUMN /*schema*/failed_runs.steps IS 'supersteps of all attempts';
COMMENT ON COLUMN /*schema*/failed_runs.cost IS 'of its model calls, in the currency of prices';

COMMENT ON VIEW /*schema*/stuck_runs IS
    'Runs that are running by their row although their process died. maintain, or the next run on the thread, ends '
    'them.';
COMMENT ON COLUMN /*schema*/stuck_runs.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/stuck_runs.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/stuck_runs.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/stuck_runs.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/stuck_runs.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/stuck_runs.attempt IS 'number of the attempt';
COMMENT ON COLUMN /*schema*/stuck_runs.holder_id IS 'process that ran it';
COMMENT ON COLUMN /*schema*/stuck_runs.started_at IS 'start of the last attempt';
COMMENT ON COLUMN /*schema*/stuck_runs.alive_until IS 'time until which the process counted as alive';
COMMENT ON COLUMN /*schema*/stuck_runs.steps IS 'supersteps of all attempts';
COMMENT ON COLUMN /*schema*/stuck_runs.last_checkpoint_id IS 'newest checkpoint it made: the thread goes on from there';

COMMENT ON VIEW /*schema*/runaway_threads IS 'Threads with runs of more than 25 supersteps.';
COMMENT ON COLUMN /*schema*/runaway_threads.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/runaway_threads.runs IS 'number of such runs';
COMMENT ON COLUMN /*schema*/runaway_threads.most_steps IS 'supersteps of the longest';
COMMENT ON COLUMN /*schema*/runaway_threads.last_started_at IS 'start of the newest';
COMMENT ON COLUMN /*schema*/runaway_threads.cost IS 'of all of them, in the currency of prices';

COMMENT ON VIEW /*schema*/waiting_threads IS
    'Interrupted threads: their newest checkpoint has tasks that wait for an answer.';
COMMENT ON COLUMN /*schema*/waiting_threads.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/waiting_threads.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/waiting_threads.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/waiting_threads.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/waiting_threads.title IS 'title, set by the application';
COMMENT ON COLUMN /*schema*/waiting_threads.checkpoint_id IS 'interrupted checkpoint, the newest of the root namespace';
COMMENT ON COLUMN /*schema*/waiting_threads.since IS 'time of the oldest interrupt';
COMMENT ON COLUMN /*schema*/waiting_threads.tasks IS 'interrupted tasks; a task may have several interrupts';
COMMENT ON COLUMN /*schema*/waiting_threads.answers IS
    'answers that were given and not used yet: the application must resume the thread';

COMMENT ON VIEW /*schema*/unknown_effects IS
    'Actions of the tool ledger with an unknown outcome: the tool took too long, or its process died. Somebody must '
    'settle them.';
COMMENT ON COLUMN /*schema*/unknown_effects.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/unknown_effects.idempotency_key IS
    'identity of the action: the same key is the same action';
COMMENT ON COLUMN /*schema*/unknown_effects.tool IS 'name of the tool';
COMMENT ON COLUMN /*schema*/unknown_effects.status IS
    'timeout (took too long), unknown (its process died) or running (its process died, nobody has noted it yet)';
COMMENT ON COLUMN /*schema*/unknown_effects.attempt IS 'number of attempts, from 1';
COMMENT ON COLUMN /*schema*/unknown_effects.agent IS 'agent that called it';
COMMENT ON COLUMN /*schema*/unknown_effects.tool_call_id IS 'id that the model gave the tool call';
COMMENT ON COLUMN /*schema*/unknown_effects.run_id IS 'run of the last attempt';
COMMENT ON COLUMN /*schema*/unknown_effects.arguments IS 'arguments of the tool, as JSON';
COMMENT ON COLUMN /*schema*/unknown_effects.holder_id IS 'process that runs it, or ran it last';
COMMENT ON COLUMN /*schema*/unknown_effects.started_at IS 'start of the last attempt';
COMMENT ON COLUMN /*schema*/unknown_effects.ended_at IS 'time the outcome was given up; null: not noted';
COMMENT ON COLUMN /*schema*/unknown_effects.compensates IS 'idempotency_key of the action that this one takes back';
COMMENT ON COLUMN /*schema*/unknown_effects.is_copy IS
    'true: brought by a fork or copy; the action belongs to origin_thread_id';
COMMENT ON COLUMN /*schema*/unknown_effects.origin_thread_id IS 'thread it was begun on, if a fork or copy brought it';

COMMENT ON VIEW /*schema*/tool_calls IS 'Every call of a tool.';
COMMENT ON COLUMN /*schema*/tool_calls.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/tool_calls.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/tool_calls.span_id IS 'the span';
COMMENT ON COLUMN /*schema*/tool_calls.tool IS 'name of the tool';
COMMENT ON COLUMN /*schema*/tool_calls.agent IS 'agent that called it';
COMMENT ON COLUMN /*schema*/tool_calls.status IS 'as in spans';
COMMENT ON COLUMN /*schema*/tool_calls.started_at IS 'start';
COMMENT ON COLUMN /*schema*/tool_calls.ended_at IS 'end; null while it runs';
COMMENT ON COLUMN /*schema*/tool_calls.seconds IS 'duration in seconds; null while it runs';
COMMENT ON COLUMN /*schema*/tool_calls.error_type IS 'exception';
COMMENT ON COLUMN /*schema*/tool_calls.error_message IS 'message of the exception';
COMMENT ON COLUMN /*schema*/tool_calls.tool_call_id IS 'id that the model gave the tool call';
COMMENT ON COLUMN /*schema*/tool_calls.step IS 'superstep';
COMMENT ON COLUMN /*schema*/tool_calls.checkpoint_id IS 'checkpoint its superstep started from';

COMMENT ON VIEW /*schema*/tool_statistics IS 'Tools over all time. For a shorter time aggregate tool_calls.';
COMMENT ON COLUMN /*schema*/tool_statistics.tool IS 'name of the tool';
COMMENT ON COLUMN /*schema*/tool_statistics.calls IS 'number of calls';
COMMENT ON COLUMN /*schema*/tool_statistics.errors IS 'number of failures';
COMMENT ON COLUMN /*schema*/tool_statistics.unknown IS 'number of calls with an unknown outcome, by the ledger';
COMMENT ON COLUMN /*schema*/tool_statistics.error_rate IS 'failures divided by calls with an outcome, 0 to 1';
COMMENT ON COLUMN /*schema*/tool_statistics.mean IS 'mean duration in seconds';
COMMENT ON COLUMN /*schema*/tool_statistics.p50 IS 'median duration in seconds';
COMMENT ON COLUMN /*schema*/tool_statistics.p95 IS '95th percentile of the duration in seconds';
COMMENT ON COLUMN /*schema*/tool_statistics.last_at IS 'start of the newest call';

COMMENT ON VIEW /*schema*/model_calls IS 'Every call of a model.';
COMMENT ON COLUMN /*schema*/model_calls.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/model_calls.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/model_calls.span_id IS 'the span';
COMMENT ON COLUMN /*schema*/model_calls.agent IS 'the agent';
COMMENT ON COLUMN /*schema*/model_calls.provider IS 'provider of the model';
COMMENT ON COLUMN /*schema*/model_calls.model IS 'the model, as the provider names it';
COMMENT ON COLUMN /*schema*/model_calls.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/model_calls.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/model_calls.day IS 'day of started_at in UTC';
COMMENT ON COLUMN /*schema*/model_calls.started_at IS 'start';
COMMENT ON COLUMN /*schema*/model_calls.ended_at IS 'end; null while it runs';
COMMENT ON COLUMN /*schema*/model_calls.status IS 'as in spans';
COMMENT ON COLUMN /*schema*/model_calls.input_tokens IS 'tokens read, cached ones included';
COMMENT ON COLUMN /*schema*/model_calls.output_tokens IS 'tokens written, reasoning included';
COMMENT ON COLUMN /*schema*/model_calls.cache_read_tokens IS 'tokens read from a cache; part of input_tokens';
COMMENT ON COLUMN /*schema*/model_calls.reasoning_tokens IS 'tokens of reasoning; part of output_tokens';
COMMENT ON COLUMN /*schema*/model_calls.cost IS 'in the currency of prices; null: the model had no price';

COMMENT ON VIEW /*schema*/usage_by_day IS 'Model calls, tokens and money by day, agent, model, tenant and user.';
COMMENT ON COLUMN /*schema*/usage_by_day.day IS 'day in UTC';
COMMENT ON COLUMN /*schema*/usage_by_day.agent IS 'the agent';
COMMENT ON COLUMN /*schema*/usage_by_day.provider IS 'provider of the model';
COMMENT ON COLUMN /*schema*/usage_by_day.model IS 'the model, as the provider names it';
COMMENT ON COLUMN /*schema*/usage_by_day.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/usage_by_day.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/usage_by_day.calls IS 'number of model calls';
COMMENT ON COLUMN /*schema*/usage_by_day.input_tokens IS 'tokens read, cached ones included';
COMMENT ON COLUMN /*schema*/usage_by_day.output_tokens IS 'tokens written, reasoning included';
COMMENT ON COLUMN /*schema*/usage_by_day.cache_read_tokens IS 'tokens read from a cache; part of input_tokens';
COMMENT ON COLUMN /*schema*/usage_by_day.reasoning_tokens IS 'tokens of reasoning; part of output_tokens';
COMMENT ON COLUMN /*schema*/usage_by_day.cost IS 'of the calls with a price, in the currency of prices';
COMMENT ON COLUMN /*schema*/usage_by_day.unpriced IS 'number of calls without a price';

COMMENT ON VIEW /*schema*/handoffs IS 'Handoffs from one agent to another.';
COMMENT ON COLUMN /*schema*/handoffs.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/handoffs.event_id IS 'the event';
COMMENT ON COLUMN /*schema*/handoffs.created_at IS 'time of the handoff';
COMMENT ON COLUMN /*schema*/handoffs.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/handoffs.source IS 'agent that handed over';
COMMENT ON COLUMN /*schema*/handoffs.target IS 'agent that took over';
COMMENT ON COLUMN /*schema*/handoffs.reason IS 'reason, if one was given';
COMMENT ON COLUMN /*schema*/handoffs.seconds_to_next IS
    'seconds until the next handoff of the thread; null: there was none';

COMMENT ON VIEW /*schema*/provenance IS
    'The run, tools and cost behind each checkpoint of the root namespace. Spans of subgraphs are left out.';
COMMENT ON COLUMN /*schema*/provenance.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/provenance.checkpoint_id IS 'the checkpoint';
COMMENT ON COLUMN /*schema*/provenance.parent_checkpoint_id IS 'checkpoint it was made from; null for the first';
COMMENT ON COLUMN /*schema*/provenance.source IS 'as in checkpoints';
COMMENT ON COLUMN /*schema*/provenance.step IS 'as in checkpoints';
COMMENT ON COLUMN /*schema*/provenance.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/provenance.run_id IS 'run that made it';
COMMENT ON COLUMN /*schema*/provenance.run_status IS 'status of the run, as in runs';
COMMENT ON COLUMN /*schema*/provenance.agent IS 'agent, from the config of the run';
COMMENT ON COLUMN /*schema*/provenance.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/provenance.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/provenance.tools IS 'tools called in the superstep, in order';
COMMENT ON COLUMN /*schema*/provenance.model_calls IS 'number of model calls in the superstep';
COMMENT ON COLUMN /*schema*/provenance.input_tokens IS 'tokens read in the superstep';
COMMENT ON COLUMN /*schema*/provenance.output_tokens IS 'tokens written in the superstep';
COMMENT ON COLUMN /*schema*/provenance.cost IS 'of the superstep, in the currency of prices';
COMMENT ON COLUMN /*schema*/provenance.branches IS 'checkpoints with the same parent, itself included';

COMMENT ON VIEW /*schema*/conversations IS
    'The conversation on the branch that ends at the newest checkpoint of each thread. Always filter by thread_id.';
COMMENT ON COLUMN /*schema*/conversations.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/conversations.tenant_id IS 'tenant, from the config of the run';
COMMENT ON COLUMN /*schema*/conversations.user_id IS 'owner, from the config of the run';
COMMENT ON COLUMN /*schema*/conversations.number IS 'order in the channel, from 1';
COMMENT ON COLUMN /*schema*/conversations.channel IS 'channel of the state';
COMMENT ON COLUMN /*schema*/conversations.message_id IS 'id of the message';
COMMENT ON COLUMN /*schema*/conversations.role IS 'system, human, ai, tool or another';
COMMENT ON COLUMN /*schema*/conversations.agent IS 'agent that said it, if named';
COMMENT ON COLUMN /*schema*/conversations.content IS 'its text';
COMMENT ON COLUMN /*schema*/conversations.tool_calls IS 'tool calls that it asks for';
COMMENT ON COLUMN /*schema*/conversations.tool_call_id IS 'tool call that it answers';
COMMENT ON COLUMN /*schema*/conversations.created_at IS 'time it was stored';
COMMENT ON COLUMN /*schema*/conversations.run_id IS 'run that made it';
