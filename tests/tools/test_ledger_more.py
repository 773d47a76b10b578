"""Plain functions, transactions, compensations, budgets, and the ledger in `create_agent` and the functional API."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from support import run_children
from support.ledger import LEDGERS, Bench, agent_graph, ask, calls, open_bench, open_ledger, thread, tool_of

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import (
    ArgumentTypeError,
    ConfigurationError,
    NotFoundError,
    ToolOvertakenError,
    ToolSetupError,
)
from langgraph_pgstate.tools import current_execution


def of_api(bench: Bench, function: Callable[..., Any]) -> Callable[..., Any]:
    """A blocking function as one of the bench's API, with the same signature."""
    if not bench.is_async:
        return function

    @functools.wraps(function)
    async def suspending(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return suspending


def one_node(bench: Bench, body: Callable[[Any], Any]) -> Any:
    """A graph whose one node calls the bench's functions."""
    builder = StateGraph(MessagesState)
    if bench.is_async:

        async def suspending(state: MessagesState) -> dict[str, Any]:
            for answer in body(state):
                await answer
            return {"messages": [AIMessage("done")]}

        builder.add_node("node", suspending)
    else:

        def blocking(state: MessagesState) -> dict[str, Any]:
            list(body(state))
            return {"messages": [AIMessage("done")]}

        builder.add_node("node", blocking)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=bench.saver)


# Plain functions


async def test_a_function_in_a_node_is_done_once(bench: Bench) -> None:
    done: list[str] = []
    fail = [True]

    def ship(order: str) -> str:
        """Ship an order."""
        done.append(order)
        return f"shipped {order}"

    once = bench.ledger.once(of_api(bench, ship))

    def body(state: Any) -> Any:
        yield once("o1")
        yield once("o2")
        yield once("o1")
        if fail.pop():
            raise OSError("after the effects")

    graph = one_node(bench, body)
    with pytest.raises(OSError, match="after"):
        await bench.invoke(graph, ask(), thread())
    fail.append(False)
    await bench.invoke(graph, None, thread())
    # The same call twice in one task is two actions; the task run again makes the same ones.
    assert done == ["o1", "o2", "o1"]
    assert len({item.idempotency_key for item in await bench.do(bench.ledger.list, "t")}) == 3
    fail.append(False)
    await bench.invoke(graph, ask(), thread())
    assert done == ["o1", "o2", "o1"] * 2


def test_functions_whose_actions_would_be_mixed_up_need_a_name(dsn: str, schema: str) -> None:
    def by_mail() -> Callable[..., str]:
        def send(order: str) -> str:
            return f"mailed {order}"

        return send

    def by_phone() -> Callable[..., str]:
        def send(order: str) -> str:
            return f"called {order}"

        return send

    with open_ledger(dsn, schema) as (_, ledger):
        ledger.once(by_mail(), key=lambda args: args["order"])
        ledger.once(by_mail())
        with pytest.raises(ConfigurationError, match=r"by_phone.*send.*by_mail.*send.*'send'"):
            ledger.once(by_phone(), key=lambda args: args["order"])
        ledger.once(by_phone(), name="call")
        for nameless in (functools.partial(by_mail(), "o1"), lambda order: order):
            with pytest.raises(ConfigurationError, match="name of its own"):
                ledger.once(nameless)
            ledger.once(nameless, name="other")


def test_a_generator_function_is_refused(dsn: str, schema: str) -> None:
    def lines(order: str) -> Iterator[str]:
        yield order

    async def later(order: str) -> AsyncIterator[str]:
        yield order

    with open_ledger(dsn, schema) as (_, ledger):
        for function in (lines, later):
            with pytest.raises(ArgumentTypeError, match="generator"):
                ledger.once(function)


async def test_a_call_in_place_of_one_of_unknown_outcome_is_the_same_action(bench: Bench) -> None:
    """As of code in a node, or middleware around a tool, that tries again after any error."""
    done: list[str] = []

    def ship(order: str) -> str:
        """Ship an order, and be stopped."""
        done.append(order)
        raise asyncio.CancelledError if bench.is_async else KeyboardInterrupt

    once = bench.ledger.once(of_api(bench, ship))
    errors: list[str] = []

    async def suspending(state: MessagesState) -> None:
        for order in ("o1", "o2", "o1"):
            try:
                await once(order)
            except BaseException as error:
                errors.append(type(error).__name__)

    def blocking(state: MessagesState) -> None:
        for order in ("o1", "o2", "o1"):
            try:
                once(order)
            except BaseException as error:
                errors.append(type(error).__name__)

    builder = StateGraph(MessagesState).add_edge(START, "node")
    builder.add_node("node", suspending if bench.is_async else blocking)
    await bench.invoke(builder.compile(checkpointer=bench.saver), ask(), thread())
    assert done == ["o1", "o2"]
    assert errors[2] == "ToolOutcomeUnknownError"


