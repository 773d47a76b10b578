"""Chosen channels as JSON, one row for each thread: the newest checkpoint's, on whatever branch, whatever they hold."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel
from support import APIS, config_of, counted, invoke, open_saver, put_arguments

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.checkpoints.hooks import PutHooks
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.errors import ConfigurationError, ConflictError
from langgraph_pgstate.record.projections import ProjectionHook, check_projectable
from langgraph_pgstate.schema.queries import Statement, queries


class Booking(BaseModel):
    """What a user wants to ask for."""

    check_in: date
    nights: int = 1


def projector(schema: str, *names: str) -> ProjectionHook:
    return ProjectionHook(queries(schema), names)


@pytest.fixture
def projecting(dsn: str, schema: str, saver: PGStateSaver) -> Iterator[PGStateSaver]:
    """A blocking saver that projects two channels."""
    allowed = [("test_projections", name) for name in ("Booking", "Room", "Size")]
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=projector(schema, "booking", "note")) as other:
        yield other.with_allowlist(allowed)


def state(connection: psycopg.Connection, schema: str, thread_id: str = "t") -> Any:
    row = connection.execute(f"SELECT state FROM {schema}.projections WHERE thread_id = %s", [thread_id]).fetchone()
    return row and row[0]


def put(saver: PGStateSaver, config: Any, step: int, changed: Sequence[str] = (), **values: Any) -> Any:
    """A checkpoint whose channels are all there; those in `changed` have the step as their version."""
    config, checkpoint, metadata, _ = put_arguments(config, step, **values)
    new = {name: checkpoint["channel_versions"][name] for name in changed or values}
    versions = {**dict.fromkeys(values, f"{1:032}.{0:016}"), **new}
    return saver.put(config, {**checkpoint, "channel_versions": versions}, metadata, new)


@pytest.mark.parametrize("api", APIS)
async def test_the_question_it_is_for(api: type, dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """All threads whose booking checks in in March, from an index."""

    class State(TypedDict):
        month: int
        booking: dict[str, Any]
        secret: str

    def book(state: State) -> dict[str, Any]:
        return {"booking": {"check_in": date(2026, state["month"], 3).isoformat()}}

    builder = StateGraph(State)
    builder.add_node("book", book)
    builder.add_edge(START, "book")
    builder.add_edge("book", END)
    async with open_saver(api, dsn, schema, hook=projector(schema, "booking", "month")) as saver:
        graph = builder.compile(checkpointer=saver)
        for month in (2, 3, 4):
            await invoke(graph, saver, {"month": month, "secret": "x"}, config_of(f"t{month}"))
    condition = 'state @? \'$.booking.check_in ? (@ >= "2026-03-01" && @ < "2026-04-01")\''
    found = connection.execute(f"SELECT thread_id, state FROM {schema}.projections WHERE {condition}").fetchall()
    assert found == [("t3", {"month": 3, "booking": {"check_in": "2026-03-03"}})]
    heads = connection.execute(
        f"SELECT p.checkpoint_id, (SELECT min(c.checkpoint_id) FROM {schema}.checkpoints c "
        f"WHERE c.thread_id = p.thread_id AND c.state IS NOT NULL AND c.checkpoint_id >= p.checkpoint_id) "
        f"FROM {schema}.projections p"
    ).fetchall()
    assert all(one == other for one, other in heads)


class Size(Enum):
    """An enum."""

    KING = "king"


@dataclass
class Room:
    """A dataclass that holds others."""

    size: Size
    price: Decimal
    numbers: set[int]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Booking(check_in=date(2026, 3, 1)), {"check_in": "2026-03-01", "nights": 1}),
        (Room(Size.KING, Decimal("9.50"), {7}), {"size": "king", "price": "9.50", "numbers": [7]}),
        ({"a": (1, None, True)}, {"a": [1, None, True]}),
        ({1: {Size.KING: "x"}}, {"1": {"king": "x"}}),
        ("nul \0 and \ud800", "nul  and ?"),
        ([float("nan"), 1.5], [None, 1.5]),
        (10**30, str(10**30)),
        (None, None),
    ],
    ids=["model", "dataclass", "tuple", "keys", "text", "nan", "large", "none"],
)
def test_values_that_fit(
    value: Any, expected: Any, projecting: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    put(projecting, config_of("t"), 0, booking=value)
    assert state(connection, schema) == {"booking": expected}


@pytest.mark.parametrize(
    "value", [b"bytes", [object], "x" * 1_100_000, range(3)], ids=["bytes", "type", "huge", "range"]
)
def test_what_does_not_fit_is_a_reference(
    value: Any, dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    hook = projector(schema, "booking", "note")
    serde = JsonPlusSerializer(pickle_fallback=True)
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=hook, serde=serde) as other:
        config = put(other, config_of("t"), 0, booking=value, note="fits")
    checkpoint_id = config["configurable"]["checkpoint_id"]
    found = state(connection, schema)
    assert found["note"] == "fits"
    assert found["booking"] == {
        "$ref": {"channel": "booking", "checkpoint_id": checkpoint_id, "type": type(value).__name__}
    }


def test_a_value_that_refuses_to_be_looked_at_fails_no_put(
    projecting: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    endless: dict[str, Any] = {}
    endless["deeper"] = inner = {}
    for _ in range(150):
        inner["deeper"] = inner = {}
    put(projecting, config_of("t"), 0, booking=endless, note="fits")
    assert set(state(connection, schema)["booking"]) == {"$ref"}


def test_unchanged_values_are_left_alone(dsn: str, schema: str, saver: PGStateSaver) -> None:
    sent: list[int] = []

    class Watching(ProjectionHook):
        def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
            statements = super().before_put(plan, config)
            sent.append(len(statements))
            return statements

    with (
        counted(dsn) as proxy,
        PGStateSaver.from_conn_string(
            proxy.dsn, schema=schema, pool=1, hook=Watching(queries(schema), ["booking"])
        ) as other,
    ):
        config = put(other, config_of("t"), 0, booking={"a": 1}, count=0)
        for step in range(1, 8):
            before = proxy.count
            changed = ["booking", "count"] if step == 4 else ["count"]
            config = put(other, config, step, changed, booking={"a": 1}, count=step)
            assert proxy.count - before <= 3
        put(other, config_of("t", "child:1"), 0, booking={"a": 2})
        assert sent[:5] == [1, 0, 0, 0, 1]
        # The helper gives an unchanged channel its first version again, which is a change, once.
        assert sent[5:] == [1, 0, 0, 0]


def test_the_newest_checkpoint_wins_and_a_fork_writes_all(
    projecting: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    first = put(projecting, config_of("t"), 0, booking="first", note="n", count=0)
    late = put_arguments(first, 1, booking="older id", note="n", count=0)
    put(projecting, first, 1, ["booking"], booking="second", note="n", count=0)
    put(projecting, first, 2, ["count"], booking="first", note="n", count=5)
    assert state(connection, schema) == {"booking": "first", "note": "n"}
    projecting.put(*late)
    assert state(connection, schema) == {"booking": "first", "note": "n"}


def test_a_fork_writes_what_another_process_has_replaced(
    projecting: PGStateSaver, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """The same versions as in this process's last put, but not what the row holds."""
    first = put(projecting, config_of("t"), 0, booking="first", count=0)
    second = put(projecting, first, 0, ["count"], booking="first", count=1)
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=projector(schema, "booking", "note")) as other:
        put(other, second, 1, ["booking"], booking="other", count=1)
    assert state(connection, schema) == {"booking": "other"}
    put(projecting, first, 0, ["count"], booking="first", count=2)
    assert state(connection, schema) == {"booking": "first"}


