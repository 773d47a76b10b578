-- name: put_entry
-- Store a journal entry that belongs to no checkpoint.
-- seals: journal.data from entry
INSERT INTO /*schema*/journal (thread_id, entry_id, run_id, is_alone, data)
VALUES (:thread_id::text, :entry_id::text, :run_id::text, true, :entry::bytea)
ON CONFLICT (thread_id, entry_id) DO NOTHING;

-- name: read_entries
-- Return a page of the journal entries of some threads, ordered by the database's clock, because the clocks of
-- processes may differ.
-- opens: journal.data if intact
SELECT thread_id, entry_id, data FROM /*schema*/journal
WHERE thread_id = ANY(:thread_ids::text[])
ORDER BY thread_id, created_at, entry_id
LIMIT :page_size;

-- name: take_entries
-- Delete entries from the journal. If an entry no longer exists, the cast to integer raises an error. PL/pgSQL could
-- raise an error directly, but the schema does not use PL/pgSQL.
WITH gone AS (
    DELETE FROM /*schema*/journal j
    USING unnest(:taken_thread_ids::text[], :taken_entry_ids::text[]) AS taken (thread_id, entry_id)
    WHERE j.thread_id = taken.thread_id AND j.entry_id = taken.entry_id AND j.thread_id = ANY(:thread_ids::text[])
    RETURNING 1
)
SELECT ('pgstate-journal:' || count(*))::integer FROM gone HAVING count(*) <> cardinality(:taken_entry_ids);

-- name: find_entries
-- Return a page of the threads with a journal entry that is at least `:seconds` old, after a cursor.
SELECT DISTINCT thread_id FROM /*schema*/journal
WHERE created_at <= now() - make_interval(secs => :seconds::double precision) AND thread_id > :cursor_thread::text
ORDER BY thread_id
LIMIT :page_size;

-- name: delete_entries
-- Delete the journal entries of a thread, or of some of its runs.
DELETE FROM /*schema*/journal
WHERE thread_id = :thread_id AND (:run_ids::text[] IS NULL OR run_id = ANY(:run_ids));
