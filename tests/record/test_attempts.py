"""A run that was begun several times shows what all its attempts add up to; the traces tell them apart."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from support import FORK, GUARD_SECONDS, invoke, loop_graph
from support.recorder import model

from langgraph_pgstate import PGState
from langgraph_pgstate.errors import DatabaseError
from langgraph_pgstate.record.options import RecorderSettings
from tests.test_state import APIS, open_state

ANSWERS = 100, 20
"""Tokens that the model of `support.recorder` says it read and wrote, each time."""


def graph(dies_at: list[int]) -> StateGraph[Any, Any, Any, Any]:
    """Asks a model in each of three supersteps, and dies after the answer of those given, each once."""
    asked = model()

    def ask(number: int) -> Any:
        def node(state: MessagesState) -> dict[str, Any]:
            answer = asked.invoke(state["messages"])
            if number in dies_at:
                dies_at.remove(number)
                raise ValueError("dies")
            return {"messages": [answer]}

        return node

    builder = StateGraph(MessagesState)
    builder.add_sequence([(f"ask{number}", ask(number)) for number in range(3)])
    builder.add_edge(START, "ask0")
    return builder


async def answered(answer: Any) -> Any:
    return await answer if hasattr(answer, "__await__") else answer


def config(run_id: str = "run-1") -> dict[str, Any]:
    return {"configurable": {"thread_id": "t"}, "metadata": {"run_id": run_id}}


@pytest.mark.parametrize("is_crash", [False, True], ids=["failed", "crashed"])
@pytest.mark.parametrize("api", APIS)
async def test_a_run_shows_the_total_of_its_attempts(
    api: type, is_crash: bool, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    dies_at = [1, 2]
    builder = graph(dies_at)
    async with open_state(api, dsn, schema) as state:
        await answered(state.prices.set("gpt-x", input=Decimal(1), output=Decimal(10)))
    input: Any = {"messages": [HumanMessage("hi", id="h")]}
    # Supersteps begun and answers given: 0, 1 dies; 1 again, 2 dies; 2 again.
    for attempt, (steps, answers) in enumerate([(2, 2), (4, 4), (5, 5)], 1):
        async with open_state(api, dsn, schema) as state:
            compiled = state.record(builder.compile(checkpointer=state.saver))
            with suppress(ValueError):
                await invoke(compiled, state.saver, input, config())
            input = None
            run = await answered(state.runs.get("t", "run-1"))
            if is_crash and attempt < 3:
                # As it is when the process dies: nobody has said how it ended, or what it came to.
                connection.execute(
                    f"UPDATE {schema}.runs SET status = 'running', ended_at = NULL, alive_until = now(), "
                    "holder_id = 'elsewhere/1/2/3/4/5', input_tokens = 0, output_tokens = 0, cost = 0"
                )
                await answered(state.maintain())
                run = await answered(state.runs.get("t", "run-1"))
                assert (run.status, run.is_crashed) == ("error", True)
            assert (run.attempt, run.steps) == (attempt, steps)
            assert (run.input_tokens, run.output_tokens) == (ANSWERS[0] * answers, ANSWERS[1] * answers)
            assert run.cost == Decimal(answers) * (ANSWERS[0] + 10 * ANSWERS[1]) / 1_000_000
            roots = await answered(state.spans.tree("t", "run-1"))
            assert len(roots) == attempt
            if attempt < 3:
                failed = connection.execute(f"SELECT steps, cost FROM {schema}.failed_runs").fetchall()
                assert failed == [(steps, run.cost)]
            used = connection.execute(
                f"SELECT sum(input_tokens), sum(output_tokens), sum(cost) FROM {schema}.usage_by_day"
            ).fetchone()
            assert used == (run.input_tokens, run.output_tokens, run.cost)
            usage = await answered(state.runs.usage())
            assert sum(item.input_tokens for item in usage) == run.input_tokens


async def test_another_run_counts_for_itself(dsn: str, schema: str) -> None:
    async with open_state(APIS[0], dsn, schema) as state:
        compiled = state.record(graph([]).compile(checkpointer=state.saver))
        for run_id in ("run-1", "run-2"):
            compiled.invoke({"messages": [HumanMessage("hi")]}, config(run_id))
        for run_id in ("run-1", "run-2"):
            run = state.runs.get("t", run_id)
            assert (run.attempt, run.steps, run.input_tokens) == (1, 3, 3 * ANSWERS[0])


def test_a_run_that_is_written_as_it_goes_counts_each_step_once(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        seen = []

        def look(count: int) -> None:
            state.flush()
            found = state.runs.get("t", "run-1")
            assert found is not None
            seen.append(found.steps)
            if len(seen) == 2:
                raise ValueError("dies")

        compiled = state.record(loop_graph(3, look).compile(checkpointer=state.saver))
        for _ in range(2):
            with suppress(ValueError):
                compiled.invoke({"items": [], "count": 0}, config())
        assert seen == [1, 2, 3, 4]


def run_and_die(dsn: str, schema: str, input: Any, at: int) -> None:
    """Five supersteps, each with an answer; killed in one of them."""
    asked = model()

    def hook(count: int) -> None:
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        asked.invoke("?")

    with PGState.open(dsn, schema=schema) as state:
        compiled = state.record(loop_graph(5, hook).compile(checkpointer=state.saver))
        compiled.invoke(input, config(), durability="sync")


@pytest.mark.slow
@pytest.mark.parametrize("is_settled", [False, True], ids=["resumed at once", "settled first"])
def test_the_supersteps_of_killed_attempts_count_though_nobody_wrote_how_many(
    is_settled: bool, dsn: str, schema: str
) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
    input: Any = {"items": [], "count": 0}
    # Of five supersteps, 0 and 1 are committed by the first attempt, 2 and 3 by the second, 4 by the last.
    for at, committed in ((2, 2), (4, 4), (None, 5)):
        child = FORK.Process(target=run_and_die, args=(dsn, schema, input, at))
        child.start()
        child.join(GUARD_SECONDS)
        assert child.exitcode == (0 if at is None else -signal.SIGKILL)
        input = None
        if is_settled or at is None:
            with PGState.open(dsn, schema=schema) as state:
                state.maintain()
                run = state.runs.get("t", "run-1")
            assert run is not None
            # What was begun and never committed counts if the writer saw it.
            assert committed <= run.steps <= committed + 2
            assert run.input_tokens == committed * ANSWERS[0]


def test_a_dead_run_is_ended_and_totalled_or_neither(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
    child = FORK.Process(target=run_and_die, args=(dsn, schema, {"items": [], "count": 0}, 2))
    child.start()
    child.join(GUARD_SECONDS)
    # Whoever ends the run is stopped before it has summed it up.
    connection.execute(f"ALTER TABLE {schema}.runs ADD CONSTRAINT stop CHECK (status <> 'error' OR input_tokens = 0)")
    with PGState.open(dsn, schema=schema) as state:
        with pytest.raises(DatabaseError):
            state.maintain()
        assert connection.execute(f"SELECT status FROM {schema}.runs").fetchone() == ("running",)
        connection.execute(f"ALTER TABLE {schema}.runs DROP CONSTRAINT stop")
        assert state.maintain().runs_settled == 1
        run = state.runs.get("t", "run-1")
    assert run is not None
    assert (run.status, run.input_tokens) == ("error", 2 * ANSWERS[0])


def nested(hook: Any) -> StateGraph[Any, Any, Any, Any]:
    """Two nodes of a graph; the second is a graph of two nodes, whose checkpoints are stored while it runs."""
    inner = StateGraph(MessagesState).add_sequence([(name, lambda _, name=name: hook(name)) for name in ("c", "d")])
    inner.add_edge(START, "c")
    outer = StateGraph(MessagesState).add_sequence([("a", lambda _: hook("a")), ("b", inner.compile())])
    return outer.add_edge(START, "a")


def flush_and_die(dsn: str, schema: str) -> None:
    """Writes what it has recorded once; what comes then is in the journal when it is killed."""
    with PGState.open(dsn, schema=schema, recording=RecorderSettings(interval=1_000_000.0)) as state:

        def hook(name: str) -> Any:
            if name == "a":
                state.flush()
            if name == "d":
                os.kill(os.getpid(), signal.SIGKILL)
            return {}

        compiled = state.record(nested(hook).compile(checkpointer=state.saver))
        compiled.invoke({"messages": []}, config(), durability="sync")


def test_no_span_of_a_killed_attempt_runs_on(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
    child = FORK.Process(target=flush_and_die, args=(dsn, schema))
    child.start()
    child.join(GUARD_SECONDS)
    assert child.exitcode == -signal.SIGKILL
    with PGState.open(dsn, schema=schema) as state:
        state.record(nested(lambda _: {}).compile(checkpointer=state.saver)).invoke(None, config())
        state.flush()
        spans = state.spans.list("t").items
    left = {span.name for span in spans if span.error_type == "ProcessDied"}
    assert ("b" in left, {span.status for span in spans}) == (True, {"success", "error"})
