"""State that evolves: old checkpoints are brought up when they are read, and written anew when their thread goes on."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from support import examples
from support.official import official_saver
from support.samples import checkpoint_of, config_of, id_of, message, put_values

from langgraph_pgstate import AsyncPGState, AsyncPGStateSaver, PGState, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.checkpoints.versions import StateVersions
from langgraph_pgstate.errors import ConfigurationError, StateVersionError, UpcastError

Open = Callable[..., PGStateSaver]


@pytest.fixture
def open_saver(dsn: str, schema: str) -> Iterator[Open]:
    """Programs of different versions over the same tables; each has a memory of its own."""
    opened = []

    def open_saver(version: int | None = None, upcasters: Any = None, **options: Any) -> PGStateSaver:
        context = PGStateSaver.from_conn_string(
            dsn, schema=schema, state_version=version, upcasters=upcasters, pool=2, **options
        )
        saver = context.__enter__()
        opened.append(context)
        saver.setup()
        return saver

    yield open_saver
    for context in opened:
        context.__exit__(None, None, None)


def rename(values: dict[str, Any]) -> dict[str, Any]:
    """To version 2: `user` is called `name`, and the log holds dicts."""
    values = dict(values)
    if "user" in values:
        values["name"] = values.pop("user")
    if "log" in values:
        values["log"] = [{"text": entry} for entry in values["log"]]
    return values


def split(values: dict[str, Any]) -> dict[str, Any]:
    """To version 3: the name in two parts."""
    if "name" in values:
        first, _, last = values.pop("name").partition(" ")
        values |= {"first": first, "last": last}
    return values


class One(TypedDict):
    user: str
    log: Annotated[list[Any], operator.add]
    untouched: list[str]


class Three(TypedDict):
    first: str
    last: str
    log: Annotated[list[Any], operator.add]
    untouched: list[str]


def graph_one(saver: Any) -> Any:
    builder = StateGraph(One)
    builder.add_node("work", lambda state: {"log": [f"worked {len(state['log'])}"]})
    builder.add_node("ask", lambda state: {"log": [interrupt("?")]})
    builder.add_edge(START, "work")
    builder.add_edge("work", "ask")
    return builder.compile(checkpointer=saver)


def graph_three(saver: Any) -> Any:
    builder = StateGraph(Three)
    builder.add_node("work", lambda state: {"log": [{"text": f"worked {len(state['log'])}"}]})
    builder.add_node("ask", lambda state: {"log": [{"text": interrupt("?"), "for": state["first"]}]})
    builder.add_edge(START, "work")
    builder.add_edge("work", "ask")
    return builder.compile(checkpointer=saver)


STEPS = {2: rename, 3: split}


BIG = ["x" * 600] * 9


START_ONE = {"user": "Ada Lovelace", "log": ["begun"], "untouched": BIG}


T = config_of("t")


AS_THREE = {"first": "Ada", "last": "Lovelace", "untouched": BIG}


def versions_of(connection: psycopg.Connection, schema: str) -> list[int | None]:
    rows = connection.execute(f'SELECT state_version FROM "{schema}".checkpoints ORDER BY checkpoint_id').fetchall()
    return [row[0] for row in rows]


def states_of(connection: psycopg.Connection, schema: str) -> list[Any]:
    return connection.execute(
        f'SELECT checkpoint_ns, checkpoint_id, revision, state FROM "{schema}".checkpoints ORDER BY 1, 2'
    ).fetchall()


@pytest.mark.parametrize(
    ("version", "upcasters"),
    [
        (0, None),
        (-1, None),
        (True, None),
        ("2", None),
        (2**31, None),
        (None, {2: dict}),
        (3, {2: dict}),
        (3, {2: dict, 4: dict}),
        (3, {1: dict, 2: dict, 3: dict}),
        (4, {2: dict, 4: dict}),
        (2, {2: "f"}),
        (2, {"2": dict}),
    ],
)
def test_versions_that_make_no_sense_are_refused(version: Any, upcasters: Any, connection: Any) -> None:
    with pytest.raises(ConfigurationError):
        PGStateSaver(connection, state_version=version, upcasters=upcasters)


@pytest.mark.parametrize(("version", "upcasters"), [(None, None), (1, None), (1, {}), (3, {3: dict}), (7, None)])
def test_versions_that_do(version: Any, upcasters: Any, connection: Any) -> None:
    PGStateSaver(connection, state_version=version, upcasters=upcasters)


def test_a_checkpoint_carries_the_version_it_was_written_with(
    open_saver: Open, connection: psycopg.Connection, schema: str
) -> None:
    put_values(open_saver(), config_of("none"), {"a": 1})
    put_values(open_saver(1), config_of("one"), {"a": 1})
    saver = open_saver(3, STEPS)
    config = put_values(saver, config_of("three"), {"a": 1, "b": [message(1)]})
    put_values(saver, config, {"a": 2, "b": [message(1), message(2)]})
    assert versions_of(connection, schema) == [None, 1, 3, 3]
    saver.copy_thread("three", "copy")
    assert versions_of(connection, schema).count(3) == 4


def test_old_values_are_brought_up_step_by_step_when_they_are_read(
    open_saver: Open, connection: psycopg.Connection, schema: str
) -> None:
    graph_one(open_saver()).invoke(START_ONE, T)
    before = states_of(connection, schema)
    saver = open_saver(3, STEPS)
    for _ in range(2):
        snapshot = graph_three(saver).get_state(T)
        assert snapshot.values == {**AS_THREE, "log": [{"text": "begun"}, {"text": "worked 1"}]}
        assert snapshot.next == ("ask",)
    two = graph_three(open_saver(2, {2: rename})).get_state(T)
    assert two.values["log"] == [{"text": "begun"}, {"text": "worked 1"}]
    history = [item.values for item in graph_three(saver).get_state_history(T)]
    assert [len(values.get("log", [])) for values in history] == [2, 1, 0]
    assert all("user" not in item.checkpoint["channel_values"] for item in saver.list(T) if item.metadata["step"] >= 0)
    # Nothing was rewritten by reading.
    assert states_of(connection, schema) == before


def test_the_thread_goes_on_in_the_new_version(open_saver: Open, connection: Any, schema: str) -> None:
    graph_one(open_saver()).invoke(START_ONE, T)
    saver = open_saver(3, STEPS)
    done = graph_three(saver).invoke(Command(resume="yes"), T)
    log = [{"text": "begun"}, {"text": "worked 1"}, {"text": "yes", "for": "Ada"}]
    assert done == {**AS_THREE, "log": log}
    assert versions_of(connection, schema) == [None, None, None, 3]
    # Another process, without the upcasters: all values are there as they are now, also those nobody wrote to.
    found = graph_three(open_saver(3)).get_state(T)
    assert found.values == {**AS_THREE, "log": log}
    raw = open_saver(3).get_tuple(T)
    assert raw is not None
    assert "user" not in raw.checkpoint["channel_values"]
    # And on it goes, as a difference.
    graph_three(open_saver(3)).invoke({"log": [{"text": "more"}]}, T)
    assert [entry["text"] for entry in graph_three(open_saver(3)).get_state(T).values["log"]] == [
        "begun",
        "worked 1",
        "yes",
        "more",
        "worked 4",
    ]


@pytest.mark.parametrize("warm", [True, False])
def test_values_that_nobody_writes_again_are_stored_anew(open_saver: Open, warm: bool) -> None:
    """Their version stays the same, so a put would inherit them as they were."""
    long = [message(number) for number in range(40)]
    old = open_saver()
    head = put_values(old, T, {"user": "Ada Lovelace", "log": ["a" * 300] * 30, "messages": long, "gone": {"b": [1]}})

    def up(values: dict[str, Any]) -> dict[str, Any]:
        return {**rename(values), "gone": None, "new": {"c": [2]}} if "user" in values else values

    def drop(values: dict[str, Any]) -> dict[str, Any]:
        del values["gone"]
        return values

    saver = open_saver(3, {2: up, 3: drop})
    found = saver.get_tuple(T)
    assert found is not None
    versions = {**found.checkpoint["channel_versions"], "step": saver.get_next_version(None, None)}
    values = {**found.checkpoint["channel_values"], "step": [{"now": 1}]}
    writer = saver if warm else open_saver(3, {2: up, 3: drop})
    writer.put(
        head,
        checkpoint_of(values, versions),  # type: ignore[arg-type]
        {"source": "loop", "step": 1, "parents": {}},
        {"step": versions["step"]},
    )
    read = open_saver(3).get_tuple(T)
    assert read is not None
    assert read.checkpoint["channel_values"] == values
    assert "gone" not in values
    assert read.checkpoint["channel_values"]["log"][0] == {"text": "a" * 300}


def test_what_is_as_it_was_is_not_written_twice(open_saver: Open, connection: Any, schema: str) -> None:
    old = open_saver()
    head = put_values(old, T, {"messages": [message(number) for number in range(300)], "user": "Ada"})

    def stored() -> int:
        return int(connection.execute(f'SELECT sum(octet_length(data)) FROM "{schema}".segments').fetchone()[0])

    before = stored()
    saver = open_saver(2, {2: rename})
    found = saver.get_tuple(T)
    assert found is not None
    versions = found.checkpoint["channel_versions"]
    saver.put(head, checkpoint_of(found.checkpoint["channel_values"], versions), {"source": "loop", "step": 1}, {})  # type: ignore[arg-type]
    assert stored() < before * 1.05
    read = open_saver(2).get_tuple(T)
    assert read is not None
    assert len(read.checkpoint["channel_values"]["messages"]) == 300


def test_a_channel_that_the_graph_does_not_know_is_carried_on(open_saver: Open) -> None:
    """As without versions: its version stays, so its value does; but what it has become."""
    head = put_values(open_saver(), T, {"user": "Ada", "other": {"old": ["x"]}})

    def up(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "other": {"new": ["y"]}}

    saver = open_saver(2, {2: up})
    found = saver.get_tuple(T)
    assert found is not None
    versions = found.checkpoint["channel_versions"]
    saver.put(head, checkpoint_of({"user": "Ada"}, versions), {"source": "loop", "step": 1}, {})  # type: ignore[arg-type]
    read = open_saver(2).get_tuple(T)
    assert read is not None
    assert read.checkpoint["channel_values"] == {"user": "Ada", "other": {"new": ["y"]}}


def test_a_channel_that_appears_triggers_nobody_and_stays(open_saver: Open) -> None:
    graph_one(open_saver()).invoke(START_ONE, T)
    saver = open_saver(3, STEPS)
    old, new = open_saver().get_tuple(T), saver.get_tuple(T)
    assert old is not None
    assert new is not None
    assert new == saver.get_tuple(T)
    least = f"{0:032}.{0:016}"
    assert least < min(old.checkpoint["channel_versions"].values())
    assert new.checkpoint["channel_versions"] == {**old.checkpoint["channel_versions"], "first": least, "last": least}
    for seen in new.checkpoint["versions_seen"].values():
        assert not seen or seen["first"] == least
    assert (new.config, new.metadata, new.parent_config) == (old.config, old.metadata, old.parent_config)
    assert new.pending_writes == old.pending_writes


def test_langgraphs_own_channels_stay_when_an_upcaster_forgets_them(open_saver: Open) -> None:
    graph_one(open_saver()).invoke(START_ONE, T)

    def careless(values: dict[str, Any]) -> dict[str, Any]:
        return {"first": values.get("user", ""), "last": "", "log": [], "untouched": []}

    graph = graph_three(open_saver(2, {2: careless}))
    assert graph.get_state(T).next == ("ask",)
    assert graph.invoke(Command(resume="yes"), T)["log"] == [{"text": "yes", "for": "Ada Lovelace"}]


def test_a_newer_version_is_an_error(open_saver: Open) -> None:
    put_values(open_saver(3, STEPS), T, {"first": "Ada", "items": [message(1)]})
    for older in (open_saver(), open_saver(1), open_saver(2, {2: rename})):
        with pytest.raises(StateVersionError, match="version 3") as raised:
            older.get_tuple(T)
        assert raised.value.found == 3
        with pytest.raises(StateVersionError):
            list(older.list(T))
        # Looking at what is not state stays possible, and so does looking after it.
        assert len(list(older.list(T, metadata_only=True))) == 1
    old = open_saver()
    old.prune(["t"])
    old.copy_thread("t", "u")


def test_nothing_is_inherited_from_a_newer_version(open_saver: Open) -> None:
    """A run of the older program that is still going, on a checkpoint that was brought up in the meantime."""
    old = open_saver()
    head = put_values(old, T, {"user": "Ada", "log": ["a" * 300] * 30})
    found = old.get_tuple(T)
    assert found is not None
    new = open_saver(2, {2: rename})
    again = new.get_tuple(T)
    assert again is not None
    values, versions = again.checkpoint["channel_values"], again.checkpoint["channel_versions"]
    new.put(config_of("t"), checkpoint_of(values, versions, id_of(head)), {"source": "loop", "step": 0}, versions)  # type: ignore[arg-type]
    with pytest.raises(StateVersionError):
        old.put(
            head,
            checkpoint_of(found.checkpoint["channel_values"], found.checkpoint["channel_versions"]),  # type: ignore[arg-type]
            {"source": "loop", "step": 1},  # type: ignore[typeddict-item]
            {},
        )


def test_a_copy_inherits_nothing_from_its_older_sibling(open_saver: Open) -> None:
    """LangGraph's `__copy__` of a first checkpoint has no parent, and the versions of what it copies."""
    put_values(open_saver(), T, {"user": "Ada", "log": ["a" * 300] * 30})
    saver = open_saver(2, {2: rename})
    found = saver.get_tuple(T)
    assert found is not None
    values, versions = found.checkpoint["channel_values"], found.checkpoint["channel_versions"]
    copied = saver.put(T, checkpoint_of(values, versions), {"source": "fork", "step": 0}, {})  # type: ignore[arg-type]
    read = open_saver(2).get_tuple(copied)
    assert read is not None
    assert read.checkpoint["channel_values"] == values == {"name": "Ada", "log": [{"text": "a" * 300}] * 30}


