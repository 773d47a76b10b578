"""kill -9 at each boundary of a tool's execution: its effect takes place once, or somebody is asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.tools import tool
from psycopg.conninfo import make_conninfo
from support import backends, wait_until
from support.ledger import LEDGERS, Bench, ask, calls, open_bench, thread, tool_of

from langgraph_pgstate.errors import ToolOutcomeUnknownError
from langgraph_pgstate.tools import Happened, ToolLedger, action_runner, current_execution
from langgraph_pgstate.tools import executions as tool_executions

BOUNDARIES = ("before the effect", "after the effect", "before the receipt", "before the checkpoint")
# How an unknown outcome is dealt with, in turns.
WAYS = ("retry", "check", "raise")
FEW, MANY = 3, 25


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process to its death; how it ended."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
            work()
        os._exit(7)
    return os.waitpid(pid, 0)[1]


class Effect:
    """A file outside of the database, with one line for each effect."""

    def __init__(self, file: Path, way: str) -> None:
        self.file, self.way = file, way
        self.boundary = ""

    def lines(self) -> list[str]:
        return self.file.read_text().splitlines() if self.file.exists() else []

    def write(self, order: str) -> str:
        """Do something to the world."""
        if self.boundary == "before the effect":
            kill_self()
        token = current_execution().token
        # The outside world of a cooperating tool knows tokens, and does nothing twice.
        if self.way != "retry" or token not in self.lines():
            with self.file.open("a") as file:
                file.write(f"{token}\n")
        if self.boundary == "after the effect":
            kill_self()
        return "written"

    def happened(self, execution: Any) -> Any:
        return Happened("written, as the file says") if self.lines() else False

    def graph(self, bench: Bench) -> Any:
        if self.way == "check":
            bench.ledger.policy("write", on_unknown="check", check=self.happened)
        else:
            bench.ledger._policies.pop("write", None)
            bench.ledger.policy("write", on_unknown=self.way)
        return bench.agent([tool_of(bench, "write", self.write)], calls(("call_1", "write", {"order": "o1"})))


def dying(api: type, dsn: str, schema: str, effect: Effect, thread_id: str) -> None:
    """A child's work: run the graph, and die at the boundary."""

    async def run() -> None:
        async with open_bench(api, dsn, schema) as bench:
            if effect.boundary == "before the receipt":
                tool_executions.finish = lambda *args, **kwargs: kill_self()  # type: ignore[assignment]
            if effect.boundary == "before the checkpoint":
                receipt = tool_executions.finish

                async def finish(*args: Any, **kwargs: Any) -> bool:
                    await receipt(*args, **kwargs)
                    kill_self()
                    return True

                # The statement is its own transaction: it is committed when it has answered.
                tool_executions.finish = finish
            if api is ToolLedger:
                effect.graph(bench).invoke(ask(), thread(thread_id))
            else:
                await effect.graph(bench).ainvoke(ask(), thread(thread_id))

    asyncio.run(run())


async def kill_and_resume(
    api: type, boundary: str, count: int, dsn: str, schema: str, connection: psycopg.Connection, directory: Path
) -> None:
    named = make_conninfo(dsn, application_name=schema)
    async with open_bench(api, dsn, schema) as bench:
        for number in range(count):
            way = WAYS[number % len(WAYS)]
            effect = Effect(directory / f"{number}.txt", way)
            effect.boundary = boundary
            thread_id = f"t{number}"
            # Another thread forks: the loop of this one is not to be found running in the child.
            status = await asyncio.to_thread(in_child, partial(dying, api, named, schema, effect, thread_id))
            assert os.WIFSIGNALED(status), f"the child ended by itself: {os.WEXITSTATUS(status)}"
            assert os.WTERMSIG(status) == signal.SIGKILL
            wait_until(lambda: not backends(connection, schema), "the end of what the dead child had sent")
            effect.boundary = ""
            assert len(effect.lines()) == (0 if boundary == "before the effect" else 1)
            is_known = boundary == "before the checkpoint"
            graph = effect.graph(bench)
            if way == "raise" and not is_known:
                with pytest.raises(ToolOutcomeUnknownError):
                    await bench.invoke(graph, None, thread(thread_id))
                word = "done" if effect.lines() else "retry"
                await bench.do(bench.ledger.settle, thread_id, "call_1", word, "written, as somebody says")
            state = await bench.invoke(graph, None, thread(thread_id))
            assert len(effect.lines()) == 1, (boundary, way)
            assert state["messages"][2].content.startswith("written")
            found = await bench.do(bench.ledger.get, thread_id, "call_1")
            assert found.status == "success"
            assert found.attempt == (1 if is_known or (way != "retry" and boundary != "before the effect") else 2)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("api", LEDGERS)
