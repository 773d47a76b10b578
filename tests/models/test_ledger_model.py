"""Random orders of parallel, cancelled and failing calls of keyed actions on the real database, in one process and two.

The world is a table: each effect is a row, committed on a connection of its own, or on the transaction's. After each
step there are as many rows as the action's policy promises, and once everybody has gone on without faults, one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from support import FORK, GUARD_SECONDS
from support.ledger import LEDGERS, Bench, calls, open_bench, open_on_line, thread

from langgraph_pgstate.errors import DatabaseError, ToolOutcomeUnknownError
from langgraph_pgstate.tools import AsyncToolLedger, Happened, ToolSettings
from tests.tools.test_ledger_more import of_api

POLICIES = ("raise", "retry", "check", "ask", "transactional")
KEYS = st.sampled_from(["a", "b"])
# Long enough for a live process to be renewed in time on a busy machine; who was killed is known to be dead at once.
SETTINGS = ToolSettings(ttl_seconds=30.0, wait_seconds=GUARD_SECONDS)
_numbers = itertools.count()


class World:
    """Effects as rows; they outlive every process."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.dsn, self.schema = dsn, schema
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {schema}.effects (thread text, key text)")
        self.insert = f"INSERT INTO {schema}.effects VALUES (%s, %s)"

    def make(self, thread_id: str, key: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(self.insert, [thread_id, key])

    def count(self, thread_id: str, key: str) -> int:
        query = f"SELECT count(*) FROM {self.schema}.effects WHERE thread = %s AND key = %s"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return int(connection.execute(query, [thread_id, key]).fetchall()[0][0])

    def terminate(self) -> None:
        """End every session of the ledger's that may break."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ledger'"
            )


class Asker:
    """Asks for keyed actions through one ledger, under one policy."""

    def __init__(self, bench: Bench, world: World, thread_id: str, policy: str, die_at: str = "") -> None:
        self.bench, self.world, self.thread_id, self.policy = bench, world, thread_id, policy
        self.die_at = die_at
        # What a tool does before its effect and after it.
        self.on_effect: dict[str, Any] = {}
        ledger = bench.ledger
        terms: dict[str, Any] = {"key": lambda args: args["key"]}
        if policy == "check":
            terms |= {"on_unknown": "check", "check": of_api(bench, self._check)}
        elif policy != "transactional":
            terms |= {"on_unknown": policy}
        # Each example has policies of its own.
        ledger._policies.pop("act", None)
        body: Any = self._act
        if policy == "transactional":
            body = ledger.transactional(self._aact_on if bench.is_async else self._act_on)
        elif bench.is_async:
            body = self._aact
        ledger.policy("act", **terms)
        kind = {"coroutine": body} if bench.is_async else {"func": body}
        self._tool = StructuredTool.from_function(**kind, name="act", description="act")
        if policy == "transactional":
            ledger._functions["act"] = body.__name__
            ledger._policies["act"] = ledger._policies[body.__name__].__class__(key=terms["key"], transactional=True)

    def is_done(self, key: str) -> bool:
        return self.world.count(self.thread_id, key) > 0

    async def ask(self, key: str, many: int) -> list[str]:
        """Ask for one action several times in one message; what each call was answered."""
        builder = StateGraph(MessagesState)
        builder.add_node("tools", self.bench.tool_node([self._tool], handle_tool_errors=False))
        builder.add_edge(START, "tools")
        graph = builder.compile(checkpointer=InMemorySaver())
        message = calls(*[(f"call_{next(_numbers)}", "act", {"key": key}) for _ in range(many)])
        state = await self.bench.invoke(graph, {"messages": [message]}, thread(self.thread_id), durability="sync")
        while "__interrupt__" in state:
            command: Any = Command(resume={"decision": "done", "result": said(key)} if self.is_done(key) else "retry")
            state = await self.bench.invoke(graph, command, thread(self.thread_id), durability="sync")
        return [str(one.content) for one in state["messages"][1:]]

    async def settle(self, key: str) -> None:
        """Say the truth about an action in doubt."""
        decision = ("done", said(key)) if self.is_done(key) else ("retry", None)
        await self.bench.do(self.bench.ledger.settle, self.thread_id, f"act:{key}", *decision)

    def _check(self, execution: Any) -> Any:
        key = execution.arguments["key"]
        return Happened(said(key)) if self.is_done(key) else False

    def _reached(self, place: str) -> None:
        if self.die_at == place:
            os.kill(os.getpid(), signal.SIGKILL)
        if place in self.on_effect:
            self.on_effect.pop(place)()

    def _act(self, key: str) -> str:
        time.sleep(0.002)
        self._reached("before")
        self.world.make(self.thread_id, key)
        self._reached("after")
        return said(key)

    async def _aact(self, key: str) -> str:
        await asyncio.sleep(0.001)
        answer = self._act(key)
        await asyncio.sleep(0.001)
        return answer

    def _act_on(self, key: str, connection: Any) -> str:
        self._reached("before")
        connection.execute(self.world.insert, [self.thread_id, key])
        self._reached("after")
        return said(key)

    async def _aact_on(self, key: str, connection: Any) -> str:
        await asyncio.sleep(0.001)
        self._reached("before")
        await connection.execute(self.world.insert, [self.thread_id, key])
        self._reached("after")
        return said(key)


def said(key: str) -> str:
    return f"done {key}"


def machine(api: type, dsn: str, schema: str, world: World, two_processes: bool) -> type[RuleBasedStateMachine]:
    """Return the rules for a ledger of one API."""

    class Calls(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.loop = asyncio.new_event_loop()
            self.stack = AsyncExitStack()
            self.thread_id = f"t{next(_numbers)}"
            self.faulty: set[str] = set()
            self.used: set[str] = set()

        def run(self, coroutine: Any) -> Any:
            return self.loop.run_until_complete(asyncio.wait_for(coroutine, GUARD_SECONDS * 2))

        @initialize(policy=st.sampled_from(POLICIES))
        def open(self, policy: str) -> None:
            async def enter() -> Any:
                breaking = open_on_line(api, dsn, schema, settings=SETTINGS)
                sound = open_bench(api, dsn, schema, settings=SETTINGS)
                return await self.stack.enter_async_context(breaking), await self.stack.enter_async_context(sound)

            (broken, self.line), sound = self.run(enter())
            self.policy = policy
            self.askers = [Asker(bench, world, self.thread_id, policy) for bench in (broken, sound)]

        def note(self, key: str, outcomes: list[Any]) -> None:
            """Look at what calls of one action answered or raised."""
            self.used.add(key)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    allowed = (DatabaseError, asyncio.CancelledError)
                    is_allowed = isinstance(outcome, allowed) or (
                        self.policy == "raise" and isinstance(outcome, ToolOutcomeUnknownError)
                    )
                    if key not in self.faulty or not is_allowed:
                        raise outcome
                    assert not isinstance(outcome, DatabaseError) or outcome.is_final
                else:
                    assert set(outcome) == {said(key)}

        @rule(key=KEYS, many=st.lists(st.integers(1, 3), min_size=2, max_size=4), latency=st.sampled_from([0, 5, 20]))
        def ask(self, key: str, many: list[int], latency: int) -> None:
            """Several runs at once, on two ledgers, each of which asks several times; answers to one take longer."""
            asking = [self.askers[index % 2].ask(key, count) for index, count in enumerate(many)]
            self.line.latency = latency / 1000
            try:
                self.note(key, self.run(gathered(asking)))
            finally:
                self.line.latency = 0.0

        @rule(key=KEYS, number=st.integers(1, 4), how=st.sampled_from(["cut", "lose", "terminate"]))
        def ask_on_a_line_that_breaks(self, key: str, number: int, how: str) -> None:
            """The line breaks at the statement of that number which is about this action."""
            self.faulty.add(key)
            left = [number]

            def fault(data: bytes) -> str | None:
                if f"act:{key}".encode() not in data or not left:
                    return None
                left[0] -= 1
                if left[0]:
                    return None
                left.clear()
                if how == "terminate":
                    world.terminate()
                    return None
                return how

            self.line.fault = fault
            try:
                self.note(key, self.run(gathered([asker.ask(key, 2) for asker in self.askers])))
            finally:
                self.line.fault = lambda data: None

        @rule(key=KEYS, place=st.sampled_from(["before", "after"]))
        def ask_and_lose_the_database_in_the_tool(self, key: str, place: str) -> None:
            self.faulty.add(key)
            self.askers[0].on_effect[place] = world.terminate
            self.note(key, self.run(gathered([self.askers[0].ask(key, 2), self.askers[1].ask(key, 1)])))
            self.askers[0].on_effect.clear()

        @rule(key=KEYS, milliseconds=st.integers(0, 25), how=st.sampled_from(["task", "anyio", "timeout"]))
        def ask_and_cancel(self, key: str, milliseconds: int, how: str) -> None:
            if api is not AsyncToolLedger:
                return
            self.faulty.add(key)

            async def cancelled() -> Any:
                asking = self.askers[0].ask(key, 2)
                if how == "anyio":
                    answer: Any = asyncio.CancelledError()
                    with anyio.move_on_after(milliseconds / 1000):
                        answer = await asking
                    return answer
                if how == "timeout":
                    try:
                        async with asyncio.timeout(milliseconds / 1000):
                            return await asking
                    except TimeoutError:
                        return asyncio.CancelledError()
                task = asyncio.ensure_future(asking)
                await asyncio.wait({task}, timeout=milliseconds / 1000)
                task.cancel()
                return (await asyncio.gather(task, return_exceptions=True))[0]

            self.note(key, self.run(gathered([cancelled(), self.askers[1].ask(key, 1)])))

        @rule(key=KEYS, die_at=st.sampled_from(["", "before", "after"]))
        def ask_in_another_process(self, key: str, die_at: str) -> None:
            if not two_processes:
                return
            if die_at:
                self.faulty.add(key)
            begin, answers = FORK.Event(), FORK.SimpleQueue()

            async def work() -> None:
                async with open_bench(api, dsn, schema, settings=SETTINGS) as bench:
                    asker = Asker(bench, world, self.thread_id, self.policy, die_at)
                    begin.set()
                    answers.put([repr(one) for one in await gathered([asker.ask(key, 2)])])

            child = FORK.Process(target=lambda: asyncio.run(work()), daemon=True)
            child.start()
            try:
                assert begin.wait(GUARD_SECONDS)

                async def both() -> Any:
                    # Who was killed must be waited for, or it is a zombie, which counts as alive.
                    joined = asyncio.ensure_future(asyncio.to_thread(child.join, GUARD_SECONDS))
                    found = await gathered([asker.ask(key, 2) for asker in self.askers])
                    await joined
                    return found

                self.note(key, self.run(both()))
                assert not child.is_alive()
                if child.exitcode == 0:
                    found = answers.get()
                    told = repr([said(key)] * 2)
                    assert found == [told] or key in self.faulty, found
                else:
                    assert die_at
                    assert child.exitcode == -signal.SIGKILL
            finally:
                child.kill()
                child.join()

        @invariant()
        def effects_are_as_promised(self) -> None:
            for key in self.used:
                if self.policy != "retry" or key not in self.faulty:
                    assert world.count(self.thread_id, key) <= 1

        def teardown(self) -> None:
            try:
                for key in self.used:
                    self.run(self.goes_on(key))
                    count = world.count(self.thread_id, key)
                    assert count == 1 or (self.policy == "retry" and key in self.faulty and count > 1)
            finally:
                self.run(self.stack.aclose())
                self.loop.run_until_complete(self.loop.shutdown_default_executor())
                self.loop.close()

        async def goes_on(self, key: str) -> None:
            """Ask without faults, as often as it takes, and say the truth where it is asked for."""
            asker = self.askers[1]
            for _ in range(3):
                try:
                    assert set(await asker.ask(key, 2)) == {said(key)}
                    return
                except ToolOutcomeUnknownError:
                    assert self.policy == "raise"
                    assert key in self.faulty
                    await asker.settle(key)
            raise AssertionError(f"{key} is never done")

    return Calls


async def gathered(asking: list[Any]) -> list[Any]:
    """What each answered or raised."""
    return await asyncio.gather(*asking, return_exceptions=True)


def play(api: type, dsn: str, schema: str, two_processes: bool, examples: int, steps: int, **more: Any) -> None:
    rules = machine(api, dsn, schema, World(dsn, schema), two_processes)
    run_state_machine_as_test(
        rules,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize("two_processes", [False, True], ids=["one process", "two processes"])
@pytest.mark.parametrize("api", LEDGERS)
def test_actions_are_done_as_often_as_promised(api: type, two_processes: bool, dsn: str, schema: str) -> None:
    play(api, dsn, schema, two_processes, 6, 5, derandomize=True)


@pytest.mark.long
@pytest.mark.parametrize("two_processes", [False, True], ids=["one process", "two processes"])
@pytest.mark.parametrize("api", LEDGERS)
def test_actions_are_done_as_often_as_promised_many_times(
    api: type, two_processes: bool, dsn: str, schema: str
) -> None:
    play(api, dsn, schema, two_processes, 60, 12, print_blob=True)