def test_a_version_too_old_is_an_error(open_saver: Open) -> None:
    put_values(open_saver(), T, {"user": "Ada"})
    with pytest.raises(StateVersionError, match="upcasters from version 2 on"):
        open_saver(3, {3: split}).get_tuple(T)
    with pytest.raises(StateVersionError):
        open_saver(3).get_tuple(T)


@pytest.mark.parametrize(
    ("upcaster", "why"),
    [
        (lambda values: values["nowhere"], "KeyError"),
        (lambda values: None, "NoneType"),
        (lambda values: {1: 2}, "key 1; keys must be strings"),
    ],
)
def test_an_upcaster_that_fails_says_where(open_saver: Open, upcaster: Any, why: str) -> None:
    head = put_values(open_saver(), T, {"user": "Ada"})
    saver = open_saver(2, {2: upcaster})
    with pytest.raises(UpcastError, match=why) as raised:
        saver.get_tuple(T)
    assert id_of(head) in raised.value.where
    assert raised.value.version == 2
    assert open_saver().get_tuple(T) is not None


def test_subgraphs_have_a_state_of_their_own(open_saver: Open) -> None:
    """An upcaster that takes values only sees the root's; one that also takes the namespace sees all."""

    def graph(saver: Any) -> Any:
        inner = StateGraph(One)
        inner.add_node("ask", lambda state: {"log": [interrupt("?")]})
        inner.add_edge(START, "ask")
        outer = StateGraph(One)
        outer.add_node("team", inner.compile())
        outer.add_edge(START, "team")
        return outer.compile(checkpointer=saver)

    graph(open_saver()).invoke(START_ONE, T)
    seen: list[tuple[str, set[str]]] = []

    def everywhere(values: dict[str, Any], namespace: str) -> Mapping[str, Any]:
        seen.append((namespace, {name for name in values if not name.startswith("branch:")}))
        return {**values, "log": [f"{namespace}/{entry}" for entry in values["log"]]}

    def root_only(values: dict[str, Any]) -> Mapping[str, Any]:
        seen.append(("?", set()))
        return values

    saver = open_saver(3, {2: everywhere, 3: root_only})
    snapshot = graph(saver).get_state(T, subgraphs=True)
    assert snapshot.values["log"] == ["/begun"]
    assert snapshot.tasks[0].state.values["log"] == ["team/begun"]
    assert [name for name, _ in seen].count("?") == [name for name, _ in seen].count("")
    assert ("team", {"user", "log", "untouched"}) in seen
    done = graph(saver).invoke(Command(resume="yes"), T)
    assert done["log"] == ["/begun", "team/begun", "yes"]