async def test_a_function_with_a_key_is_done_once_on_its_thread(bench: Bench) -> None:
    done: list[str] = []

    def ship(order: str) -> str:
        """Ship an order."""
        done.append(current_execution().key)
        return f"shipped {order}"

    once = bench.ledger.once(name="shipping", key=lambda args: args["order"])(of_api(bench, ship))
    graph = one_node(bench, lambda state: iter([once("o1")]))
    await bench.invoke(graph, ask(), thread())
    await bench.invoke(graph, ask(), thread())
    assert done == ["shipping:o1"]
    with pytest.raises(ConfigurationError, match="outside of a graph"):
        await bench.do(once, "o1")


@pytest.mark.slow
async def test_the_functional_api(bench: Bench) -> None:
    done: list[str] = []
    fail = [True]

    def ship(order: str) -> str:
        """Ship an order."""
        done.append(order)
        return f"shipped {order}"

    once = bench.ledger.once(of_api(bench, ship))
    if bench.is_async:

        @task
        async def step(order: str) -> str:
            found = str(await once(order))
            if fail.pop():
                raise OSError("after the effect")
            return found

        @entrypoint(checkpointer=bench.saver)
        async def flow(order: str) -> str:
            return await step(order)
    else:

        @task
        def step(order: str) -> str:
            found = str(once(order))
            if fail.pop():
                raise OSError("after the effect")
            return found

        @entrypoint(checkpointer=bench.saver)
        def flow(order: str) -> str:
            return str(step(order).result())

    with pytest.raises(OSError, match="after"):
        await bench.invoke(flow, "o1", thread())
    fail.append(False)
    assert await bench.invoke(flow, None, thread()) == "shipped o1"
    assert done == ["o1"]


async def test_what_no_serializer_can_store_is_still_on_record(bench: Bench) -> None:
    fail = [True]

    def opener(name: str) -> Any:
        """Answer something that cannot be stored."""
        return threading.Lock()

    once = bench.ledger.once(of_api(bench, opener))

    def body(state: Any) -> Any:
        yield once("x")
        if fail.pop():
            raise OSError("after the effect")

    graph = one_node(bench, body)
    with pytest.raises(OSError, match="after"):
        await bench.invoke(graph, ask(), thread())
    assert (await bench.do(bench.ledger.list, "t"))[0].status == "success"
    with pytest.raises(NotFoundError, match="The tool succeeded"):
        await bench.invoke(graph, None, thread())


# Transactions


def with_table(connection: psycopg.Connection, schema: str) -> None:
    connection.execute(f"CREATE TABLE {schema}.bookings (room text)")


def booking(bench: Bench, after: Callable[[], None] = lambda: None) -> Any:
    """A transactional tool of the bench's api."""
    schema = bench.saver.schema
    if bench.is_async:

        @tool
        @bench.ledger.transactional
        async def book(room: str, connection: psycopg.AsyncConnection) -> str:
            """Book a room."""
            await connection.execute(f"INSERT INTO {schema}.bookings VALUES (%s)", [room])  # type: ignore[arg-type]
            after()
            return f"booked {room}"
    else:

        @tool
        @bench.ledger.transactional
        def book(room: str, connection: psycopg.Connection) -> str:
            """Book a room."""
            connection.execute(f"INSERT INTO {schema}.bookings VALUES (%s)", [room])  # type: ignore[arg-type]
            after()
            return f"booked {room}"

    return book


BOOK = calls(("call_1", "book", {"room": "7"}))


async def test_a_transactional_tools_writes_are_its_outcome(bench: Bench, connection: psycopg.Connection) -> None:
    schema = bench.saver.schema
    with_table(connection, schema)

    def nothing_yet() -> None:
        assert connection.execute(f"SELECT count(*) FROM {schema}.bookings").fetchone() == (0,)
        assert connection.execute(f"SELECT status FROM {schema}.tool_executions").fetchone() == ("running",)

    book = booking(bench, nothing_yet)
    assert set(book.args) == {"room"}
    state = await bench.invoke(bench.agent([book], BOOK), ask(), thread())
    assert state["messages"][2].content == "booked 7"
    assert connection.execute(f"SELECT room FROM {schema}.bookings").fetchall() == [("7",)]
    assert connection.execute(f"SELECT status FROM {schema}.tool_executions").fetchall() == [("success",)]


@pytest.mark.parametrize("handled", [False, True])
async def test_a_transactional_tool_that_fails_leaves_nothing(
    bench: Bench, connection: psycopg.Connection, handled: bool
) -> None:
    schema = bench.saver.schema
    with_table(connection, schema)

    def fail() -> None:
        raise OSError("after the insert")

    graph = bench.agent([booking(bench, fail)], BOOK, handle_tool_errors=handled)
    if handled:
        await bench.invoke(graph, ask(), thread())
    else:
        with pytest.raises(OSError, match="after the insert"):
            await bench.invoke(graph, ask(), thread())
    assert connection.execute(f"SELECT room FROM {schema}.bookings").fetchall() == []
    assert connection.execute(f"SELECT status FROM {schema}.tool_executions").fetchall() == [("error",)]


