"""Span attributes by OpenTelemetry's conventions for generative AI, read from LangChain's data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langgraph_pgstate.codec.metadata import to_json

if TYPE_CHECKING:
    from langgraph_pgstate.record.recorder.records import SpanRecord

_PROVIDERS = {
    "amazon_bedrock": "aws.bedrock",
    "bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "azure_openai": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "google_vertexai": "gcp.vertex_ai",
    "vertexai": "gcp.vertex_ai",
    "google_genai": "gcp.gemini",
    "google": "gcp.gen_ai",
    "mistral": "mistral_ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
    "ibm": "ibm.watsonx.ai",
    "watsonx": "ibm.watsonx.ai",
    "moonshot": "moonshot_ai",
}
"""LangChain's provider names that differ from OpenTelemetry's."""

_REQUEST = {
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "top_k": ("top_k",),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "seed": ("seed",),
    "stream": ("stream",),
    "stop_sequences": ("stop", "stop_sequences"),
    "choice.count": ("n",),
}
_DEFAULTS = {"temperature": "ls_temperature", "max_tokens": "ls_max_tokens", "stop_sequences": "ls_stop"}
_OPERATIONS = {"tool": "execute_tool", "retriever": "retrieval"}
# Maximum number of tokens of one call. Sums of greater numbers could be out of the range of `bigint`.
_MOST_TOKENS = 10**12


def describe_span(span: SpanRecord) -> dict[str, Any]:
    """Return the attributes of a span that is not an LLM's."""
    attributes: dict[str, Any] = {}
    if span.kind == "graph":
        if span.parent is None:
            attributes = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": span.name}
        elif span.agent:
            attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": span.agent}
    elif span.kind == "memory":
        attributes = {"gen_ai.operation.name": span.name}
        attributes |= {f"gen_ai.memory.{name}": value for name, value in (span.invocation or {}).items() if value}
    elif operation := _OPERATIONS.get(span.kind):
        attributes = {"gen_ai.operation.name": operation}
        if span.kind == "tool":
            attributes["gen_ai.tool.name"] = span.name
            attributes["gen_ai.tool.type"] = "function"
            if span.tool_call_id:
                attributes["gen_ai.tool.call.id"] = span.tool_call_id
            if span.invocation and (description := span.invocation.get("description")):
                attributes["gen_ai.tool.description"] = str(description)[:1000]
    return _safe(attributes)


def describe_llm(span: SpanRecord) -> dict[str, Any]:
    """Return the columns of an LLM's span: provider, model, tokens and attributes."""
    metadata, invocation = span.metadata, span.invocation or {}
    operation = "text_completion" if metadata.get("ls_model_type") == "llm" else "chat"
    attributes: dict[str, Any] = {"gen_ai.operation.name": operation}
    provider = metadata.get("ls_provider")
    if provider:
        provider = _PROVIDERS.get(str(provider), str(provider))
        attributes["gen_ai.provider.name"] = provider
    model = metadata.get("ls_model_name") or invocation.get("model") or invocation.get("model_name")
    for name, keys in _REQUEST.items():
        value = next((invocation[key] for key in keys if invocation.get(key) is not None), None)
        if value is None and name in _DEFAULTS:
            value = metadata.get(_DEFAULTS[name])
        if value is not None:
            attributes[f"gen_ai.request.{name}"] = value
    usage = _read_response(span, attributes)
    if model:
        attributes["gen_ai.request.model"] = str(model)
    else:
        model = attributes.get("gen_ai.response.model")
    if span.first_chunk_at is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = round(span.first_chunk_at - span.started_at, 6)
    return {
        **_safe({"provider": provider and str(provider), "model": model and str(model)}),
        **usage,
        "attributes": _safe(attributes),
    }


def _read_response(span: SpanRecord, attributes: dict[str, Any]) -> dict[str, int | None]:
    """Return the token counts of an LLM's response, and add its other facts to the attributes."""
    if span.response is None:
        return {}
    generations, output = span.response
    usage: Mapping[str, Any] = {}
    reasons = []
    for generation in generations:
        message = getattr(generation, "message", None)
        said = {
            **(getattr(generation, "generation_info", None) or {}),
            **(getattr(message, "response_metadata", None) or {}),
        }
        if reason := said.get("finish_reason") or said.get("stop_reason"):
            reasons.append(str(reason))
        if name := said.get("model_name") or said.get("model"):
            attributes["gen_ai.response.model"] = str(name)
        if identifier := said.get("id") or getattr(message, "id", None):
            attributes.setdefault("gen_ai.response.id", str(identifier))
        usage = getattr(message, "usage_metadata", None) or usage
    if reasons:
        attributes["gen_ai.response.finish_reasons"] = reasons
    if not usage:
        old = (output or {}).get("token_usage") or (output or {}).get("usage") or {}
        usage = {"input_tokens": old.get("prompt_tokens"), "output_tokens": old.get("completion_tokens")} if old else {}
    read, written = usage.get("input_token_details") or {}, usage.get("output_token_details") or {}
    counts = {
        "input_tokens": _count(usage.get("input_tokens")),
        "output_tokens": _count(usage.get("output_tokens")),
        "cache_read_tokens": _count(read.get("cache_read")),
        "reasoning_tokens": _count(written.get("reasoning")),
    }
    for name, count in {
        "input_tokens": counts["input_tokens"],
        "output_tokens": counts["output_tokens"],
        "cache_read.input_tokens": counts["cache_read_tokens"],
        "cache_creation.input_tokens": _count(read.get("cache_creation")),
        "reasoning.output_tokens": counts["reasoning_tokens"],
    }.items():
        if count is not None:
            attributes[f"gen_ai.usage.{name}"] = count
    return counts


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _safe(attributes: dict[str, Any]) -> dict[str, Any]:
    safe: dict[str, Any] = to_json(attributes)[0] if attributes else attributes
    return safe
