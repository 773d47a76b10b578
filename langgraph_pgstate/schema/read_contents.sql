-- Return a page of the rows of a thread in one table, in key order, after a cursor. `threads`, its key and `title` stand
-- for a table, its key and its content.
SELECT thread_id, title FROM /*schema*/threads WHERE thread_id = $1 AND (thread_id) > ($2) ORDER BY thread_id LIMIT 100
