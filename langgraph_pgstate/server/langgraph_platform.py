"""The saver, the recorder and the tool ledger for LangGraph's Agent Server and LangGraph Studio.

In `langgraph.json`:

    {"checkpointer": {"path": "langgraph_pgstate.agent_server:checkpointer"}}

For traces, and for tools whose effects must happen once, write in the module that builds the graph:

    from langgraph_pgstate.agent_server import record, tools

    builder.add_node("tools", ToolNode([charge], awrap_tool_call=tools))
    graph = record(builder.compile())

The server imports graphs before an event loop exists, and may run graphs on several loops. A connection belongs to one
loop. So the server enters `checkpointer` once per loop, and `record` and `tools` use the state of the running loop.
`PGSTATE_*` variables set the database and the recording; see `AgentServerSettings`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, Self, cast

from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.serializer import WideningSerializer
from langgraph_pgstate.db.connecting import DEFAULT_PREPARE_THRESHOLD
from langgraph_pgstate.db.database import AsyncDatabase
from langgraph_pgstate.db.dsn import read_dsn
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.db.finishing import entered_in_thread
from langgraph_pgstate.errors import ConfigurationError, PGStateError, ToolSetupError
from langgraph_pgstate.langgraph_compat import warn_if_untested
from langgraph_pgstate.options import (
    DEFAULT_EMBEDDED_PATH,
    DEFAULT_SCHEMA,
    DSN_VARIABLE,
    PoolSettings,
    age,
    check_allowed_types,
    check_schema_name,
    check_ttl,
    dsn_from_environment,
)
from langgraph_pgstate.process_identity import holder_id
from langgraph_pgstate.record import LoopRecorder
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.handler import RecordingHandler
from langgraph_pgstate.saver import AsyncPGStateSaver
from langgraph_pgstate.schema.queries import preload, queries
from langgraph_pgstate.state import AsyncPGState
from langgraph_pgstate.threads.expiry import ExpiryHook
from langgraph_pgstate.tools import AsyncToolLedger, ToolPolicy

_log = logging.getLogger("langgraph_pgstate.agent_server")
_FLAGS: Final = {
    "true": True,
    "false": False,
    "1": True,
    "0": False,
    "yes": True,
    "no": False,
    "on": True,
    "off": False,
}


@dataclass(frozen=True, slots=True)
class AgentServerSettings:
    """Settings of the Agent Server, read from environment variables. They can be set in `env` of `langgraph.json`.

    Attributes:
        dsn: `PGSTATE_DSN`, a libpq connection string or URI; the embedded PostgreSQL is used if it is not set.
        path: `PGSTATE_PATH`, the data directory of the embedded PostgreSQL, relative to the server's working directory;
            `.pgstate` by default.
        schema: `PGSTATE_SCHEMA`, the schema of the tables; `pgstate` by default.
        setup: `PGSTATE_SETUP`, whether the tables are made or brought up to date at the start; `true` by default.
        pool: `PGSTATE_POOL_SIZE`, the maximum number of connections of each event loop (10 by default), and
            `PGSTATE_POOL_TIMEOUT`, the seconds to wait for a connection (30 by default). A server has one event loop;
            with `BG_JOB_ISOLATED_LOOPS`, each of its workers has one, too.
        prepare: `PGSTATE_PREPARE`, whether statements are prepared, `true` by default; `false` for a PgBouncer before
            1.21.
        record: `PGSTATE_RECORD`, whether runs, spans, events and messages are written beside checkpoints; `true` by
            default.
        content: `PGSTATE_RECORD_CONTENT`, whether inputs and outputs of runs and spans are written; `true` by default.
        project: `PGSTATE_PROJECT`, channels that are also stored as JSON, separated by commas, like `booking,basket`.
        allowed: `PGSTATE_ALLOWED_TYPES`, types that may be built from stored state, like `shop.state:Order`, separated
            by commas. Data types of modules that the server has imported are always allowed. `*` allows all types, and
            so trusts everybody who can write to the database.
        thread_ttl: `PGSTATE_THREAD_TTL`, how long new threads are kept after their last activity, like `30d` or `12h`;
            for ever if it is not set. `pgstate maintain` deletes them after that time.
    """

    dsn: str | None = field(default=None, repr=False)
    path: str = DEFAULT_EMBEDDED_PATH
    schema: str = DEFAULT_SCHEMA
    setup: bool = True
    pool: PoolSettings = field(default_factory=PoolSettings)
    prepare: bool = True
    record: bool = True
    content: bool = True
    project: tuple[str, ...] = ()
    allowed: tuple[tuple[str, str], ...] | Literal[True] = ()
    thread_ttl: timedelta | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the variables. An empty variable counts as absent, but an empty `PGSTATE_DSN` is refused.

        Args:
            environment: Environment variables; those of the process by default.

        Raises:
            ConfigurationError: If a variable's value is not usable.
        """
        given = os.environ if environment is None else environment
        read = _Variables(given)
        path, schema = read.text("PGSTATE_PATH"), read.text("PGSTATE_SCHEMA")
        size, timeout = read.text("PGSTATE_POOL_SIZE"), read.text("PGSTATE_POOL_TIMEOUT")
        pool = PoolSettings()
        return cls(
            dsn=dsn_from_environment(given),
            path=path or DEFAULT_EMBEDDED_PATH,
            schema=check_schema_name(schema or DEFAULT_SCHEMA),
            setup=read.flag("PGSTATE_SETUP"),
            pool=PoolSettings(
                max_size=pool.max_size if size is None else int(read.positive("PGSTATE_POOL_SIZE", int)),
                timeout=pool.timeout if timeout is None else read.positive("PGSTATE_POOL_TIMEOUT", float),
            ),
            prepare=read.flag("PGSTATE_PREPARE"),
            record=read.flag("PGSTATE_RECORD"),
            content=read.flag("PGSTATE_RECORD_CONTENT"),
            project=read.names("PGSTATE_PROJECT"),
            allowed=read.types("PGSTATE_ALLOWED_TYPES"),
            thread_ttl=read.ttl("PGSTATE_THREAD_TTL"),
        )


