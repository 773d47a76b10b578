"""What the Agent Server is handed: one saver for each event loop, the record, the ledger; told by `PGSTATE_*`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.base import _with_msgpack_allowlist
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph_sdk import get_client
from pydantic import BaseModel
from support import config_of, ended, move_journal
from support.server import ROOT, AgentServer

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.codec.serializer import WideningSerializer
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ConfigurationError, SchemaMissingError, ToolSetupError, UnsafeTypeError
from langgraph_pgstate.process_identity import is_known_dead
from langgraph_pgstate.server.langgraph_platform import AgentServerSettings, LoopToolLedger, checkpointer, record, state

pytestmark = pytest.mark.once


class Order(BaseModel):
    """A type of an application."""

    number: int


class Orders(TypedDict):
    order: Order


ORDER = f"{Order.__module__}:Order"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, dsn: str, schema: str) -> pytest.MonkeyPatch:
    """Variables that name the test's schema, and no others."""
    monkeypatch.setenv("PGSTATE_DSN", dsn)
    monkeypatch.setenv("PGSTATE_SCHEMA", schema)
    return monkeypatch


def order_graph() -> StateGraph[Any, Any, Any, Any]:
    return StateGraph(Orders).add_node("place", lambda orders: {"order": Order(number=7)}).add_edge(START, "place")


def count(connection: psycopg.Connection, schema: str, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone()
    assert row is not None
    return int(row[0])


# Settings


def test_settings_are_read_from_variables() -> None:
    assert AgentServerSettings.from_environment({}) == AgentServerSettings()
    given = {
        "PGSTATE_DSN": "postgresql://host/db",
        "PGSTATE_PATH": "/data",
        "PGSTATE_SCHEMA": "tenant_a",
        "PGSTATE_SETUP": "no",
        "PGSTATE_POOL_SIZE": "3",
        "PGSTATE_POOL_TIMEOUT": "2.5",
        "PGSTATE_PREPARE": "False",
        "PGSTATE_RECORD": "0",
        "PGSTATE_RECORD_CONTENT": "off",
        "PGSTATE_PROJECT": "booking, basket,",
        "PGSTATE_ALLOWED_TYPES": "shop.state:Order, shop.state:Item",
        "PGSTATE_THREAD_TTL": "30d",
    }
    read = AgentServerSettings.from_environment(given)
    assert (read.dsn, read.path, read.schema, read.setup) == ("postgresql://host/db", "/data", "tenant_a", False)
    assert (read.pool.max_size, read.pool.timeout) == (3, 2.5)
    assert (read.prepare, read.record, read.content) == (False, False, False)
    assert read.project == ("booking", "basket")
    assert read.allowed == (("shop.state", "Order"), ("shop.state", "Item"))
    assert read.thread_ttl == timedelta(days=30)
    assert AgentServerSettings.from_environment({"PGSTATE_ALLOWED_TYPES": "*"}).allowed is True
    assert (
        AgentServerSettings.from_environment(dict.fromkeys(given.keys() - {"PGSTATE_DSN"}, " "))
        == AgentServerSettings()
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PGSTATE_DSN", " "),
        ("PGSTATE_DSN", "host=a b"),
        ("PGSTATE_SCHEMA", "Tenant A"),
        ("PGSTATE_RECORD", "maybe"),
        ("PGSTATE_POOL_SIZE", "many"),
        ("PGSTATE_POOL_SIZE", "0"),
        ("PGSTATE_POOL_SIZE", "2.5"),
        ("PGSTATE_POOL_TIMEOUT", "-1"),
        ("PGSTATE_POOL_TIMEOUT", "nan"),
        ("PGSTATE_POOL_TIMEOUT", "inf"),
        ("PGSTATE_ALLOWED_TYPES", "shop.state.Order"),
        ("PGSTATE_ALLOWED_TYPES", "*, shop.state:Order"),
        ("PGSTATE_THREAD_TTL", "30"),
        ("PGSTATE_THREAD_TTL", "0d"),
        ("PGSTATE_THREAD_TTL", "9999999999w"),
    ],
)
async def test_a_wrong_variable_is_named(environment: pytest.MonkeyPatch, name: str, value: str) -> None:
    environment.setenv(name, value)
    with pytest.raises(ConfigurationError, match=r"schema|" + name):
        async with checkpointer():
            pass


# The saver of a loop


