"""What a node puts into the state comes back as it was, or is refused by name; and secrets stay secret."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from pydantic import BaseModel
from support.samples import checkpoint_of, config_of, exactly, forget, put_values, values_of

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.errors import SerializationError

pytestmark = pytest.mark.smoke


class Mood(StrEnum):
    CALM = "calm"


class Level(IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Order:
    number: int
    tags: list[str]


class Person(BaseModel):
    name: str
    born: date


class Place(NamedTuple):
    x: int
    y: int


class Opaque:
    """A type that no serializer knows."""


PLAIN: dict[str, Any] = {
    "empty string": "",
    "NUL": "a\0b",
    "nothing but NUL": "\0",
    "emoji": "naïve 🙂",
    "NaN": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "-0.0": -0.0,
    "tiny": 5e-324,
    "large float": 1e300,
    "integral float": 1e16,
    "int64": -(2**63),
    "uint64": 2**64 - 1,
    "true": True,
    "none": None,
    "bytes": b"\x00\xff",
    "long bytes": bytes(range(256)) * 40,
    "bytearray": bytearray(b"\x00\xff"),
    "long text": "lorem ipsum " * 2000,
    "dict": {"b": 1, "a": {"NUL\0": ["x\0", math.nan, -0.0]}},
    "integer keys": {1: "one", 2: "two"},
    "empty dict": {},
    "empty list": [],
    "list": ["a\0", 1, 2.5, None, True, {"x": [b"y"]}],
    "long list": [f"item {number}" for number in range(300)],
    "nested": [[["deep"]] * 3] * 3,
    "set": {1, 2, 3},
    "frozenset": frozenset("ab"),
    "deque": deque([1, 2]),
    "decimal": Decimal("1.50"),
    "datetime": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "date": date(2026, 1, 2),
    "time": time(3, 4, 5),
    "timedelta": timedelta(days=1, microseconds=1),
    "uuid": UUID(int=7),
    "message": HumanMessage("a\0b", id="1", additional_kwargs={"when": date(2026, 1, 2)}),
    "messages": [HumanMessage("x" * 200, id="1"), AIMessage("y", response_metadata={"logprob": math.nan})],
}


OURS = {"lone surrogate": "\ud800 alone", "large int": 10**30, "large negative int": -(2**63) - 1}


ALLOWED = [(__name__, cls.__name__) for cls in (Mood, Level, Order, Person, Place)]


def same(value: Any) -> Any:
    """To compare by: NaN equals NaN, types count."""
    if isinstance(value, BaseModel) and not hasattr(value, "content"):
        return type(value), [(name, same(item)) for name, item in value]
    if dataclasses.is_dataclass(value):
        return type(value), [(field.name, same(getattr(value, field.name))) for field in dataclasses.fields(value)]
    return exactly(value)


def get_values(saver: BaseCheckpointSaver[str], config: Any) -> dict[str, Any]:
    """The values as a process reads them that has not written them."""
    if isinstance(saver, PGStateSaver):
        forget(saver)
    return values_of(saver, config)


# Values.


@pytest.mark.parametrize("value", [*(PLAIN | OURS).values()], ids=[*(PLAIN | OURS)])
def test_a_value_comes_back_as_it_was(value: Any, saver: PGStateSaver) -> None:
    """The same value of the same type, as a channel and as a pending write, also after a copy of the thread."""
    config = put_values(saver, config_of(), {"channel": value})
    saver.put_writes(config, [("channel", value)], "task")
    assert same(get_values(saver, config)["channel"]) == same(value)
    found = saver.get_tuple(config)
    assert found is not None
    assert same(found.pending_writes) == same([("task", "channel", value)])
    saver.copy_thread("t", "copy")
    assert same(get_values(saver, config_of("copy"))["channel"]) == same(value)


async def test_the_asynchronous_saver_returns_the_same(async_saver: AsyncPGStateSaver) -> None:
    """All values at once, in the other api."""
    values = PLAIN | OURS
    versions = dict.fromkeys(values, f"{1:032}.{0:016}")
    metadata: Any = {"source": "loop", "step": 1, "parents": {}}
    config = await async_saver.aput(config_of(), checkpoint_of(values, versions), metadata, versions)  # type: ignore[arg-type]
    await async_saver.aput_writes(config, [*values.items()], "task")
    found = await async_saver.aget_tuple(config)
    assert found is not None
    assert {name: same(value) for name, value in found.checkpoint["channel_values"].items()} == {
        name: same(value) for name, value in values.items()
    }
    assert [(name, same(value)) for _, name, value in found.pending_writes or []] == [
        (name, same(value)) for name, value in values.items()
    ]


def test_what_the_in_memory_saver_returns_is_returned(saver: PGStateSaver) -> None:
    """Where LangGraph's in-memory saver can say a value, the answers are the same."""
    memory = InMemorySaver()
    for target in (saver, memory):
        put_values(target, config_of(), PLAIN, id="1f000000-0000-6000-8000-000000000001")
    ours, theirs = get_values(saver, config_of()), values_of(memory, config_of())
    assert {name: same(value) for name, value in ours.items()} == {name: same(value) for name, value in theirs.items()}


