"""Inputs and outputs of spans: copied, cut, redacted."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import MessagesState
from langgraph.types import interrupt
from support.recorder import config, recording, rows

from langgraph_pgstate.record.options import RecorderSettings
from tests.record.recorder.test_recorders import Connection, agent_graph, hello, simple

pytestmark = pytest.mark.smoke


def test_what_is_long_is_cut_and_what_cannot_be_stored_is_stored_as_near_as_it_comes(
    dsn: str, schema: str, connection: Connection
) -> None:
    def say(state: Any) -> Any:
        return {"messages": [AIMessage("x" * 10_000), AIMessage("NUL \0 and \ud800, 1e999")]}

    def listen(state: Any) -> Any:
        return {"messages": [AIMessage(f"{n}", id=f"m{n}") for n in range(50)]}

    def end(state: Any) -> Any:
        return None

    with recording(dsn, schema, RecorderSettings(limit=1000)) as (saver, recorder):
        recorder.record(simple(saver, say, listen, end)).invoke(hello(), config())
    spans = {span["name"]: span for span in rows(connection, schema, "spans")}
    cut = spans["say"]["output"]["$truncated"]
    assert cut["bytes"] > 10_000
    assert len(cut["preview"]) <= 1000
    assert len(cut["sha256"]) == len(hashlib.sha256().hexdigest())
    messages = spans["end"]["input"]["messages"]["$messages"]
    assert messages["count"] == 53
    assert [message["content"] for message in messages["last"]] == ["48", "49"]


def test_redaction_sees_everything_and_its_failure_leaves_nothing(
    dsn: str, schema: str, connection: Connection
) -> None:
    def redact(kind: str, value: Any) -> Any:
        if kind == "output":
            raise ValueError("cannot")
        return {"kind": kind}

    def leaks(state: MessagesState) -> Any:
        interrupt("secret plan")

    def breaks(state: MessagesState) -> Any:
        raise ValueError("secret reason")

    with recording(dsn, schema, RecorderSettings(redact=redact)) as (saver, recorder):
        recorder.record(simple(saver, leaks)).invoke({"messages": [HumanMessage("secret")]}, config())
        with pytest.raises(ValueError, match="secret"):
            recorder.record(simple(saver, breaks)).invoke({"messages": [HumanMessage("secret")]}, config("u"))
    for table in ("runs", "spans", "events"):
        for row in rows(connection, schema, table):
            assert "secret" not in str(row)
    assert rows(connection, schema, "runs")[0]["input"] == {"kind": "input"}
    assert rows(connection, schema, "runs")[0]["output"] == {"$redaction_failed": "ValueError"}


def test_content_can_be_left_out(dsn: str, schema: str, connection: Connection) -> None:
    with recording(dsn, schema, RecorderSettings(content=False)) as (saver, recorder):
        recorder.record(agent_graph(saver)).invoke(hello(), config())
    for row in rows(connection, schema, "spans") + rows(connection, schema, "runs"):
        assert (row["input"], row["output"]) == (None, None)
    assert rows(connection, schema, "events", kind="interrupt")[0]["payload"].get("interrupts") is None
    assert rows(connection, schema, "events", kind="handoff")[0]["payload"]["to"] == "helper"


def test_what_is_captured_is_what_it_was(dsn: str, schema: str, connection: Connection) -> None:
    """A node may change what it was given, in place, before anything is written."""

    def changes(state: MessagesState) -> Any:
        state["messages"][0].content = "changed"
        state["messages"].append(HumanMessage("more"))

    with recording(dsn, schema) as (saver, recorder):
        recorder.record(simple(saver, changes)).invoke(hello(), config())
    (span,) = rows(connection, schema, "spans", kind="node")
    assert [message["content"] for message in span["input"]["messages"]] == ["hello"]
