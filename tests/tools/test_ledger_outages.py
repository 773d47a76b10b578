"""The ledger's own database fails: before an intent, after it, inside of a tool's transaction, at its COMMIT."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest
from langchain_core.tools import tool
from psycopg import sql
from support import GUARD_SECONDS, crossed, ended, spread, terminate, wait_until
from support.ledger import LEDGERS, Bench, Line, ask, calls, open_on_line, thread, tool_of

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import (
    ConflictError,
    CorruptStateError,
    DatabaseError,
    PGStateError,
    ToolOutcomeUnknownError,
    UnavailableError,
)
from langgraph_pgstate.tools import ToolRetry, ToolSettings
from tests.tools.test_ledger import CHARGE, Till, rows
from tests.tools.test_ledger_more import of_api, one_node

AGAIN = calls(("call_2", "charge", {"order": "o1"}))


"""What a model asks for that is told of an error: the same again, under another id."""


@pytest.fixture(params=LEDGERS, ids=lambda api: api.__name__)
async def broken(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[tuple[Bench, Line]]:
    async with open_on_line(request.param, dsn, schema, pool=False) as pair:
        yield pair


@pytest.mark.slow
@pytest.mark.parametrize("pool", [False, 1])
@pytest.mark.parametrize("api", LEDGERS)
async def test_an_attempt_lives_and_is_recorded_while_others_keep_all_connections(
    api: type, dsn: str, schema: str, connection: psycopg.Connection, pool: bool | int
) -> None:
    async with open_on_line(api, dsn, schema, pool=pool, settings=ToolSettings(ttl_seconds=1.0)) as (bench, _):
        database = bench.ledger._executor.database
        has_begun, has_lived = threading.Event(), threading.Event()

        def blocking(order: str) -> str:
            """Charge a card, slowly."""
            has_begun.set()
            assert has_lived.wait(GUARD_SECONDS)
            return f"charged {order}"

        async def suspending(order: str) -> str:
            """Charge a card, slowly."""
            return await asyncio.to_thread(blocking, order)

        charge = tool("charge")(suspending if bench.is_async else blocking)
        run = asyncio.create_task(bench.invoke(bench.agent([charge], CHARGE), ask(), thread()))
        await asyncio.to_thread(has_begun.wait, GUARD_SECONDS)

        def is_renewed() -> bool:
            select = "SELECT alive_until > started_at + interval '2 s' FROM {}.tool_executions"
            return connection.execute(sql.SQL(select).format(sql.Identifier(schema))).fetchone() == (True,)

        async with AsyncExitStack() as stack:
            lent = database.lend()
            await stack.enter_async_context(lent) if bench.is_async else stack.enter_context(lent)
            await asyncio.to_thread(wait_until, is_renewed, "an attempt that lives")
            has_lived.set()
            done = [("success",)]
            await asyncio.to_thread(wait_until, lambda: rows(connection, schema, "status") == done, "an outcome")
        state = await run
        assert [message.content for message in state["messages"][2:]] == ["charged o1", "done"]


def handle(error: Exception) -> str:
    return f"try again: {error}"


HANDLERS: dict[str, Any] = {
    "nothing": False,
    "everything": True,
    "words": "try again",
    "function": handle,
    "classes": (Exception,),
    "class": PGStateError,
}


@pytest.mark.parametrize("handler", spread(HANDLERS))
async def test_a_database_that_fails_after_an_effect_stops_the_run(
    broken: tuple[Bench, Line], connection: psycopg.Connection, handler: str
) -> None:
    bench, line = broken
    till = Till()

    def charge(order: str) -> str:
        """Charge a card, and lose the database."""
        line.is_down = True
        return till.charge(order)

    options = {"handle_tool_errors": HANDLERS[handler]}
    graph = bench.agent([tool_of(bench, "charge", charge)], CHARGE, AGAIN, **options)
    with pytest.raises(UnavailableError, match=r"charge.* has run, but its outcome could not be recorded"):
        await bench.invoke(graph, ask(), thread())
    assert till.charged == ["o1"]
    assert rows(connection, bench.saver.schema, "status") == [("running",)]
    line.is_down = False
    # This process knows what became of it.
    again = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    state = await bench.invoke(again, None, thread())
    assert [message.content for message in state["messages"][2:]] == ["charged o1", "done"]
    assert till.charged == ["o1"]
    assert rows(connection, bench.saver.schema, "status, preview") == [("success", "charged o1")]


async def test_the_source_of_a_copy_knows_what_became_of_it(broken: tuple[Bench, Line]) -> None:
    bench, line = broken
    till = Till()

    def charge(order: str) -> str:
        """Charge a card, and lose the database."""
        line.is_down = True
        return till.charge(order)

    with pytest.raises(UnavailableError):
        await bench.invoke(bench.agent([tool_of(bench, "charge", charge)], CHARGE), ask(), thread())
    line.is_down = False
    await bench.saver.acopy_thread("t", "copy")
    again = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    for thread_id in ("copy", "t"):
        state = await bench.invoke(again, None, thread(thread_id))
        assert state["messages"][2].content == "charged o1"
    assert till.charged == ["o1"]


async def test_another_process_does_not_know_what_became_of_it(broken: tuple[Bench, Line]) -> None:
    bench, line = broken
    till = Till()

    def charge(order: str) -> str:
        """Charge a card, and lose the database."""
        line.is_down = True
        return till.charge(order)

    graph = bench.agent([tool_of(bench, "charge", charge)], CHARGE, AGAIN, handle_tool_errors=True)
    with pytest.raises(UnavailableError):
        await bench.invoke(graph, ask(), thread())
    from langgraph_pgstate.tools import action_runner

    action_runner._unrecorded.clear()
    line.is_down = False
    with pytest.raises(ToolOutcomeUnknownError):
        await bench.invoke(graph, None, thread())
    assert till.charged == ["o1"]


@pytest.mark.parametrize("handled", [False, True])
async def test_a_database_that_fails_before_the_intent_has_let_nothing_happen(
    broken: tuple[Bench, Line], handled: bool
) -> None:
    bench, line = broken
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, AGAIN, handle_tool_errors=handled)
    line.is_down = True
    with pytest.raises(UnavailableError, match="not started, it had no effect") as raised:
        await bench.invoke(graph, ask(), thread())
    assert raised.value.retryable
    assert till.charged == []
    line.is_down = False
    await bench.invoke(bench.agent([tool_of(bench, "charge", till.charge)], CHARGE), None, thread())
    assert till.charged == ["o1"]


async def test_an_intent_that_is_stored_though_it_failed_has_let_nothing_happen(
    broken: tuple[Bench, Line], connection: psycopg.Connection
) -> None:
    """Its confirmation was lost, and then the database: this process knows that nothing was run."""
    bench, line = broken
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)

    def lose(data: bytes) -> str | None:
        if b"call_1" in data:
            line.fault = lambda data: "cut"
            return "lose"
        return None

    line.fault = lose
    with pytest.raises(UnavailableError, match="it had no effect"):
        await bench.invoke(graph, ask(), thread())
    assert rows(connection, bench.saver.schema, "status") == [("running",)]
    line.fault = lambda data: None
    await bench.invoke(graph, None, thread())
    assert till.charged == ["o1"]


async def test_a_run_that_such_an_error_ends_is_recorded_as_failed(
    broken: tuple[Bench, Line], dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """What passes LangChain's middleware looks like an interrupt to whoever listens."""
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

    bench, line = broken

    def charge(order: str) -> str:
        """Charge a card, and lose the database."""
        line.is_down = True
        return f"charged {order}"

    def agent(saver: Any) -> Any:
        return create_agent(
            Model(messages=iter([CHARGE])),
            [tool_of(bench, "charge", charge)],
            middleware=[bench.ledger.middleware()],
            checkpointer=saver,
        )

    if bench.is_async:
        async with AsyncPGState.open(dsn, schema=schema) as astate:
            with pytest.raises(UnavailableError):
                await astate.record(agent(astate.saver)).ainvoke(ask(), thread())
    else:
        with PGState.open(dsn, schema=schema) as state, pytest.raises(UnavailableError):
            await asyncio.to_thread(state.record(agent(state.saver)).invoke, ask(), thread())
    found = ended(connection, schema, "t")
    assert [(status, kind) for _, status, _, _, kind in found] == [
        ("error", "langgraph_pgstate.errors.UnavailableError")
    ]


