-- name: begin_bounded_work
-- Limit how long the transaction waits for locks and for its client, and set the planner as `plan_lookups` does.
-- Without `is_synced`, the commit does not wait for the disk, so that a server crash may undo the transaction.
SELECT set_config('lock_timeout', :timeout::text, true), set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('synchronous_commit',
        CASE WHEN :is_synced::boolean THEN current_setting('synchronous_commit') ELSE 'off' END, true),
    set_config('enable_seqscan', 'off', true), set_config('idle_in_transaction_session_timeout', :idle_timeout::text, true);

-- name: plan_lookups
-- Make the server plan each prepared statement only once. Otherwise statements with arrays are planned at each call,
-- which takes longer than the execution. Make the server plan lookups by key even if the tables were empty when they
-- were analyzed.
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true);
