"""The conversation of a branch, and searches in what was said."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from support import spread
from support.record import Parts, Record, ask, open_parts

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ConfigurationError, NotFoundError


@pytest.fixture
def record(connection: psycopg.Connection, saver: PGStateSaver) -> Record:
    record = Record(connection, saver.schema)
    record.thread()
    return record


async def said(parts: Parts, *arguments: Any, **options: Any) -> str:
    """What is said, in one line."""
    return " ".join(item.content for item in await ask(parts.messages.conversation("t", *arguments, **options)))


def view(record: Record, thread_id: str = "t") -> str:
    """The same by the view."""
    rows = record.rows("SELECT content FROM conversations WHERE thread_id = %s ORDER BY number", thread_id)
    return " ".join(row[0] for row in rows)


async def test_a_conversation_is_what_was_said_in_order(parts: Parts, record: Record) -> None:
    record.chain("123")
    record.message("a", "1", 0, "system", role="system")
    record.message("b", "1", 1)
    record.message("c", "2", 2, role="ai", tool_calls='[{"name": "pay"}]', output_tokens=4)
    record.message("d", "3", 3, role="tool", tool_call_id="call")
    record.message("x", "3", 0, channel="scratch")
    record.message("y", "3", 0, checkpoint_ns="sub:1")
    found = await ask(parts.messages.conversation("t"))
    assert [item.message_id for item in found] == ["a", "b", "c", "d"]
    assert [item.role for item in found] == ["system", "human", "ai", "tool"]
    assert (found[2].tool_calls, found[2].output_tokens, found[3].tool_call_id) == ([{"name": "pay"}], 4, "call")
    assert await said(parts, channel="scratch") == "x"
    assert await ask(parts.messages.conversation("nobody")) == ()


async def test_a_graph_may_call_its_channel_otherwise(parts: Parts, record: Record) -> None:
    record.chain("12")
    record.message("a", "1", 0, channel="drafts")
    record.message("b", "2", 0, channel="chat")
    assert await said(parts) == "b"
    assert await said(parts, channel="drafts") == "a"
    assert await said(parts, channel="messages") == ""


async def test_the_last_messages_come_after_the_system_message(parts: Parts, record: Record) -> None:
    record.chain("1")
    for position, role in enumerate(["system", "system", "human", "ai", "human"]):
        record.message(f"m{position}", "1", position, role=role)
    assert await said(parts, 2) == "m0 m1 m3 m4"
    assert await said(parts, last=0) == "m0 m1"
    assert await said(parts, last=9) == "m0 m1 m2 m3 m4"
    with pytest.raises(ConfigurationError):
        await said(parts, -1)


async def test_the_last_tokens_count_the_system_message_and_what_the_model_counted(
    parts: Parts, record: Record
) -> None:
    record.chain("1")
    record.message("s", "1", 0, "x" * 40, role="system")  # 10 tokens, and 3 of its own
    record.message("a", "1", 1, "a" * 400)  # 103
    record.message("b", "1", 2, "b" * 400, role="ai", output_tokens=7)  # 10
    record.message("c", "1", 3, "c", tool_calls='"7"')  # 1 and 3
    assert [len(text) for text in (await said(parts, max_tokens=13 + 4 + 10 + 103)).split()] == [40, 400, 400, 1]
    assert [len(text) for text in (await said(parts, max_tokens=13 + 4 + 10 + 102)).split()] == [40, 400, 1]
    assert [len(text) for text in (await said(parts, max_tokens=13 + 4 + 9)).split()] == [40, 1]
    assert [len(text) for text in (await said(parts, max_tokens=0)).split()] == [40]
    assert [len(text) for text in (await said(parts, last=1, max_tokens=1000)).split()] == [40, 1]


async def test_edits_replace_and_removals_remove(parts: Parts, record: Record) -> None:
    record.chain("1234")
    for position in range(4):
        record.message(f"m{position}", "1", position)
    record.message("m1", "2", 1, "edited", change="edited")
    record.removal("m0", "3")
    record.removal("m1", "3")
    record.message("m4", "4", 2)
    assert await said(parts, checkpoint_id="1") == "m0 m1 m2 m3"
    assert await said(parts, checkpoint_id="2") == "m0 edited m2 m3"
    assert await said(parts, checkpoint_id="3") == "m2 m3"
    # By its number alone it would come before m3.
    assert await said(parts) == "m2 m3 m4" == view(record)


async def test_a_message_may_come_back_and_one_may_be_put_between(parts: Parts, record: Record) -> None:
    record.chain("1234")
    record.message("a", "1", 0)
    record.message("b", "1", 1)
    record.removal("a", "2")
    record.message("a", "3", 1, "again")
    # What comes between others is added with all that follow it.
    record.message("between", "4", 1)
    record.message("a", "4", 2, "again")
    assert await said(parts, checkpoint_id="3") == "b again"
    assert await said(parts) == "b between again" == view(record)


async def test_a_fork_does_not_hear_the_other_branch(parts: Parts, record: Record) -> None:
    record.chain(["1", "2", "3"])
    record.chain(["4", "5"], parent="2")
    record.message("common", "1", 0)
    record.message("also", "2", 1)
    record.message("old", "3", 2)
    record.removal("also", "3")
    record.message("new", "4", 2)
    assert await said(parts) == "common also new" == view(record)
    assert await said(parts, checkpoint_id="3") == "common old"
    assert await said(parts, checkpoint_id="2") == "common also"
    with pytest.raises(NotFoundError):
        await said(parts, checkpoint_id="9")


async def test_only_the_rows_of_checkpoints_that_are_there_count(parts: Parts, record: Record) -> None:
    """Checkpoints 1 and 2 are gone, and all that was left of them is with 3 and 2b."""
    record.checkpoint("2b", "1")
    record.checkpoint("3", "2")
    record.checkpoint("5", "3")
    record.message("of a thread that was", "1", 0)
    record.message("aside", "2b", 0)
    record.message("second", "3", 0)
    record.message("first", "3", 1, change="removed")
    record.message("gone", "4", 1)
    record.message("fifth", "5", 1)
    assert await said(parts) == "second fifth" == view(record)
    assert await said(parts, checkpoint_id="2b") == "aside"


@pytest.mark.parametrize("seed", spread(range(10)))
async def test_a_conversation_is_what_the_channel_held(dsn: str, record: Record, seed: int) -> None:
    """Against a list that is changed at random on a tree of checkpoints."""
    rng = random.Random(seed)
    states: dict[str, list[tuple[str, str]]] = {}
    for number in range(25):
        checkpoint, parent = f"c{number:02}", rng.choice([*states][-3:]) if states else None
        record.checkpoint(checkpoint, parent)
        before = list(states[parent]) if parent else []
        after = [item for item in before if rng.random() > 0.1]
        after = [
            (name, f"{name} edited in {checkpoint}") if rng.random() < 0.1 else (name, text) for name, text in after
        ]
        known = dict(before)
        for _ in range(rng.randint(0, 3)):
            name = f"m{rng.randrange(60):02}"
            if name not in dict(after) and name not in known:
                after.insert(rng.choice([len(after), rng.randint(0, len(after))]), (name, f"{name} in {checkpoint}"))
        for name, _ in before:
            if name not in dict(after):
                record.removal(name, checkpoint)
        is_behind = False
        for position, (name, text) in enumerate(after):
            is_behind = is_behind or name not in known
            if is_behind or known[name] != text:
                record.message(name, checkpoint, position, text, change="added" if is_behind else "edited")
        states[checkpoint] = after
    async with open_parts(Database, dsn, record.schema) as parts:
        for checkpoint, expected in states.items():
            found = parts.messages.conversation("t", checkpoint_id=checkpoint)
            assert [(item.message_id, item.content) for item in found] == expected
