"""Export of recorded spans to OpenTelemetry; needs the extra `otlp`."""

from typing import TYPE_CHECKING

from langgraph_pgstate._lazy import lazy_attributes

if TYPE_CHECKING:
    from langgraph_pgstate.otlp.exporter import SpanExporter
else:
    __getattr__, __dir__ = lazy_attributes(__name__, {"SpanExporter": "langgraph_pgstate.otlp.exporter"})

__all__ = ["SpanExporter"]
