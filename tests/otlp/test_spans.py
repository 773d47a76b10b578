"""Ids, names and attributes of exported spans, and what three backends read of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode
from support.otlp import attributes, collecting, travel_graph
from support.recorder import config

from langgraph_pgstate import PGState
from langgraph_pgstate.otlp import SpanExporter
from langgraph_pgstate.otlp.exports import EndedSpan
from langgraph_pgstate.otlp.spans import ATTRIBUTES, convert, is_exported, resource_of_process

START = datetime(2026, 11, 23, 7, 0, 0, 1, UTC)
GOLDEN = Path(__file__).parent / "golden"
BACKENDS = sorted(path.stem for path in GOLDEN.glob("*.json"))


def ended(**values: Any) -> EndedSpan:
    plain: dict[str, Any] = dict.fromkeys(EndedSpan._fields)
    names = {"thread_id": "t", "run_id": "r", "span_id": "s", "kind": "node", "name": "think", "status": "success"}
    times = {"started_at": START, "ended_at": START + timedelta(seconds=1), "semconv_version": "1.41.1"}
    return EndedSpan(**{**plain, **names, **times, "attributes": {}, **values})


def converted(**values: Any) -> Any:
    return convert(ended(**values), resource_of_process(), "1.0")


def test_ids_follow_from_the_rows() -> None:
    uuid = "01a20752-7102-72e0-8d2d-53d548662837"
    span = converted(run_id=uuid)
    assert f"{span.context.trace_id:032x}" == uuid.replace("-", "")
    assert span.parent is None
    assert len({converted(**one).context.trace_id for one in ({}, {"run_id": "x"}, {"thread_id": "u"})}) == 3
    later = START + timedelta(microseconds=1)
    others: list[dict[str, Any]] = [{}, {"span_id": "x"}, {"started_at": later}, {"run_id": "x"}, {"thread_id": "u"}]
    assert len({converted(**one).context.span_id for one in others}) == 5
    child = converted(span_id="child", parent_span_id="s", parent_started_at=START)
    assert child.parent.span_id == converted().context.span_id
    assert converted(run_id="00000000-0000-0000-0000-000000000000").context.is_valid


def test_ids_never_change() -> None:
    """They are in other systems."""
    context = converted().context
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}") == (
        "d4ce8a69c8e7d1330533cf1ef2836225",
        "6e600adc72853f61",
    )


def test_times_are_exact() -> None:
    span = converted()
    assert span.start_time == 1_795_417_200_000_001_000
    assert span.end_time - span.start_time == 1_000_000_000


@pytest.mark.parametrize(
    ("kind", "stored", "name"),
    [
        (
            "graph",
            {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "travel"},
            "invoke_workflow travel",
        ),
        ("graph", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "guide"}, "invoke_agent guide"),
        ("llm", {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-x"}, "chat gpt-x"),
        ("llm", {"gen_ai.operation.name": "chat"}, "chat"),
        ("tool", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}, "execute_tool add"),
        ("retriever", {"gen_ai.operation.name": "retrieval"}, "retrieval think"),
        ("node", {}, "think"),
    ],
)
def test_names_are_those_of_the_conventions(kind: str, stored: dict[str, Any], name: str) -> None:
    span = converted(kind=kind, attributes=stored)
    assert span.name == name
    assert span.kind is (SpanKind.CLIENT if kind in ("llm", "retriever") else SpanKind.INTERNAL)


def test_tokens_and_cost_are_on_model_calls_only() -> None:
    usage = {"gen_ai.usage.input_tokens": 5}
    for kind in ("graph", "node", "chain", "tool", "retriever"):
        assert not [name for name in converted(kind=kind, attributes=usage, cost=1.0).attributes if "usage" in name]
        assert "pgstate.cost" not in converted(kind=kind, cost=1.0).attributes
    assert converted(kind="llm", attributes=usage, cost=0.5).attributes["pgstate.cost"] == 0.5


def test_an_error_has_its_type_and_its_message_is_content() -> None:
    span = converted(status="error", error_type="shop.Refused")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert span.attributes["error.type"] == "shop.Refused"
    assert converted(status="error", error_message="no").status.description == "no"
    for status in ("success", "interrupted", "cancelled"):
        span = converted(status=status)
        assert (span.status.status_code, span.attributes["pgstate.status"]) == (StatusCode.UNSET, status)


def test_attributes_are_scalars_and_lists_of_one_type() -> None:
    given = {"a": {"x": 1}, "b": [1, "x"], "c": 2**70, "d": None, "e": ["x", "y"], "f": [], "g": True, "h": [2**70]}
    found = converted(attributes=given).attributes
    assert found["a"] == '{"x":1}'
    assert (found["b"], found["c"], found["e"], found["f"]) == ('[1,"x"]', str(2**70), ["x", "y"], "[]")
    assert found["g"] is True
    assert found["h"] == f"[{2**70}]"
    assert "d" not in found


def test_messages_have_the_form_of_the_conventions() -> None:
    asked = [
        {"role": "system", "content": "Be brief."},
        {"role": "human", "content": [{"type": "text", "text": "Look"}, {"type": "image", "data": "…"}]},
        {"role": "ai", "content": "", "tool_calls": [{"id": "c", "name": "add", "args": {"a": 1}}]},
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ]
    kind = {"kind": "llm", "attributes": {"gen_ai.response.finish_reasons": ["stop"]}}
    span = converted(
        **kind, input={"$messages": {"count": 9, "last": asked}}, output={"role": "ai", "content": "Fine."}
    )
    assert json.loads(span.attributes["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "Look"},
                {"type": "text", "content": '{"type":"image","data":"…"}'},
            ],
        },
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "add", "arguments": {"a": 1}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "3"}]},
    ]
    assert json.loads(span.attributes["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "Fine."}], "finish_reason": "stop"}
    ]
    prompt = converted(kind="llm", input="Say hi", output=None).attributes
    assert json.loads(prompt["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Say hi"}]}
    ]
    assert "gen_ai.output.messages" not in prompt


def test_a_caller_that_exports_nothing_has_no_children() -> None:
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"
    assert is_exported(ended(traceparent=f"{caller}01"))
    assert not is_exported(ended(traceparent=f"{caller}00"))
    assert is_exported(ended())


def test_the_resource_names_the_service_and_has_nothing_random(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dict(resource_of_process().attributes) == {"service.name": "langgraph_pgstate"}
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    assert dict(resource_of_process().attributes) == {"service.name": "shop", "deployment.environment.name": "test"}


@pytest.fixture
def exported(dsn: str, schema: str) -> Iterator[list[Any]]:
    """The spans of one run, with contents, as a collector gets them."""
    with collecting() as collector, PGState.open(dsn, schema=schema) as state:
        exporter = SpanExporter(dsn, collector.endpoint, schema=schema, content=True)
        exporter.export()
        graph = state.record(travel_graph().compile(checkpointer=state.saver, name="travel"))
        graph.invoke(
            {
                "messages": [
                    (
                        "user",
                        "What is 1 + 2?",
                    )
                ]
            },
            config("t", user_id="eve", tenant_id="acme"),
        )
        state.flush()
        exporter.export()
        yield collector.spans


@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_read_what_they_are_known_to_read(backend: str, exported: list[Any]) -> None:
    golden = json.loads((GOLDEN / f"{backend}.json").read_text("utf-8"))
    names, prefixes = set(golden["reads"]), tuple(golden["reads_with_prefix"])
    seen: dict[str, Any] = {}
    for span in exported:
        read = {
            name: value
            for name, value in attributes(span).items()
            if (name in names or name.startswith(prefixes)) and name not in golden["contents"]
        }
        seen.setdefault(span.name, read)
        contents = {name for name in attributes(span) if name in golden["contents"]}
        seen[span.name].setdefault("contents", sorted(contents))
    assert seen == golden["spans"]


def test_every_attribute_is_described(exported: list[Any]) -> None:
    assert {name for span in exported for name in attributes(span)} <= {*ATTRIBUTES}


def test_there_are_golden_files_of_three_backends() -> None:
    assert BACKENDS == ["datadog", "langfuse", "phoenix"]