def test_a_row_that_a_rollback_took_comes_back(
    projecting: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """The rolled back run wrote the row; a later one found it as it should be, and stays."""
    config, checkpoint, metadata, versions = put_arguments(config_of("t"), 0, booking="x", count=0)
    metadata["run_id"] = "gone"  # type: ignore[typeddict-unknown-key, unused-ignore]
    config = projecting.put(config, checkpoint, metadata, versions)
    config = put(projecting, config, 0, ["count"], booking="x", count=1)
    projecting.delete_for_runs(["gone"])
    assert state(connection, schema) is None
    put(projecting, config, 0, ["count"], booking="x", count=2)
    assert state(connection, schema) == {"booking": "x"}


def test_an_emptied_channel_is_gone(projecting: PGStateSaver, schema: str, connection: psycopg.Connection) -> None:
    config = put(projecting, config_of("t"), 0, booking="x", note="n")
    config, checkpoint, metadata, versions = put_arguments(config, 1, booking="x", note="n")
    del checkpoint["channel_values"]["booking"]
    projecting.put(config, checkpoint, metadata, versions)
    assert state(connection, schema) == {"note": "n"}


def test_after_a_rollback_the_next_put_writes_again(
    projecting: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    config = put(projecting, config_of("t"), 0, booking="x", count=0)
    _, checkpoint, metadata, versions = put_arguments(config, 1, booking="y", count=1)
    metadata["run_id"] = "bad"  # type: ignore[typeddict-unknown-key, unused-ignore]
    projecting.put(config, checkpoint, metadata, versions)
    projecting.delete_for_runs(["bad"])
    assert state(connection, schema) is None
    put(projecting, config, 1, ["count"], booking="x", count=2)
    assert state(connection, schema) == {"booking": "x"}


class Relentless:
    """Rewrites the parent each time a put is about to be sent."""

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self._connection, self._schema = connection, schema

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        if plan.base_revisions:
            self._connection.execute(f"UPDATE {self._schema}.checkpoints SET revision = revision + 1")
        return ()

    def after_put(self, plan: PutPlan) -> None:
        return


def test_a_put_that_was_not_stored_projects_nothing(
    dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    hook = PutHooks(projector(schema, "booking"), Relentless(connection, schema))
    with PGStateSaver.from_conn_string(dsn, schema=schema, hook=hook) as other:
        config = put(other, config_of("t"), 0, booking="x", big=["y" * 5000])
        with pytest.raises(ConflictError):
            put(other, config, 1, ["booking"], booking="z", big=["y" * 5000])
    assert state(connection, schema) == {"booking": "x"}


class Handle:
    """Nothing that JSON knows."""


class Everything(TypedDict, total=False):
    """A state with all sorts of channels."""

    text: str
    booking: Booking
    maybe: Handle | str
    rooms: Annotated[list[Room], operator.add]
    anything: Any
    handle: Handle
    handles: dict[str, list[Handle]]
    raw: bytes
    deltas: Annotated[list[str], DeltaChannel(lambda state, writes: state + [w for part in writes for w in part])]


def everything() -> Any:
    builder = StateGraph(Everything)
    builder.add_node("node", lambda state: {})
    builder.add_edge(START, "node")
    return builder.compile()


def test_channels_that_fit_json_are_accepted() -> None:
    check_projectable(everything(), ("text", "booking", "maybe", "rooms", "anything"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("handle", "Handle"),
        ("handles", "Handle"),
        ("raw", "bytes"),
        ("deltas", "DeltaChannel"),
        ("wrong", "not a channel"),
    ],
)
def test_channels_that_cannot_are_refused_by_name(name: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' .*{why}"):
        check_projectable(everything(), ("text", name))


@pytest.mark.parametrize("names", ["booking", [1], [""]])
def test_names_of_another_kind_are_refused(names: Any) -> None:
    with pytest.raises(ConfigurationError, match="project"):
        ProjectionHook(queries("pgstate"), names)
