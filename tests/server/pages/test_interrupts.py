"""The page of interrupts: what is asked, the answers that are offered, and the answer of a named person."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support_pages import HOSTILE, inspected, state_of, statements, travel
from support_record import at

from langgraph_pgstate.server.pages.interrupts import _shown, choices_of, parsed
from langgraph_pgstate.types import InterruptedThread, PendingInterrupt


def asked(value: Any, schema: Any = None) -> PendingInterrupt:
    """An interrupt."""
    return PendingInterrupt("i", value, at(0), schema, "task", None)


@pytest.mark.parametrize(
    ("interrupt", "offered"),
    [
        (asked("Go on?"), []),
        (asked("Go on?", {"type": "boolean"}), ["true", "false"]),
        (asked("Which?", {"enum": ["a", 2, None]}), ['"a"', "2"]),
        (asked({"type": "tool_outcome_unknown", "id": "k"}), ['"done"', '"retry"', '"fail"']),
        (
            asked({"action_requests": [{"name": "a"}, {"name": "b"}]}),
            [json.dumps({"decisions": [{"type": name}] * 2}) for name in ("approve", "reject")],
        ),
        (
            asked({"action_requests": [{"name": "a"}], "review_configs": [{"allowed_decisions": ["approve"]}]}),
            [json.dumps({"decisions": [{"type": "approve"}]})],
        ),
        (
            asked([{"action_request": {"action": "mail"}, "config": {"allow_accept": True, "allow_ignore": False}}]),
            [json.dumps([{"type": "accept", "args": None}])],
        ),
    ],
)
def test_known_forms_of_questions_offer_their_answers(interrupt: PendingInterrupt, offered: list[str]) -> None:
    assert [value for _, value in choices_of(interrupt)] == offered


def test_an_answer_is_json_or_else_text() -> None:
    assert [parsed(text) for text in ("true", '{"a": 1}', "yes", "[" * 100_000)] == [
        True,
        {"a": 1},
        "yes",
        "[" * 100_000,
    ]


async def test_a_named_person_answers(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        state = state_of(server)
        await travel(state, "t", metadata={"owner": "a"})
        await state.threads.set_title("t", HOSTILE)
        with statements() as sent:
            html = await visitor.page("/interrupts")
        assert len(sent) <= 5, sent
        assert "<script>alert" not in html
        assert "Book it?" in html
        assert "Say who you are to answer" in html
        (waiting,) = (await visitor.data("/interrupts"))["threads"]
        path = f"/interrupts/t/{waiting['interrupts'][0]['interrupt_id']}/answer"
        assert (await visitor.act(path, answer="yes")).status_code == 403
        await visitor.introduce("Eve")
        assert f'action="/ui{path}"' in await visitor.page("/interrupts")
        for fields in ({}, {"answer": "  "}, {"choice": "{"}):
            assert (await visitor.act(path, **fields)).status_code == 422
        assert (await visitor.act("/interrupts/t/none/answer", answer="yes")).status_code == 404
        answered = await visitor.act(path, answer='{"ok": true}')
        assert answered.headers["location"] == "/ui/interrupts?notice=interrupt.answer&of=t"
        notice = (await visitor.client.get(answered.headers["location"])).text
        assert '<a href="/ui/threads/t#act-run">Run on</a>' in notice
        assert (await visitor.act(path, answer="no")).status_code == 409
        (answer,) = await state.threads.answers("t")
        assert (answer.value, answer.answered_by) == ({"ok": True}, "Eve")
        assert "Nobody waits for an answer" in await visitor.page("/interrupts")
        events = await state.events.list("t", kind="answer")
        assert [one.payload["by"] for one in events.items] == ["Eve"]


async def test_interrupts_are_filtered_and_paged(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_pgstate.server.pages.interrupts._PAGE", 2)
    async with inspected(dsn, schema, read_only=True) as (server, visitor):
        state = state_of(server)
        for name in ("a", "b", "c"):
            await travel(state, name, user_id=f"user-{name}")
        first = await visitor.data("/interrupts")
        assert [one["thread_id"] for one in first["threads"]] == ["c", "b"]
        rest = await visitor.data("/interrupts", cursor=first["next"])
        assert [one["thread_id"] for one in rest["threads"]] == ["a"]
        assert [one["thread_id"] for one in (await visitor.data("/interrupts", user="user-b"))["threads"]] == ["b"]
        assert "No thread of these waits" in await visitor.page("/interrupts", user="nobody")
        # What is answered is read, too: a page that has none says where the others are.
        monkeypatch.setattr("langgraph_pgstate.server.pages.interrupts._SCAN", 2)
        for name in ("c", "b"):
            await state.threads.answer(name, "yes")
        assert "Older ones follow" in await visitor.page("/interrupts")


def test_many_large_interrupts_stay_small() -> None:
    large = {f"key {number}": "long " * 20 for number in range(100)}
    several = tuple(replace(asked(large), interrupt_id=f"i{number}") for number in range(200))
    thread = InterruptedThread("t", "c", at(0), several, (), None, None, None, None)
    for most in (40_000, 400, -5000):
        shown = _shown(thread, most)
        assert len(shown["interrupts"]) + shown["hidden"] == 200
        assert sum(len(one["value"].text) for one in shown["interrupts"]) <= max(most, 200) + 200
    assert len(_shown(thread, 40_000)["interrupts"]) == 80
