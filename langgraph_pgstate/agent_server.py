"""The saver, the recorder and the tool ledger for LangGraph's Agent Server and LangGraph Studio.

In `langgraph.json`:

    {"checkpointer": {"path": "langgraph_pgstate.agent_server:checkpointer"}}

For traces and for tools whose effects happen once, in the module that builds the graph:

    from langgraph_pgstate.agent_server import record, tools

    builder.add_node("tools", ToolNode([charge], awrap_tool_call=tools))
    graph = record(builder.compile())

The server imports graphs before an event loop exists, and may run them on several loops. A connection belongs to one
loop. Therefore the server enters `checkpointer` once per loop, and `record` and `tools` use the state of the loop they
are called on. `PGSTATE_*` variables set the database and the recording; see `AgentServerSettings`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.serializer import WideningSerializer
from langgraph_pgstate.db.database import DEFAULT_PREPARE_THRESHOLD, AsyncDatabase
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.errors import ConfigurationError, PGStateError, ToolSetupError
from langgraph_pgstate.operations.admin import schema
from langgraph_pgstate.operations.threads.expiry import ExpiryHook
from langgraph_pgstate.process_identity import holder_id
from langgraph_pgstate.record import LoopRecorder
from langgraph_pgstate.record.handler import RecordingHandler
from langgraph_pgstate.saver import AsyncPGStateSaver
from langgraph_pgstate.settings import AgentServerSettings, RecorderSettings
from langgraph_pgstate.sql import preload, queries
from langgraph_pgstate.state import AsyncPGState
from langgraph_pgstate.tools import AsyncToolLedger, ToolPolicy

_log = logging.getLogger("langgraph_pgstate.agent_server")


@dataclass(frozen=True, slots=True)
class _Opened:
    """The state opened on one event loop.

    Attributes:
        loop: The loop.
        state: Its connections and their APIs.
        is_recorded: Whether graphs are recorded.
    """

    loop: asyncio.AbstractEventLoop
    state: AsyncPGState
    is_recorded: bool


# Loops in different threads replace the whole tuple; it is read without a lock.
_opened: tuple[_Opened, ...] = ()
_opening = threading.Lock()
# The embedded server's library counts its users in a file and is not thread-safe.
_embedding = threading.Lock()


@asynccontextmanager
async def checkpointer() -> AsyncIterator[AsyncPGStateSaver]:
    """Provide the saver of the running event loop, in the form that the Agent Server expects.

    Its connections are closed at the end. It never blocks the loop. With `BG_JOB_ISOLATED_LOOPS` the server does not
    close it; the connections then end with the process, and no data is lost.

    Raises:
        ConfigurationError: If a `PGSTATE_*` variable is invalid, or the server refuses the connection.
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
        # In a thread, because it imports the named modules.
        serde = await asyncio.to_thread(WideningSerializer, settings.allowed)
        state = AsyncPGState._over(
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
            # The same saver without hooks, except that of the threads' time to live.
            expiry = ExpiryHook(queries(settings.schema), settings.thread_ttl) if settings.thread_ttl else None
            state.saver = AsyncPGStateSaver._over(database, {"schema": settings.schema, "serde": serde}, expiry)
        if settings.setup:
            await state.setup()
        else:
            await database.run(schema.check_version, queries(settings.schema))
        where = "the server that PGSTATE_DSN names" if settings.dsn else f"the embedded server, data in {settings.path}"
        _log.info("checkpoints are stored in schema %s of %s", settings.schema, where)
        opened = _Opened(asyncio.get_running_loop(), state, settings.record)
        _note(opened)
        try:
            yield state.saver
        finally:
            _forget(opened)
            # The error is logged; the server must go on closing other resources.
            with suppress(PGStateError):
                await state.close()


def state() -> AsyncPGState:
    """Return the `AsyncPGState` of the running event loop, for nodes, tools and routes of the server.

    Raises:
        ConfigurationError: If no event loop is running here, or the checkpointer is not open on it.
    """
    found = _here()
    if found is None:
        raise ConfigurationError(
            "there is no PGState on this event loop: langgraph.json must name "
            "langgraph_pgstate.agent_server:checkpointer, and this must be called on the server's loop, not in "
            "a blocking function (a test may open `async with checkpointer()`)"
        )
    return found.state


class LoopToolLedger(AsyncToolLedger):
    """A tool ledger that uses the connections of the event loop on which a tool is called.

    Policies are set once, when the graph is built.
    """

    def __init__(self) -> None:
        self._default = ToolPolicy()
        self._policies = {}
        self._functions = {}
        self._compensators = {}

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that needs connections from the ledger of the running loop."""
        if name not in ("_codec", "_runner", "_executor", "_queries", "_run_of", "_settings"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        try:
            return getattr(state().tools, name)
        except ConfigurationError as error:
            raise ToolSetupError(str(error)) from None

    async def close(self) -> None:
        """Do nothing: each loop's own ledger is closed with its checkpointer."""


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
    """Do work that reads files and is done once per process, so that no event loop has to."""
    preload(schema)
    holder_id()
    # Loads the compression dictionary.
    frames.pack(bytes(100))


def _note(opened: _Opened) -> None:
    global _opened  # noqa: PLW0603
    with _opening:
        _opened = (*_opened, opened)


def _forget(opened: _Opened) -> None:
    global _opened  # noqa: PLW0603
    with _opening:
        _opened = tuple(one for one in _opened if one is not opened)


@asynccontextmanager
async def _dsn(settings: AgentServerSettings) -> AsyncIterator[str]:
    """Provide the DSN, and run the embedded server meanwhile if it is used."""
    if settings.dsn is not None:
        yield settings.dsn
        return
    server = embedded_server(settings.path)

    def enter() -> str:
        with _embedding:
            return server.__enter__()

    def leave() -> None:
        with _embedding:
            server.__exit__(None, None, None)

    dsn = await asyncio.to_thread(enter)
    try:
        yield dsn
    finally:
        await asyncio.to_thread(leave)


_recorder = LoopRecorder(_recorder_here, _recorders)
record = _recorder.record
"""Return a graph with recording attached. Runs, spans and events are written when the server runs it."""
tools = LoopToolLedger()
"""The tool ledger: `ToolNode([...], awrap_tool_call=tools)`, `create_agent(..., middleware=[tools.middleware()])`."""
