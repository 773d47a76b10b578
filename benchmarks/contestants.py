"""The savers under comparison, each opened the way its own documentation says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import Connection
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from benchmarks.measure import LISTENER, MEMORY, OURS, PLAIN, RAW, UPSTREAM
from benchmarks.server import Server, with_search_path
from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.db.connecting import DEFAULT_PREPARE_THRESHOLD

# As in the documentation of langgraph-checkpoint-postgres.
UPSTREAM_OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
OUR_OPTIONS: dict[str, Any] = {"autocommit": True, "prepare_threshold": DEFAULT_PREPARE_THRESHOLD}
Saver = BaseCheckpointSaver[Any]

LABELS = {
    OURS: "langgraph-pgstate",
    UPSTREAM: "langgraph-checkpoint-postgres",
    MEMORY: "InMemorySaver",
    RAW: "raw INSERT",
    LISTENER: "a listener",
    PLAIN: "saver alone",
}
SHORT_LABELS = {**LABELS, OURS: "pgstate", UPSTREAM: "upstream"}


@dataclass(frozen=True, slots=True)
class Session:
    """One contestant at work.

    Attributes:
        name: Which contestant.
        schema: Where its tables are; `None` for one without.
        saver: The saver.
        fresh: Makes a saver over the same connections that remembers nothing.
    """

    name: str
    schema: str | None
    saver: Saver
    fresh: Callable[[], Saver]

    def restarted(self) -> Saver:
        """A saver over the same connections, as after a restart of the process: it remembers nothing."""
        saver = self.fresh()
        # A process looks at the schema once, not at every call.
        saver.get_tuple({"configurable": {"thread_id": "nobody", "checkpoint_ns": ""}})
        return saver


@contextmanager
def open_session(
    name: str, server: Server, *, dsn: str | None = None, pool: int | None = None, single: bool = False
) -> Iterator[Session]:
    """A contestant with empty tables.

    Args:
        name: Which contestant.
        server: Where the tables are made.
        dsn: Another way to that server (a proxy).
        pool: Connections. When left out, each saver's own default: a pool of 1 to 10 for ours, a single connection
            for LangGraph's, which is also its fastest way for a single thread.
        single: One connection for either, so that a single call is compared and not a pool's hand-over.
    """
    if name == MEMORY:
        memory = InMemorySaver()
        yield Session(name, None, memory, lambda: memory)
        return
    with server.schema(name) as schema:
        if name == OURS and single:
            with Connection.connect(dsn or server.dsn, **OUR_OPTIONS) as own:
                ours = PGStateSaver(own, schema=schema)
                ours.setup()
                # Over the same database object, which has prepared its statements, as upstream's connection has.
                yield Session(name, schema, ours, lambda: PGStateSaver._over(ours._database, {"schema": schema}))
            return
        if name == OURS:
            with ConnectionPool(
                dsn or server.dsn, kwargs=OUR_OPTIONS, min_size=pool or 1, max_size=pool or 10, open=True
            ) as connections:
                connections.wait()
                ours = PGStateSaver(connections, schema=schema)
                ours.setup()
                yield Session(name, schema, ours, lambda: PGStateSaver(connections, schema=schema))
            return
        path = with_search_path(dsn or server.dsn, schema)
        if pool is None:
            with Connection.connect(path, **UPSTREAM_OPTIONS) as connection:
                saver = PostgresSaver(connection)
                saver.setup()
                yield Session(name, schema, saver, lambda: PostgresSaver(connection))
            return
        with ConnectionPool(path, kwargs=UPSTREAM_OPTIONS, min_size=pool, max_size=pool, open=True) as connections:
            connections.wait()
            saver = PostgresSaver(connections)  # type: ignore[arg-type]
            saver.setup()
            yield Session(name, schema, saver, lambda: PostgresSaver(connections))  # type: ignore[arg-type]


@asynccontextmanager
async def open_async_session(
    name: str, server: Server, *, dsn: str | None = None, pool: int = 16
) -> AsyncIterator[Session]:
    """Async twin of `open_session`, on a pool."""
    with server.schema(name) as schema:
        path = (dsn or server.dsn) if name == OURS else with_search_path(dsn or server.dsn, schema)
        options = OUR_OPTIONS if name == OURS else UPSTREAM_OPTIONS
        async with AsyncConnectionPool(path, kwargs=options, min_size=pool, max_size=pool, open=False) as connections:
            await connections.wait()

            def make() -> AsyncPGStateSaver | AsyncPostgresSaver:
                if name == OURS:
                    return AsyncPGStateSaver(connections, schema=schema)
                return AsyncPostgresSaver(connections)  # type: ignore[arg-type]

            saver = make()
            await saver.setup()
            yield Session(name, schema, saver, make)


class RawInsert:
    """The floor: one prepared single-row INSERT of bytes, committed."""

    name = RAW

    def __init__(self, connection: Connection[Any], schema: str) -> None:
        self._connection = connection
        self._statement = f"INSERT INTO {schema}.raw (thread_id, checkpoint_id, data) VALUES (%s, %s, %s)".encode()
        connection.execute(
            f"CREATE TABLE {schema}.raw (thread_id text, checkpoint_id text, data bytea, "
            "PRIMARY KEY (thread_id, checkpoint_id))"
        )

    def insert(self, thread_id: str, checkpoint_id: str, data: bytes) -> None:
        """Insert one row."""
        self._connection.execute(self._statement, (thread_id, checkpoint_id, data), prepare=True, binary=True)


@contextmanager
def open_raw(server: Server) -> Iterator[RawInsert]:
    """The floor on a connection and a table of its own."""
    with server.schema(RAW) as schema, Connection.connect(server.dsn, autocommit=True) as connection:
        yield RawInsert(connection, schema)
