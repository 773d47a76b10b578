-- Removes what is known of maintenance, and requests to drain.

ALTER TABLE /*schema*/workers DROP COLUMN drain_asked_at;

DROP TABLE /*schema*/maintenance;
