-- Keeps what maintenance did and how large the tables were then, and lets workers be asked to drain.

CREATE TABLE /*schema*/maintenance (
    maintained_at timestamptz NOT NULL DEFAULT now(),
    seconds double precision NOT NULL,
    report jsonb NOT NULL,
    sizes jsonb NOT NULL,
    PRIMARY KEY (maintained_at)
);

ALTER TABLE /*schema*/workers ADD COLUMN drain_asked_at timestamptz;

COMMENT ON TABLE /*schema*/maintenance IS
    'What maintain did, for 400 days. Not part of any thread.';
COMMENT ON COLUMN /*schema*/maintenance.maintained_at IS 'time it ended';
COMMENT ON COLUMN /*schema*/maintenance.seconds IS 'how long it took, in seconds';
COMMENT ON COLUMN /*schema*/maintenance.report IS 'what it made, ended and deleted: numbers and names of partitions';
COMMENT ON COLUMN /*schema*/maintenance.sizes IS
    'bytes of each table with its indexes and partitions, by name of the table';
COMMENT ON COLUMN /*schema*/workers.drain_asked_at IS
    'time the worker was asked to drain: to claim no more, give its runs back and end; null: it was not';
