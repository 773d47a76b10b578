-- Takes the saver's tables away, and everything in them.

DROP TABLE /*schema*/writes;
DROP TABLE /*schema*/segments;
DROP TABLE /*schema*/checkpoints;
DROP TABLE /*schema*/threads;