async def test_a_recorded_answer_that_cannot_be_read_is_not_for_the_model(
    broken: tuple[Bench, Line], connection: psycopg.Connection
) -> None:
    bench, _ = broken
    till = Till()
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, AGAIN, handle_tool_errors=True)
    await bench.invoke(bench.agent([tool_of(bench, "charge", till.charge)], CHARGE), ask(), thread())
    states = [state async for state in graph.aget_state_history(thread())]
    past = next(state for state in states if state.next == ("tools",)).config
    connection.execute(f"UPDATE {bench.saver.schema}.tool_executions SET result = 'damaged'")
    with pytest.raises(CorruptStateError):
        await bench.invoke(graph, None, past)
    assert till.charged == ["o1"]


async def test_a_tool_stopped_by_an_action_inside_of_it_is_in_doubt_itself(
    broken: tuple[Bench, Line], connection: psycopg.Connection
) -> None:
    """Were it recorded as failed, its model would be told so, and call both again under new ids."""
    bench, line = broken
    till = Till()

    def pay(order: str) -> str:
        """Pay for an order, and lose the database."""
        line.is_down = True
        return till.charge(order)

    inner = bench.ledger.once(of_api(bench, pay))

    def blocking(order: str) -> str:
        """Charge a card."""
        try:
            return str(inner(order))
        finally:
            line.is_down = False

    async def suspending(order: str) -> str:
        """Charge a card."""
        try:
            return str(await inner(order))
        finally:
            line.is_down = False

    function: Any = suspending if bench.is_async else blocking
    function.__name__ = "charge"
    graph = bench.agent([tool(function)], CHARGE, AGAIN, handle_tool_errors=True)
    with pytest.raises(UnavailableError):
        await bench.invoke(graph, ask(), thread())
    assert dict(rows(connection, bench.saver.schema, "tool, status"))["charge"] == "unknown"
    with pytest.raises(ToolOutcomeUnknownError):
        await bench.invoke(graph, None, thread())
    assert till.charged == ["o1"]