@pytest.fixture
def upstream(dsn: str, schema: str, connection: psycopg.Connection) -> Iterator[PostgresSaver]:
    """LangGraph's own PostgreSQL saver beside ours, in a schema of its own."""
    other = f"{schema}_up"
    connection.execute(f'CREATE SCHEMA "{other}"')
    with PostgresSaver.from_conn_string(dsn) as found:
        found.conn.execute(f'SET search_path TO "{other}"')  # type: ignore[union-attr]
        found.setup()
        yield found
    connection.execute(f'DROP SCHEMA "{other}" CASCADE')


def test_what_langgraphs_postgres_saver_returns_is_returned(saver: PGStateSaver, upstream: PostgresSaver) -> None:
    """Where LangGraph's PostgreSQL saver can store a value inline or not, ours returns the same."""
    able = {
        name: value for name, value in PLAIN.items() if name not in ("NUL", "nothing but NUL", "NaN", "inf", "-inf")
    }
    for target in (saver, upstream):
        put_values(target, config_of(), able, id="1f000000-0000-6000-8000-000000000001")
    ours, theirs = get_values(saver, config_of()), values_of(upstream, config_of())
    # jsonb, where it keeps floats inline, has no negative zero and loses the point of 1e16.
    for name in ("-0.0", "integral float", "large float"):
        assert same(ours.pop(name)) == same(able[name])
        theirs.pop(name)
    assert {name: same(value) for name, value in ours.items()} == {name: same(value) for name, value in theirs.items()}


def test_numpy_arrays_come_back(saver: PGStateSaver) -> None:
    """Shape, order and type of an array."""
    numpy = pytest.importorskip("numpy")
    arrays = [numpy.arange(6, dtype="int16").reshape(2, 3), numpy.asfortranarray(numpy.ones((3, 2)))]
    config = put_values(saver, config_of(), {"one": arrays[0], "both": arrays, "large": numpy.zeros(50_000)})
    found = get_values(saver, config)
    assert found["large"].shape == (50_000,)
    for before, after in zip([arrays[0], *arrays], [found["one"], *found["both"]], strict=True):
        assert numpy.array_equal(before, after)
        assert (before.dtype, before.flags.f_contiguous) == (after.dtype, after.flags.f_contiguous)


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    return value


def test_deep_nesting_comes_back(saver: PGStateSaver) -> None:
    """As deep as the serializer goes."""
    config = put_values(saver, config_of(), {"deep": nested(200)})
    assert get_values(saver, config)["deep"] == nested(200)


def put_channel(saver: PGStateSaver, config: Any, value: Any) -> None:
    put_values(saver, config, {"fine": 2, "bad": value})


def put_list(saver: PGStateSaver, config: Any, value: Any) -> None:
    put_values(saver, config, {"bad": [*("x" * 50 for _ in range(5)), {"inner": value}]})


def put_write(saver: PGStateSaver, config: Any, value: Any) -> None:
    saver.put_writes(config, [("fine", 1), ("bad", value)], "task")


def put_metadata(saver: PGStateSaver, config: Any, value: Any) -> None:
    put_values(saver, config, {"fine": 2}, bad={"inner": value})


@pytest.mark.parametrize("put", [put_channel, put_list, put_write, put_metadata])
@pytest.mark.parametrize("value", [Opaque(), nested(2000)], ids=["opaque", "too-deep"])
def test_a_value_that_cannot_be_stored_is_refused_by_name(
    put: Callable[..., None], value: Any, saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """The error names the channel and the type; nothing was written."""
    config = put_values(saver, config_of(), {"fine": 1})
    with pytest.raises(SerializationError) as caught:
        put(saver, config, value)
    assert "bad" in caught.value.channel
    assert repr(caught.value.channel) in str(caught.value)
    assert caught.value.type_name in str(caught.value)
    for table, rows in (("checkpoints", 1), ("writes", 0), ("segments", 0)):
        assert connection.execute(f'SELECT count(*) FROM "{schema}".{table}').fetchone() == (rows,)


def test_the_module_names_of_this_file_are_importable() -> None:
    """What the allowlist tests rest on: the serializer finds these types by name."""
    assert all(getattr(sys.modules[module], name) for module, name in ALLOWED)
