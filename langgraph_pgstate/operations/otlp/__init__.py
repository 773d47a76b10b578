"""The queue of spans for OpenTelemetry, and the process that exports them."""
