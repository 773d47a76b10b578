"""Messages as content blocks: as LangChain's own stream of a chat model reads them."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models.chat_model_stream import ChatModelStream
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, ToolMessage

from langgraph_pgstate.server.translation import MessageParts

MODEL = {"langgraph_node": "speak", "ls_model_type": "chat"}


def parts_of(*messages: Any, metadata: Any = MODEL) -> list[Any]:
    found = MessageParts()
    return [part for message in messages for part in found.add(message, metadata)]


def read(parts: list[Any]) -> Any:
    """The message that LangChain makes of the parts."""
    stream = ChatModelStream(message_id="1")
    for part in parts:
        stream.dispatch(part)
    return stream.output


def test_words_are_deltas_of_one_block() -> None:
    chunks = [AIMessageChunk(text, id="1") for text in ("Prague ", "has ", "a river.")]
    usage: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    parts = parts_of(*chunks, AIMessageChunk("", id="1", usage_metadata=usage, chunk_position="last"))
    assert [part["event"] for part in parts] == [
        "message-start",
        "content-block-start",
        *["content-block-delta"] * 3,
        "content-block-finish",
        "message-finish",
    ]
    assert parts[0] == {
        "event": "message-start",
        "role": "ai",
        "id": "1",
        "metadata": {"langgraph_node": "speak"},
    }
    found = read(parts)
    assert (found.text, found.usage_metadata["total_tokens"]) == ("Prague has a river.", 3)


def test_the_arguments_of_a_tool_come_in_pieces() -> None:
    def piece(args: str, index: int = 0, **named: Any) -> AIMessageChunk:
        chunk: Any = {"name": None, "id": None, **named, "args": args, "index": index}
        return AIMessageChunk("", id="1", tool_call_chunks=[chunk])

    parts = parts_of(
        AIMessageChunk([{"type": "text", "text": "Let me look.", "index": 0}], id="1"),
        piece('{"city', 1, name="find", id="a"),
        piece('{"hotel": "As', 2, name="book", id="b"),
        piece('": "Prague"}', 1),
        piece("toria", 2),
        AIMessageChunk("", id="1", chunk_position="last"),
    )
    deltas = [part["delta"]["type"] for part in parts if part["event"] == "content-block-delta"]
    assert deltas == ["text-delta", *["tool-call-delta"] * 4]
    found = read(parts)
    assert [(call["name"], call["args"], call["id"]) for call in found.tool_calls] == [
        ("find", {"city": "Prague"}, "a")
    ]
    assert [call["name"] for call in found.invalid_tool_calls] == ["book"]
    assert found.text == "Let me look."


def test_a_whole_message_is_told_at_once() -> None:
    calls: Any = [{"name": "find", "args": {"city": "Prague"}, "id": "a", "type": "tool_call"}]
    parts = parts_of(AIMessage("Wait.", id="1", tool_calls=calls))
    assert (parts[0]["event"], parts[-1]["event"]) == ("message-start", "message-finish")
    found = read(parts)
    assert (found.text, found.tool_calls[0]["args"]) == ("Wait.", {"city": "Prague"})
    [started] = [part["content"] for part in parts if part.get("content", {}).get("name")][:1]
    assert started["args"] == {}


def test_only_what_a_model_answers_is_told() -> None:
    nodes = (HumanMessage("Hello.", id="1"), ToolMessage("x", tool_call_id="a", id="1"), RemoveMessage("1"))
    for silent in (*nodes, AIMessage("no id"), "text", None):
        assert parts_of(silent) == []
    assert parts_of(AIMessage("Wait.", id="1"), metadata={"langgraph_node": "speak"}) == []


def test_an_image_is_sent_once() -> None:
    image = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
    parts = parts_of(AIMessage([image], id="1"))
    assert [part["content"].get("base64") for part in parts if "content" in part] == [None, "AAAA"]
    assert not [part for part in parts if part["event"] == "content-block-delta"]


def test_a_message_that_breaks_off_is_finished() -> None:
    parts = MessageParts()
    assert len([*parts.add(AIMessageChunk("Prague", id="1"), {})]) == 3
    rest = [*parts.finish()]
    assert [(part["id"], part["event"]) for part in rest] == [("1", "content-block-finish"), ("1", "message-finish")]
    assert rest[0]["content"] == {"type": "text", "text": "Prague"}
    assert [*parts.finish()] == []
    # The next attempt tells it from its beginning.
    assert next(parts.add(AIMessageChunk("Prague", id="1"), {}))["event"] == "message-start"
