"""Values as bytes: never other bytes than the serializer's, never other objects, nothing lost unnoticed."""

from __future__ import annotations

import copy
import random
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send
from pydantic import BaseModel
from support import examples
from support.samples import exactly

from langgraph_pgstate.codec import values
from langgraph_pgstate.codec.messages import DIGEST_SIZE
from langgraph_pgstate.codec.values import ValueCodec, array_header, encodes_as_utf8, split_array
from langgraph_pgstate.errors import SerializationError

SLOW = JsonPlusSerializer(allowed_msgpack_modules=True)


CODEC = ValueCodec(SLOW)


pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]


QUICK = settings(
    max_examples=examples(250), derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)


class Color(Enum):
    RED = "red"


class Point(BaseModel):
    x: int = 1
    label: str = "p"


class Loud(HumanMessage):
    """A message class of the user's own."""

    volume: int = 11


TEXT = st.one_of(st.sampled_from(["", "hello", "naïve 🙂", "a\0b", "x" * 300]), st.text(max_size=10))


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
)


ODD = st.sampled_from(
    [
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        timedelta(seconds=3),
        {"a"},
        frozenset({1}),
        Color.RED,
        b"\x00\xff",
        bytearray(b"ab"),
        UUID(int=5),
        Decimal("1.50"),
        Point(x=3),
        (1, 2),
        {1: "int key"},
        {(1, 2): "tuple key"},
        HumanMessage("nested", id="n"),
        [AIMessage("nested in a list")],
        Send("node", {"a": 1}),
        Interrupt(value="stop", id="i"),
        float("nan"),
        {"b": 1, "a": 2},
    ]
)


KWARGS = st.one_of(st.just({}), st.dictionaries(TEXT, st.one_of(PLAIN, ODD), max_size=3))


CONTENT = st.one_of(
    TEXT,
    st.lists(
        st.one_of(
            TEXT,
            st.builds(lambda text: {"type": "text", "text": text}, TEXT),
            st.just({"type": "image_url", "image_url": {"url": "data:..."}}),
            st.dictionaries(st.sampled_from(["type", "text", "index"]), PLAIN, max_size=3),
        ),
        max_size=3,
    ),
)


ID = st.one_of(st.none(), st.text(min_size=1, max_size=5))


CALL = st.fixed_dictionaries(
    {
        "name": st.text(max_size=5),
        "args": st.dictionaries(st.text(max_size=3), st.one_of(PLAIN, ODD), max_size=2),
        "id": ID,
    },
    optional={"type": st.just("tool_call"), "extra": st.integers(0, 3), "index": st.integers(0, 3)},
)


INVALID = st.fixed_dictionaries(
    {"name": ID, "args": ID, "id": ID, "error": ID}, optional={"type": st.just("invalid_tool_call")}
)


COUNT = st.integers(0, 10**6)


USAGE = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT},
        optional={
            "input_token_details": st.dictionaries(
                st.sampled_from(["audio", "cache_creation", "cache_read", "flex_read"]), COUNT, max_size=3
            ),
            "output_token_details": st.dictionaries(
                st.sampled_from(["audio", "reasoning", "priority"]), COUNT, max_size=2
            ),
        },
    ),
)


EXTRA = st.one_of(st.just({}), st.just({}), st.dictionaries(st.sampled_from(["example", "note"]), PLAIN, max_size=2))