# Transactional tools


def booking(bench: Bench, then: Callable[[Any], Any], athen: Callable[[Any], Any]) -> Any:
    """A transactional tool that books a room and then does what it is told to."""
    insert = sql.SQL("INSERT INTO {}.bookings VALUES (%s)").format(sql.Identifier(bench.saver.schema))
    if bench.is_async:

        @bench.ledger.transactional
        async def book(room: str, connection: psycopg.AsyncConnection) -> str:
            """Book a room."""
            await connection.execute(insert, [room])
            await athen(connection)
            return f"booked {room}"
    else:

        @bench.ledger.transactional
        def book(room: str, connection: psycopg.Connection) -> str:
            """Book a room."""
            connection.execute(insert, [room])
            then(connection)
            return f"booked {room}"

    return book


BOOK = calls(("call_1", "book", {"room": "7"}))


BOOK_AGAIN = calls(("call_2", "book", {"room": "7"}))


class Room:
    """A bench with a table of bookings."""

    def __init__(self, pair: tuple[Bench, Line], connection: psycopg.Connection) -> None:
        self.bench, self.line = pair
        self.connection = connection
        self.schema = self.bench.saver.schema
        connection.execute(f"CREATE TABLE {self.schema}.bookings (room text)")

    def graph(self, then: Callable[[Any], Any], athen: Callable[[Any], Any], model: Any = None, **options: Any) -> Any:
        """A graph whose model asks for a room, and for the same again."""
        answers = [BOOK, BOOK_AGAIN] if model is None else model
        return self.bench.agent([tool(booking(self.bench, then, athen))], *answers, **options)

    def booked(self) -> list[Any]:
        return self.connection.execute(f"SELECT room FROM {self.schema}.bookings").fetchall()

    def statuses(self) -> list[Any]:
        return rows(self.connection, self.schema, "status, attempt")

    async def goes_on(self) -> None:
        """Resume with a tool that works: it is booked once."""
        await self.bench.invoke(self.bench.agent([tool(booking(self.bench, nothing, anothing))], BOOK), None, thread())
        assert self.booked() == [("7",)]
        assert rows(self.connection, self.schema, "status") == [("success",)]


def nothing(lent: Any) -> None:
    pass


async def anothing(lent: Any) -> None:
    pass


@pytest.fixture
def room(broken: tuple[Bench, Line], connection: psycopg.Connection) -> Room:
    return Room(broken, connection)


async def aclose(lent: Any) -> None:
    await lent.execute("SELECT pg_terminate_backend(pg_backend_pid())")


WAYS = ["raised", "swallowed", "own error", "idle"]


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize(("way", "timeout"), crossed(WAYS, [None, 30.0]))
async def test_a_connection_lost_in_a_transactional_tool_is_no_failure_of_it(
    room: Room, way: str, timeout: float | None, handled: bool
) -> None:
    if timeout is not None:
        room.bench.ledger.policy("book", timeout=timeout)

    def then(lent: Any) -> None:
        try:
            if way == "idle":
                terminate(room.connection, "ledger")
            else:
                lent.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        except psycopg.Error as error:
            if way == "own error":
                raise RuntimeError("no room") from error
            if way == "raised":
                raise

    async def athen(lent: Any) -> None:
        try:
            if way == "idle":
                await asyncio.to_thread(terminate, room.connection, "ledger")
            else:
                await lent.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        except psycopg.Error as error:
            if way == "own error":
                raise RuntimeError("no room") from error
            if way == "raised":
                raise

    graph = room.graph(then, athen, handle_tool_errors=handled)
    with pytest.raises(UnavailableError, match="book was rolled back, it had no effect") as raised:
        await room.bench.invoke(graph, ask(), thread())
    assert raised.value.retryable
    assert raised.value.__cause__ is not None
    assert room.booked() == []
    assert room.statuses() == [("pending", 1)]
    await room.goes_on()