async def test_a_transactional_tool_that_was_overtaken_is_rolled_back(
    bench: Bench, connection: psycopg.Connection
) -> None:
    schema = bench.saver.schema
    with_table(connection, schema)

    def overtake() -> None:
        connection.execute(f"UPDATE {schema}.tool_executions SET intent_id = 'another'")

    with pytest.raises(ToolOvertakenError):
        await bench.invoke(bench.agent([booking(bench, overtake)], BOOK), ask(), thread())
    assert connection.execute(f"SELECT room FROM {schema}.bookings").fetchall() == []


async def test_a_transactional_tool_whose_process_died_is_simply_run(
    bench: Bench, connection: psycopg.Connection
) -> None:
    schema = bench.saver.schema
    with_table(connection, schema)
    graph = bench.agent([booking(bench)], BOOK)
    await bench.invoke(graph, ask(), thread())
    connection.execute(f"TRUNCATE {schema}.bookings")
    connection.execute(
        f"""UPDATE {schema}.tool_executions SET status = 'running', result = NULL, holder_id = 'x',
        alive_until = now() - interval '1 s'"""
    )
    states = [state async for state in graph.aget_state_history(thread())]
    past = next(state for state in states if state.next == ("tools",)).config
    await bench.invoke(graph, None, past)
    assert connection.execute(f"SELECT room FROM {schema}.bookings").fetchall() == [("7",)]


async def test_what_only_the_program_can_put_right_is_not_shown_to_the_model(bench: Bench) -> None:
    booked = booking(bench)
    for node, why in (
        (bench.tool_node([booked], handle_tool_errors=True), "needs a thread"),
        (ToolNode([booked], handle_tool_errors=True), "without its ledger"),
    ):
        with pytest.raises(ToolSetupError, match=why):
            await bench.invoke(agent_graph(node, BOOK).compile(), ask())


async def test_what_the_model_can_put_right_is_shown_to_it(bench: Bench) -> None:
    """A key that its arguments do not make, and what a tool itself finds wrong with them."""

    def look(at: str) -> str:
        """Look at something."""
        raise ConfigurationError(f"{at!r} is nothing to look at")

    look_tool = tool_of(bench, "look", look)
    for key, said in ((None, "'a' is nothing"), (lambda args: "", "an action needs a key")):
        bench.ledger.policy("look", key=key)
        graph = bench.agent([look_tool], calls(("call_1", "look", {"at": "a"})), handle_tool_errors=True)
        state = await bench.invoke(graph, ask(), thread(said))
        assert state["messages"][2].status == "error"
        assert said in state["messages"][2].content
        assert state["messages"][3].content == "done"


# create_agent


class ToolCaller(GenericFakeChatModel):
    """A fake chat model that knows no tools, and uses tokens."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        result = super()._generate(*args, **kwargs)
        for generation in result.generations:
            usage = {"input_tokens": 90, "output_tokens": 10, "total_tokens": 100}
            generation.message.usage_metadata = usage  # type: ignore[attr-defined]
        return result


# Checkpoints that are still on their way


class SlowSaver(PGStateSaver):
    """Stores checkpoints late, as over a long line."""

    def put(self, *arguments: Any, **options: Any) -> Any:
        threading.Event().wait(0.3)
        return super().put(*arguments, **options)


@pytest.mark.slow
def test_a_tool_waits_for_the_checkpoint_it_is_called_from(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    stored: list[int] = []

    def charge(order: str) -> str:
        """Charge a card."""
        found = connection.execute(
            f"""SELECT count(*) FROM {schema}.tool_executions e
            JOIN {schema}.checkpoints c USING (thread_id, checkpoint_ns, checkpoint_id)"""
        ).fetchone()
        stored.extend(found or ())
        return "charged"

    with SlowSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        with open_ledger(dsn, schema) as (_, ledger):
            graph = Bench(saver, ledger).agent([tool(charge)], calls(("call_1", "charge", {"order": "o1"})))
            for durability in ("async", "sync"):
                graph.invoke(ask(), thread(durability), durability=durability)
    assert stored == [1, 2]


# Several processes


@pytest.mark.slow
@pytest.mark.parametrize("api", LEDGERS)
def test_processes_that_want_the_same_at_once_do_it_once(api: type, dsn: str, schema: str, tmp_path: Path) -> None:
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
    file = tmp_path / "effects.txt"

    async def work(number: int) -> None:
        async with open_bench(api, dsn, schema) as bench:

            def ship(order: str) -> str:
                """Ship an order."""
                with file.open("a") as effects:
                    effects.write(f"{order}\n")
                threading.Event().wait(0.02)
                return f"shipped {order}"

            once = bench.ledger.once(of_api(bench, ship), key=lambda args: args["order"])
            graph = one_node(bench, lambda state: iter([once(f"o{order}") for order in range(10)]))
            await bench.invoke(graph, ask(), thread())

    def child(number: int) -> None:
        asyncio.run(work(number))

    assert run_children(child, [(number,) for number in range(4)]) == [""] * 4
    assert sorted(file.read_text().split()) == [f"o{order}" for order in range(10)]