@st.composite
def any_message(draw: st.DrawFn) -> BaseMessage:
    """A message of any shape pydantic lets through, sometimes changed behind its back."""
    common = {
        "content": draw(CONTENT),
        "additional_kwargs": draw(KWARGS),
        "response_metadata": draw(KWARGS),
        "id": draw(ID),
        "name": draw(ID),
        **draw(EXTRA),
    }
    kind = draw(st.sampled_from(["human", "system", "tool", "ai", "ai", "loud", "chunk"]))
    try:
        if kind == "human":
            message: BaseMessage = HumanMessage(**common)
        elif kind == "system":
            message = SystemMessage(**common)
        elif kind == "loud":
            message = Loud(**common)
        elif kind == "tool":
            message = ToolMessage(
                **common,
                tool_call_id=draw(st.text(max_size=4)),
                artifact=draw(st.one_of(st.none(), PLAIN, ODD)),
                status=draw(st.sampled_from(["success", "error"])),
            )
        else:
            cls = AIMessage if kind == "ai" else AIMessageChunk
            calls = {} if cls is AIMessageChunk else {"invalid_tool_calls": draw(st.lists(INVALID, max_size=1))}
            message = cls(**common, **calls, tool_calls=draw(st.lists(CALL, max_size=2)), usage_metadata=draw(USAGE))
    except (TypeError, ValueError):
        # Not a message that pydantic would make.
        assume(False)
    change = draw(st.integers(0, 12))
    if change == 0:
        # Another order of fields, as code that writes to `__dict__` leaves it.
        content = message.__dict__.pop("content")
        message.__dict__["content"] = content
    elif change == 1:
        message.content = draw(st.one_of(TEXT, ODD))  # type: ignore[assignment]
    elif change == 2:
        message.additional_kwargs["late"] = draw(st.one_of(PLAIN, ODD))
    elif change == 3 and isinstance(message, AIMessage) and message.tool_calls:
        message.tool_calls[0]["more"] = draw(PLAIN)  # type: ignore[typeddict-unknown-key]
    elif change == 4 and isinstance(message, AIMessage):
        message.usage_metadata = draw(st.one_of(st.just({"input_tokens": 1}), st.just({"cost": 0.5})))  # type: ignore[assignment]
    elif change == 5:
        message.name = draw(st.sampled_from([7, b"x"]))  # type: ignore[assignment]
    elif change == 6:
        message.type = "other"  # type: ignore[assignment]
    elif change == 7:
        del message.__dict__["name"]
    return message


def slow_bytes(value: Any) -> bytes | None:
    """What the serializer says, `None` if it refuses."""
    try:
        type_, data = SLOW.dumps_typed(value)
    except Exception:
        return None
    assert type_ == "msgpack"
    return data


def parts_of(message: Any) -> Any:
    """Everything of a message that can be seen."""
    if not isinstance(message, BaseMessage):
        return exactly(message)
    return (
        type(message),
        [(name, exactly(value)) for name, value in message.__dict__.items()],
        message.model_fields_set,
        exactly(message.__pydantic_extra__),
        message.__pydantic_private__,
        repr(message),
    )


@QUICK
@given(st.lists(any_message(), max_size=4))
def test_a_list_is_encoded_as_the_serializer_encodes_it(elements: list[BaseMessage]) -> None:
    """Elements one after the other under an array header are the bytes of the list."""
    expected = slow_bytes(elements)
    assume(expected is not None)
    assert CODEC.dumps("messages", elements) == ("msgpack", expected)
    assert array_header(len(elements)) + CODEC.encode_elements("messages", elements) == expected


@QUICK
@given(st.lists(st.one_of(any_message(), PLAIN, ODD), max_size=4))
def test_a_list_is_decoded_as_the_serializer_decodes_it(elements: list[Any]) -> None:
    """Lists of anything, element by element."""
    data = slow_bytes(elements)
    assume(data is not None)
    assert data is not None
    found, digests = CODEC.decode_elements(data, "here")
    assert [parts_of(item) for item in found] == [parts_of(item) for item in SLOW.loads_typed(("msgpack", data))]
    assert len(digests) == DIGEST_SIZE * len(elements)


# Fingerprints.


@pytest.mark.slow
@QUICK
@given(st.lists(any_message(), min_size=2, max_size=5), st.data())
def test_equal_fingerprints_mean_equal_bytes(elements: list[BaseMessage], data: st.DataObject) -> None:
    """Two elements with one fingerprint are stored as the same bytes: none is taken for another."""
    assume(slow_bytes(elements) is not None)
    twin = copy.deepcopy(data.draw(st.sampled_from(elements)))
    everything = [*elements, twin, *CODEC.decode_elements(slow_bytes(elements) or b"", "here")[0]]
    assume(slow_bytes(everything) is not None)
    marks = [CODEC.digests("messages", [element]) for element in everything]
    encodings = [slow_bytes(element) for element in everything]
    for one in range(len(everything)):
        for two in range(one):
            if marks[one] == marks[two]:
                assert encodings[one] == encodings[two]


