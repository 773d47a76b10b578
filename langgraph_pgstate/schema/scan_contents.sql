-- Return a page of the rows of a table in key order after a cursor. `threads` and its key stand for a table and its
-- key. `title` stands for two columns of each content: its beginning, which names its data key, and its size.
SELECT thread_id, title FROM /*schema*/threads WHERE (thread_id) > ($1) ORDER BY thread_id LIMIT 500
