-- name: take_lease
-- Take a thread's lease if it is free, has expired, or has one of the given tokens. Return whether the lease was taken,
-- its holder, and the holder's run if the run is known. The fencing token is the current time, so that no token is used
-- twice, even if a crash of the server undid a lease.
WITH term AS MATERIALIZED (
    SELECT (extract(epoch FROM now()) * 1000000::numeric)::bigint, now(), now(),
        now() + make_interval(secs => :ttl::double precision)
    WHERE NOT EXISTS (
        SELECT 1 FROM /*schema*/tombstones WHERE thread_id = :thread_id::text AND expires_at > now()
    )
), taken AS (
    INSERT INTO /*schema*/leases AS stored (thread_id, holder_id, fencing_token, acquired_at, renewed_at, expires_at)
    SELECT :thread_id, :holder_id::text, t.* FROM term t
    ON CONFLICT (thread_id) DO UPDATE SET
        holder_id = excluded.holder_id,
        -- If the same holder takes the lease again, for example after a lost response, the token stays the same.
        fencing_token = CASE WHEN stored.holder_id = excluded.holder_id THEN stored.fencing_token
            ELSE greatest(stored.fencing_token + 1, excluded.fencing_token) END,
        acquired_at = excluded.acquired_at,
        renewed_at = excluded.renewed_at,
        expires_at = excluded.expires_at
    WHERE stored.holder_id IS NULL OR stored.holder_id = excluded.holder_id OR stored.expires_at <= excluded.acquired_at
        OR stored.fencing_token = ANY(:free_tokens::bigint[])
    RETURNING holder_id, fencing_token, acquired_at, renewed_at, expires_at
)
SELECT true, NULL::timestamptz, holder_id, fencing_token, acquired_at, renewed_at, expires_at, NULL FROM taken
UNION ALL
SELECT false, NULL, l.holder_id, l.fencing_token, l.acquired_at, l.renewed_at, l.expires_at, coalesce(
    (
        SELECT c.run_id FROM /*schema*/checkpoints c
        WHERE c.thread_id = :thread_id AND c.checkpoint_ns = '' AND c.created_at >= l.acquired_at
        ORDER BY c.checkpoint_id DESC LIMIT 1
    ), (
        -- The run's row may be missing, because it is stored a moment after the lease is taken.
        SELECT r.run_id FROM /*schema*/runs r
        WHERE r.thread_id = :thread_id AND r.status = 'running' AND starts_with(l.holder_id, r.holder_id || ':')
        ORDER BY r.started_at DESC LIMIT 1
    )
)
FROM /*schema*/leases l
WHERE l.thread_id = :thread_id AND NOT EXISTS (SELECT 1 FROM taken)
    AND l.holder_id IS NOT NULL AND l.expires_at > now() AND l.fencing_token <> ALL(:free_tokens)
UNION ALL
SELECT false, deleted_at, NULL, NULL, NULL, NULL, NULL, NULL
FROM /*schema*/tombstones WHERE thread_id = :thread_id AND expires_at > now();

-- name: renew_lease
-- Renew a lease, after `hold_for_write` with its fencing token. Affects no row if the holder has released the lease
-- meanwhile.
UPDATE /*schema*/leases
SET renewed_at = now(), expires_at = now() + make_interval(secs => :ttl::double precision)
WHERE thread_id = :thread_id AND holder_id = :holder_id::text;

-- name: renew_leases
-- Renew some leases. Return the leases that are still held.
UPDATE /*schema*/leases
SET renewed_at = now(), expires_at = now() + make_interval(secs => :ttl::double precision)
FROM unnest(:thread_ids::text[], :fencing_tokens::bigint[]) AS mine (thread_id, fencing_token)
WHERE leases.thread_id = mine.thread_id AND leases.fencing_token = mine.fencing_token
    AND leases.thread_id = ANY(:thread_ids)
RETURNING leases.thread_id, leases.fencing_token;

-- name: release_lease
-- Release a lease, given its fencing token or its holder. The row keeps the token, so that the next lease has a higher
-- token. Affects no row if the lease was lost.
UPDATE /*schema*/leases SET holder_id = NULL, expires_at = now()
WHERE thread_id = :thread_id AND (fencing_token = :fencing_token::bigint OR holder_id = :holder_id::text);

-- name: sweep_leases
-- Delete a page of the leases that have not been held for a day.
DELETE FROM /*schema*/leases WHERE thread_id = ANY(ARRAY(
    SELECT thread_id FROM /*schema*/leases WHERE expires_at <= now() - interval '1 day'
    ORDER BY expires_at, thread_id LIMIT :page_size
)) AND expires_at <= now() - interval '1 day';