@QUICK
@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "c"]), max_size=9), min_size=2, max_size=4), any_message(), st.data()
)
def test_marks_are_fingerprints_whatever_came_before(
    lists: list[list[str]], odd: BaseMessage, data: st.DataObject
) -> None:
    """Blocks taken over from an earlier list save work, and never keep what an edit or a mutation changed."""
    assume(slow_bytes(odd) is not None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "BLOCK", 3)
        marks = values.NO_FINGERPRINTS
        live: list[BaseMessage] = []
        for more in lists:
            live = live[data.draw(st.integers(0, 1)) :] + [HumanMessage(text) for text in more]
            if live and data.draw(st.booleans()):
                live[data.draw(st.integers(0, len(live) - 1))].content = "changed"
            if data.draw(st.booleans()):
                live.insert(data.draw(st.integers(0, len(live))), odd)
            marks = CODEC.fingerprints("messages", live, marks)
            assert marks.digests == CODEC.digests("messages", live)
            assert len(marks.blocks) <= len(live) // 3


@pytest.mark.slow
@QUICK
@given(st.lists(any_message(), min_size=1, max_size=5))
def test_equal_bytes_mean_equal_fingerprints(elements: list[BaseMessage]) -> None:
    """A message has the fingerprint of its copy and of what its bytes decode to; the list's is all of theirs."""
    # Models that pydantic dumps into dicts, and fields in another order, are only ever taken for new.
    assume(all(exactly(element.model_dump()) == exactly(dict(element.__dict__)) for element in elements))
    assume(all([*element.__dict__] == [*type(element).model_fields] for element in elements))
    data = slow_bytes(elements)
    assume(data is not None)
    decoded, digests = CODEC.decode_elements(data or b"", "here")
    assume(slow_bytes(decoded) == data)
    live = CODEC.digests("messages", elements)
    assert live == b"".join(CODEC.digests("messages", [element]) for element in elements)
    assert live == CODEC.digests("messages", copy.deepcopy(elements))
    assert digests == CODEC.digests("messages", decoded)
    assert digests == live


@QUICK
@given(st.lists(st.one_of(PLAIN, ODD), min_size=1, max_size=5))
def test_fingerprints_of_other_elements_follow_their_bytes(elements: list[Any]) -> None:
    """Strings, dicts, numbers and objects are fingerprinted by their bytes."""
    data = slow_bytes(elements)
    assume(data is not None)
    decoded, digests = CODEC.decode_elements(data or b"", "here")
    assert digests == CODEC.digests("items", decoded)
    marks = [CODEC.digests("items", [element]) for element in elements]
    encodings = [slow_bytes([element]) for element in elements]
    for one in range(len(elements)):
        for two in range(one):
            assert (marks[one] == marks[two]) == (encodings[one] == encodings[two])


# Whole values.


@QUICK
@given(st.one_of(PLAIN, ODD, st.dictionaries(TEXT, ODD, max_size=2)))
def test_any_value_comes_back_as_from_the_serializer(value: Any) -> None:
    """Bytes and value are the serializer's, but for what it cannot say."""
    type_, data = CODEC.dumps("channel", value)
    assert (type_, data) == SLOW.dumps_typed(value)
    assert exactly(CODEC.loads(type_, data, "here")) == exactly(SLOW.loads_typed((type_, data)))


@QUICK
@given(st.one_of(st.text(st.characters(exclude_categories=())), st.integers(-(10**40), 10**40)))
def test_strings_and_integers_are_exact(value: Any) -> None:
    """Lone surrogates and integers of any size come back as they were."""
    assert exactly(CODEC.loads(*CODEC.dumps("channel", value), "here")) == exactly(value)