def test_the_functions_own_state(open_saver: Open) -> None:
    """A graph whose whole state is one value keeps it in one channel."""
    builder = StateGraph(Annotated[list[Any], add_messages])
    builder.add_node("say", lambda state: [HumanMessage("b", id="b")])
    builder.add_edge(START, "say")
    builder.compile(checkpointer=open_saver()).invoke([HumanMessage("a", id="a")], T)

    def louder(values: dict[str, Any]) -> dict[str, Any]:
        for said in values.get("__root__", ()):
            said.content = said.content.upper()
        return values

    saver = open_saver(2, {2: louder})
    graph = builder.compile(checkpointer=saver)
    assert [said.content for said in graph.get_state(T).values] == ["A", "B"]
    graph.invoke([HumanMessage("c", id="c")], T)
    found = builder.compile(checkpointer=open_saver(2)).get_state(T).values
    assert [said.content for said in found] == ["A", "b", "c"]


def delta_graph(saver: Any, annotation: Any, *, version: int) -> Any:
    channels: dict[str, Any] = {"items": annotation, "other": list[str]}
    builder = StateGraph(TypedDict("State", channels))  # type: ignore[operator]
    builder.add_node("work", lambda state: {"items": [f"v{version}.{len(state['items'])}"]})
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver)


