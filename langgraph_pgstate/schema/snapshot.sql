-- Makes the transaction read-only with a single snapshot. Must be its first statement.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
