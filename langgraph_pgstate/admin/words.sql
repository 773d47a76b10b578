-- name: find_messages_without_words
-- Return a page of messages in key order after a cursor. A message that is encrypted without digests of words has its
-- text twice: decrypted, and as stored. Other messages have nulls instead.
-- opens: messages.content if intact
SELECT m.thread_id, m.message_id, m.checkpoint_id, m.channel, w.content, w.content AS before
FROM /*schema*/messages m CROSS JOIN LATERAL (
    SELECT CASE WHEN left(m.content, 5) = 'pgs1:' AND strpos(m.content, ' ') = 0 THEN m.content END AS content
) AS w
WHERE (m.thread_id, m.message_id, m.checkpoint_id, m.channel)
    > (:thread_id::text, :message_id::text, :checkpoint_id::text, :channel::text)
ORDER BY m.thread_id, m.message_id, m.checkpoint_id, m.channel
LIMIT :page_size::integer;

-- name: add_words_of_message
-- Store a message again, with digests of its words, unless it was changed meanwhile.
-- seals: messages.content
UPDATE /*schema*/messages m SET content = :content::text
WHERE m.thread_id = :thread_id::text AND m.message_id = :message_id::text AND m.checkpoint_id = :checkpoint_id::text
    AND m.channel = :channel::text AND m.content = :before::text;

-- name: find_memories_without_words
-- Return a page of items in key order after a cursor, with the fields to index. An item that is encrypted and indexed
-- without digests of words has its value twice: decrypted, and as stored. Other items have nulls instead.
-- opens: memories.value if intact
-- leaves: memories.words
SELECT m.namespace, m.key, w.value, w.value::text AS before, m.index_fields
FROM /*schema*/memories m CROSS JOIN LATERAL (
    SELECT CASE
        WHEN m.words IS NULL AND coalesce(cardinality(m.index_fields), 1) > 0 AND m.value ? 'pgstate_encrypted'
        THEN m.value
    END AS value
) AS w
WHERE m.namespace OPERATOR(pg_catalog.>=) :namespace::text[]
    AND (m.namespace OPERATOR(pg_catalog.>) :namespace OR m.key > :key::text)
ORDER BY m.namespace, m.key
LIMIT :page_size::integer;
