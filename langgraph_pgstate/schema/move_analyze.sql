-- Gathers statistics of a table. `threads` stands for the table.
ANALYZE /*schema*/threads;