@QUICK
@given(st.one_of(PLAIN, ODD))
def test_only_exact_plain_scalars_are_inline(value: Any) -> None:
    """What may stand in the checkpoint row is what plain msgpack says exactly."""
    is_scalar = value is None or type(value) in (str, int, float, bool)
    expected = is_scalar and (type(value) is not str or encodes_as_utf8(value))
    assert CODEC.is_scalar(value) == expected


def test_a_value_that_cannot_be_stored_is_named() -> None:
    """The error says which channel and which type."""
    with pytest.raises(SerializationError, match=r"'tools'.*builtins\.object") as caught:
        CODEC.dumps("tools", object())
    assert (caught.value.channel, caught.value.type_name) == ("tools", "builtins.object")


@given(st.integers(0, 70_000))
@QUICK
def test_an_array_header_says_how_many(count: int) -> None:
    """Header and its reading agree, whatever msgpack's size class."""
    header = array_header(count)
    assert split_array(header + b"rest", "here") == (count, len(header))


def prose(size: int) -> bytes:
    """Words by chance: some come often, no phrase comes twice."""
    dice = random.Random(3)
    words = ["".join(dice.choices("etaoinshrdlucmfwypvbgk", k=dice.randrange(2, 11))) for _ in range(2000)]
    return " ".join(dice.choices(words, range(2000, 0, -1), k=size // 4)).encode()[:size]


def plain(value: Any) -> Any:
    """To compare metadata by: tuples are lists, NUL is gone at every depth of what JSON says."""
    if type(value) is tuple or type(value) is list:
        return [plain(item) for item in value]
    if type(value) is dict:
        return sorted(((repr(plain(key)), plain(item)) for key, item in value.items()), key=repr)
    if type(value) is str:
        return ("str", value.replace("\0", ""))
    return exactly(value)


class Interrupting(BaseModel):
    """Sends the process Ctrl-C when it is built or taken apart, as often as `left` says."""

    number: int = 0
    left: ClassVar[int] = 0

    @classmethod
    def interrupt(cls) -> None:
        if cls.left:
            cls.left -= 1
            signal.raise_signal(signal.SIGINT)

    def model_post_init(self, context: Any) -> None:
        self.interrupt()

    def model_dump(self, **options: Any) -> dict[str, Any]:
        self.interrupt()
        return super().model_dump(**options)


@pytest.mark.parametrize("nest", [lambda value: value, lambda value: {"deep": [value]}, lambda value: [1, value]])
def test_an_interrupt_is_no_damage(monkeypatch: pytest.MonkeyPatch, nest: Callable[[Any], Any]) -> None:
    """ormsgpack hides what Python code raises in the middle of its work; Ctrl-C is not what the bytes are like."""
    for codec in (ValueCodec(), ValueCodec(Wrapped())):
        value = nest(Interrupting())
        monkeypatch.setattr(Interrupting, "left", 1)
        with pytest.raises(KeyboardInterrupt):
            codec.dumps("channel", value)
        monkeypatch.setattr(Interrupting, "left", 1)
        with pytest.raises(KeyboardInterrupt):
            codec.digests("channel", [value])
        type_, data = codec.dumps("channel", value)
        monkeypatch.setattr(Interrupting, "left", 1)
        with pytest.raises(KeyboardInterrupt):
            codec.loads(type_, data, "here")
        assert codec.loads(type_, data, "here") == value
    if type(value) is list:
        array = ValueCodec().dumps("channel", value)[1]
        monkeypatch.setattr(Interrupting, "left", 1)
        with pytest.raises(KeyboardInterrupt):
            ValueCodec().decode_elements(array, "here")


class Wrapped(JsonPlusSerializer):
    """A serializer of the user's own."""


def test_a_codec_without_types_builds_none() -> None:
    codec = ValueCodec()
    point = Point()
    stored = codec.dumps("c", point)
    assert codec.loads(*stored, "here") == point
    assert codec.without_types().loads(*stored, "here") == {"x": 1, "label": "p"}
