"""States of several threads: read together, and compared with values that a search asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import orjson
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory
from langgraph.types import StateSnapshot

from langgraph_pgstate.errors import DatabaseError
from langgraph_pgstate.saver import AsyncPGStateSaver
from langgraph_pgstate.scopes import contains
from langgraph_pgstate.server.assistants import open_graph
from langgraph_pgstate.server.errors import refuse
from langgraph_pgstate.server.graphs import config_at
from langgraph_pgstate.server.json import to_json
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.types import Thread

# Threads whose states a search by values reads, and those of them that are in memory together.
_MOST_COMPARED: Final = 1000
_COMPARED_AT_ONCE: Final = 8


def are_projected(call: Call, values: Mapping[str, Any]) -> bool:
    """Return whether SQL can compare values: all are of channels that the server's state projects."""
    return {*values} <= {*call.state._project}


async def having_values(
    call: Call, values: Mapping[str, Any], most: int | None = None, **filters: Any
) -> Sequence[Thread]:
    """Return threads whose newest states contain values, by reading their states in the order of the threads.

    A thread that has no graph here, or whose state cannot be read, has no values.

    Args:
        call: The request.
        values: The values by channel, in the form in which clients see them.
        most: Threads after which no more are looked for; `None` for all.
        filters: Other conditions on the threads, and their order.

    Raises:
        HTTPException: 422 if more than a thousand states would have to be read.
    """
    threads = await call.state.threads.sorted(**filters, limit=_MOST_COMPARED)
    found: list[Thread] = []
    for start in range(0, len(threads), _COMPARED_AT_ONCE):
        those = threads[start : start + _COMPARED_AT_ONCE]
        states, _ = await read_states(call, those)
        found += [one for one in those if one.thread_id in states and _has(states[one.thread_id].values, values)]
        if most is not None and len(found) >= most:
            return found[:most]
    if len(threads) == _MOST_COMPARED and await call.state.threads.sorted(**filters, limit=1, offset=_MOST_COMPARED):
        names = ", ".join(map(repr, sorted({*values} - {*call.state._project})))
        raise refuse(
            422,
            f"values: {names} cannot be compared with the states of more than {_MOST_COMPARED} threads: narrow the "
            "search by metadata, status or ids, or project the channel (PGSTATE_PROJECT, or project= of AsyncPGState)",
        )
    return found


def _has(state: Any, values: Mapping[str, Any]) -> bool:
    if not isinstance(state, Mapping) or not values.keys() <= state.keys():
        return False
    return contains(orjson.loads(to_json({name: state[name] for name in values})), values)


async def read_states(call: Call, threads: Sequence[Thread]) -> tuple[dict[str, StateSnapshot], dict[str, Exception]]:
    """Return the newest states of threads by id, with one statement for all, and why some cannot be read."""
    served, saver = call.service.graphs, call.state.saver
    graphs = {one.thread_id: name for one in threads if (name := served.of_thread(one)) is not None}
    snapshots: dict[str, StateSnapshot] = {}
    unreadable: dict[str, Exception] = {}
    found = await _latest(saver, [*graphs], unreadable) if graphs else {}
    groups: dict[tuple[str, Any], list[str]] = {}
    known = {one.thread_id: one for one in threads}
    for id in found:
        # A graph that is made with the config of an assistant is not that of another one.
        assistant_id = known[id].metadata.get("assistant_id") if served.is_made(graphs[id]) else None
        groups.setdefault((graphs[id], repr(assistant_id)), []).append(id)
    for (name, _), of_graph in groups.items():
        with _noting(unreadable, of_graph):
            async with open_graph(call, name, known[of_graph[0]], saver=_Newest(saver, found)) as graph:
                for id in of_graph:
                    with _noting(unreadable, [id]):
                        snapshots[id] = await graph.aget_state(config_at(id))
    return snapshots, unreadable


async def _latest(
    saver: AsyncPGStateSaver, ids: Sequence[str], unreadable: dict[str, Exception]
) -> dict[str, CheckpointTuple]:
    """Return the newest checkpoints of threads; one at a time if they cannot be read together."""
    try:
        return dict(await saver.aget_latest(ids))
    except DatabaseError:
        raise
    except Exception:
        found: dict[str, CheckpointTuple] = {}
        for id in ids:
            with _noting(unreadable, [id]):
                found.update(await saver.aget_latest([id]))
        return found


@contextmanager
def _noting(unreadable: dict[str, Exception], ids: Sequence[str]) -> Iterator[None]:
    """Note why the states of some threads cannot be read, so that the others are listed."""
    try:
        yield
    except DatabaseError:
        raise
    except Exception as error:
        unreadable.update((id, error) for id in ids if id not in unreadable)


class _Newest(BaseCheckpointSaver[str]):
    """The newest checkpoints of some threads, which have been read.

    Args:
        saver: Reads what else belongs to them.
        found: The checkpoints by thread.
    """

    def __init__(self, saver: AsyncPGStateSaver, found: Mapping[str, CheckpointTuple]) -> None:
        super().__init__(serde=saver.serde)
        self._saver, self._found = saver, found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint of the thread."""
        return self._found[config["configurable"]["thread_id"]]

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Read the writes from which a channel is made."""
        return await self._saver.aget_delta_channel_history(config=config, channels=channels)
