-- Creates a partition, and moves its rows out of the default one. Table, column and month are placeholders.
LOCK TABLE /*schema*/spans_default IN ACCESS EXCLUSIVE MODE;
CREATE TABLE /*schema*/spans_2000_01 (LIKE /*schema*/spans INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE);
WITH strayed AS (
    DELETE FROM /*schema*/spans_default
    WHERE started_at >= '2000-01-01 00:00+00' AND started_at < '2000-02-01 00:00+00'
    RETURNING *
)
INSERT INTO /*schema*/spans_2000_01 SELECT * FROM strayed;
ALTER TABLE /*schema*/spans ATTACH PARTITION /*schema*/spans_2000_01
    FOR VALUES FROM ('2000-01-01 00:00+00') TO ('2000-02-01 00:00+00');