def concat(one: list[Any], writes: list[list[Any]]) -> list[Any]:
    return [*one, *(item for write in writes for item in write)]


@pytest.mark.parametrize("frequency", [1, 3, 100])
def test_a_delta_channel_is_the_same_before_and_after(open_saver: Open, frequency: int) -> None:
    """Its snapshots and writes are not shown to upcasters; everything else is."""
    annotation = Annotated[list[Any], DeltaChannel(concat, snapshot_frequency=frequency)]
    seen: set[str] = set()

    def up(values: dict[str, Any]) -> dict[str, Any]:
        seen.update(values)
        return {**values, "other": ["new"]} if "other" in values else values

    memory = InMemorySaver()
    for saver, version in ((open_saver(), 1), (open_saver(2, {2: up}), 2), (open_saver(2), 3)):
        expected: Any = None
        for place in (memory, saver):
            graph = delta_graph(place, annotation, version=version)
            for turn in range(2):
                inputs = {"items": [f"in {turn}"], **({"other": ["old"]} if version == 1 else {})}
                found = graph.invoke(inputs, T)["items"]
            assert graph.get_state(T).values["items"] == found
            if place is memory:
                expected = found
            else:
                assert found == expected
    assert "items" not in seen
    assert delta_graph(open_saver(2), annotation, version=4).get_state(T).values["other"] == ["new"]