class _Variables:
    """Environment variables, parsed and checked."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str) -> str | None:
        return self._environment.get(name, "").strip() or None

    def flag(self, name: str) -> bool:
        value = (self.text(name) or "true").lower()
        if value not in _FLAGS:
            raise ConfigurationError(f"{name} must be {' or '.join(_FLAGS)}, not {value!r}")
        return _FLAGS[value]

    def positive(self, name: str, kind: Callable[[str], float]) -> float:
        value = self.text(name) or ""
        try:
            number = kind(value)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            raise ConfigurationError(f"{name} must be a number above 0, not {value!r}")
        return number

    def ttl(self, name: str) -> timedelta | None:
        value = self.text(name)
        try:
            return None if value is None else check_ttl(name, age(value))
        except ConfigurationError:
            raise ConfigurationError(
                f"{name} must be a number and s, m, h, d or w, like 30d or 12h, more than 0 and less than 1,000 years, "
                f"not {value!r}"
            ) from None

    def names(self, name: str) -> tuple[str, ...]:
        parts = (part.strip() for part in (self.text(name) or "").split(","))
        return tuple(part for part in parts if part)

    def types(self, name: str) -> tuple[tuple[str, str], ...] | Literal[True]:
        return cast("tuple[tuple[str, str], ...] | Literal[True]", check_allowed_types(self.names(name), name))


@dataclass(frozen=True, slots=True)
class _Opened:
    """The state that is open on an event loop."""

    loop: asyncio.AbstractEventLoop
    state: AsyncPGState
    is_recorded: bool


# A writer replaces the whole tuple, so that readers need no lock.
_opened: tuple[_Opened, ...] = ()
_opening = threading.Lock()
# The library that starts and stops the embedded server is not thread-safe: it counts the server's users in a file.
_embedding = threading.Lock()


@asynccontextmanager
async def checkpointer() -> AsyncIterator[AsyncPGStateSaver]:
    """Provide the saver of the running event loop, in the form that the Agent Server expects.

    The saver never blocks the loop. Its connections are closed at the end of the block. With `BG_JOB_ISOLATED_LOOPS`,
    the Agent Server does not leave the block. The connections then end with the process, and no data is lost.

    Raises:
        ConfigurationError: If a `PGSTATE_*` variable is invalid, or PostgreSQL refuses the connection.
        UnavailableError: If PostgreSQL does not respond.
        SchemaError: If the tables do not match this package and `PGSTATE_SETUP` forbids migrating them.
    """
    settings = AgentServerSettings.from_environment()
    await asyncio.to_thread(_read_files, settings.schema)
    threshold = DEFAULT_PREPARE_THRESHOLD if settings.prepare else None
    async with (
        _dsn(settings) as dsn,
        AsyncDatabase.open(dsn, schema=settings.schema, pool=settings.pool, prepare_threshold=threshold) as database,
    ):
        # Make the serializer in a thread, because it imports the modules of the allowed types.
        serde = await asyncio.to_thread(WideningSerializer, settings.allowed)
        state = AsyncPGState.over(
            database,
            {
                "schema": settings.schema,
                "serde": serde,
                "project": settings.project,
                "recording": RecorderSettings(content=settings.content),
                "thread_ttl": settings.thread_ttl,
            },
        )
        if not settings.record:
            # Without recording, the saver has only the hook for the threads' time to live.
            expiry = ExpiryHook(queries(settings.schema), settings.thread_ttl) if settings.thread_ttl else None
            state.saver = AsyncPGStateSaver.over(database, {"schema": settings.schema, "serde": serde}, expiry)
        if settings.setup:
            await state.setup()
        else:
            await state.check_schema()
        where = "the server that PGSTATE_DSN names" if settings.dsn else f"the embedded server, data in {settings.path}"
        _log.info("checkpoints are stored in schema %s of %s", settings.schema, where)
        opened = _Opened(asyncio.get_running_loop(), state, settings.record)
        _note(opened)
        try:
            yield state.saver
        finally:
            _forget(opened)
            # An error must not keep the server from closing its other resources.
            with suppress(PGStateError):
                await state.close()


@contextmanager
def serving(state: AsyncPGState) -> Iterator[None]:
    """Make `state`, `record` and `tools` of this module use the caller's state on the running event loop.

    A graph that was written for the Agent Server can then run in another program. That program records the graph, so
    `record` adds nothing.
    """
    opened = _Opened(asyncio.get_running_loop(), state, is_recorded=False)
    _note(opened)
    try:
        yield
    finally:
        _forget(opened)


def state() -> AsyncPGState:
    """Return the `AsyncPGState` of the running event loop, for nodes, tools and routes of the server.

    Raises:
        ConfigurationError: If no event loop is running here, or the checkpointer is not open on it.
    """
    found = _here()
    if found is None:
        raise ConfigurationError(
            "there is no PGState on this event loop: the caller must run on the loop of `pgstate serve`, of "
            "`pgstate worker`, or of a server whose langgraph.json names langgraph_pgstate.agent_server:checkpointer "
            "(a test may open `async with checkpointer()`)"
        )
    return found.state


class LoopToolLedger(AsyncToolLedger):
    """A tool ledger that uses the connections of the event loop on which a tool is called.

    Policies of tools apply on all event loops. Set them once, when the graph is built.
    """

    def __init__(self) -> None:
        self._default = ToolPolicy()
        self._policies = {}
        self._functions = {}
        self._compensators = {}
        self._places = {}

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that needs connections, from the ledger of the running loop."""
        if name not in ("_calls", "_codec", "_executor", "_queries", "_runner", "_settings"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            return getattr(state().tools, name)
        except ConfigurationError as error:
            raise ToolSetupError(str(error)) from None

    async def close(self) -> None:
        """Do nothing. The checkpointer of each loop closes the loop's own ledger."""


def _here() -> _Opened | None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return next((one for one in reversed(_opened) if one.loop is loop), None)


def _recorder_here() -> RecordingHandler | None:
    found = _here()
    return found.state.recorder() if found is not None and found.is_recorded else None


def _recorders() -> list[RecordingHandler]:
    return [one.state.recorder() for one in _opened if one.is_recorded]


def _read_files(schema: str) -> None:
    """Read and cache files of this package, so that no event loop has to read them."""
    preload(schema)
    holder_id()
    warn_if_untested()
    # Load the dictionary for compression by packing some bytes.
    frames.pack(bytes(100))


def _note(opened: _Opened) -> None:
    global _opened  # noqa: PLW0603
    with _opening:
        _opened = (*_opened, opened)


def _forget(opened: _Opened) -> None:
    global _opened  # noqa: PLW0603
    with _opening:
        _opened = tuple(one for one in _opened if one is not opened)


@contextmanager
def _embedded(path: str) -> Iterator[str]:
    server = embedded_server(path)
    with _embedding:
        dsn = server.__enter__()
    try:
        yield dsn
    finally:
        with _embedding:
            server.__exit__(None, None, None)


@asynccontextmanager
async def _dsn(settings: AgentServerSettings) -> AsyncIterator[str]:
    """Provide the DSN. Without a DSN in the settings, run the embedded server until the end of the block."""
    if settings.dsn is not None:
        read_dsn(settings.dsn, DSN_VARIABLE)
        yield settings.dsn
        return
    async with entered_in_thread(_embedded(settings.path)) as dsn:
        yield dsn


_recorder = LoopRecorder(_recorder_here, _recorders)
record = _recorder.record
"""Return a graph with recording attached. The server then writes runs, spans and events of the graph."""
tools = LoopToolLedger()
"""The tool ledger: `ToolNode([...], awrap_tool_call=tools)`, `create_agent(..., middleware=[tools.middleware()])`."""
