-- Removes limits, versions and budgets. Runs that waited for a limit can be claimed.

DROP TABLE /*schema*/queue_limits;
DROP TABLE /*schema*/queue_keys;
DROP TABLE /*schema*/budgets;
ALTER TABLE /*schema*/workers DROP COLUMN versions;
ALTER TABLE /*schema*/runs DROP COLUMN key;
-- With them go the indexes on them.
ALTER TABLE /*schema*/queue DROP COLUMN version, DROP COLUMN is_limited;
DROP INDEX /*schema*/queue_running_idx;
CREATE INDEX queue_graph_idx ON /*schema*/queue (queue, graph, priority DESC, position)
    WHERE is_ready AND status = 'pending';
CREATE INDEX queue_key_idx ON /*schema*/queue (queue, key, position) WHERE is_ready AND status = 'pending';
CREATE INDEX queue_position_idx ON /*schema*/queue (queue, position) WHERE is_ready AND status = 'pending';
CREATE INDEX queue_worker_id_idx ON /*schema*/queue (worker_id) WHERE status = 'running';
COMMENT ON COLUMN /*schema*/queue.key IS 'runs of different keys take turns; empty by default';
COMMENT ON COLUMN /*schema*/events.kind IS
    'status, handoff, interrupt, resume, answer, fork, prune, refused (a guard refused the run) or corrupt';
