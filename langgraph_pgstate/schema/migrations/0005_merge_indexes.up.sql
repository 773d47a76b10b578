-- Fewer indexes to keep at every put: the one by parent has, behind the parent, what else checkpoints are looked for by.

DROP INDEX /*schema*/checkpoints_parent_idx;
DROP INDEX /*schema*/checkpoints_source_step_idx;
DROP INDEX /*schema*/checkpoints_created_at_idx;
CREATE INDEX checkpoints_parent_idx ON /*schema*/checkpoints (parent_checkpoint_id, source, step, created_at);
