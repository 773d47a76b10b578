-- name: put_entry
-- Notes what was recorded without a checkpoint to go along with.
INSERT INTO /*schema*/journal (thread_id, entry_id, run_id, is_alone, data)
VALUES (:thread_id::text, :entry_id::text, :run_id::text, true, :entry::bytea)
ON CONFLICT (thread_id, entry_id) DO NOTHING;

-- name: take_entries
-- Takes out what some threads have in the journal.
DELETE FROM /*schema*/journal WHERE thread_id = ANY(:thread_ids::text[])
RETURNING thread_id, entry_id, data;

-- name: find_entries
-- Threads that have had something in the journal for some seconds.
SELECT DISTINCT thread_id FROM /*schema*/journal
WHERE created_at <= now() - make_interval(secs => :seconds::double precision)
LIMIT :page_size;

-- name: delete_entries
-- Removes what a thread, or some runs of it, have in the journal.
DELETE FROM /*schema*/journal
WHERE thread_id = :thread_id AND (:run_ids::text[] IS NULL OR run_id = ANY(:run_ids));
