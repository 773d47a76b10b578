-- Return a page of a thread's rows in one table, in key order after a cursor. The names are placeholders.
SELECT thread_id, title FROM /*schema*/threads WHERE thread_id = $1 AND (thread_id) > ($2) ORDER BY thread_id LIMIT 100
