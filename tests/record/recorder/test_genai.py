"""Attributes by OpenTelemetry's conventions, of models and tools of every kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, Generation

from langgraph_pgstate.record.recorder.genai import describe_llm, describe_span


def span(**values: Any) -> Any:
    """A span as far as it is described."""
    plain = {"kind": "llm", "name": "Model", "parent": None, "agent": None, "tool_call_id": None, "invocation": None}
    times = {"metadata": {}, "response": None, "first_chunk_at": None, "started_at": 10.0}
    return SimpleNamespace(**{**plain, **times, **values})


def test_a_request_is_described_by_what_it_was_called_with_before_what_is_usual() -> None:
    usual = {"ls_provider": "xai", "ls_model_name": "grok", "ls_temperature": 0.1, "ls_max_tokens": 7, "ls_stop": ["."]}
    said = describe_llm(span(metadata=usual, invocation={"temperature": 0.9, "max_completion_tokens": 5, "n": 2}))
    assert (said["provider"], said["model"]) == ("x_ai", "grok")
    assert said["attributes"] == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "x_ai",
        "gen_ai.request.temperature": 0.9,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stop_sequences": ["."],
        "gen_ai.request.model": "grok",
    }


def test_tokens_of_chat_models_and_of_old_ones_are_counted() -> None:
    usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12, "input_token_details": {"cache_read": 4}}
    message = AIMessage(
        "hi", id="m", usage_metadata=usage, response_metadata={"model_name": "m-2", "stop_reason": "end"}
    )
    said = describe_llm(span(response=([ChatGeneration(message=message)], None), first_chunk_at=10.25))
    assert (said["model"], said["input_tokens"], said["output_tokens"], said["cache_read_tokens"]) == ("m-2", 9, 3, 4)
    assert said["reasoning_tokens"] is None
    assert said["attributes"]["gen_ai.response.finish_reasons"] == ["end"]
    assert said["attributes"]["gen_ai.response.id"] == "m"
    assert said["attributes"]["gen_ai.response.time_to_first_chunk"] == 0.25
    # The sums of many such numbers would be out of range.
    absurd = AIMessage("", usage_metadata={"input_tokens": 2**62, "output_tokens": 10**12, "total_tokens": 2**62})
    said = describe_llm(span(response=([ChatGeneration(message=absurd)], None)))
    assert (said["input_tokens"], said["output_tokens"]) == (None, 10**12)
    old = {"token_usage": {"prompt_tokens": 5, "completion_tokens": -1}}
    said = describe_llm(span(metadata={"ls_model_type": "llm"}, response=([Generation(text="hi")], old)))
    assert (said["attributes"]["gen_ai.operation.name"], said["input_tokens"]) == ("text_completion", 5)
    assert said["output_tokens"] is None


def test_other_spans_are_described_by_their_kind() -> None:
    called = span(kind="tool", name="add", tool_call_id="call-1", invocation={"description": "x" * 2000})
    attributes = describe_span(called)
    assert attributes["gen_ai.operation.name"] == "execute_tool"
    assert (attributes["gen_ai.tool.name"], attributes["gen_ai.tool.call.id"]) == ("add", "call-1")
    assert len(attributes["gen_ai.tool.description"]) == 1000
    assert describe_span(span(kind="graph", name="travel"))["gen_ai.workflow.name"] == "travel"
    inner = describe_span(span(kind="graph", parent=called, agent="guide"))
    assert inner == {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "guide"}
    assert describe_span(span(kind="retriever"))["gen_ai.operation.name"] == "retrieval"
    assert describe_span(span(kind="node")) == {}
