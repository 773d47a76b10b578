-- name: begin_bounded_work
-- Set the transaction's timeouts for locks and for its client, and have it plan prepared statements once: those with
-- arrays would be planned at each call, which takes longer than what they do.
SELECT set_config('lock_timeout', :timeout::text, true), set_config('plan_cache_mode', 'force_generic_plan', true),
    set_config('idle_in_transaction_session_timeout', :idle_timeout::text, true);
