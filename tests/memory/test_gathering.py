"""Calls that are run together: as alone, but in fewer runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from langgraph_pgstate.errors import UnavailableError
from langgraph_pgstate.memory.gathering import Gathering


class Runs:
    """Runs that wait for a signal if they have a call that is named `slow`, and fail if they have one named `bad`."""

    def __init__(self, patience: float = 60.0, most: int = 3) -> None:
        self.runs: list[list[str]] = []
        self.go_on = asyncio.Event()
        self.error: Exception = ValueError("bad")
        self.call = Gathering(self._run, lambda call: [call.partition(":")[0]], most=most, patience=patience)

    async def _run(self, calls: Sequence[str]) -> list[str]:
        self.runs.append([*calls])
        if any(call.startswith("slow") for call in calls):
            await self.go_on.wait()
        if any(call.startswith("bad") for call in calls):
            raise self.error
        return [call.upper() for call in calls]

    async def begin(self, *calls: str) -> list[asyncio.Task[str]]:
        """Begin calls in tasks, which then wait."""
        tasks = [asyncio.ensure_future(self.call(call)) for call in calls]
        await turns()
        return tasks


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_that_come_one_by_one_are_run_alone_and_others_together() -> None:
    runs = Runs()
    assert [await runs.call(name) for name in ("a", "b")] == ["A", "B"]
    tasks = await runs.begin("slow", "a", "b", "c", "d")
    runs.go_on.set()
    assert await asyncio.gather(*tasks) == ["SLOW", "A", "B", "C", "D"]
    assert runs.runs == [["a"], ["b"], ["slow"], ["a", "b", "c"], ["d"]]


async def test_calls_about_one_thing_are_run_in_their_order() -> None:
    runs = Runs()
    tasks = await runs.begin("slow", "a:1", "a:2", "b", "a:3")
    runs.go_on.set()
    await asyncio.gather(*tasks)
    assert runs.runs == [["slow"], ["a:1"], ["a:2", "b"], ["a:3"]]


async def test_a_call_that_fails_fails_alone_unless_all_would() -> None:
    runs = Runs()
    tasks = await runs.begin("slow", "a", "bad", "b")
    runs.go_on.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(one) for one in found] == ["SLOW", "A", "bad", "B"]
    assert runs.runs == [["slow"], ["a", "bad", "b"], ["a"], ["bad"], ["b"]]
    runs.error, runs.runs = UnavailableError("away"), []
    runs.go_on.clear()
    tasks = await runs.begin("slow", "a", "bad")
    runs.go_on.set()
    assert [str(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == ["SLOW", "away", "away"]
    assert runs.runs == [["slow"], ["a", "bad"]]


async def test_a_caller_that_is_cancelled_takes_no_other_with_it() -> None:
    runs = Runs()
    first, before, other = await runs.begin("slow", "a", "b")
    before.cancel()
    runs.go_on.set()
    assert (await first, await other) == ("SLOW", "B")
    runs.go_on.clear()
    alone, during, after = await runs.begin("slow", "slow:1", "c")
    alone.cancel()
    await turns()
    # They are being run.
    during.cancel()
    await turns()
    runs.go_on.set()
    assert await after == "C"
    assert runs.runs == [["slow"], ["b"], ["slow"], ["slow:1", "c"]]
    assert await runs.call("d") == "D"


@pytest.mark.parametrize("patience", [0.001, 0.0])
async def test_a_run_that_takes_long_keeps_no_other_from_beginning(patience: float) -> None:
    runs = Runs(patience)
    slow = await runs.begin("slow")
    async with asyncio.timeout(60):
        assert await runs.call("a") == "A"
    assert await asyncio.gather(*await runs.begin("b", "c")) == ["B", "C"]
    runs.go_on.set()
    assert await slow[0] == "SLOW"
    if not patience:
        assert runs.runs == [["slow"], ["a"], ["b", "c"]]


async def test_a_call_greater_than_most_is_run_alone() -> None:
    found: list[Any] = []

    async def run(calls: Sequence[int]) -> list[int]:
        found.append([*calls])
        return [*calls]

    call = Gathering(run, lambda size: [object() for _ in range(size)], most=3, patience=0)
    assert await asyncio.gather(*map(call, (1, 5, 2, 1))) == [1, 5, 2, 1]
    assert found == [[1], [5], [2, 1]]
