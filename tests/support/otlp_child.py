"""A process that exports until it is killed; it imports nothing else."""

from __future__ import annotations

import logging
import time

from langgraph_pgstate.otlp import exporter


def follow(dsn: str, schema: str, endpoint: str) -> None:
    """Export, and take over quickly from a process that was killed."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    exporter._LEASE_SECONDS, exporter._RENEW_SECONDS, exporter._STANDBY_SECONDS = 1.0, 0.3, 0.1  # type: ignore[misc]
    exporter._POLL_SECONDS = 0.1  # type: ignore[misc]
    with exporter.SpanExporter(dsn, endpoint, schema=schema):
        time.sleep(120)
