-- name: find_adoptable
-- Return a page of runs that were not enqueued, may have lost their process, and made the newest checkpoint of their
-- thread. A row has the run's process, and whether the process no longer renews the run's liveness.
SELECT r.thread_id, r.run_id, r.agent, r.holder_id, coalesce(r.status = 'error' OR r.alive_until < now(), true)
FROM /*schema*/runs r
WHERE r.queue IS NULL AND (r.status = 'running' OR r.status = 'error' AND r.error_type = 'ProcessDied')
    AND r.agent IS NOT NULL AND (:graphs::text[] IS NULL OR r.agent = ANY(:graphs))
    AND (r.thread_id, r.run_id) > (:cursor_thread_id::text, :cursor_run_id::text)
    AND r.run_id = (
        SELECT k.run_id FROM /*schema*/checkpoints k WHERE k.thread_id = r.thread_id AND k.checkpoint_ns = ''
        ORDER BY k.checkpoint_id DESC LIMIT 1
    )
ORDER BY r.thread_id, r.run_id LIMIT :page_size;
