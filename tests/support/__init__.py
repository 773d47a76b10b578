"""Helpers of several test files: both APIs through one interface, small checkpoints, child processes, proxies."""

from __future__ import annotations

import asyncio
import multiprocessing
import operator
import os
import selectors
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.graph import END, START, StateGraph

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.embedded import EmbeddedServer
from langgraph_pgstate.record import journal
from langgraph_pgstate.schema.queries import queries

Saver = PGStateSaver | AsyncPGStateSaver
T = TypeVar("T")
APIS = [PGStateSaver, AsyncPGStateSaver]

# A child starts in milliseconds because everything is imported already; it must not touch its parent's connections.
FORK = multiprocessing.get_context("fork")
# No test measures time; these only turn a hang into a failure.
GUARD_SECONDS = 60.0


@asynccontextmanager
async def open_saver(api: type, dsn: str, schema: str, *, setup: bool = True, **options: Any) -> AsyncIterator[Any]:
    """Provide a saver of either API. Its async methods serve both: the blocking saver runs its own in a thread."""
    if api is PGStateSaver:
        with PGStateSaver.from_conn_string(dsn, schema=schema, **options) as saver:
            if setup:
                saver.setup()
            yield saver
        return
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema, **options) as saver:
        if setup:
            await saver.setup()
        yield saver


async def set_up(saver: Saver) -> None:
    """`setup()` of either API."""
    if isinstance(saver, AsyncPGStateSaver):
        await saver.setup()
    else:
        await asyncio.to_thread(saver.setup)


def check_each(check: Callable[[T], None], items: Iterable[T]) -> None:
    """Check every item, and name all that fail, with the reason."""
    failed = {}
    for item in items:
        try:
            check(item)
        except Exception as error:  # Also catch an assertion.
            failed[str(item)] = f"{type(error).__name__}: {error}"
    assert not failed, "\n".join(f"{item}: {why}" for item, why in failed.items())


def examples(number: int) -> int:
    """Return how many examples or rounds a test takes: all of them in `make test-all`, a twelfth of them otherwise."""
    return number if os.environ.get("PGSTATE_TEST_ALL") else max(2, number // 12)


def crossed(*dimensions: Sequence[Any]) -> list[Any]:
    """Return all combinations of parameters. Mark them `slow`, except for a few in which each value occurs."""
    few = {tuple(values[number % len(values)] for values in dimensions) for number in range(max(map(len, dimensions)))}
    return [pytest.param(*values, marks=() if values in few else pytest.mark.slow) for values in product(*dimensions)]


def spread(values: Iterable[Any], *, unpack: bool = False) -> list[Any]:
    """Return values for a parameter. Mark them `slow`, except for the first, the middle one and the last.

    Args:
        values: The values.
        unpack: Whether each holds the values of several parameters.
    """
    given = [*values]
    few = {0, len(given) // 2, len(given) - 1}
    return [
        pytest.param(*(value if unpack else [value]), marks=() if number in few else pytest.mark.slow)
        for number, value in enumerate(given)
    ]


def config_of(thread_id: str, namespace: str = "") -> dict[str, Any]:
    """Return a config that names a thread's latest checkpoint."""
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}}


def put_arguments(config: dict[str, Any], step: int, **values: Any) -> tuple[Any, Any, Any, Any]:
    """Arguments of `put` for a checkpoint whose channels all have the version `step`; a few messages by default."""
    values = values or {"messages": [HumanMessage(f"message {index}", id=str(index)) for index in range(step + 1)]}
    versions = dict.fromkeys(values, f"{step + 1:032}.{0:016}")
    checkpoint = {**empty_checkpoint(), "v": 4, "channel_values": values, "channel_versions": versions}
    return config, checkpoint, {"source": "loop", "step": step, "parents": {}}, versions


async def put_chain(saver: Saver, thread_id: str, length: int, **values: Any) -> list[dict[str, Any]]:
    """Put `length` checkpoints, each the parent of the next. Return their configs, oldest first."""
    configs = []
    config = config_of(thread_id)
    for step in range(length):
        config = await saver.aput(*put_arguments(config, step, **values))
        configs.append(config)
    return configs


class LoopState(TypedDict):
    """State of `loop_graph`: a growing list and how often the node ran."""

    items: Annotated[list[str], operator.add]
    count: int


def loop_graph(steps: int, hook: Callable[[int], Any] = lambda count: None) -> StateGraph[Any, Any, Any, Any]:
    """Return a graph whose one node appends an item in each superstep, until there are `steps`.

    Args:
        steps: Supersteps.
        hook: Called in the node with the number of items there are.
    """

    def step(state: LoopState) -> dict[str, Any]:
        hook(state["count"])
        return {"items": [f"item {state['count']}"], "count": state["count"] + 1}

    graph = StateGraph(LoopState)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: "step" if state["count"] < steps else END)
    return graph


async def invoke(graph: Any, saver: Saver, *arguments: Any, **options: Any) -> Any:
    """Run a compiled graph in the saver's own api."""
    if isinstance(saver, AsyncPGStateSaver):
        return await graph.ainvoke(*arguments, **options)
    return await asyncio.to_thread(graph.invoke, *arguments, **options)


