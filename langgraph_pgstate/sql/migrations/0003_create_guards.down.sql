-- Takes forks' origins, labels, leases, tombstones, answers and versions of the state away; the checkpoints stay.

DROP TABLE /*schema*/journal;
DROP TABLE /*schema*/answers;
DROP TABLE /*schema*/tombstones;
DROP TABLE /*schema*/leases;
DROP TABLE /*schema*/labels;
DROP INDEX /*schema*/writes_interrupts_idx;
ALTER TABLE /*schema*/checkpoints
    DROP COLUMN next_checkpoint_id,
    DROP COLUMN state_version;
ALTER TABLE /*schema*/threads
    DROP COLUMN forked_from_thread_id,
    DROP COLUMN forked_from_checkpoint_id;