def test_a_channel_that_becomes_a_delta_channel_begins_with_what_it_was_brought_up_to(open_saver: Open) -> None:
    old = Annotated[list[Any], operator.add]
    delta_graph(open_saver(), old, version=1).invoke({"items": ["in"], "other": ["x"]}, T)

    def up(values: dict[str, Any]) -> dict[str, Any]:
        if "items" in values:
            values["items"] = [item.upper() for item in values["items"]]
        return values

    new = Annotated[list[Any], DeltaChannel(concat, snapshot_frequency=100)]
    for step in range(2):
        graph = delta_graph(open_saver(2, {2: up}), new, version=2)
        graph.invoke({"items": [f"more {step}"]}, T)
    found = delta_graph(open_saver(2, {2: up}), new, version=2).get_state(T).values["items"]
    assert found == ["IN", "V1.1", "more 0", "v2.3", "more 1", "v2.5"]


def test_the_seed_of_a_delta_channel_is_brought_up(open_saver: Open) -> None:
    """A value that an older version of the state stored whole is what the channel's history leads back to."""
    old = open_saver()
    parent = put_values(old, T, {"items": ["in"]})
    child = put_values(old, parent, {"other": ["x"]}, step=1)

    def up(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "items": ["IN"]} if "items" in values else values

    new = open_saver(2, {2: up})
    assert new.get_delta_channel_history(config=child, channels=["items"]) == {"items": {"writes": [], "seed": ["IN"]}}
    assert old.get_delta_channel_history(config=child, channels=["items"])["items"]["seed"] == ["in"]


