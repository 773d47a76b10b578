-- Makes the indexes without costs again.

DROP INDEX /*schema*/runs_started_at_idx;
CREATE INDEX runs_started_at_idx ON /*schema*/runs (started_at DESC, thread_id, run_id);
DROP INDEX /*schema*/spans_model_calls_idx;
DROP INDEX /*schema*/spans_started_at_idx;
CREATE INDEX spans_started_at_idx ON /*schema*/spans (kind, started_at);
