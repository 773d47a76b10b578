-- name: put_entry
-- Notes what was recorded without a checkpoint to go along with.
INSERT INTO /*schema*/journal (thread_id, entry_id, run_id, is_alone, data)
VALUES (:thread_id::text, :entry_id::text, :run_id::text, true, :entry::bytea)
ON CONFLICT (thread_id, entry_id) DO NOTHING;

-- name: read_entries
-- A page of what some threads have in the journal, in the order of the database's clock: those of processes may differ.
SELECT thread_id, entry_id, data FROM /*schema*/journal
WHERE thread_id = ANY(:thread_ids::text[])
ORDER BY thread_id, created_at, entry_id
LIMIT :page_size;

-- name: take_entries
-- Takes entries out of the journal; fails if one of them is not there any more. The cast is how a statement without PL/pgSQL ends its transaction.
WITH gone AS (
    DELETE FROM /*schema*/journal j
    USING unnest(:taken_thread_ids::text[], :taken_entry_ids::text[]) AS taken (thread_id, entry_id)
    WHERE j.thread_id = taken.thread_id AND j.entry_id = taken.entry_id AND j.thread_id = ANY(:thread_ids::text[])
    RETURNING 1
)
SELECT ('pgstate-journal:' || count(*))::integer FROM gone HAVING count(*) <> cardinality(:taken_entry_ids);

-- name: find_entries
-- Threads that have had something in the journal for some seconds.
SELECT DISTINCT thread_id FROM /*schema*/journal
WHERE created_at <= now() - make_interval(secs => :seconds::double precision)
LIMIT :page_size;

-- name: delete_entries
-- Removes what a thread, or some runs of it, have in the journal.
DELETE FROM /*schema*/journal
WHERE thread_id = :thread_id AND (:run_ids::text[] IS NULL OR run_id = ANY(:run_ids));
