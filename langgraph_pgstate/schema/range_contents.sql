-- Return the content of the rows of a table after a key, up to another one. The names stand for others.
SELECT thread_id, title FROM /*schema*/threads WHERE (thread_id) > ($1) AND (thread_id) <= ($2) ORDER BY thread_id