def run_children(target: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[str]:
    """Run a function in a process for each tuple of arguments, all at once. Return the error of each, or ""."""
    barrier = FORK.Barrier(len(arguments))
    answers = FORK.SimpleQueue()

    def child(number: int) -> None:
        error = ""
        try:
            barrier.wait(GUARD_SECONDS)
            target(*arguments[number])
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
        answers.put((number, error))

    children = [FORK.Process(target=child, args=(number,), daemon=True) for number in range(len(arguments))]
    for process in children:
        process.start()
    for process in children:
        process.join(GUARD_SECONDS)
    hung = [process for process in children if process.is_alive()]
    for process in hung:
        process.kill()
    assert not hung, f"{len(hung)} processes hang"
    return [error for _, error in sorted(answers.get() for _ in children)]


@contextmanager
def holding(dsn: str, *statements: str) -> Iterator[psycopg.Connection]:
    """Another session that ran some statements and sits idle in its transaction; rolled back at the end."""
    with psycopg.connect(dsn) as other:
        for statement in statements:
            other.execute(statement)
        yield other
        other.rollback()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until a condition is true. Fail after a time."""
    patience = threading.Event()
    for _ in range(int(GUARD_SECONDS / 0.02)):
        if condition():
            return
        patience.wait(0.02)
    raise AssertionError(f"never came about: {what}")


def backends(connection: psycopg.Connection, application: str) -> list[int]:
    """Return process ids of the server's sessions of one application name."""
    rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [application]).fetchall()
    return [row[0] for row in rows]


def terminate(connection: psycopg.Connection, application: str) -> int:
    """End every session of one application name. Return their number."""
    pids = backends(connection, application)
    connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [pids])
    wait_until(lambda: not set(pids) & set(backends(connection, application)), "the sessions' end")
    return len(pids)


class RoundTrips:
    """A TCP proxy before the server that counts how often the client speaks after having listened.

    Each connection counts one for every change of direction from the server to the client. While `answers_to_lose` is
    positive, a response of the server is dropped, and its connection is closed.
    """

    def __init__(self, dsn: str) -> None:
        info = psycopg.conninfo.conninfo_to_dict(dsn)
        host, port = str(info.get("host", "")), str(info.get("port", 5432))
        self._target: Any = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host or "127.0.0.1", int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.count = 0
        self.answers_to_lose = 0
        changed = {"host": "127.0.0.1", "port": self._listener.getsockname()[1], "sslmode": "disable"}
        self.dsn = psycopg.conninfo.make_conninfo(dsn, **changed, gssencmode="disable")
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        family = socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET
        with client, socket.socket(family) as server, selectors.DefaultSelector() as selector, suppress(OSError):
            server.connect(self._target)
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            listening = True
            while True:
                for key, _ in selector.select():
                    if key.fileobj is client and listening:
                        # A busy client may send one request in two parts.
                        time.sleep(0.001)
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data:
                        return
                    if key.fileobj is client and listening:
                        self.count += 1
                    listening = key.fileobj is server
                    if listening and self.answers_to_lose > 0:
                        self.answers_to_lose -= 1
                        return
                    key.data.sendall(data)


class Gate:
    """A TCP proxy whose server can be changed: connections that were made stay with the server they were made to.

    While it is shut, every connection is accepted and closed. While it swallows, connections stay open, but no data is
    forwarded. It counts accepted connections.
    """

    def __init__(self, dsn: str) -> None:
        self.direct(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0))
        changed = {"host": "127.0.0.1", "port": self._listener.getsockname()[1], "sslmode": "disable"}
        self.dsn = psycopg.conninfo.make_conninfo(dsn, **changed, gssencmode="disable")
        self.is_shut = self.swallows = False
        self.taken = 0
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def direct(self, dsn: str) -> None:
        """Forward new connections to a server."""
        info = psycopg.conninfo.conninfo_to_dict(dsn)
        host, port = str(info.get("host") or "127.0.0.1"), int(info.get("port") or 5432)
        self._target: Any = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)

    def shut(self) -> None:
        """Drop all connections, and take no more."""
        self.is_shut = True
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """Drop all connections, and let new ones through."""
        self.shut()
        self.is_shut = self.swallows = False

    def close(self) -> None:
        """Stop listening."""
        self.shut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.taken += 1
                if self.is_shut:
                    client.close()
                    continue
                server = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
                try:
                    server.connect(self._target)
                except OSError:
                    client.close()
                    continue
                self._open |= {client, server}
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not self.swallows:
                    target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open -= {source, target}


def usual(trips: Sequence[int]) -> int:
    """Return how many round trips a call takes, of several counts: the median, so that one hiccup does not matter."""
    return statistics.median_low(trips)


@contextmanager
def counted(dsn: str) -> Iterator[RoundTrips]:
    """Provide a counting proxy before the server."""
    proxy = RoundTrips(dsn)
    try:
        yield proxy
    finally:
        proxy.close()


def move_journal(connection: psycopg.Connection, schema: str, is_dead: Callable[[str], bool] | None = None) -> int:
    """Move the journal's entries into the tables, as a writer does. Return their number."""
    return Database(connection, schema=schema).run(journal.recover, queries(schema), 0.0, is_dead)


def ended(connection: psycopg.Connection, schema: str, thread_id: str, **options: Any) -> list[tuple[Any, ...]]:
    """Wait until no run of a thread is running. Return its runs, oldest first."""
    query = (
        f"SELECT run_id, status, agent, user_id, error_type FROM {schema}.runs WHERE thread_id = %s ORDER BY started_at"
    )
    found: list[tuple[Any, ...]] = []

    def have_ended() -> bool:
        move_journal(connection, schema, **options)
        found[:] = connection.execute(query.encode(), [thread_id]).fetchall()
        return all(status != "running" for _, status, *_ in found)

    wait_until(have_ended, "the end of all runs")
    return found


class Restartable:
    """An embedded server of one test, to stop and start."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.dsn = dsn
        self.directory = directory
        self._server = EmbeddedServer(directory)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server and end every session. `immediate` is a crash."""
        self._server.stop(mode)

    def start(self) -> None:
        """Start the server again on its data."""
        self._server.start()
