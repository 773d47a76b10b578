-- Removes schedules. Interrupts get no answers by default any more.

DROP TABLE /*schema*/schedules;
ALTER TABLE /*schema*/run_requests DROP COLUMN answer_at;
ALTER TABLE /*schema*/answers DROP COLUMN is_default;
