-- Everything the transaction reads comes from one moment, and it can write nothing. Must be its first statement.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
