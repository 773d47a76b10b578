-- Drops an index that a move has left incomplete. `pgstate_move_key` stands for the index.
DROP INDEX CONCURRENTLY IF EXISTS /*schema*/pgstate_move_key;
