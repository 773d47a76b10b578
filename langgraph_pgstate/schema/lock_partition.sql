-- Keeps rows from being added to a partition until the transaction ends. Table and month are placeholders.
LOCK TABLE /*schema*/spans_2000_01 IN SHARE MODE;