def test_an_upcaster_may_not_take_a_delta_channels_name(open_saver: Open) -> None:
    put_values(open_saver(), T, {"items": _DeltaSnapshot(["a"]), "user": "Ada"})
    with pytest.raises(UpcastError, match="DeltaChannel"):
        open_saver(2, {2: lambda values: {**values, "items": []}}).get_tuple(T)


def test_forks_of_old_checkpoints(open_saver: Open) -> None:
    graph_one(open_saver()).invoke(START_ONE, T)
    saver = open_saver(3, STEPS)
    graph = graph_three(saver)
    past = next(item for item in graph.get_state_history(T) if item.next == ("work",))
    forked = graph.update_state(past.config, {"first": "Grace"})
    assert graph_three(open_saver(3)).get_state(forked).values == {
        **AS_THREE,
        "first": "Grace",
        "log": [{"text": "begun"}],
    }
    graph.invoke(None, forked)
    assert graph.invoke(Command(resume="ok"), T)["log"][-1] == {"text": "ok", "for": "Grace"}
    copied = graph.update_state(past.config, None, as_node="__copy__")
    assert graph_three(open_saver(3)).get_state(copied).values == {**AS_THREE, "log": [{"text": "begun"}]}


async def test_the_asynchronous_colour(dsn: str, schema: str, open_saver: Open) -> None:
    old = open_saver()
    graph_one(old).invoke(START_ONE, T)
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema, state_version=3, upcasters=STEPS) as saver:
        graph = graph_three(saver)
        assert (await graph.aget_state(T)).values["first"] == "Ada"
        assert [item.values.get("first") async for item in graph.aget_state_history(T)] == ["Ada", "Ada", None]
        assert (await graph.ainvoke(Command(resume="yes"), T))["log"][-1] == {"text": "yes", "for": "Ada"}
    async with AsyncPGState.open(dsn, schema=schema, state_version=3) as state:
        assert (await graph_three(state.saver).aget_state(T)).values["last"] == "Lovelace"
    with pytest.raises(StateVersionError):
        old.get_tuple(T)


