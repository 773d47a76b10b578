"""Messages of a state as a page shows them."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_pgstate.server.pages.messages import MOST_MESSAGES, conversation, is_conversation

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def test_messages_of_langchain() -> None:
    usage: Any = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    calls: Any = [{"name": "search", "args": {"city": "Lisbon"}, "id": "c1"}]
    state = {
        "other": [1],
        "messages": [
            SystemMessage("Be brief."),
            AIMessage("", name="boss", id="a", tool_calls=calls, usage_metadata=usage),
            ToolMessage("no", tool_call_id="c1", name="search", status="error"),
        ],
    }
    found = conversation(state, None, None)
    assert (found.channel, found.count, found.older) == ("messages", 3, 0)
    system, ai, tool = found.messages
    assert (system.role, system.text, system.is_whole) == ("system", "Be brief.", True)
    assert (ai.name, ai.id, ai.input_tokens, ai.output_tokens) == ("boss", "a", 3, 4)
    assert (ai.tool_calls[0].name, ai.tool_calls[0].arguments.parts) == ("search", {"city": "Lisbon"})
    assert (tool.name, tool.tool_call_id, tool.is_failed) == ("search", "c1", True)


def test_messages_that_are_dicts() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"city": "Lisbon"}'}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    state = {"chat": [{"role": "user", "content": "Hello"}, answer]}
    found = conversation(state, None, None)
    assert found.channel == "chat"
    assert [message.role for message in found.messages] == ["human", "ai"]
    assert found.messages[1].tool_calls[0].name == "search"
    assert not is_conversation([{"content": "no role"}])
    assert not is_conversation([])
    assert conversation({"a": 1}, None, None).channel is None
    assert conversation({"a": 1}, "a", None).channel is None


def test_images_are_shown_only_with_their_data() -> None:
    parts: Any = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": PIXEL}},
        {"type": "image_url", "image_url": {"url": "https://evil.example/x.png"}},
        {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
        {"type": "image", "base64": "x" * 100_000, "mime_type": "image/png"},
        {"type": "image", "base64": '"onerror=alert(1)', "mime_type": "text/html"},
        {"type": "file", "file_id": "f"},
        "and so on",
    ]
    (found,) = conversation({"messages": [HumanMessage(parts)]}, None, None).messages
    assert found.text == "Look:\n\nand so on"
    assert found.images == (PIXEL, PIXEL)
    assert found.others == 4
    assert not found.is_whole


def test_a_page_has_the_last_messages_that_fit() -> None:
    state = {"messages": [HumanMessage(f"message {number}") for number in range(200)]}
    found = conversation(state, None, None)
    assert [one.number for one in found.messages] == list(range(200 - MOST_MESSAGES, 200))
    before = conversation(state, None, found.older)
    assert before.messages[-1].number == found.older - 1
    long = conversation({"messages": [HumanMessage("x" * 50_000)] * 40}, None, None)
    assert 1 < len(long.messages) < 15
    assert not long.messages[-1].is_whole
    assert long.messages[-1].size == 50_000
    assert conversation(state, None, 0).messages == ()
