-- Keeps rows from being added to a partition until the transaction ends. The table and the month are examples.
LOCK TABLE /*schema*/spans_2000_01 IN SHARE MODE;
