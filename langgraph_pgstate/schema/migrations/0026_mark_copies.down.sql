-- Forgets what was copied: deletions by run reach copies again.

ALTER TABLE /*schema*/writes DROP COLUMN is_copy;
ALTER TABLE /*schema*/checkpoints DROP COLUMN is_copy;
