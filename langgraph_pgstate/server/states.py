"""Reading states of threads. Several states are read in one statement, but decoded one by one to save memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from itertools import islice
from typing import Any, Final, NamedTuple

import orjson
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory
from langgraph.types import StateSnapshot

from langgraph_pgstate.checkpoints.getting import Latest
from langgraph_pgstate.errors import DatabaseError, ThreadArchivedError
from langgraph_pgstate.heavy import beside, room_beside
from langgraph_pgstate.saver import AsyncPGStateSaver
from langgraph_pgstate.scopes import Comparisons, TooManyComparisonsError, contains
from langgraph_pgstate.server.assistants import open_graph
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.server.graphs import Graph, config_at
from langgraph_pgstate.server.json import to_json_in_parts
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.state import core_of
from langgraph_pgstate.threads.types import Thread

# Maximum number of threads whose states a search by values reads.
_MOST_COMPARED: Final = 1000
_MOST_COMPARISONS: Final = 1_000_000
# Maximum number of threads whose states one statement reads.
_AT_ONCE: Final = 32
# Limits for a part of a history that is read before it is sent: bytes of strings, and number of lists, objects and
# items.
_LISTED: Final = (32 * 1024, 1000)

_log = logging.getLogger("langgraph_pgstate.server")


def are_projected(call: Call, values: Mapping[str, Any]) -> bool:
    """Return whether SQL can compare values, because the option `project` names all their channels."""
    return {*values} <= {*core_of(call.state).project}


async def having_values(
    call: Call, values: Mapping[str, Any], most: int | None = None, **filters: Any
) -> Sequence[Thread]:
    """Read the newest states of threads in order, and return the threads whose states contain values.

    A thread is left out if its graph is not served here, or if its state cannot be read.

    Args:
        values: The values by channel, in the form in which clients see them.
        most: Maximum number of threads to return; `None` for all.
        filters: Other conditions on the threads, and their order.
    """
    threads = await call.state.threads.sorted(**filters, limit=_MOST_COMPARED)
    comparisons = Comparisons(_MOST_COMPARISONS)
    found: list[Thread] = []
    async with aclosing(read_states(call, threads)) as states:
        async for one in states:
            try:
                has = one.snapshot is not None and await beside(_has, one.snapshot.values, values, comparisons)
            except TooManyComparisonsError:
                raise refuse(
                    422,
                    f"values must be compared in at most {_MOST_COMPARISONS} steps: narrow the search, or give fewer "
                    "objects in a list, because each object is compared with each object of the stored list",
                ) from None
            if has:
                found.append(one.thread)
            if most is not None and len(found) >= most:
                return found
    if len(threads) == _MOST_COMPARED and await call.state.threads.sorted(**filters, limit=1, offset=_MOST_COMPARED):
        names = ", ".join(map(repr, sorted({*values} - {*core_of(call.state).project})))
        raise refuse(
            422,
            f"values of {names} must be compared with at most {_MOST_COMPARED} threads: narrow the search by metadata, "
            "status or ids, or project the channel (PGSTATE_PROJECT, or project= of AsyncPGState)",
        )
    return found


def _has(state: Any, values: Mapping[str, Any], comparisons: Comparisons) -> bool:
    if not isinstance(state, Mapping) or not values.keys() <= state.keys():
        return False
    return contains(orjson.loads(to_json_in_parts({name: state[name] for name in values})), values, comparisons)


class ThreadState(NamedTuple):
    """A thread with its newest state.

    Attributes:
        snapshot: The state; `None` if the thread has no state, its graph is not served here, or the state cannot be
            read.
        error: Why the state cannot be read.
    """

    thread: Thread
    snapshot: StateSnapshot | None = None
    error: Exception | None = None


def without_state(thread: Thread) -> ThreadState:
    """Return a thread without a state. If the thread is archived, the error says so."""
    at = thread.archived_at
    return ThreadState(thread, error=None if at is None else ThreadArchivedError(thread.thread_id, "", at))


async def read_states(call: Call, threads: Iterable[Thread]) -> AsyncGenerator[ThreadState, None]:
    """Yield threads with their newest states, in order.

    Each statement reads about a megabyte of states. A state is decoded when the caller asks for it.
    """
    left = deque(threads)
    while left:
        those = [*islice(left, _AT_ONCE)]
        names = {one.thread_id: name for one in those if (name := call.service.graphs.of_thread(one)) is not None}
        latest = await call.state.saver.read_latest([*names]) if names else Latest({}, [])
        unread = {*latest.left}
        async with _Graphs(call, latest) as graphs:
            for thread in those:
                if thread.thread_id in unread:
                    break
                left.popleft()
                if thread.thread_id not in latest.found:
                    yield without_state(thread)
                    continue
                try:
                    graph = await graphs.of(thread, names[thread.thread_id])
                    found = ThreadState(thread, await graph.aget_state(config_at(thread.thread_id)))
                except DatabaseError:
                    raise
                except Exception as error:
                    found = ThreadState(thread, error=error)
                yield found
                # Release this state before the next one is read.
                del found


class _Graphs(AsyncExitStack):
    """The graphs of some threads, each opened at its first use."""

    def __init__(self, call: Call, latest: Latest) -> None:
        super().__init__()
        self._call, self._saver = call, _Newest(call.state.saver, latest)
        self._known: dict[tuple[str, str], Graph | Exception] = {}

    async def of(self, thread: Thread, name: str) -> Graph:
        """Return the graph of a thread, or raise the error of the graph's factory, also at later calls."""
        # A graph that was made with an assistant's config must not be used for another assistant.
        assistant_id = thread.metadata.get("assistant_id") if self._call.service.graphs.is_made(name) else None
        key = (name, repr(assistant_id))
        if key not in self._known:
            manager = open_graph(self._call, name, thread, saver=self._saver)
            try:
                self._known[key] = await manager.__aenter__()
                self.push_async_callback(_close, manager)
            except DatabaseError:
                raise
            except Exception as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, Exception):
            raise found
        return found


