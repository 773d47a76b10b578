"""Processes whose clocks differ: what one writes on a checkpoint of the other is the thread's head."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import operator
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict
from uuid import UUID

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base import id as ids
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from support import APIS, FORK, GUARD_SECONDS, config_of, crossed, open_saver, put_arguments

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver, langgraph_compat
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import CheckpointOrderError, ConfigurationError, CorruptStateError
from langgraph_pgstate.langgraph_compat import advance_ids_past
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.threads import Threads

THREAD = config_of("t")
HOUR = 3600
# 30 s behind, an hour behind, an hour ahead.
SHIFTS = [-30, -HOUR, HOUR]


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def graph_of() -> StateGraph[Any, Any, Any, Any]:
    """Two nodes that append one item each; the second is a subgraph with a memory of its own."""

    def remember(state: State) -> dict[str, Any]:
        return {"items": [f"{len(state['items'])} remembered"]}

    inner = StateGraph(State)
    inner.add_node("remember", remember)
    inner.add_edge(START, "remember")
    memory = inner.compile(checkpointer=True)

    def count(state: State) -> dict[str, Any]:
        return {"items": [f"{len(memory.invoke({'items': []})['items'])} in memory"]}

    graph = StateGraph(State)
    graph.add_node("echo", lambda state: {"items": [f"{len(state['items'])} before"]})
    graph.add_node("count", count)
    graph.add_edge(START, "echo")
    graph.add_edge("echo", "count")
    graph.add_edge("count", END)
    return graph


def asking() -> StateGraph[Any, Any, Any, Any]:
    """A graph whose subgraph asks a question."""

    def ask(state: State) -> dict[str, Any]:
        return {"items": [interrupt("go on?")]}

    inner = StateGraph(State)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    graph = StateGraph(State)
    graph.add_node("inner", inner.compile())
    graph.add_edge(START, "inner")
    return graph


def shift_clock(seconds: int) -> None:
    """Make this process's clock wrong, as in a process that has drawn no id yet. For child processes only."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + seconds  # type: ignore[assignment]
    time.time_ns = lambda: now_ns() + seconds * 1_000_000_000  # type: ignore[assignment]
    forget_ids()


def forget_ids() -> None:
    """Start as a new process does."""
    ids._last_v6_timestamp = None
    langgraph_compat._greatest = ("", 0)
    langgraph_compat._has_warned = False


Ask = Callable[..., Any]


@contextmanager
def process(
    seconds: int, api: type, dsn: str, schema: str, make: Callable[[], Any] = graph_of, **options: Any
) -> Iterator[Ask]:
    """Another process with a clock of its own, in which a graph's methods are called by name."""
    here, there = FORK.Pipe()

    async def serve() -> None:
        async with open_saver(api, dsn, schema, setup=False, **options) as saver:
            graph = make().compile(checkpointer=saver)
            while (call := await asyncio.to_thread(there.recv)) is not None:
                name, arguments, named = call
                target = saver if hasattr(PGStateSaver, name) else graph
                try:
                    if api is AsyncPGStateSaver:
                        answer = await getattr(target, "a" + name)(*arguments, **named)
                    else:
                        answer = await asyncio.to_thread(getattr(target, name), *arguments, **named)
                    there.send((answer, None))
                except BaseException as error:
                    there.send((None, f"{type(error).__name__}: {error}"))

    def child() -> None:
        shift_clock(seconds)
        asyncio.run(serve())

    running = FORK.Process(target=child, daemon=True)
    running.start()

    def ask(name: str, *arguments: Any, **named: Any) -> Any:
        here.send((name, arguments, named))
        assert here.poll(GUARD_SECONDS), f"{name} hangs"
        answer, error = here.recv()
        assert error is None, error
        return answer

    try:
        yield ask
    finally:
        here.send(None)
        running.join(GUARD_SECONDS)
        if running.is_alive():
            running.kill()
            running.join()


