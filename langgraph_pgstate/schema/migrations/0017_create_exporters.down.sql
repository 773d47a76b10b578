-- Removes the exporters of spans, what waits for them, and the trace that a run belongs to.

ALTER TABLE /*schema*/runs DROP COLUMN traceparent, DROP COLUMN is_encrypted;
DROP TABLE /*schema*/span_exports, /*schema*/exporters;
