"""Steps that end whatever happens to who waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from langgraph_pgstate.db.finishing import complete, entered_in_thread, finish, pause, take


async def cancel_often(task: asyncio.Task[Any], rounds: int = 5) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)
        task.cancel()


@pytest.mark.parametrize("rounds", range(4))
async def test_a_pause_hides_no_cancellation(rounds: int) -> None:
    event = asyncio.Event()

    async def work() -> None:
        while True:
            await pause(event, 60)
            event.clear()

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0.01)
    event.set()
    for _ in range(rounds):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=1)
    assert task.cancelled()


async def test_a_pause_raises_a_cancellation_that_was_hidden_before() -> None:
    async def work() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await pause(asyncio.Event(), 60)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=1)
    assert task.cancelled()


@pytest.mark.parametrize("run", [finish, complete])
async def test_a_step_ends_although_its_caller_is_cancelled(run: Callable[..., Any]) -> None:
    gate, ended = asyncio.Event(), []

    async def step() -> None:
        await gate.wait()
        await asyncio.sleep(0)
        ended.append(True)

    caller = asyncio.ensure_future(run(step()))
    await cancel_often(caller)
    assert caller.done() is (run is finish)
    gate.set()
    with suppress(asyncio.CancelledError):
        await caller
    await asyncio.sleep(0.01)
    assert caller.cancelled()
    assert ended == [True]


@pytest.mark.parametrize("run", [finish, complete, lambda step: take(step, lambda _: asyncio.sleep(0))])
async def test_a_step_returns_or_raises_to_its_caller(run: Callable[..., Any]) -> None:
    async def step(rounds: int, error: Exception | None = None) -> int:
        for _ in range(rounds):
            await asyncio.sleep(0)
        if error is not None:
            raise error
        return rounds

    for rounds in (0, 1, 3):
        assert await run(step(rounds)) == rounds
        with pytest.raises(KeyError):
            await run(step(rounds, KeyError("x")))


async def test_a_step_that_need_not_wait_lets_no_other_task_run() -> None:
    ran = []
    other = asyncio.ensure_future(asyncio.sleep(0)).add_done_callback(lambda _: ran.append(True))

    async def step() -> int:
        return 1

    assert await finish(step()) == await complete(step()) == 1
    assert not ran
    assert other is None


@pytest.mark.parametrize("ignores", [False, True])
async def test_what_is_taken_for_a_cancelled_caller_is_given_back(ignores: bool) -> None:
    """Whether the step hears of the cancellation or takes it nonetheless."""
    taken, given, gate = [], [], asyncio.Event()

    async def step() -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                if not ignores:
                    raise
        taken.append("one")
        return "one"

    async def give_back(one: str) -> None:
        await asyncio.sleep(0)
        given.append(one)

    caller = asyncio.ensure_future(take(step(), give_back))
    await cancel_often(caller)
    assert caller.cancelled()
    gate.set()
    await asyncio.sleep(0.01)
    assert taken == given == (["one"] if ignores else [])


async def test_a_blocking_context_is_left_once_it_was_entered() -> None:
    seen = []

    @contextmanager
    def manager() -> Iterator[int]:
        seen.append("entered")
        yield 1
        seen.append("left")

    async with entered_in_thread(manager()) as one:
        assert one == 1
    for rounds in range(4):

        async def work() -> None:
            async with entered_in_thread(manager()):
                await asyncio.sleep(60)

        task = asyncio.ensure_future(work())
        await cancel_often(task, rounds + 1)
        with suppress(asyncio.CancelledError):
            await task
    assert seen.count("entered") == seen.count("left")
