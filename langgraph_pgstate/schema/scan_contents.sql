-- Return a page of the rows of a table, in key order after a cursor. The names are placeholders: `title` stands for the
-- beginning of each content, which names its data key, and for the size of the content.
SELECT thread_id, title FROM /*schema*/threads WHERE (thread_id) > ($1) ORDER BY thread_id LIMIT 500
