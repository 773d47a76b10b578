-- name: get_chain
-- Return the head of a thread's chain of events: the chain's id, and the number and hash of the last entry.
SELECT c.chain_id, c.number, c.hash FROM /*schema*/event_chains c WHERE c.thread_id = :thread_id::text;

-- name: read_chain
-- Return a page of a thread's chain in order: each entry, the digest of its event as stored now, and the event. The
-- event is null if it was deleted. The digest is null if the event or the entry's salt was deleted.
-- leaves: events.payload
SELECT h.number, h.event_id, h.salt IS NOT NULL, h.digest, h.hash,
    sha256(h.salt || convert_to(jsonb_build_array(
        e.thread_id, e.event_id, extract(epoch FROM e.created_at), e.kind, e.run_id, e.checkpoint_ns, e.checkpoint_id,
        e.agent, e.payload
    )::text, 'UTF8')),
    e.event_id IS NOT NULL, e.created_at, e.kind, e.run_id, e.checkpoint_ns, e.checkpoint_id, e.agent, e.payload
FROM /*schema*/event_hashes h LEFT JOIN /*schema*/events e
    ON e.thread_id = :thread_id::text AND e.event_id = h.event_id
WHERE h.thread_id = :thread_id AND h.number > :cursor_number::bigint
ORDER BY h.number LIMIT :page_size;

-- name: list_audited_threads
-- Return a page of threads that have events, a chain, or entries of a chain, in order.
(SELECT DISTINCT v.thread_id FROM /*schema*/events v WHERE v.thread_id > :cursor_id::text
    ORDER BY v.thread_id LIMIT :page_size)
UNION
(SELECT c.thread_id FROM /*schema*/event_chains c WHERE c.thread_id > :cursor_id ORDER BY c.thread_id LIMIT :page_size)
UNION
(SELECT DISTINCT h.thread_id FROM /*schema*/event_hashes h WHERE h.thread_id > :cursor_id
    ORDER BY h.thread_id LIMIT :page_size)
ORDER BY thread_id LIMIT :page_size;

-- name: list_unchained_later
-- Return the first events of a thread that are in no chain, and whether each event should be in a chain: if the thread
-- has a chain, or if the event is newer than the audit.
SELECT v.event_id, v.created_at, EXISTS (
        SELECT 1 FROM /*schema*/event_chains c WHERE c.thread_id = :thread_id::text
    ) OR v.created_at >= (SELECT a.since FROM /*schema*/event_chaining a)
FROM /*schema*/events v
WHERE v.thread_id = :thread_id AND NOT EXISTS (
    SELECT 1 FROM /*schema*/event_hashes h WHERE h.thread_id = :thread_id AND h.event_id = v.event_id
)
ORDER BY v.event_id LIMIT :page_size;

-- name: find_exported
-- For each exported entry in the given parallel arrays, return its position in the arrays, and its current hash. If the
-- thread was deleted or erased, also return the number and hash of the chain's last entry, and the reason.
SELECT g.place, (
        SELECT h.hash FROM /*schema*/event_chains c
            JOIN /*schema*/event_hashes h ON h.thread_id = c.thread_id AND h.number = g.number
        WHERE c.thread_id = g.thread_id AND c.chain_id = g.chain_id
    ), n.number, n.hash, n.reason
FROM unnest(:places::integer[], :thread_ids::text[], :chain_ids::text[], :numbers::bigint[])
    AS g (place, thread_id, chain_id, number)
LEFT JOIN /*schema*/event_chain_ends n ON n.chain_id = g.chain_id
ORDER BY g.place;
