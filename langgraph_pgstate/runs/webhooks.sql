-- name: claim_webhooks
-- Claim due webhooks for some seconds, the longest due first, except webhooks of `busy` hosts. Locked webhooks are
-- skipped. Return the claimed webhooks, each with the current time.
-- opens: runs.error_message from run.error_message or error
-- opens: runs.metadata from run.metadata or error
WITH due AS MATERIALIZED (
    SELECT w.thread_id, w.run_id, w.ended_at FROM /*schema*/webhooks w
    WHERE w.deliver_after <= now()
        AND lower(substring(w.url FROM '://([^/?#]*)')) <> ALL(:busy::text[])
    ORDER BY w.deliver_after LIMIT :limit::integer
    FOR UPDATE SKIP LOCKED
)
UPDATE /*schema*/webhooks SET
    deliver_after = now() + make_interval(secs => :seconds::double precision), attempts = least(webhooks.attempts, 1000000) + 1
FROM due
WHERE webhooks.thread_id = due.thread_id AND webhooks.run_id = due.run_id AND webhooks.ended_at = due.ended_at
RETURNING webhooks.thread_id, webhooks.run_id, webhooks.ended_at, webhooks.url, webhooks.attempts, webhooks.run, now();

-- name: delete_webhook
-- Delete a webhook. With `attempts`, the webhook is deleted only if no other process has claimed it since this attempt.
DELETE FROM /*schema*/webhooks
WHERE thread_id = :thread_id::text AND run_id = :run_id::text AND ended_at = :ended_at::timestamptz
    AND (:attempts::integer IS NULL OR attempts = :attempts);

-- name: postpone_webhook
-- Store the error of an attempt to deliver a webhook, and the time of the next attempt. If `delay` is null, no attempt
-- follows.
UPDATE /*schema*/webhooks SET
    deliver_after = now() + make_interval(secs => :delay::double precision), last_error = :error::text
WHERE thread_id = :thread_id::text AND run_id = :run_id::text AND ended_at = :ended_at::timestamptz
    AND attempts = :attempts::integer;

-- name: retry_webhook
-- Make a failed webhook due again, with as many attempts as a new one.
UPDATE /*schema*/webhooks SET deliver_after = now(), attempts = 0
WHERE thread_id = :thread_id::text AND run_id = :run_id::text AND ended_at = :ended_at::timestamptz
    AND deliver_after IS NULL;

-- name: list_webhooks
-- Return a page of webhooks that have failed, newest first, below a cursor.
SELECT w.thread_id, w.run_id, w.ended_at, w.url, w.attempts, w.last_error FROM /*schema*/webhooks w
WHERE w.deliver_after IS NULL
    AND w.ended_at <= :cursor_at::timestamptz
    AND (w.ended_at < :cursor_at OR (w.thread_id, w.run_id) > (:cursor_thread::text, :cursor_run::text))
ORDER BY w.ended_at DESC, w.thread_id, w.run_id
LIMIT :page_size;

-- name: sweep_webhooks
-- Delete failed webhooks of runs that ended a given time ago.
DELETE FROM /*schema*/webhooks
WHERE deliver_after IS NULL AND ended_at < now() - make_interval(secs => :seconds::double precision);
