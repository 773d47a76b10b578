"""Values that are read type for type as they were given, or refused by name."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import kinds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import SecretStr
from support import examples

from langgraph_pgstate.codec.exact import difference
from langgraph_pgstate.codec.serializer import StateSerializer, plain_serializer
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import SerializationError

PRAGUE = ZoneInfo("Europe/Prague")


class Reversing(CipherProtocol):
    """An encryption that is none."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


CODECS = [
    ValueCodec(),
    ValueCodec(StateSerializer(allowed=True)),
    ValueCodec(JsonPlusSerializer()),
    ValueCodec(JsonPlusSerializer(allowed_msgpack_modules=None)),
    ValueCodec(EncryptedSerializer(Reversing())),
]

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(),
    st.binary(max_size=5),
    st.sampled_from(["ěščř", "\0", kinds.Color.RED, *kinds.Mood, Decimal("NaN"), Decimal("1.10"), Path("/a"), PRAGUE]),
    st.uuids(),
    st.datetimes(timezones=st.sampled_from([None, UTC, PRAGUE, timezone(timedelta(hours=2), "X")])),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.ip_addresses(),
    st.builds(re.compile, st.just("a+"), st.sampled_from([0, re.IGNORECASE])),
)
HASHABLE = st.one_of(st.integers(0, 9), st.text(max_size=2), st.tuples(st.integers(0, 9), st.text(max_size=1)))
KEYS = st.one_of(st.none(), HASHABLE, st.floats(), st.binary(max_size=2))


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    texts = st.text(max_size=3)
    names = st.dictionaries(texts, inner, max_size=2)
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(deque, st.lists(inner, max_size=2), st.sampled_from([None, 2])),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=2),
        st.sets(HASHABLE, max_size=2),
        st.frozensets(HASHABLE, max_size=2),
        st.builds(kinds.Order, st.integers(-(2**63), 2**64 - 1), st.lists(inner, max_size=2)),
        st.builds(kinds.Frozen, inner),
        st.builds(kinds.Person, name=texts, inner=inner),
        st.builds(kinds.Pair, inner, inner),
        st.builds(HumanMessage, texts, additional_kwargs=names),
        st.builds(AIMessage, texts, id=texts, response_metadata=names),
        st.builds(ToolMessage, texts, tool_call_id=texts, artifact=inner),
        st.builds(Send, st.just("node"), inner),
        st.builds(Command, update=inner, resume=inner, goto=st.lists(st.builds(Send, st.just("n"), inner), max_size=2)),
        st.builds(Overwrite, inner),
    )


VALUES = st.recursive(ATOMS, _compound, max_leaves=8)


@settings(max_examples=examples(400))
@given(VALUES, st.sampled_from([CODECS[0], CODECS[2], CODECS[4]]))
def test_what_is_encoded_is_read_type_for_type(value: Any, codec: ValueCodec) -> None:
    found = codec.loads(*codec.dumps_exactly("it", value), "it")
    assert difference(value, found) is None


@pytest.mark.parametrize("codec", CODECS, ids=["own", "all", "langgraph", "strict", "encrypted"])
@pytest.mark.parametrize(
    "value",
    [
        ("user", "hi"),
        {"messages": ("user", "hi")},
        Command(graph="x", update=[("note", "p")], resume=((1,), {"a": (2,)}), goto=[Send("node", (1, (2,)))]),
        {None: 1, 2: (), 1.5: 2, True: (4,), (1, "a"): 3, b"x": 1},
        {"at": datetime(2026, 10, 25, 2, 30, tzinfo=PRAGUE, fold=1), "on": date(2026, 1, 1), "of": time(1, 2)},
        [UUID(int=1), {1, (2, 3)}, frozenset({"a"}), deque([(1,)], maxlen=3), float("nan"), b"\xc4", "č"],
        [SystemMessage("x"), AIMessageChunk("y"), RemoveMessage("z"), Document("d", metadata={"at": (1,)})],
        [Interrupt((1,)), Overwrite((1,))],
        bytearray(b"x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_many_kinds_keep_their_types(value: Any, codec: ValueCodec) -> None:
    found = codec.loads(*codec.dumps_exactly("it", value), "it")
    assert difference(value, found) is None, found


@pytest.mark.parametrize("value", ["\ud800", 2**80, [SecretStr("secret")]])
def test_what_only_this_package_carries_keeps_its_type(value: Any) -> None:
    found = CODECS[0].loads(*CODECS[0].dumps_exactly("it", value), "it")
    assert difference(value, found) is None


@pytest.mark.parametrize("codec", CODECS, ids=["own", "all", "langgraph", "strict", "encrypted"])
def test_the_text_of_a_message_is_a_plain_string(codec: ValueCodec) -> None:
    text = HumanMessage("hi").text
    for value in (text, {text: (text, {text}), "č": b"\xc4"}, Command(resume=[text]), HumanMessage(text, name=text)):
        encoded = codec.dumps_exactly("it", value)
        found = codec.loads(*encoded, "it")
        assert difference(value, found) is None
        assert [*map(type, found if isinstance(found, dict) else [])] in ([], [str, str])
        assert b"TextAccessor" not in encoded[1]


class Text(str):
    """A string of a type of its own."""


class Number(int):
    """A number of a type of its own."""


def _local() -> Any:
    class Local(kinds.Order):
        """Not to be found in any module."""

    return Local(1)


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: OrderedDict(a=1), "it"),
        (lambda: {"a": [0, defaultdict(list)]}, r"it\['a'\]\[1\]"),
        (lambda: (Counter("a"),), r"it\[0\]"),
        (lambda: {"a": Text("x")}, r"it\['a'\]"),
        (lambda: {Text("x"): 1}, "it, key 'x'"),
        (lambda: [Number(1)], r"it\[0\]"),
        (lambda: {"a": bytearray(b"x")}, r"it\['a'\]"),
        (lambda: {UUID(int=1): 1}, "it, key UUID"),
        (lambda: {kinds.Color.RED: 1}, "it, key <Color"),
        (lambda: {"a": "\ud800"}, "it"),
        (lambda: [2**80], "it"),
        (lambda: [ValueError("x")], r"it\[0\]"),
        (lambda: Command(update=kinds.Order(1, [ValueError("x")])), r"it\.update\.lines\[0\]"),
        (object, "it"),
        (_local, "it"),
    ],
)
def test_what_would_be_read_otherwise_is_refused_by_name(make: Callable[[], Any], place: str) -> None:
    for codec in CODECS[0], CODECS[4]:
        with pytest.raises(SerializationError, match=f"cannot store ['\"]{place}"):
            codec.dumps_exactly("it", make())


def test_ends_of_a_cycle_are_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(SerializationError):
        CODECS[0].dumps_exactly("it", value)


def test_bytes_of_channels_are_langgraphs_own() -> None:
    """They lose tuples, as LangGraph's do; and what is exact can be read by whoever builds no types."""
    codec = ValueCodec()
    assert codec.dumps("it", {"a": (1,)})[1] == JsonPlusSerializer().dumps_typed({"a": (1,)})[1]
    exact = codec.dumps_exactly("it", {"a": (1,)})
    assert ValueCodec(plain_serializer()).loads(*exact, "it") == {"a": (1,)}
