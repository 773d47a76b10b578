-- Keeps rows from being added to a partition until the transaction ends. `spans` and the month stand for others.
LOCK TABLE /*schema*/spans_2000_01 IN SHARE MODE;
