"""Work that several tasks ask for at once: who returns when, and with what."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from hypothesis import given, settings
from hypothesis import strategies as st
from support import GUARD_SECONDS, config_of, examples, holding, put_arguments, wait_until

from langgraph_pgstate import AsyncPGStateSaver
from langgraph_pgstate.saver.aio import Shared


class Work:
    """Work that ends when it is told to; notes how many had asked when each of its runs began."""

    def __init__(self) -> None:
        self.asked = 0
        self.begun: list[int] = []
        self.ending: asyncio.Future[None] | None = None

    async def __call__(self) -> None:
        self.begun.append(self.asked)
        self.ending = asyncio.get_running_loop().create_future()
        await self.ending

    def end(self, error: Exception | None = None) -> None:
        """End the run that is under way."""
        if self.ending is not None and not self.ending.done():
            if error is None:
                self.ending.set_result(None)
            else:
                self.ending.set_exception(error)


async def settle() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.sampled_from(["ask", "ask", "end", "fail", "cancel"]), max_size=14), st.integers(0, 9))
def test_callers_return_in_order_after_work_that_began_after_they_asked(actions: list[str], chosen: int) -> None:
    """However they ask, are cancelled, and the work ends or fails."""

    async def play() -> None:
        shared, work = Shared(), Work()
        callers: list[asyncio.Task[None]] = []
        returned: list[tuple[int, int, Any]] = []
        cancelled: set[int] = set()

        async def ask(number: int) -> None:
            work.asked = number + 1
            try:
                await shared.do("key", work)
            except ValueError as error:
                returned.append((number, len(work.begun), error))
            else:
                returned.append((number, len(work.begun), None))

        for action in actions:
            if action == "ask":
                callers.append(asyncio.create_task(ask(len(callers))))
            elif action == "end":
                work.end()
            elif action == "fail":
                work.end(ValueError("failed"))
            elif callers:
                one = chosen % len(callers)
                if callers[one].cancel():
                    cancelled.add(one)
            await settle()
        while shared._tasks or not all(caller.done() for caller in callers):
            work.end()
            await settle()
        numbers = [number for number, *_ in returned]
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(len(callers))) - cancelled
        for number, runs, error in returned:
            # The last run that it waited for had begun after it asked, or failed for all.
            assert error is not None or work.begun[runs - 1] > number
        await settle()
        assert not shared._tasks
        assert not shared._asked

    asyncio.run(asyncio.wait_for(play(), GUARD_SECONDS))


async def test_two_who_delete_for_a_run_return_in_the_order_they_asked(
    async_saver: AsyncPGStateSaver, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """And what was written between the two is deleted. LangGraph's server counts on the first to return first."""

    def arguments(config: Any, step: int) -> tuple[Any, Any, Any, Any]:
        config = {"configurable": {**config["configurable"], "run_id": "run"}}
        return put_arguments(config, step)

    stored = await async_saver.aput(*arguments(config_of("t"), 0))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    order: list[str] = []

    async def delete(name: str) -> None:
        await async_saver.adelete_for_runs(["run"])
        order.append(name)

    with holding(dsn, f"SELECT 1 FROM {schema}.checkpoints WHERE thread_id = 't' FOR UPDATE") as other:
        first = asyncio.create_task(delete("first"))

        def is_held() -> bool:
            return connection.execute(waiting, [f"%{schema}%"]).fetchone() == (1,)

        await asyncio.to_thread(wait_until, is_held, "the first deletion waits")
        # Not of this thread: it is not held up.
        await async_saver.aput(*arguments(config_of("u"), 0))
        second = asyncio.create_task(delete("second"))
        cancelled = asyncio.create_task(delete("cancelled"))
        await asyncio.sleep(0)
        cancelled.cancel()
        other.rollback()
        await asyncio.wait_for(asyncio.gather(first, second, cancelled, return_exceptions=True), GUARD_SECONDS)
    assert order == ["first", "second"]
    assert await async_saver.aget_tuple(stored) is None
    assert await async_saver.aget_tuple(config_of("u")) is None


async def test_an_error_is_given_to_all_who_asked() -> None:
    shared, work = Shared(), Work()
    callers = [asyncio.create_task(shared.do("key", work)) for _ in range(3)]
    await settle()
    work.end(ValueError("failed"))
    ended = await asyncio.gather(*callers, return_exceptions=True)
    assert [str(one) for one in ended] == ["failed"] * 3
    again = asyncio.create_task(shared.do("key", work))
    await settle()
    work.end()
    await asyncio.wait_for(again, GUARD_SECONDS)


async def test_work_nobody_waits_for_any_more_is_done() -> None:
    shared, work = Shared(), Work()
    callers = [asyncio.create_task(shared.do("key", work)) for _ in range(3)]
    await settle()
    for caller in callers:
        caller.cancel()
    await settle()
    assert work.ending is not None
    assert not work.ending.done()
    work.end()
    await settle()
    # All had asked before it began.
    assert work.begun == [0]
    assert not shared._tasks
