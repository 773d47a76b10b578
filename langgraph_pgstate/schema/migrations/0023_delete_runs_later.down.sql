-- Deletes runs that have deleted their threads.

DELETE FROM /*schema*/stream_batches b USING /*schema*/runs r
WHERE r.thread_id = b.thread_id AND r.run_id = b.run_id AND r.delete_at IS NOT NULL;
DELETE FROM /*schema*/runs WHERE delete_at IS NOT NULL;

ALTER TABLE /*schema*/runs DROP COLUMN delete_at;
