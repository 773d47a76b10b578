-- Adds the queue of spans for OpenTelemetry and its exporters, and the trace that a run belongs to.

CREATE TABLE /*schema*/exporters (
    name text COLLATE "C" NOT NULL,
    endpoint text NOT NULL,
    holder_id text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name)
);

CREATE TABLE /*schema*/span_exports (
    thread_id text COLLATE "C" NOT NULL,
    export_id text COLLATE "C" NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    span_ids text[] NOT NULL,
    started_ats timestamptz[] NOT NULL,
    PRIMARY KEY (thread_id, export_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX span_exports_created_at_idx ON /*schema*/span_exports (created_at, thread_id, export_id);

ALTER TABLE /*schema*/runs
    ADD COLUMN traceparent text, ADD COLUMN is_encrypted boolean NOT NULL DEFAULT false;

COMMENT ON TABLE /*schema*/exporters IS
    'Exporters of spans. While there is one, spans that end are queued for it. Not part of any thread.';
COMMENT ON COLUMN /*schema*/exporters.name IS 'otlp';
COMMENT ON COLUMN /*schema*/exporters.endpoint IS 'URL that its holder sends to, without credentials';
COMMENT ON COLUMN /*schema*/exporters.holder_id IS 'process that exports';
COMMENT ON COLUMN /*schema*/exporters.expires_at IS
    'time after which another process may export; maintain removes an exporter a week later';
COMMENT ON COLUMN /*schema*/exporters.created_at IS 'time from which spans are queued';

COMMENT ON TABLE /*schema*/span_exports IS 'Spans that have ended and are not exported yet.';
COMMENT ON COLUMN /*schema*/span_exports.thread_id IS 'the thread';
COMMENT ON COLUMN /*schema*/span_exports.export_id IS 'random id';
COMMENT ON COLUMN /*schema*/span_exports.run_id IS 'the run';
COMMENT ON COLUMN /*schema*/span_exports.created_at IS 'time they were queued';
COMMENT ON COLUMN /*schema*/span_exports.span_ids IS 'span_id of each';
COMMENT ON COLUMN /*schema*/span_exports.started_ats IS 'started_at of each';

COMMENT ON COLUMN /*schema*/runs.traceparent IS
    'W3C traceparent of the caller, to whose trace the run belongs; null: the run is a trace of its own';
COMMENT ON COLUMN /*schema*/runs.is_encrypted IS
    'true: a serializer other than LangGraph''s own, which may encrypt, stores the state; no content is exported';