async def test_a_killed_tool_takes_effect_once(
    api: type, boundary: str, dsn: str, schema: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    await kill_and_resume(api, boundary, FEW, dsn, schema, connection, tmp_path)


def booking(bench: Bench, boundary: str) -> Any:
    """A transactional tool that dies at a boundary."""
    schema = bench.saver.schema
    insert: Any = f"INSERT INTO {schema}.bookings VALUES (%s)"
    if bench.is_async:

        @tool
        @bench.ledger.transactional
        async def book(room: str, connection: psycopg.AsyncConnection) -> str:
            """Book a room."""
            await connection.execute(insert, [room])
            if boundary == "after the write":
                kill_self()
            return "booked"
    else:

        @tool
        @bench.ledger.transactional
        def book(room: str, connection: psycopg.Connection) -> str:
            """Book a room."""
            connection.execute(insert, [room])
            if boundary == "after the write":
                kill_self()
            return "booked"

    return bench.agent([book], calls(("call_1", "book", {"room": "7"})))


def dying_in_transaction(api: type, dsn: str, schema: str, boundary: str, thread_id: str) -> None:
    """A child's work: book a room, and die at the boundary."""
    finish, present = tool_executions.finish, action_runner.present

    async def finish_and_die(*args: Any, **kwargs: Any) -> bool:
        await finish(*args, **kwargs)
        kill_self()
        return True

    def die(*args: Any) -> Any:
        kill_self()
        return present(*args)

    if boundary == "before the commit":
        tool_executions.finish = finish_and_die
    if boundary == "after the commit":
        action_runner.present = die

    async def run() -> None:
        async with open_bench(api, dsn, schema) as bench:
            await bench.invoke(booking(bench, boundary), ask(), thread(thread_id))

    asyncio.run(run())


@pytest.mark.parametrize("boundary", ["after the write", "before the commit", "after the commit"])
@pytest.mark.parametrize("api", LEDGERS)
async def test_a_killed_transaction_takes_effect_once(
    api: type, boundary: str, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    named = make_conninfo(dsn, application_name=schema)
    async with open_bench(api, dsn, schema) as bench:
        connection.execute(f"CREATE TABLE {schema}.bookings (room text)")
        for number in range(FEW):
            connection.execute(f"TRUNCATE {schema}.bookings")
            work = partial(dying_in_transaction, api, named, schema, boundary, f"t{number}")
            status = await asyncio.to_thread(in_child, work)
            assert os.WIFSIGNALED(status), f"the child ended by itself: {os.WEXITSTATUS(status)}"
            wait_until(lambda: not backends(connection, schema), "the end of what the dead child had sent")
            is_done = boundary == "after the commit"
            assert connection.execute(f"SELECT count(*) FROM {schema}.bookings").fetchone() == (int(is_done),)
            await bench.invoke(booking(bench, ""), None, thread(f"t{number}"))
            assert connection.execute(f"SELECT room FROM {schema}.bookings").fetchall() == [("7",)]
            found = await bench.do(bench.ledger.get, f"t{number}", "call_1")
            assert (found.status, found.attempt) == ("success", 1 if is_done else 2)


@pytest.mark.long
@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("api", LEDGERS)
async def test_a_killed_tool_takes_effect_once_many_times(
    api: type, boundary: str, dsn: str, schema: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    await kill_and_resume(api, boundary, MANY, dsn, schema, connection, tmp_path)
