"""Recorded spans as spans of OpenTelemetry: ids, names and attributes. No I/O.

All values are computed from the rows, so that a repeated export of a span gives the same span.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from langgraph_pgstate.codec.traceparent import TraceParent, parse_traceparent
from langgraph_pgstate.otlp.exports import EndedSpan

ATTRIBUTES: Final[Mapping[str, tuple[str, str]]] = {
    "gen_ai.operation.name": ("all but nodes and chains", "as in the name of the span"),
    "gen_ai.conversation.id": ("all", "the thread"),
    "session.id": ("all", "the thread"),
    "user.id": ("all", "the user of the run"),
    "error.type": ("failed spans", "class of the exception; `ProcessDied`, `WorkerDied`: its process was killed"),
    "openinference.span.kind": (
        "all but agents, model calls and tools",
        "`CHAIN` or `RETRIEVER`, for backends that derive no kind",
    ),
    "gen_ai.workflow.name": ("runs", "the graph"),
    "gen_ai.agent.name": ("agents, tools", "the agent"),
    "gen_ai.provider.name": ("model calls", "the provider, by OpenTelemetry's names"),
    "gen_ai.request.model": ("model calls", "the model that was asked"),
    "gen_ai.request.temperature": ("model calls", "option of the request"),
    "gen_ai.request.top_p": ("model calls", "option of the request"),
    "gen_ai.request.top_k": ("model calls", "option of the request"),
    "gen_ai.request.max_tokens": ("model calls", "option of the request"),
    "gen_ai.request.seed": ("model calls", "option of the request"),
    "gen_ai.request.stream": ("model calls", "option of the request"),
    "gen_ai.request.stop_sequences": ("model calls", "option of the request"),
    "gen_ai.request.choice.count": ("model calls", "option of the request"),
    "gen_ai.response.id": ("model calls", "id of the response"),
    "gen_ai.response.model": ("model calls", "the model that responded"),
    "gen_ai.response.finish_reasons": ("model calls", "why the response ended"),
    "gen_ai.response.time_to_first_chunk": ("model calls that stream", "seconds"),
    "gen_ai.usage.input_tokens": ("model calls", "tokens read, cached ones included"),
    "gen_ai.usage.cache_read.input_tokens": ("model calls", "input tokens read from a cache"),
    "gen_ai.usage.cache_creation.input_tokens": ("model calls", "input tokens written to a cache"),
    "gen_ai.usage.output_tokens": ("model calls", "tokens written, reasoning included"),
    "gen_ai.usage.reasoning.output_tokens": ("model calls", "output tokens used for reasoning"),
    "gen_ai.tool.name": ("tools", "the tool"),
    "gen_ai.tool.type": ("tools", "`function`"),
    "gen_ai.tool.description": ("tools", "the tool's description"),
    "gen_ai.tool.call.id": ("tools", "id that the model gave the call"),
    "gen_ai.memory.store.id": ("memory", "the schema"),
    "gen_ai.memory.record.id": ("memory, of one item", "its key"),
    "gen_ai.memory.query.text": ("searches of memory, with content", "the query"),
    "pgstate.run.id": ("all", "`run_id` in `runs` and `spans`"),
    "pgstate.span.id": ("all", "`span_id` in `spans`"),
    "pgstate.span.kind": ("all", "`graph`, `node`, `chain`, `llm`, `tool`, `retriever` or `memory`"),
    "pgstate.status": ("all", "`success`, `error`, `interrupted` or `cancelled`"),
    "pgstate.agent": ("all", "the agent"),
    "pgstate.tenant.id": ("all", "the tenant of the run"),
    "pgstate.node": ("in a superstep", "the node"),
    "pgstate.step": ("in a superstep", "number of the superstep"),
    "pgstate.checkpoint.ns": ("in subgraphs", "namespace of the subgraph"),
    "pgstate.cost": ("model calls with a price", "in the currency of `prices`"),
    "gen_ai.input.messages": ("model calls, with content", "JSON in the form of the conventions"),
    "gen_ai.output.messages": ("model calls, with content", "JSON in the form of the conventions"),
    "gen_ai.tool.call.arguments": ("tools, with content", "JSON or text"),
    "gen_ai.tool.call.result": ("tools, with content", "JSON or text"),
    "input.value": ("all others, with content", "JSON or text"),
    "output.value": ("all others, with content", "JSON or text"),
    "input.mime_type": ("all others, with content", "`application/json` or `text/plain`"),
    "output.mime_type": ("all others, with content", "`application/json` or `text/plain`"),
}
"""For each attribute: the spans that have it, and its meaning."""
_SCHEMA: Final = "https://opentelemetry.io/schemas/"
_NAMES: Final = {
    "invoke_workflow": "gen_ai.workflow.name",
    "invoke_agent": "gen_ai.agent.name",
    "execute_tool": "gen_ai.tool.name",
    "chat": "gen_ai.request.model",
    "text_completion": "gen_ai.request.model",
}
"""For each operation: the attribute that follows the operation in the name of a span."""
_CLIENTS: Final = frozenset({"llm", "retriever"})
_OTHER_KINDS: Final = {
    "invoke_workflow": "CHAIN",
    "retrieval": "RETRIEVER",
    "search_memory": "RETRIEVER",
    None: "CHAIN",
}
"""OpenInference's kinds, for operations from which backends derive no kind."""
_ROLES: Final = {"human": "user", "ai": "assistant"}
_USAGE: Final = "gen_ai.usage."
_INT8: Final = range(-(2**63), 2**63)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def resource_of_process() -> Resource:
    """Return the resource of all spans, made from `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`.

    Unlike OpenTelemetry's default resource, it has no random id.
    """
    return Resource({"service.name": "langgraph_pgstate"}).merge(OTELResourceDetector().detect())


