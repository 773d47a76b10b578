-- Drops the partition of a month of spans. The month is an example.
DROP TABLE /*schema*/spans_2000_01;
