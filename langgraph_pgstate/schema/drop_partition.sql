-- Drops a partition. `spans` and the month stand for others.
DROP TABLE /*schema*/spans_2000_01;