def fail(code: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    text = f"DO $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = '{code}'; END $$"

    async def athen(lent: Any) -> None:
        await lent.execute(text)

    return lambda lent: lent.execute(text), athen


@pytest.mark.parametrize("handled", [False, True])
@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_a_transaction_that_ran_into_another_is_no_failure_of_its_tool(
    room: Room, code: str, handled: bool
) -> None:
    graph = room.graph(*fail(code), handle_tool_errors=handled)
    with pytest.raises(ConflictError, match="rolled back, it had no effect") as raised:
        await room.bench.invoke(graph, ask(), thread())
    assert raised.value.sqlstate == code
    assert room.booked() == []
    assert room.statuses() == [("pending", 1)]
    await room.goes_on()


async def test_a_transaction_that_ran_into_another_is_retried_like_an_error(room: Room) -> None:
    room.bench.ledger.policy("book", on_error="retry", retry=ToolRetry(attempts=3, delay=0.0))
    failures = ["40001", "40P01"]

    def then(lent: Any) -> None:
        if failures:
            fail(failures.pop())[0](lent)

    async def athen(lent: Any) -> None:
        if failures:
            await fail(failures.pop())[1](lent)

    await room.bench.invoke(room.graph(then, athen, model=[BOOK]), ask(), thread())
    assert room.booked() == [("7",)]
    assert room.statuses() == [("success", 3)]


async def test_a_commit_that_ran_into_another_is_no_failure_of_its_tool(room: Room) -> None:
    name = f"{room.schema}.in_the_way"
    room.connection.execute(
        f"""CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = '40001'; END $$"""
    )
    room.connection.execute(
        f"""CREATE CONSTRAINT TRIGGER in_the_way AFTER INSERT ON {room.schema}.bookings DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION {name}()"""
    )
    with pytest.raises(ConflictError, match="rolled back"):
        await room.bench.invoke(room.graph(nothing, anothing), ask(), thread())
    assert room.statuses() == [("pending", 1)]
    room.connection.execute(f"DROP FUNCTION {name} CASCADE")
    await room.goes_on()


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("fault", ["lose", "cut"])
async def test_of_a_commit_without_confirmation_the_row_says_what_became(
    room: Room, fault: str, timeout: float | None
) -> None:
    if timeout is not None:
        room.bench.ledger.policy("book", timeout=timeout)
    left = [fault]
    room.line.fault = lambda data: left.pop() if b"COMMIT" in data and left else None
    graph = room.graph(nothing, anothing, [BOOK], handle_tool_errors=True)
    if fault == "lose":
        state = await room.bench.invoke(graph, ask(), thread())
        assert [message.content for message in state["messages"][2:3]] == ["booked 7"]
        assert room.booked() == [("7",)]
        assert room.statuses() == [("success", 1)]
    else:
        with pytest.raises(UnavailableError, match="rolled back"):
            await room.bench.invoke(graph, ask(), thread())
        assert room.booked() == []
        assert room.statuses() == [("pending", 1)]
        await room.goes_on()
    assert not left


async def test_of_a_commit_that_nobody_can_ask_about_the_next_call_finds_out(room: Room) -> None:
    def lose(data: bytes) -> str | None:
        if b"COMMIT" in data:
            room.line.fault = lambda data: "cut"
            return "lose"
        return None

    room.line.fault = lose
    graph = room.graph(nothing, anothing, handle_tool_errors=True)
    with pytest.raises(DatabaseError, match="finds out whether the transaction was committed"):
        await room.bench.invoke(graph, ask(), thread())
    assert room.booked() == [("7",)]
    room.line.fault = lambda data: None
    await room.goes_on()


async def test_a_transactional_function_in_a_node_may_be_run_again(room: Room) -> None:
    lost = [True]

    def then(lent: Any) -> None:
        if lost:
            lost.pop()
            lent.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    async def athen(lent: Any) -> None:
        if lost:
            lost.pop()
            await aclose(lent)

    once = room.bench.ledger.once(booking(room.bench, then, athen))
    graph = one_node(room.bench, lambda state: iter([once("7")]))
    with pytest.raises(UnavailableError, match="rolled back"):
        await room.bench.invoke(graph, ask(), thread())
    await room.bench.invoke(graph, None, thread())
    assert room.booked() == [("7",)]