def orders(connection: psycopg.Connection, schema: str) -> list[tuple[str, str, str]]:
    """Checkpoints that do not sort after their parents."""
    return connection.execute(
        f"SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM {schema}.checkpoints "
        "WHERE checkpoint_id <= parent_checkpoint_id"
    ).fetchall()


@pytest.mark.slow
@pytest.mark.parametrize(("guard", "seconds", "api"), crossed([None, "head", "lease"], SHIFTS, APIS))
def test_two_processes_take_turns_on_a_thread(
    guard: Any, seconds: int, api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with (
        process(0, api, dsn, schema, guard=guard) as one,
        process(seconds, api, dsn, schema, guard=guard) as other,
    ):
        expected: list[str] = []
        for turn in range(4):
            ask = one if turn % 2 == 0 else other
            answer = ask("invoke", {"items": [f"turn {turn}"]}, THREAD)
            expected += [f"turn {turn}", f"{len(expected) + 1} before", f"{turn + 1} in memory"]
            assert answer["items"] == expected
            # What is in the database is what both read.
            assert one("get_state", THREAD).values["items"] == expected
            assert other("get_state", THREAD).values["items"] == expected
    assert orders(connection, schema) == []


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
def test_a_question_is_answered_by_another_process(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with (
        process(0, api, dsn, schema, asking) as one,
        process(-HOUR, api, dsn, schema, asking) as other,
    ):
        one("invoke", {"items": ["start"]}, THREAD)
        assert other("invoke", Command(resume="yes"), THREAD)["items"] == ["start", "start", "yes"]
        other("invoke", {"items": []}, THREAD)
        one("invoke", Command(resume="again"), THREAD)
        assert other("get_state", THREAD).values["items"][-1] == "again"
    assert orders(connection, schema) == []


@pytest.mark.parametrize("guard", [None, "lease", pytest.param("head", marks=pytest.mark.slow)])
@pytest.mark.parametrize("api", APIS)
def test_what_is_forked_from_the_past_is_the_newest(
    api: type, guard: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """By an update, a copy, a replay, and a second process that goes on from the fork."""
    with (
        process(0, api, dsn, schema, guard=guard) as one,
        process(-30, api, dsn, schema, guard=guard) as other,
    ):
        one("invoke", {"items": ["a"]}, THREAD)
        first = one("get_state", THREAD).config
        one("invoke", {"items": ["b"]}, THREAD)
        for as_node, values in (("count", {"items": ["edited"]}), ("__copy__", None)):
            forked = other("update_state", first, values, as_node=as_node)
            state = one("get_state", THREAD)
            assert state.config["configurable"]["checkpoint_id"] == forked["configurable"]["checkpoint_id"]
            assert "b" not in state.values["items"]
            one("invoke", {"items": ["c"]}, THREAD)
        # Replayed from where the first node was next.
        (past,) = connection.execute(
            f"SELECT checkpoint_id FROM {schema}.checkpoints WHERE checkpoint_ns = '' AND step = 0 "
            "ORDER BY checkpoint_id LIMIT 1"
        ).fetchone() or ("",)
        before = other("get_state", THREAD).values["items"]
        named = {"configurable": {**THREAD["configurable"], "checkpoint_id": past}}
        replayed = other("invoke", None, named)["items"]
        assert replayed == ["a", "1 before", "1 in memory"]
        assert one("get_state", THREAD).values["items"] == replayed != before
        # The subgraph's memory is that of the replay, too.
        assert one("invoke", {"items": ["d"]}, THREAD)["items"] == [*replayed, "d", "4 before", "2 in memory"]
    assert orders(connection, schema) == []


@pytest.mark.slow
@pytest.mark.parametrize("guard", [None, "head"])
def test_a_subgraph_that_stopped_ahead_of_its_root_is_replayed(
    guard: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Its own newest checkpoint is newer than all of the root's: what a replay makes of it has to be newer still."""

    def make() -> Any:
        inner = StateGraph(State)
        inner.add_node("note", lambda state: {"items": ["noted"]})
        inner.add_node("ask", lambda state: {"items": [interrupt("go on?")]})
        inner.add_edge(START, "note")
        inner.add_edge("note", "ask")
        memory = inner.compile(checkpointer=True)

        def call(state: State) -> dict[str, Any]:
            return {"items": [str(len(memory.invoke({"items": []})["items"]))]}

        graph = StateGraph(State)
        graph.add_node("call", call)
        graph.add_edge(START, "call")
        return graph

    with (
        process(0, PGStateSaver, dsn, schema, make, guard=guard) as one,
        process(-HOUR, PGStateSaver, dsn, schema, make, guard=guard) as other,
    ):
        one("invoke", {"items": []}, THREAD)
        asked = one("get_state", THREAD).config
        assert one("invoke", Command(resume="first"), THREAD)["items"] == ["2"]
        # Stands in its subgraph, whose checkpoints are newer than the root's.
        one("invoke", {"items": []}, THREAD)
        other("invoke", None, asked)
        assert one("invoke", Command(resume="second"), THREAD)["items"] == ["2"]
    assert orders(connection, schema) == []


def tick(id: str) -> int:
    """The time in an id."""
    return int(id[:8] + id[9:13] + id[15:18], 16)


def at(timestamp: int) -> str:
    """An id of some time."""
    text = f"{timestamp:015x}"
    return f"{text[:8]}-{text[8:12]}-6{text[12:]}-8000-000000000000"


@pytest.fixture
def ahead() -> Iterator[str]:
    """The id of a checkpoint that was made by a clock an hour ahead; the generator is left as it was."""
    kept = ids._last_v6_timestamp, langgraph_compat._greatest, langgraph_compat._has_warned
    forget_ids()
    yield at(tick(str(uuid6())) + HOUR * 10_000_000)
    ids._last_v6_timestamp, langgraph_compat._greatest, langgraph_compat._has_warned = kept


def put_with(config: dict[str, Any], id: str) -> tuple[Any, Any, Any, Any]:
    """Arguments of `put` for a checkpoint of some id."""
    config, checkpoint, metadata, versions = put_arguments(config, 0)
    return config, {**checkpoint, "id": id}, metadata, versions


async def put_on(saver: Any, config: dict[str, Any]) -> None:
    """Put on a checkpoint of another process, which is not cached."""
    saver._saver_cache.cache.clear()
    await saver.aput(*put_with(config, at(tick(config["configurable"]["checkpoint_id"]) + 9)))


READS: dict[str, Callable[[Any, Any], Any]] = {
    "the latest": lambda saver, config: saver.aget_tuple(config_of("t")),
    "by id": lambda saver, config: saver.aget_tuple(config),
    "a list": lambda saver, config: anext(saver.alist(config_of("t"))),
    "a list of all": lambda saver, config: anext(saver.alist(None)),
    "bare": lambda saver, config: anext(saver.alist(config_of("t"), metadata_only=True)),
    "a history": lambda saver, config: saver.aget_delta_channel_history(config=config, channels=["messages"]),
    "put on": put_on,
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("api", APIS)
async def test_whatever_is_read_moves_the_ids(read: str, api: type, dsn: str, schema: str, ahead: str) -> None:
    async with open_saver(api, dsn, schema) as saver:
        config = await saver.aput(*put_with(config_of("t"), ahead))
        # Put, not read: where it was before.
        assert str(uuid6()) < ahead
        await READS[read](saver, config)
        assert str(uuid6()) > ahead
        # Answered from memory, as far as it can be.
        forget_ids()
        await READS[read](saver, config)
        assert str(uuid6()) > ahead


@pytest.mark.parametrize("api", APIS)
async def test_an_older_checkpoint_and_a_list_of_older_ones_move_them_past_the_newest(
    api: type, dsn: str, schema: str, ahead: str
) -> None:
    """What is made from them has to be the thread's head."""
    async with open_saver(api, dsn, schema) as saver:
        old = await saver.aput(*put_with(config_of("t", "ns"), at(5)))
        await saver.aput(*put_with(old, ahead))
        forget_ids()
        await saver.aget_tuple(old)
        assert str(uuid6()) > ahead
        for before in (at(6), at(4)):
            forget_ids()
            limits = {"configurable": {"checkpoint_id": before}}
            assert len([found async for found in saver.alist(config_of("t", "ns"), before=limits, limit=1)]) <= 1
            assert str(uuid6()) > ahead


@pytest.mark.parametrize("api", APIS)
async def test_copies_and_forks_are_gone_on_with(api: type, dsn: str, schema: str, ahead: str) -> None:
    async with open_saver(api, dsn, schema) as saver:
        await saver.aput(*put_with(config_of("t"), ahead))
        await saver.acopy_thread("t", "copy")
        with Database.open(dsn, schema=schema, pool=False) as database:
            Threads(database, queries(schema)).fork("t", to="fork")
        for thread_id in ("copy", "fork"):
            forget_ids()
            await saver.aget_tuple(config_of(thread_id))
            assert str(uuid6()) > ahead


@pytest.mark.parametrize("guard", [None, "head", "lease"])
@pytest.mark.parametrize("source", ["loop", "update", "fork"])
@pytest.mark.parametrize("api", APIS)
async def test_a_put_that_sorts_before_its_parent(
    api: type, source: str, guard: Any, dsn: str, schema: str, caplog: pytest.LogCaptureFixture, ahead: str
) -> None:
    """Refused by name under a guard, with what its tasks still write; else logged."""
    async with open_saver(api, dsn, schema, guard=guard) as saver:
        parent = await saver.aput(*put_with(config_of("t"), ahead))
        config, checkpoint, metadata, versions = put_arguments(parent, 1)
        assert checkpoint["id"] < ahead
        arguments = config, checkpoint, {**metadata, "source": source}, versions
        if guard is None:
            with caplog.at_level(logging.WARNING, "langgraph_pgstate"):
                await saver.aput(*arguments)
            assert "does not sort after its parent" in caplog.text
            return
        with pytest.raises(CheckpointOrderError, match="does not sort after its parent") as raised:
            await saver.aput(*arguments)
        assert (raised.value.checkpoint_id, raised.value.parent_id) == (checkpoint["id"], ahead)
        lost = config_of("t")
        lost["configurable"]["checkpoint_id"] = checkpoint["id"]
        with pytest.raises(CheckpointOrderError):
            await saver.aput_writes(lost, [("messages", "late")], "task")
        # The ids have moved: the next try passes.
        await saver.aput(*put_arguments(parent, 1))


@pytest.mark.parametrize("api", APIS)
async def test_no_checkpoint_is_its_own_parent(api: type, dsn: str, schema: str, connection: Any) -> None:
    """A put with a tuple's own config; of a row that says so all the same, the history does not go round for ever."""
    async with open_saver(api, dsn, schema) as saver:
        config = await saver.aput(*put_arguments(config_of("t"), 1))
        _, checkpoint, metadata, _ = put_arguments(config, 1)
        own = config["configurable"]["checkpoint_id"]
        with pytest.raises(ConfigurationError, match="must name the parent"):
            await saver.aput(config, {**checkpoint, "id": own}, metadata, {})
        found = await saver.aget_tuple(config)
        assert found is not None
        assert found.parent_config is None
        connection.execute(f'UPDATE "{schema}".checkpoints SET parent_checkpoint_id = checkpoint_id')
        with pytest.raises(CorruptStateError, match="its own ancestor"):
            await saver.aget_delta_channel_history(config=config, channels=["absent"])


@pytest.mark.parametrize(
    "id",
    [
        "",
        "checkpoint-9",
        "zzzzzzzz-zzzz-6zzz-8zzz-zzzzzzzzzzzz",
        "ffffffff-ffff-6fff-bfff-ffffffffffff",
        "9fffffff-ffff-6fff-8000-000000000000",
        # Halfway.
        "80000000-0000-6000-8000-000000000000",
        # Of other versions and variants, and with what `int` would read.
        "ffffffff-ffff-4fff-8000-000000000000",
        "4fffffff-ffff-7fff-8000-000000000000",
        "4fffffff-ffff-6fff-c000-000000000000",
        "4fffffff-ff_f-6fff-8000-000000000000",
        "4fffffff-ffff-6fff-8000-000000000000\n",
    ],
)
def test_what_is_no_id_of_langgraph_moves_nothing(id: str, ahead: str) -> None:
    before = str(uuid6())
    advance_ids_past(id)
    after = str(uuid6())
    assert before < after < ahead


def test_an_absurd_time_does_not_end_the_range(ahead: str) -> None:
    """The last time that is followed leaves half of the range: a child sorts after its parent, and so do all others."""
    last = at((1 << 59) - 1)
    advance_ids_past(last)
    drawn = [str(uuid6()) for _ in range(1000)]
    assert last < drawn[0]
    assert drawn == sorted(drawn)
    assert all(UUID(id).version == 6 for id in drawn)


@pytest.mark.parametrize("guard", [None, "head"])
def test_a_thread_at_the_end_of_the_range_harms_no_other(
    guard: Any, dsn: str, schema: str, ahead: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On its own head nothing can be put that sorts after it: refused by name under a guard, else logged."""
    absurd = "ffffffff-ffff-6fff-bfff-ffffffffffff"
    with PGStateSaver.from_conn_string(dsn, schema=schema, guard=guard) as saver:
        saver.setup()
        saver.put(*put_with(config_of("t"), absurd))
        graph = graph_of().compile(checkpointer=saver)
        if guard is None:
            with caplog.at_level(logging.WARNING, "langgraph_pgstate"):
                graph.invoke({"items": ["a"]}, THREAD)
            assert "does not sort after its parent" in caplog.text
        else:
            with pytest.raises(CheckpointOrderError):
                graph.invoke({"items": ["a"]}, THREAD)
        for turn in range(3):
            graph.invoke({"items": ["a"]}, config_of("other"))
            assert len(graph.get_state(config_of("other")).values["items"]) == 3 * (turn + 1)
    assert str(uuid6()) < ahead


def test_a_clock_that_is_off_is_told_once(ahead: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "langgraph_pgstate"):
        advance_ids_past(str(uuid6()))
        assert caplog.text == ""
        advance_ids_past(ahead)
        advance_ids_past(at(tick(ahead) + 1))
    assert caplog.text.count("ahead of this process's") == 1
    assert "3600 s" in caplog.text or "3599 s" in caplog.text


def test_ids_drawn_by_other_threads_meanwhile_do_not_undo_it(ahead: str) -> None:
    """Threads draw ids while others move the generator: what is drawn afterwards sorts after what was read before."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    stop = threading.Event()
    wrong: list[tuple[str, str]] = []

    def draw() -> None:
        while not stop.is_set():
            uuid6()

    def move(number: int) -> None:
        base = tick(ahead)
        for step in range(2000):
            read = at(base + step * 50 + number)
            advance_ids_past(read)
            if (drawn := str(uuid6())) <= read:
                wrong.append((read, drawn))

    drawing = [threading.Thread(target=draw) for _ in range(2)]
    moving = [threading.Thread(target=move, args=(number,)) for number in range(3)]
    try:
        for thread in [*drawing, *moving]:
            thread.start()
        for thread in moving:
            thread.join()
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for thread in drawing:
            thread.join()
    assert wrong == []


def test_langgraphs_generator_is_where_it_was_tried(ahead: str) -> None:
    """If this fails, LangGraph has moved its private names: look at `langgraph_compat`."""
    version = importlib.metadata.version("langgraph-checkpoint")
    drawn = tick(empty_checkpoint()["id"])
    assert ids._last_v6_timestamp == drawn, version
    ids._last_v6_timestamp = tick(ahead)
    assert tick(empty_checkpoint()["id"]) == tick(ahead) + 1, version
