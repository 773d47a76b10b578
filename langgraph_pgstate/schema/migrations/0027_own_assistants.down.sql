-- Forgets whose assistants and schedules are.

DROP INDEX /*schema*/schedules_thread_id_idx;
ALTER TABLE /*schema*/schedules DROP COLUMN owner_id;
ALTER TABLE /*schema*/assistants DROP COLUMN owner_id;
