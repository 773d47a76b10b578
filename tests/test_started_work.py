"""What code on an event loop started is known until it has ended, though the task that waited for it was cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from langchain_core.runnables.config import ContextThreadPoolExecutor, run_in_executor
from support import FORK, GUARD_SECONDS, loop_graph

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.started_work import StartedWork, not_followed

Start = Callable[[Callable[[], Any]], Awaitable[Any]]


async def in_own_pool(function: Callable[[], Any]) -> Any:
    pool = ThreadPoolExecutor(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, function)
    finally:
        pool.shutdown(wait=False)


async def in_langchains_pool(function: Callable[[], Any]) -> Any:
    pool = ContextThreadPoolExecutor(1)
    try:
        return await run_in_executor(pool, function)
    finally:
        pool.shutdown(wait=False)


async def in_gathered_tasks(function: Callable[[], Any]) -> Any:
    return await asyncio.gather(asyncio.to_thread(function), asyncio.sleep(0))


WAYS: list[Start] = [
    asyncio.to_thread,
    lambda function: run_in_executor(None, function),
    in_own_pool,
    in_langchains_pool,
    in_gathered_tasks,
]


class Slow:
    """A blocking function that ends when it is told to."""

    def __init__(self) -> None:
        self.begun, self.go_on, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        self.go_on.wait(GUARD_SECONDS)
        self.ended.set()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(GUARD_SECONDS):
        while not condition():
            await asyncio.sleep(0.002)


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


@pytest.mark.parametrize("way", WAYS)
async def test_a_thread_is_followed_to_its_end(way: Start) -> None:
    outer, work, slow = StartedWork(), StartedWork(), Slow()

    async def nest() -> None:
        await work.start(_await(way(slow)))

    task = outer.start(nest())
    await until(slow.begun.is_set)
    await cancel(task)
    assert work.stop()
    assert work.has_threads
    assert outer.has_threads
    called = threading.Event()
    outer.when_threads_ended(called.set)
    waiting = [asyncio.create_task(each.ended()) for each in (work, outer)]
    await asyncio.wait(waiting, timeout=0.02)
    assert not any(each.done() for each in waiting)
    slow.go_on.set()
    await asyncio.gather(*waiting)
    assert slow.ended.is_set()
    assert called.is_set()
    assert not outer.has_threads


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@pytest.mark.parametrize("is_own", [False, True])
async def test_what_waits_in_the_queue_never_begins(is_own: bool) -> None:
    loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    loop.set_default_executor(pool)
    busy, queued, work = Slow(), Slow(), StartedWork()
    blocking = asyncio.create_task(asyncio.to_thread(busy))
    await until(busy.begun.is_set)

    async def wait() -> None:
        await loop.run_in_executor(pool if is_own else None, queued)

    task = work.start(wait())
    await until(lambda: work.has_threads)
    assert not work.stop()
    busy.go_on.set()
    await blocking
    await asyncio.wait({task})
    assert task.cancelled()
    await work.ended()
    assert not queued.begun.is_set()


async def test_what_was_stopped_starts_nothing_more() -> None:
    work, first, second = StartedWork(), Slow(), Slow()

    async def both() -> None:
        await asyncio.to_thread(first)
        await asyncio.to_thread(second)

    task = work.start(both())
    await until(first.begun.is_set)
    assert work.stop()
    first.go_on.set()
    await asyncio.wait({task})
    assert task.cancelled()
    assert not second.begun.is_set()


async def test_a_shielded_task_is_followed_to_its_end() -> None:
    work, go_on = StartedWork(), asyncio.Event()

    async def shielded() -> None:
        await asyncio.shield(asyncio.create_task(_await(go_on.wait())))

    task = work.start(shielded())
    await until(lambda: len(work.tasks()) == 2)
    await cancel(task)
    assert work.tasks()
    ended = asyncio.create_task(work.ended())
    await asyncio.wait({ended}, timeout=0.02)
    assert not ended.done()
    go_on.set()
    await ended


async def test_what_others_start_is_not_followed() -> None:
    work, slow = StartedWork(), Slow()
    others: list[asyncio.Task[Any]] = []

    async def start() -> None:
        with not_followed():
            others.append(asyncio.create_task(asyncio.to_thread(slow)))

    await work.start(start())
    await until(slow.begun.is_set)
    await work.ended()
    slow.go_on.set()
    await others[0]


async def test_a_process_gets_its_function_as_it_is() -> None:
    work = StartedWork()
    with ProcessPoolExecutor(1, mp_context=FORK) as pool:

        async def compute() -> int:
            return await asyncio.get_running_loop().run_in_executor(pool, abs, -1)

        assert await work.start(compute()) == 1
    await work.ended()


async def test_lasting_tasks_of_this_package_are_nobodys(dsn: str, schema: str) -> None:
    """They would keep the action of a cancelled tool alive that was the first to need them."""
    async with AsyncPGState.open(dsn, schema=schema, guard="lease") as state:
        await state.setup()
        graph = state.record(loop_graph(1).compile(checkpointer=state.saver))
        handle = await state.runs.enqueue("agent", {"count": 0}, thread_id="t")
        work = StartedWork()

        async def use() -> None:
            await graph.ainvoke({"count": 0, "items": []}, {"configurable": {"thread_id": "u"}})
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await handle.wait()

        await work.start(use())
        await asyncio.wait_for(work.ended(), GUARD_SECONDS)