def is_exported(span: EndedSpan) -> bool:
    """Return whether a span is exported: false if the caller's trace is not sampled."""
    caller = _caller_of(span)
    return caller is None or caller.is_sampled


def convert(span: EndedSpan, resource: Resource, version: str) -> ReadableSpan:
    """Convert a recorded span to a span of OpenTelemetry."""
    caller = _caller_of(span)
    trace_id = _trace_id_of(span) if caller is None else caller.trace_id
    parent_id = None
    if span.parent_span_id is not None:
        parent_id = _span_id_of(span, span.parent_span_id, span.parent_started_at)
    elif caller is not None:
        parent_id = caller.span_id
    flags = TraceFlags(TraceFlags.SAMPLED)
    is_remote = span.parent_span_id is None
    attributes = _attributes_of(span)
    status = Status(StatusCode.ERROR, span.error_message) if span.status == "error" else Status(StatusCode.UNSET)
    return ReadableSpan(
        name=_name_of(span, attributes),
        context=SpanContext(trace_id, _span_id_of(span, span.span_id, span.started_at), False, flags),
        parent=None if parent_id is None else SpanContext(trace_id, parent_id, is_remote, flags),
        resource=resource,
        attributes=attributes,
        kind=SpanKind.CLIENT if span.kind in _CLIENTS else SpanKind.INTERNAL,
        status=status,
        start_time=_nanoseconds(span.started_at),
        end_time=_nanoseconds(span.ended_at),
        instrumentation_scope=InstrumentationScope("langgraph_pgstate", version, f"{_SCHEMA}{span.semconv_version}"),
    )


def _caller_of(span: EndedSpan) -> TraceParent | None:
    return None if span.traceparent is None else parse_traceparent(span.traceparent)


def _trace_id_of(span: EndedSpan) -> int:
    """Return the id of a run's own trace: a run id that is a UUID, else a hash of thread and run."""
    try:
        return UUID(span.run_id).int or 1
    except ValueError:
        return _hash(16, span.thread_id, span.run_id)


def _span_id_of(span: EndedSpan, span_id: str, started_at: datetime | None) -> int:
    """Return the exported id of a span: a hash of its recorded id and of its start.

    The roots of all attempts of a run have the same recorded id.
    """
    return _hash(8, span.thread_id, span.run_id, span_id, "" if started_at is None else str(_nanoseconds(started_at)))


def _hash(size: int, *parts: str) -> int:
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=size, person=b"pgstate.otlp").digest()
    # 0 is not a valid id.
    return int.from_bytes(digest) or 1


def _nanoseconds(moment: datetime) -> int:
    since = moment - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


def _name_of(span: EndedSpan, attributes: Mapping[str, Any]) -> str:
    operation = attributes.get("gen_ai.operation.name")
    if operation is None:
        return span.name
    key = _NAMES.get(operation)
    name = span.name if key is None else attributes.get(key)
    return f"{operation} {name}" if name else str(operation)