def test_with_the_record_and_projections(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with PGState.open(dsn, schema=schema, project=("user",)) as state:
        state.setup()
        state.record(graph_one(state.saver)).invoke(START_ONE, T)
    with PGState.open(dsn, schema=schema, project=("first",), state_version=3, upcasters=STEPS) as state:
        assert state.record(graph_three(state.saver)).invoke(Command(resume="yes"), T)["first"] == "Ada"
        found = state.threads.get("t")
        assert found is not None
        assert found.state == {"first": "Ada"}


# The job that brings everything up


@pytest.fixture
def admin(dsn: str, schema: str) -> Iterator[Admin]:
    with Admin.open(dsn, schema=schema) as admin:
        yield admin


def test_old_values_are_not_imported_among_newer_ones(
    open_saver: Open, admin: Admin, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    other = f"{schema}_theirs"
    admin.setup()
    try:
        with official_saver(dsn, other) as theirs:
            graph_one(theirs).invoke(START_ONE, T)
            admin.import_langgraph(dsn, source_schema=other)
            assert admin.upcast(3, STEPS).upcast == 3
            expected = list(open_saver(3).list(T))
            for overwrite in (False, True):
                report = admin.import_langgraph(dsn, source_schema=other, overwrite=overwrite)
                assert "newer state version" in report.differences[0].why
                assert report.checkpoints == 0
        assert list(open_saver(3).list(T)) == expected
    finally:
        connection.execute(f'DROP SCHEMA IF EXISTS "{other}" CASCADE')


# Whatever the values, whatever the way they are read

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


texts = st.lists(st.text(max_size=300), max_size=30)


states = st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), plain | texts, min_size=1, max_size=5)


@given(
    old=states,
    made=st.dictionaries(st.sampled_from(["a", "c", "e", "f", "g"]), plain | texts, max_size=4),
    data=st.data(),
)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lazily_or_at_once_or_going_on_the_values_are_the_same(
    old: dict[str, Any], made: dict[str, Any], data: st.DataObject, saver: PGStateSaver, admin: Admin
) -> None:
    """For any values and any upcaster: what is read of the old one is what its child has that nobody wrote to."""
    kept = data.draw(st.sets(st.sampled_from(sorted(old))))

    def up(values: dict[str, Any]) -> dict[str, Any]:
        return {**{name: value for name, value in values.items() if name in kept}, **made}

    thread_id = f"t{uuid4()}"
    saver._states = StateVersions()
    head = put_values(saver, config_of(thread_id), old)
    saver._states = StateVersions(2, {2: up})
    # Another program's memory, which has not seen the older one write.
    saver._saver_cache.cache.discard_thread(thread_id)
    read = saver.get_tuple(head)
    assert read is not None
    expected = {**{name: value for name, value in old.items() if name in kept}, **made}
    assert read.checkpoint["channel_values"] == expected
    written = data.draw(st.sets(st.sampled_from(["a", "b", "g", "h"]), max_size=2))
    versions = dict(read.checkpoint["channel_versions"])
    new_versions = {
        name: saver.get_next_version(max(versions.values(), default=None), None) for name in sorted(written)
    }
    values = {**expected, **{name: ["written", name] for name in written}}
    child = saver.put(
        head,
        checkpoint_of(values, {**versions, **new_versions}),  # type: ignore[arg-type]
        {"source": "loop", "step": 1, "parents": {}},
        new_versions,
    )
    if data.draw(st.booleans()):
        saver._saver_cache.cache.clear()
    again = saver.get_tuple(child)
    assert again is not None
    assert again.checkpoint["channel_values"] == values
    # The grandchild inherits from a checkpoint of its own version.
    third = saver.put(
        child,
        checkpoint_of(values, again.checkpoint["channel_versions"]),  # type: ignore[arg-type]
        {"source": "loop", "step": 2, "parents": {}},
        {},
    )
    last = saver.get_tuple(third)
    assert last is not None
    assert last.checkpoint["channel_values"] == values
    assert admin.upcast(2, {2: up}, thread_ids=[thread_id]).upcast == 1
    saver._states = StateVersions(2)
    whole = saver.get_tuple(head)
    assert whole is not None
    assert (whole.checkpoint, whole.metadata) == (read.checkpoint, read.metadata)
