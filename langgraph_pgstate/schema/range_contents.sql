-- Return the content of the rows of a table after a key, up to another key. The names are placeholders.
SELECT thread_id, title FROM /*schema*/threads WHERE (thread_id) > ($1) AND (thread_id) <= ($2) ORDER BY thread_id