@pytest.mark.parametrize("separator", [":", "."])
async def test_the_path_in_langgraph_json_leads_to_the_checkpointer(
    environment: pytest.MonkeyPatch, separator: str
) -> None:
    """langgraph-api cuts it at the last dot, and looks into the module's dict."""
    module, _, name = f"langgraph_pgstate.agent_server{separator}checkpointer".rpartition(".")
    async with sys.modules[module].__dict__[name]() as saver:
        assert saver is state().saver


@pytest.mark.bare
async def test_the_tables_are_made_unless_that_is_forbidden(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("PGSTATE_SETUP", "false")
    with pytest.raises(SchemaMissingError):
        async with checkpointer():
            pass
    for setup in ("true", "false"):
        environment.setenv("PGSTATE_SETUP", setup)
        async with checkpointer() as saver:
            assert await saver.aget_tuple(config_of("t")) is None


@pytest.mark.slow
async def test_without_a_dsn_the_embedded_one_is_used(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.delenv("PGSTATE_DSN")
    environment.setenv("PGSTATE_ALLOWED_TYPES", ORDER)
    environment.setenv("PGSTATE_PATH", str(tmp_path / "data"))

    async def work() -> None:
        async with checkpointer() as saver:
            await order_graph().compile(checkpointer=saver).ainvoke({}, config_of(f"t{id(saver)}"))

    # Several loops start at once, and the last one out stops it.
    await asyncio.gather(work(), *(in_its_own_loop(work) for _ in range(3)))
    assert not (tmp_path / "data" / "postmaster.pid").exists()
    async with checkpointer() as saver:
        assert len({found.config["configurable"]["thread_id"] async for found in saver.alist(None)}) == 4
    assert not (tmp_path / "data" / "postmaster.pid").exists()


async def test_it_says_which_database_it_is_but_no_password(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, dsn: str, schema: str
) -> None:
    with caplog.at_level("INFO", "langgraph_pgstate"):
        async with checkpointer():
            pass
    assert schema in caplog.text
    assert "PGSTATE_DSN" in caplog.text
    assert dsn not in caplog.text


async def test_it_says_where_the_parts_are(environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"langgraph\.json"):
        state()
    async with checkpointer() as saver:
        assert state().saver is saver
        with pytest.raises(ConfigurationError, match="must run on the loop"):
            await asyncio.to_thread(state)
    with pytest.raises(ConfigurationError):
        state()


async def test_connections_are_closed_also_when_the_record_cannot_be_written(
    environment: pytest.MonkeyPatch, connection: psycopg.Connection, schema: str
) -> None:
    """The server has more to close."""
    async with checkpointer() as saver:
        graph = record(order_graph().compile(checkpointer=saver))
        await graph.ainvoke({}, config_of("t"))
        stream = graph.astream({}, config_of("u"))
        await anext(stream)
        connection.execute(f"DROP SCHEMA {schema} CASCADE")
    assert saver._database._pool is not None
    assert saver._database._pool.closed


# Loops


async def in_its_own_loop(function: Any) -> Any:
    """Run a coroutine function on another event loop, in another thread, as the server's isolated workers are."""
    return await asyncio.to_thread(lambda: asyncio.run(function()))


async def test_each_loop_has_its_own(environment: pytest.MonkeyPatch) -> None:
    seen = []

    async def work() -> None:
        async with checkpointer() as saver:
            assert state().saver is saver
            seen.append(saver)
            await asyncio.sleep(0)
            assert state().saver is saver

    async with checkpointer() as mine:
        await asyncio.gather(*(in_its_own_loop(work) for _ in range(3)))
        assert state().saver is mine
    assert len({id(saver) for saver in [*seen, mine]}) == 4


class Answers(MessagesState):
    pass


def graph_with_tools(ledger: LoopToolLedger, **options: Any) -> Any:
    """A tool, and a blocking node that calls something which is traced."""

    @tool
    async def charge(order: str) -> str:
        """Charge."""
        return f"charged {order}"

    def audit(said: Answers) -> dict[str, Any]:
        RunnableLambda(lambda text: text, name="auditor").invoke("all is well")
        return {}

    builder = StateGraph(Answers)
    wish = {"name": "charge", "args": {"order": "17"}, "id": "call"}
    builder.add_node("ask", lambda said: {"messages": [AIMessage("", id="wish", tool_calls=[wish])]})
    builder.add_node("pay", ToolNode([charge], awrap_tool_call=ledger, **options))
    builder.add_node("audit", audit)
    builder.add_edge(START, "ask").add_edge("ask", "pay").add_edge("pay", "audit")
    return record(builder.compile())


async def test_the_ledger_keeps_its_policies_and_does_each_action_once(environment: pytest.MonkeyPatch) -> None:
    ledger = LoopToolLedger()
    done = []

    @ledger.once(key=lambda arguments: arguments["order"])
    async def ship(order: str) -> str:
        done.append(order)
        return "shipped"

    async def node(said: Answers) -> dict[str, Any]:
        return {"messages": [AIMessage(await ship("17"))]}

    builder = StateGraph(Answers).add_node(node).add_edge(START, "node")
    for _ in range(2):
        async with checkpointer() as saver:
            await builder.compile(checkpointer=saver).ainvoke({"messages": []}, config_of("t"))
            assert [one.tool for one in await ledger.list("t")] == ["ship"]
    assert done == ["17"]
    with pytest.raises(ConfigurationError, match=r"langgraph\.json"):
        await ledger.list("t")
    with pytest.raises(AttributeError):
        _ = ledger.nonsense


async def test_nothing_but_checkpoints_when_told_so(
    environment: pytest.MonkeyPatch, connection: psycopg.Connection, schema: str
) -> None:
    environment.setenv("PGSTATE_RECORD", "false")
    graph = graph_with_tools(LoopToolLedger())
    async with checkpointer() as saver:
        assert state().saver is saver
        await graph.copy(update={"checkpointer": saver}).ainvoke({"messages": []}, config_of("t"))
    assert [count(connection, schema, table) for table in ("runs", "spans", "events", "messages")] == [0] * 4
    # The ledger is no record: the tool's effect still takes place once.
    assert count(connection, schema, "tool_executions") == 1


@pytest.mark.parametrize("recorded", ["true", "false"])
async def test_new_threads_have_the_time_to_live_that_the_variable_says(
    environment: pytest.MonkeyPatch, recorded: str
) -> None:
    environment.setenv("PGSTATE_RECORD", recorded)
    builder = StateGraph(MessagesState).add_node("say", lambda said: {}).add_edge(START, "say")
    async with checkpointer() as saver:
        await builder.compile(checkpointer=saver).ainvoke({"messages": []}, config_of("before"))
    environment.setenv("PGSTATE_THREAD_TTL", "12h")
    async with checkpointer() as saver:
        graph = builder.compile(checkpointer=saver)
        for thread_id in ("before", "after"):
            await graph.ainvoke({"messages": []}, config_of(thread_id))
        expires = {thread.thread_id: thread.expires_at for thread in (await state().threads.list()).items}
    assert expires["before"] is None
    assert timedelta(hours=11) < expires["after"] - datetime.now(UTC) < timedelta(hours=13)


async def test_the_ledger_asks_that_of_the_loop_for_all_that_needs_connections(dsn: str, schema: str) -> None:
    async with AsyncPGState.open(dsn, schema=schema, pool=1) as opened:
        needed = vars(opened.tools).keys() - vars(LoopToolLedger()).keys()
    assert {"_executor", "_queries"} <= needed
    for name in needed:
        with pytest.raises(ToolSetupError, match="there is no PGState on this event loop"):
            getattr(LoopToolLedger(), name)


async def test_tools_without_a_server_stop_the_run_whatever_the_model_is_told() -> None:
    with pytest.raises(ToolSetupError, match="there is no PGState on this event loop"):
        await graph_with_tools(LoopToolLedger(), handle_tool_errors=True).ainvoke({"messages": []}, config_of("t"))


@pytest.mark.slow
def test_nothing_blocks_the_loop(environment: pytest.MonkeyPatch) -> None:
    """In a new process, where nothing is cached, with all of blockbuster's guards, of which the server uses some."""
    script = """
        import asyncio
        from zoneinfo import ZoneInfo
        from blockbuster import BlockBuster
        from langgraph.graph import START, MessagesState, StateGraph
        from langgraph_pgstate.agent_server import checkpointer, record, state
        from langgraph_pgstate.process_identity import is_known_dead, holder_id

        builder = StateGraph(MessagesState).add_node("say", lambda said: {"messages": ["x" * 600_000]})
        graph = record(builder.add_edge(START, "say").compile())

        async def main():
            # psycopg would read it on the loop, once; langgraph dev lets it.
            ZoneInfo("UTC")
            guard = BlockBuster()
            guard.activate()
            try:
                async with checkpointer() as saver:
                    config = {"configurable": {"thread_id": "t"}}
                    mine = graph.copy(update={"checkpointer": saver})
                    for _ in range(3):
                        await mine.ainvoke({"messages": ["hello"]}, config)
                    assert len([one async for one in mine.aget_state_history(config)]) == 9
                    await saver.acopy_thread("t", "u")
                    await saver.aprune(["u"])
                    assert not is_known_dead(holder_id())
                    [run, *_] = (await state().runs.list(thread_id="t")).items
                    assert run.status == "success", run
                    await saver.adelete_for_runs([run.run_id])
                    await saver.adelete_thread("t")
            finally:
                guard.deactivate()

        asyncio.run(main())
    """
    environment.setenv("PGTZ", "UTC")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]


async def test_who_asks_is_known_and_the_request_is_not_kept(
    environment: pytest.MonkeyPatch, connection: psycopg.Connection, schema: str
) -> None:
    """The server hands both along in `configurable`."""
    request = {
        "langgraph_request_id": "r-1",
        "langgraph_auth_user_id": "eve",
        "langgraph_auth_user": {"identity": "eve", "token": "secret"},
        "langgraph_auth_permissions": ["threads:read"],
        "graph_id": "orders",
    }
    config: Any = {"configurable": {**config_of("t")["configurable"], **request}}
    async with checkpointer() as saver:
        graph = record(order_graph().compile(checkpointer=saver))
        await graph.ainvoke({}, config)
        found = [one.metadata async for one in saver.alist(config_of("t"), metadata_only=True)]
    assert [set(one) & set(request) for one in found] == [{"graph_id"}] * len(found)
    owners = f"SELECT user_id, agent FROM {schema}.threads UNION ALL SELECT user_id, agent FROM {schema}.runs"
    assert connection.execute(owners).fetchall() == [("eve", "orders")] * 2


# Types of the application


def test_a_serializer_is_widened_in_place() -> None:
    serde = WideningSerializer(strict=True)
    codec = ValueCodec(serde)
    assert codec.is_native
    stored = codec.dumps("order", Order(number=1))
    with pytest.raises(UnsafeTypeError, match="Order"):
        codec.loads(*stored, "order")
    # This is what LangGraph does with the serializer of a saver that was wrapped.
    assert _with_msgpack_allowlist(serde, [(Order.__module__, "Order")]) is serde
    assert codec.loads(*stored, "order") == Order(number=1)
    assert ValueCodec(WideningSerializer(True)).loads(*stored, "order") == Order(number=1)


@pytest.mark.parametrize("allowed", ["", ORDER, "*"])
async def test_types_are_built_when_they_are_allowed(environment: pytest.MonkeyPatch, allowed: str) -> None:
    """In strict mode; without it, data types of the graphs' modules need no word."""
    async with checkpointer() as saver:
        graph = order_graph().compile(checkpointer=saver)
        await graph.ainvoke({}, config_of("before"))
        assert (await graph.aget_state(config_of("before"))).values["order"] == Order(number=7)
    environment.setenv("PGSTATE_ALLOWED_TYPES", allowed)
    environment.setattr("langgraph.checkpoint.serde._msgpack.STRICT_MSGPACK_ENABLED", True)
    async with checkpointer() as saver:
        graph = order_graph().compile(checkpointer=saver)
        await graph.ainvoke({}, config_of("t"))
        if allowed:
            assert (await graph.aget_state(config_of("t"))).values["order"] == Order(number=7)
        else:
            with pytest.raises(UnsafeTypeError, match="Order"):
                await graph.aget_state(config_of("t"))


# The server in LangGraph's strict mode, with types of its own

ORDERS = """
    from typing import Any, TypedDict

    from langchain_core.runnables import RunnableLambda
    from langgraph.graph import START, StateGraph
    from langgraph.types import interrupt
    from pydantic import BaseModel

    from langgraph_pgstate.agent_server import record


    class Item(BaseModel):
        name: str


    class Order(BaseModel):
        items: list[Item]


    class State(TypedDict, total=False):
        order: Order
        seen: list[str]


    def place(state: State) -> Any:
        RunnableLambda(lambda text: text, name="auditor").invoke("all is well")
        return {"order": Order(items=[Item(name="book")])}


    def confirm(state: State) -> Any:
        return {"seen": [type(state["order"]).__name__, type(state["order"].items[0]).__name__, interrupt("Ship it?")]}


    inner = StateGraph(State).add_sequence([place, confirm]).add_edge(START, "place").compile(name="inner")
    graph = record(StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile())
"""


@pytest.fixture
def strict(request: pytest.FixtureRequest, dsn: str, schema: str, tmp_path: Path) -> Iterator[AgentServer]:
    """A server in strict mode, with a loop for each worker if asked for."""
    variables = {"BG_JOB_ISOLATED_LOOPS": getattr(request, "param", "false"), "LANGGRAPH_STRICT_MSGPACK": "true"}
    server = AgentServer(tmp_path / "server", {"PGSTATE_DSN": dsn, "PGSTATE_SCHEMA": schema, **variables})
    (server.directory / "orders.py").write_text(textwrap.dedent(ORDERS))
    configuration = server.directory / "langgraph.json"
    listed = '"graphs": {"orders": "./orders.py:graph", '
    configuration.write_text(configuration.read_text().replace('"graphs": {', listed))
    yield server
    if server.is_running:
        server.stop(signal.SIGKILL)


@pytest.mark.slow
async def test_a_restart_loses_nothing(strict: AgentServer, connection: psycopg.Connection, schema: str) -> None:
    strict.start()
    async with get_client(url=strict.url, api_key=None) as client:
        thread = str((await client.threads.create(metadata={"user_id": "eve"}))["thread_id"])
        await client.runs.wait(thread, "orders", input={}, raise_error=True)
        before = await client.threads.get_history(thread, limit=50)
        inside: Any = (await client.threads.get_state(thread, subgraphs=True))["tasks"][0]["state"]
        assert inside["next"] == ["confirm"]
        # The server is asked to go while it works.
        busy = str((await client.threads.create())["thread_id"])
        await client.runs.create(busy, "travel", input={"messages": "Hello"}, context={"pace": 5})
        while not await client.threads.get_history(busy, limit=1):
            await asyncio.sleep(0.05)
    strict.stop(signal.SIGTERM)
    # The run that was cut off, which the server will try again.
    assert [text for text in strict.complaints() if "CancelledError" not in text] == []
    strict.start()
    async with get_client(url=strict.url, api_key=None) as client:
        assert await client.threads.get_history(thread, limit=50) == before
        assert (await client.threads.get(thread))["status"] == "interrupted"
        final: Any = await client.runs.wait(thread, "orders", command={"resume": "yes"}, raise_error=True)
        assert final["seen"] == ["Order", "Item", "yes"]
    strict.stop()
    assert [text for text in strict.complaints() if "CancelledError" not in text] == []
    assert [status for _, status, *_ in ended(connection, schema, thread)] == ["interrupted", "success"]
    # From a blocking node, in another thread.
    found = connection.execute(f"SELECT status FROM {schema}.spans WHERE name = 'auditor'").fetchall()
    assert found == [("success",)]


@pytest.mark.slow
@pytest.mark.parametrize("strict", ["true"], indirect=True, ids=["isolated"])
async def test_a_killed_server_loses_nothing_either(
    strict: AgentServer, connection: psycopg.Connection, schema: str
) -> None:
    """langgraph dev keeps its own list of threads in files that it writes every ten seconds; state is in PostgreSQL."""
    strict.start()
    hello: Any = {"messages": [{"role": "user", "content": "Hello"}]}
    async with get_client(url=strict.url, api_key=None) as client:
        thread = str((await client.threads.create())["thread_id"])
        await client.runs.wait(thread, "travel", input=hello, raise_error=True)
        before = await client.threads.get_state(thread)
        await client.runs.create(thread, "travel", input=hello, context={"pace": 5})
        while (await client.threads.get_state(thread))["next"] != ["agent"]:
            await asyncio.sleep(0.05)
    strict.stop(signal.SIGKILL)
    strict.start()
    async with get_client(url=strict.url, api_key=None) as client:
        await client.threads.create(thread_id=thread, if_exists="do_nothing", graph_id="travel")
        again = await client.threads.get_state(thread, checkpoint=before["checkpoint"])
        assert again["values"] == before["values"]
        final: Any = await client.runs.wait(thread, "travel", input=None, raise_error=True)
        assert [said["type"] for said in final["messages"]] == ["human", "ai", "human", "ai"]
    strict.stop()
    assert strict.complaints() == []
    # The run of the process that died is known to have died with it; what the last one noted is for whoever reads.
    move_journal(connection, schema, is_known_dead)
    found = connection.execute(
        f"SELECT status, error_type FROM {schema}.runs WHERE thread_id = %s ORDER BY started_at", [thread]
    ).fetchall()
    assert [status for status, _ in found] == ["success", "error", "success"]


@pytest.mark.long
def test_the_example_on_the_embedded_server(tmp_path: Path) -> None:
    """As `make studio` starts it."""
    server = AgentServer(tmp_path / "server", {})
    server.start()
    note = server.directory / ".pgstate" / "postmaster.pid"
    assert note.exists()
    server.stop()
    assert server.complaints() == []
    assert not note.exists()
