-- Drops an index that a move has left incomplete. Its name is an example.
DROP INDEX CONCURRENTLY IF EXISTS /*schema*/pgstate_move_key;
