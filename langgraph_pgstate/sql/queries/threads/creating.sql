-- name: create_thread
-- Insert a thread, unless there is one under its id.
INSERT INTO /*schema*/threads (thread_id, agent, user_id, tenant_id, title, metadata, ttl, expires_at)
SELECT :thread_id::text, :agent::text, :user_id::text, :tenant_id::text, :title::text, :metadata::jsonb,
    :ttl::interval, now() + :ttl
ON CONFLICT (thread_id) DO NOTHING;