def _attributes_of(span: EndedSpan) -> dict[str, Any]:
    is_model = span.kind == "llm"
    # Only model calls keep their token counts, because backends take every span with counts for a model call.
    stored = {name: value for name, value in span.attributes.items() if is_model or not name.startswith(_USAGE)}
    operation = stored.get("gen_ai.operation.name")
    found: dict[str, Any] = {
        **stored,
        "gen_ai.conversation.id": span.thread_id,
        "session.id": span.thread_id,
        "user.id": span.user_id,
        "error.type": span.error_type,
        "openinference.span.kind": _OTHER_KINDS.get(operation),
        "pgstate.run.id": span.run_id,
        "pgstate.span.id": span.span_id,
        "pgstate.span.kind": span.kind,
        "pgstate.status": span.status,
        "pgstate.agent": span.agent,
        "pgstate.tenant.id": span.tenant_id,
        "pgstate.node": span.node,
        "pgstate.step": span.step,
        "pgstate.checkpoint.ns": span.checkpoint_ns or None,
        "pgstate.cost": span.cost if is_model else None,
    }
    if operation == "execute_tool" and span.agent:
        found["gen_ai.agent.name"] = span.agent
    found |= _content_of(span, operation)
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _content_of(span: EndedSpan, operation: str | None) -> dict[str, Any]:
    """Return the attributes for a span's input and output."""
    if operation == "execute_tool":
        output = span.output
        result = output.get("content") if isinstance(output, Mapping) and output.get("role") == "tool" else output
        return {"gen_ai.tool.call.arguments": _text(span.input), "gen_ai.tool.call.result": _text(result)}
    if span.kind == "memory":
        return {"gen_ai.memory.query.text": _text(span.input)}
    if span.kind == "llm":
        return {
            "gen_ai.input.messages": _messages(span.input),
            "gen_ai.output.messages": _messages(span.output, span.attributes.get("gen_ai.response.finish_reasons")),
        }
    return {
        "input.value": _text(span.input),
        "input.mime_type": _type_of(span.input),
        "output.value": _text(span.output),
        "output.mime_type": _type_of(span.output),
    }


def _type_of(value: Any) -> str | None:
    return None if value is None else "text/plain" if isinstance(value, str) else "application/json"


def _messages(captured: Any, reasons: Any = None) -> str | None:
    """Return recorded messages, or a prompt, as JSON in the form of OpenTelemetry."""
    if captured is None:
        return None
    if isinstance(captured, Mapping) and "$messages" in captured:
        captured = captured["$messages"]["last"]
    given = captured if isinstance(captured, list) else [captured]
    known = reasons if isinstance(reasons, list) else []
    role = "user" if reasons is None else "assistant"
    found = []
    for place, message in enumerate(given):
        one = _message(message, role)
        if reasons is not None:
            one["finish_reason"] = known[place] if place < len(known) else "stop"
        found.append(one)
    return _text(found)


def _message(message: Any, role: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or "role" not in message:
        return {
            "role": role,
            "parts": [{"type": "text", "content": message if isinstance(message, str) else _text(message)}],
        }
    content, calls = message.get("content"), message.get("tool_calls") or []
    parts: list[dict[str, Any]] = []
    if message["role"] == "tool":
        parts.append({"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content})
    else:
        for block in content if isinstance(content, list) else [content]:
            if isinstance(block, Mapping) and block.get("type") == "text":
                block = block.get("text")
            if block:
                parts.append({"type": "text", "content": block if isinstance(block, str) else _text(block)})
    parts += [
        {"type": "tool_call", "id": call.get("id"), "name": call.get("name"), "arguments": call.get("args")}
        for call in calls
        if isinstance(call, Mapping)
    ]
    return {"role": _ROLES.get(message["role"], message["role"]), "parts": parts}


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Return a value for an attribute: scalars and lists of one scalar type unchanged, other values as JSON."""
    if isinstance(value, str | bool | float) or (isinstance(value, int) and value in _INT8):
        return value
    if isinstance(value, list) and value and isinstance(value[0], str | bool | int | float):
        kinds = {type(item) for item in value}
        if len(kinds) == 1 and (kinds != {int} or all(item in _INT8 for item in value)):
            return value
    return _text(value)
