"""Checkpoints read while a prune removes them: what is read is whole, or said to be gone."""

from __future__ import annotations

import operator
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from support import APIS, GUARD_SECONDS, config_of, crossed, open_saver

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.checkpoints import delta_channels, listing
from langgraph_pgstate.db import adapters
from langgraph_pgstate.errors import NotFoundError

THREAD = config_of("t")


TURNS = 8


# A snapshot comes after so many updates, of which each turn makes two: one was made before the last turns.
UPDATES = 7


def joined(value: list[str], writes: Any) -> list[str]:
    return [*value, *(item for write in writes for item in write)]


class State(TypedDict):
    items: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=UPDATES)]
    # Stored in segments of its own.
    text: Annotated[list[str], operator.add]


def graph_of(saver: BaseCheckpointSaver[Any] | None, node: Callable[[Any], Any] | None = None) -> Any:
    """A graph that notes what it was given once more."""

    def echo(state: State) -> dict[str, Any]:
        return {"items": [f"{len(state['items'])} items"], "text": [f"{len(state['text'])} " + "text " * 100]}

    graph = StateGraph(State)
    graph.add_node("echo", node or echo)
    graph.add_edge(START, "echo")
    return graph.compile(checkpointer=saver)


def grown(saver: PGStateSaver) -> dict[str, dict[str, Any]]:
    """A thread of some turns; the values at each of its checkpoints."""
    graph = graph_of(saver)
    for turn in range(TURNS):
        graph.invoke({"items": [f"turn {turn}"], "text": []}, THREAD)
    return {
        state.config["configurable"]["checkpoint_id"]: dict(state.values) for state in graph.get_state_history(THREAD)
    }


def named(id: str) -> Any:
    return {"configurable": {**THREAD["configurable"], "checkpoint_id": id}}


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks take several statements."""
    monkeypatch.setattr(delta_channels, "_LINEAGE_PAGE", 4)
    monkeypatch.setattr(listing, "_PAGE", 4)


@contextmanager
def before_statement(number: int, act: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Do something, on another connection, before the statement of some number is sent, counted from 0."""
    sent = -1

    def count() -> None:
        nonlocal sent
        sent += 1
        if sent == number:
            act()

    def blocking(original: Any) -> Any:
        async def fetch(db: Any, query: Any, parameters: Any) -> Any:
            count()
            return await original(db, query, parameters)

        return fetch

    with monkeypatch.context() as patch:
        for kind in (adapters.BlockingConnection, adapters.AsyncConnection):
            patch.setattr(kind, "fetch", blocking(kind.fetch))
        yield


@asynccontextmanager
async def readers(api: type, dsn: str, schema: str) -> AsyncIterator[tuple[Any, dict[str, dict[str, Any]], Any]]:
    """A saver that reads a thread of some turns, its values, and what prunes it on another connection."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as pruner:
        pruner.setup()
        values = grown(pruner)
        async with open_saver(api, dsn, schema, setup=False) as saver:
            # Looks at the schema once.
            await saver.aget_tuple(config_of("other"))

            def prune() -> None:
                worker = threading.Thread(target=pruner.prune, args=(["t"],))
                worker.start()
                worker.join(GUARD_SECONDS)

            yield saver, values, prune


# As many statements as the longest of these reads sends.
MOMENTS = range(7)


@pytest.mark.parametrize(("moment", "api"), crossed(MOMENTS, APIS))
async def test_the_newest_of_a_thread_is_always_found(
    moment: int, api: type, dsn: str, schema: str, short_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run goes on and a prune removes what was the newest when the reading began."""
    async with readers(api, dsn, schema) as (saver, _, prune):
        with PGStateSaver.from_conn_string(dsn, schema=schema, pool=2) as other:
            writer = graph_of(other)

            def go_on() -> None:
                def work() -> None:
                    writer.invoke({"items": ["meanwhile"], "text": []}, THREAD)
                    prune()

                worker = threading.Thread(target=work)
                worker.start()
                worker.join(GUARD_SECONDS)

            with before_statement(moment, go_on, monkeypatch):
                found = (await saver.aget_delta_channel_history(config=THREAD, channels=["items"]))["items"]
            items = [*found["seed"].value] if "seed" in found else []
            for _, _, write in found["writes"]:
                items += write
            expected = [text for turn in range(TURNS) for text in (f"turn {turn}", f"{2 * turn + 1} items")]
            # The newest one's own superstep is pending, not received.
            assert items[: len(expected)] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "api"), crossed(MOMENTS, APIS))
async def test_a_list_has_what_is_there_whole(
    moment: int, api: type, dsn: str, schema: str, short_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with readers(api, dsn, schema) as (saver, values, prune):
        whole = {}
        async for found in saver.alist(THREAD):
            whole[found.config["configurable"]["checkpoint_id"]] = found
        with before_statement(moment, prune, monkeypatch):
            read = [found async for found in saver.alist(THREAD)]
        for found in read:
            expected = whole[found.config["configurable"]["checkpoint_id"]]
            # A parent that the prune has taken is not named.
            assert found in (expected, expected._replace(parent_config=None))
        assert read[0].checkpoint["id"] == max(values)


@pytest.mark.parametrize("seconds", [0.6, pytest.param(20.0, marks=pytest.mark.long)])
def test_readers_while_one_appends_and_one_prunes(seconds: float, dsn: str, schema: str) -> None:
    """Threads, on connections of their own: no state is short, none is said to be damaged."""
    stop = threading.Event()
    wrong: list[Any] = []
    known: dict[str, list[str]] = {}

    def watched(work: Callable[[PGStateSaver], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                with PGStateSaver.from_conn_string(dsn, schema=schema, pool=2) as saver:
                    while not stop.is_set():
                        work(saver)
            except BaseException as error:
                wrong.append(error)

        return run

    turn = 0

    def append(saver: PGStateSaver) -> None:
        nonlocal turn
        graph = graph_of(saver)
        turn += 1
        graph.invoke({"items": [f"turn {turn}"], "text": []}, THREAD)
        for found in saver.list(THREAD, limit=3):
            id = found.config["configurable"]["checkpoint_id"]
            with suppress(NotFoundError):
                if (state := graph.get_state(named(id))).metadata:
                    known.setdefault(id, state.values["items"])

    def prune(saver: PGStateSaver) -> None:
        saver.prune(["t"], keep_last=2)

    def read(saver: PGStateSaver) -> None:
        graph = graph_of(saver)
        for id in list(known)[-6:]:
            with suppress(NotFoundError):
                state = graph.get_state(named(id))
                if state.metadata and state.values["items"] != known[id]:
                    wrong.append((id, state.values["items"], known[id]))
        for state in saver.list(THREAD):
            expected = known.get(state.config["configurable"]["checkpoint_id"])
            if expected is not None and len(state.checkpoint["channel_values"].get("text", ())) != len(expected) // 2:
                wrong.append(state)

    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
    workers = [threading.Thread(target=watched(work)) for work in (append, prune, read, read)]
    for worker in workers:
        worker.start()
    stop.wait(seconds)
    stop.set()
    for worker in workers:
        worker.join(GUARD_SECONDS)
    assert wrong == []
    # Each turn appends two.
    assert all(items == [*dict.fromkeys(items)] for items in known.values())
