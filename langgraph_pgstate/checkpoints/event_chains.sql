-- name: begin_chaining
-- Chain events from now on, unless they are chained already.
INSERT INTO /*schema*/event_chaining (is_on) VALUES (true) ON CONFLICT (is_on) DO NOTHING;

-- name: has_chaining
-- Return whether events are chained.
SELECT EXISTS (SELECT 1 FROM /*schema*/event_chaining);

-- name: open_chains
-- Lock the chains of some threads' events until the transaction ends, and insert missing chains. Without the lock, two
-- writers could give one number to two entries, and the second writer would fail.
WITH new AS MATERIALIZED (
    SELECT g.thread_id, gen_random_uuid()::text AS chain_id FROM unnest(:thread_ids::text[]) AS g (thread_id)
    WHERE EXISTS (SELECT 1 FROM /*schema*/events e WHERE e.thread_id = g.thread_id)
        OR EXISTS (SELECT 1 FROM /*schema*/event_chains c WHERE c.thread_id = g.thread_id)
)
INSERT INTO /*schema*/event_chains AS stored (thread_id, chain_id, number, hash)
SELECT n.thread_id, n.chain_id, 0, sha256(n.chain_id::bytea) FROM new n
ORDER BY n.thread_id COLLATE "C"
ON CONFLICT (thread_id) DO UPDATE SET number = stored.number;

-- name: chain_events
-- Append events to the chains of their threads. An empty chain first gets the thread's events from before chains were
-- turned on. Execute `open_chains` before.
-- leaves: events.payload
WITH RECURSIVE chosen AS MATERIALIZED (
    SELECT e.thread_id, e.event_id
    FROM unnest(:thread_ids::text[], :event_ids::text[]) AS g (thread_id, event_id)
    JOIN /*schema*/events e ON e.thread_id = g.thread_id AND e.event_id = g.event_id
    WHERE e.thread_id = ANY(:thread_ids)
    UNION
    SELECT e.thread_id, e.event_id
    FROM /*schema*/event_chains c JOIN /*schema*/events e ON e.thread_id = c.thread_id
    WHERE c.thread_id = ANY(:thread_ids) AND c.number = 0 AND e.created_at < (SELECT a.since FROM /*schema*/event_chaining a)
), digests AS MATERIALIZED (
    SELECT s.thread_id, s.event_id, s.salt, sha256(s.salt || convert_to(s.content, 'UTF8')) AS digest,
        row_number() OVER (PARTITION BY s.thread_id ORDER BY s.event_id) AS place
    FROM (
        SELECT o.thread_id, o.event_id, uuid_send(gen_random_uuid()) AS salt, jsonb_build_array(
            e.thread_id, e.event_id, extract(epoch FROM e.created_at), e.kind, e.run_id, e.checkpoint_ns,
            e.checkpoint_id, e.agent, e.payload
        )::text AS content
        FROM chosen o JOIN /*schema*/events e ON e.thread_id = o.thread_id AND e.event_id = o.event_id
        WHERE e.thread_id = ANY(:thread_ids) AND NOT EXISTS (
            SELECT 1 FROM /*schema*/event_hashes h
            WHERE h.thread_id = o.thread_id AND h.event_id = o.event_id AND h.salt IS NOT NULL
        )
        -- `OFFSET 0` makes the server compute the random salt once for each row.
        OFFSET 0
    ) AS s
), entries AS (
    SELECT d.thread_id, d.event_id, d.salt, d.digest, d.place, c.number + 1 AS number, sha256(c.hash || d.digest) AS hash
    FROM digests d JOIN /*schema*/event_chains c ON c.thread_id = d.thread_id
    WHERE d.place = 1 AND c.thread_id = ANY(:thread_ids)
    UNION ALL
    SELECT d.thread_id, d.event_id, d.salt, d.digest, d.place, n.number + 1, sha256(n.hash || d.digest)
    FROM entries n JOIN digests d ON d.thread_id = n.thread_id AND d.place = n.place + 1
), appended AS (
    INSERT INTO /*schema*/event_hashes (thread_id, number, event_id, salt, digest, hash)
    SELECT n.thread_id, n.number, n.event_id, n.salt, n.digest, n.hash FROM entries n
), newest AS (
    SELECT DISTINCT ON (n.thread_id) n.thread_id, n.number, n.hash FROM entries n ORDER BY n.thread_id, n.number DESC
)
UPDATE /*schema*/event_chains c SET number = n.number, hash = n.hash
FROM newest n WHERE c.thread_id = n.thread_id AND c.thread_id = ANY(:thread_ids);

-- name: list_events_of_runs
-- Return the events of some runs of a thread.
SELECT v.event_id FROM /*schema*/events v
WHERE v.thread_id = :thread_id::text AND v.run_id = ANY(:run_ids::text[])
ORDER BY v.event_id;

-- name: release_events
-- Remove the salts of some events that are about to be deleted or changed. Return the numbers of the events' entries.
UPDATE /*schema*/event_hashes SET salt = NULL
WHERE thread_id = :thread_id::text AND event_id = ANY(:event_ids::text[]) AND salt IS NOT NULL
RETURNING number;

-- name: end_chain
-- End the chain of a thread whose events are deleted. Delete the chain's entries, and keep a row without the thread's
-- id.
WITH clock AS MATERIALIZED (
    SELECT now() AS at
), gone AS (
    DELETE FROM /*schema*/event_hashes WHERE thread_id = :thread_id::text
), ended AS (
    DELETE FROM /*schema*/event_chains WHERE thread_id = :thread_id RETURNING chain_id, number, hash
)
INSERT INTO /*schema*/event_chain_ends (chain_id, number, hash, reason, ended_at)
SELECT e.chain_id, e.number, e.hash, :reason::text, c.at FROM ended e CROSS JOIN clock c WHERE e.number > 0
RETURNING chain_id;

-- name: list_unchained
-- Return a page of a thread's events that are in no chain, in order.
SELECT v.event_id FROM /*schema*/events v
WHERE v.thread_id = :thread_id::text AND v.event_id > :cursor_id::text AND NOT EXISTS (
    SELECT 1 FROM /*schema*/event_hashes h
    WHERE h.thread_id = :thread_id AND h.event_id = v.event_id
)
ORDER BY v.event_id LIMIT :page_size;
