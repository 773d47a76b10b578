-- Runs whose worker died are claimed together with others again.

DROP INDEX /*schema*/queue_suspect_idx;
ALTER TABLE /*schema*/queue DROP COLUMN is_suspect;