async def _close(manager: AbstractAsyncContextManager[Any]) -> None:
    try:
        await manager.__aexit__(None, None, None)
    except Exception:
        _log.exception("a graph could not be closed")


class _Newest(BaseCheckpointSaver[str]):
    """A saver that gives graphs the newest checkpoints of some threads, from rows that are read already."""

    def __init__(self, saver: AsyncPGStateSaver, latest: Latest) -> None:
        super().__init__(serde=saver.serde)
        self._saver, self._latest = saver, latest

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Decode and return the thread's checkpoint. Each checkpoint can be read once."""
        return await self._saver.load_latest(self._latest, config["configurable"]["thread_id"])

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read the writes that make up a channel."""
        return await self._saver.aget_delta_channel_history(config=config, channels=channels)


async def history(
    call: Call, name: str, thread: Thread, config: RunnableConfig, **options: Any
) -> AsyncGenerator[StateSnapshot, None]:
    """Yield the states of a thread, newest first. A state is decoded when the caller asks for it."""
    saver = _Listed(call.state.saver)
    async with aclosing(saver), open_graph(call, name, thread, saver=saver) as graph:
        while found := deque([one async for one in graph.aget_state_history(config, **options)]):
            while found:
                yield found.popleft()


class _Listed(BaseCheckpointSaver[str]):
    """A saver that lists few checkpoints at each call, because LangGraph keeps the states of a whole list in memory."""

    def __init__(self, saver: AsyncPGStateSaver) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._found: Any = None

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield the next checkpoints of the list that the first call asked for. Later calls continue this list."""
        if self._found is None:
            self._found = self._saver.alist(config, filter=filter, before=before, limit=limit)
        size, count = _LISTED
        async for item in self._found:
            size, count = room_beside([item.checkpoint["channel_values"], item.pending_writes], size, count)
            yield item
            # Release this checkpoint before the next one is decoded.
            del item
            if size < 0 or count < 0:
                return

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read the writes that make up a channel."""
        return await self._saver.aget_delta_channel_history(config=config, channels=channels)

    async def aclose(self) -> None:
        """Close the list."""
        if self._found is not None:
            await self._found.aclose()
