-- Drops a partition. The table and the month are examples.
DROP TABLE /*schema*/spans_2000_01;
