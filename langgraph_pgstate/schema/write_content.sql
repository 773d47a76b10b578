-- Store a value of one row again, unless it was changed after it was read. The names are placeholders.
UPDATE /*schema*/threads SET title = $1 WHERE thread_id = $2 AND title = $3
