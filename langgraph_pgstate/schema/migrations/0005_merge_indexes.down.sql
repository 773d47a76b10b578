-- Makes an index of its own for each column again.

DROP INDEX /*schema*/checkpoints_parent_idx;
CREATE INDEX checkpoints_parent_idx ON /*schema*/checkpoints (parent_checkpoint_id)
    WHERE parent_checkpoint_id IS NOT NULL;
CREATE INDEX checkpoints_source_step_idx ON /*schema*/checkpoints (source, step) WHERE source <> 'loop';
CREATE INDEX checkpoints_created_at_idx ON /*schema*/checkpoints USING brin (created_at)
    WITH (pages_per_range = 8, autosummarize = on);
