"""Messages of a state as a page shows them."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from langgraph_pgstate.inspector.messages import MOST_MESSAGES, conversation, file_of, gist, is_conversation

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
    assert [(one.part, one.kind, one.type, one.size, one.url) for one in found.files] == [
        (2, "image", None, None, "https://evil.example/x.png"),
        (4, "image", "image/png", 75_000, None),
        (5, "image", "text/html", 12, None),
        (6, "file", None, None, None),
    ]
    assert [one.is_image for one in found.files] == [False, True, False, False]
    assert found.is_whole


def test_reasoning_in_the_forms_of_providers() -> None:
    parts: Any = [
        {"type": "thinking", "thinking": "one", "signature": "x"},
        {"type": "reasoning", "reasoning": "two"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "three"}]},
        {"type": "reasoning_content", "reasoning_content": {"text": "four"}},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Said."},
    ]
    said = AIMessage("Said.", additional_kwargs={"reasoning_content": "x" * 10_000})
    first, second = conversation({"messages": [AIMessage(parts), said]}, None, None).messages
    assert first.reasoning == "one\n\ntwo\n\nthree\n\nfour\n\n(encrypted by the provider)"
    assert (first.text, first.others, first.is_whole) == ("Said.", 0, True)
    assert (second.reasoning_size, second.is_whole) == (10_000, False)
    assert len(second.reasoning) < 4000


def test_files_in_the_forms_of_providers() -> None:
    parts: Any = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "/9j/"}},
        {"type": "document", "source": {"type": "url", "url": "https://a.example/b.pdf"}, "title": "B"},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "input_image", "image_url": "https://a.example/c.png"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0=", "filename": "d.pdf"},
        {"type": "video", "url": "ftp://a.example/e"},
        {"type": "file", "file": 7},
    ]
    message = HumanMessage(parts)
    (found,) = conversation({"messages": [message]}, None, None).messages
    assert found.images == ("data:image/jpeg;base64,/9j/",)
    assert [(one.kind, one.name, one.type, one.size, one.url) for one in found.files] == [
        ("document", "B", None, None, "https://a.example/b.pdf"),
        ("audio", None, "audio/wav", 4, None),
        ("image", None, None, None, "https://a.example/c.png"),
        ("file", "d.pdf", "application/pdf", 5, None),
        ("video", None, None, None, None),
        ("file", None, None, None, None),
    ]
    assert file_of(message, 0) == ("image/jpeg", b"\xff\xd8\xff")
    assert file_of(message, 4) == ("application/octet-stream", b"%PDF-")
    assert [file_of(message, part) for part in (1, 5, 6, 7)] == [None] * 4
    assert file_of(HumanMessage([{"type": "file", "base64": "no base64!"}]), 0) is None


def test_a_message_that_was_asked_for_is_among_those_shown() -> None:
    state = {"messages": [HumanMessage("x" * 5000, id=f"m{number}") for number in range(200)]}
    for number in (0, 57, 198, 199):
        found = conversation(state, None, None, f"m{number}")
        assert found.hit == number
        assert number in [one.number for one in found.messages]
        assert found.newer == max(0, 199 - number - 4)
    assert (conversation(state, None, None, "none").hit, conversation(state, None, None).newer) == (None, 0)


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


def test_the_gist_of_a_message_says_what_it_asks_for() -> None:
    call = {"name": "search", "args": {"city": "Lisbon", "nights": 2}, "id": "c1"}
    assert gist({"type": "human", "content": "Hello\n" * 50}).startswith("Hello Hello")
    assert gist({"type": "ai", "content": "", "tool_calls": [call]}) == '→ search(city="Lisbon", nights=2)'
    text = [{"type": "text", "text": "Wait."}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    assert gist({"type": "ai", "content": text, "tool_calls": [call]}) == (
        'Wait. [image] → search(city="Lisbon", nights=2)'
    )
    thought = [{"type": "thinking", "thinking": "Hm."}]
    assert gist({"type": "ai", "content": thought}) == "reasoning: Hm."
    assert gist({"type": "tool", "content": "no", "status": "error"}) == "failed: no"
    of_openai = {"function": {"name": "search", "arguments": '{"city": "Lisbon"}'}}
    assert gist({"role": "assistant", "content": None, "tool_calls": [of_openai]}).startswith("→ search(")
    assert len(gist({"type": "ai", "content": "x" * 10**6, "tool_calls": [call]})) == 200
