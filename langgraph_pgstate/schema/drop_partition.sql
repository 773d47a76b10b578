-- Drops a partition. Table and month are placeholders.
DROP TABLE /*schema*/spans_2000_01;
