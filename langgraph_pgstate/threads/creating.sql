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
