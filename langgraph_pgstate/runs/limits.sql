-- name: put_limit
-- Store the limit of a queue, of each of its keys, or of one key.
INSERT INTO /*schema*/queue_limits (queue, key, concurrency, rate, rate_seconds)
VALUES (:queue::text, :key::text, :concurrency::integer, :rate::integer, :rate_seconds::double precision)
ON CONFLICT (queue, key) DO UPDATE SET
    concurrency = excluded.concurrency, rate = excluded.rate, rate_seconds = excluded.rate_seconds;

-- name: delete_limit
-- Delete a limit. The next claim finds the runs that waited for the limit.
DELETE FROM /*schema*/queue_limits WHERE queue = :queue::text AND key = :key::text;

-- name: list_limits
-- Return the limits, each with the numbers of running and waiting runs.
SELECT l.queue, l.key, l.concurrency, l.rate, l.rate_seconds, (
    SELECT count(*) FROM /*schema*/queue q
    WHERE q.queue = l.queue AND q.status = 'running' AND (
        l.key IN ('', q.key) OR l.key = '*' AND q.key <> '' AND NOT EXISTS (
            SELECT 1 FROM /*schema*/queue_limits o WHERE o.queue = l.queue AND o.key = q.key
        )
    )
), (
    SELECT count(*) FROM /*schema*/queue q
    WHERE q.queue = l.queue AND q.is_limited AND (
        l.key = q.key OR l.key = '*' AND NOT EXISTS (
            SELECT 1 FROM /*schema*/queue_limits o WHERE o.queue = l.queue AND o.key = q.key
        )
    )
)
FROM /*schema*/queue_limits l
ORDER BY l.queue, l.key;

-- name: sweep_keys
-- Delete the rows of queue keys whose rate window began more than a day ago and has ended.
DELETE FROM /*schema*/queue_keys
WHERE queue_keys.window_started_at < now() - interval '1 day' AND NOT EXISTS (
    SELECT 1 FROM /*schema*/queue_limits l
    WHERE l.queue = queue_keys.queue AND (l.key = queue_keys.key OR l.key = '*' AND queue_keys.key <> '')
        AND extract(epoch FROM now() - queue_keys.window_started_at)::double precision < l.rate_seconds
);
