-- name: begin_bounded_work
-- Set how long the transaction may wait for locks and for the next statement of its client, and how its statements are
-- planned; see `plan_lookups`.
-- If the commit does not wait for the disk, a crash of the server may undo the transaction.
SELECT set_config('lock_timeout', :timeout::text, true), set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('synchronous_commit',
        CASE WHEN :is_synced::boolean THEN current_setting('synchronous_commit') ELSE 'off' END, true),
    set_config('enable_seqscan', 'off', true), set_config('idle_in_transaction_session_timeout', :idle_timeout::text, true);

-- name: plan_lookups
-- Make the server plan each prepared statement of the transaction only once. Otherwise it would plan statements with
-- arrays at each call, which takes longer than their execution. Also make it plan for lookups by key, even if tables
-- were empty when they were analyzed.
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true);
