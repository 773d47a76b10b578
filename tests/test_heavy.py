"""Work beside the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Command
from support import FORK

from langgraph_pgstate.heavy import HEAVY_BYTES, MANY_VALUES, beside, compute, is_heavy

LONG = [{}] * (MANY_VALUES + 1)
TEXT = "x" * (HEAVY_BYTES + 1)


@pytest.mark.parametrize(
    "value",
    [TEXT, [TEXT], {"a": {"b": (TEXT,)}}, LONG, {"a": LONG}, Command(update={"a": LONG}), HumanMessage(TEXT)],
    ids=["text", "list", "nested", "long", "long in an object", "command", "message"],
)
def test_large_values_are_heavy(value: Any) -> None:
    assert is_heavy(value)


@pytest.mark.parametrize("value", [None, 1, "x", [1] * 500, {"a": {"b": [HumanMessage("x")] * 20}}, deque([1]), object])
def test_others_are_not(value: Any) -> None:
    assert not is_heavy(value)


def test_a_value_that_has_itself_is_heavy() -> None:
    value: list[Any] = []
    value.append(value)
    assert is_heavy(value)


async def test_what_is_heavy_is_computed_in_a_thread() -> None:
    name = contextvars.ContextVar("name", default="")
    name.set("mine")

    def told() -> tuple[str, str]:
        return threading.current_thread().name.partition("_")[0], name.get()

    assert await compute("x", told) == ("MainThread", "mine")
    assert await compute(LONG, told) == ("pgstate-heavy", "mine")


async def test_a_forked_child_has_threads_of_its_own() -> None:
    await beside(int)
    child = FORK.Process(target=lambda: asyncio.run(asyncio.wait_for(beside(int), 30)))
    child.start()
    await asyncio.to_thread(child.join)
    assert child.exitcode == 0


async def test_results_that_the_loop_has_not_taken_keep_others_from_beginning() -> None:
    begun: list[int] = []
    calls = [asyncio.create_task(beside(begun.append, number)) for number in range(50)]
    while not begun:
        await asyncio.sleep(0)
    # The loop does something else; the threads would have begun all fifty long since.
    time.sleep(0.3)
    assert len(begun) <= 4
    await asyncio.gather(*calls)
    assert sorted(begun) == [*range(50)]
