"""How values become bytes: never other bytes than the serializer's, never other objects, nothing lost unnoticed."""

from __future__ import annotations

import copy
import math
import random
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

import ormsgpack
import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send
from pydantic import BaseModel
from samples import exactly

from langgraph_pgstate.codec import frames, values
from langgraph_pgstate.codec.ids import new_segment_id
from langgraph_pgstate.codec.lists import MERGE_AT, SEGMENT_BYTES, Fresh, Run, diff_runs
from langgraph_pgstate.codec.messages import DIGEST_SIZE, SHAPES, extension
from langgraph_pgstate.codec.metadata import join_metadata, split_metadata
from langgraph_pgstate.codec.states import Elements, Inline, Manifest, Scalar, decode_state, encode_state
from langgraph_pgstate.codec.values import PLAIN_MARK, ValueCodec, array_header, encodes_as_utf8, split_array
from langgraph_pgstate.codec.writes import encode_writes, pack_writes, unpack_writes
from langgraph_pgstate.errors import CorruptStateError, SerializationError, UnreadableFormatError

SLOW = JsonPlusSerializer(allowed_msgpack_modules=True)
CODEC = ValueCodec(SLOW)

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]

QUICK = settings(
    max_examples=250, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
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


# Messages.


@QUICK
@given(any_message())
def test_a_message_is_encoded_as_the_serializer_encodes_it(message: BaseMessage) -> None:
    """The short way writes the serializer's own bytes, or leaves the message to it."""
    expected = slow_bytes(message)
    assume(expected is not None)
    assert CODEC.dumps("messages", message) == ("msgpack", expected)
    shape = SHAPES.get(type(message))
    if shape is not None:
        encoded = shape.encode(message)
        assert encoded is None or encoded == (expected, shape.is_plain(message.__dict__))


@QUICK
@given(st.lists(any_message(), max_size=4))
def test_a_list_is_encoded_as_the_serializer_encodes_it(elements: list[BaseMessage]) -> None:
    """Elements one after the other under an array header are the bytes of the list."""
    expected = slow_bytes(elements)
    assume(expected is not None)
    assert CODEC.dumps("messages", elements) == ("msgpack", expected)
    assert array_header(len(elements)) + CODEC.encode_elements("messages", elements) == expected


@QUICK
@given(any_message())
def test_a_message_is_decoded_as_the_serializer_decodes_it(message: BaseMessage) -> None:
    """The short way builds a message that nobody can tell from the validated one."""
    data = slow_bytes(message)
    assume(data is not None)
    assert data is not None
    assert parts_of(CODEC.loads("msgpack", data, "here")) == parts_of(SLOW.loads_typed(("msgpack", data)))


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


@QUICK
@given(any_message(), st.lists(any_message(), max_size=2))
def test_messages_marked_as_plain_are_decoded_as_the_serializer_decodes_them(
    message: BaseMessage, others: list[BaseMessage]
) -> None:
    """What was plain when it was stored is built without looking again, and nobody can tell."""
    elements = [one for one in (message, *others) if slow_bytes(one) is not None and CODEC.encode_element("m", one)[1]]
    assume(elements)
    data = array_header(len(elements)) + CODEC.encode_elements("m", elements)
    found, digests = CODEC.decode_elements(PLAIN_MARK + data, "here")
    assert [parts_of(item) for item in found] == [parts_of(item) for item in SLOW.loads_typed(("msgpack", data))]
    assert digests == CODEC.decode_elements(data, "here")[1] == CODEC.digests("m", found)
    assert split_array(PLAIN_MARK + data, "here") == (len(elements), 1 + split_array(data, "here")[1])


def test_marked_messages_of_another_version_of_their_class_are_validated() -> None:
    """A field that was not there when the message was stored gets its default from the class."""
    encoded, is_plain = CODEC.encode_element("m", HumanMessage("hello", id="1"))
    assert is_plain
    fields = {"content": "hello", "additional_kwargs": {}, "response_metadata": {}, "type": "human", "id": "1"}
    shape = SHAPES[HumanMessage]
    older = extension(5, shape.prefix + ormsgpack.packb(fields) + ormsgpack.packb("model_validate_json"))
    data = array_header(2) + encoded + older
    found, _ = CODEC.decode_elements(PLAIN_MARK + data, "here")
    assert [parts_of(one) for one in found] == [parts_of(one) for one in SLOW.loads_typed(("msgpack", data))]
    assert [one.name for one in found] == [None, None]


@QUICK
@given(any_message())
def test_decoded_messages_are_independent(message: BaseMessage) -> None:
    """Two decoded messages share nothing that can be changed."""
    data = slow_bytes([message, message])
    assume(data is not None)
    assert data is not None
    (one, two), _ = CODEC.decode_elements(data, "here")
    assume(isinstance(one, BaseMessage))
    one.additional_kwargs["changed"] = True
    one.id = "changed"
    assert two.id != "changed"
    assert "changed" not in two.additional_kwargs
    assert "changed" not in two.__dict__
    assert one.model_fields_set is not two.model_fields_set


@pytest.mark.parametrize(
    "message",
    [FunctionMessage("x", name="f"), RemoveMessage(id="r"), AIMessageChunk("x"), Loud("x"), HumanMessage("x", extra=1)],
    ids=lambda message: type(message).__name__,
)
def test_unusual_messages_take_the_serializers_way(message: BaseMessage) -> None:
    """Classes and fields the short way does not know come back complete."""
    data = CODEC.dumps("messages", message)[1]
    assert data == slow_bytes(message)
    assert parts_of(CODEC.loads("msgpack", data, "here")) == parts_of(SLOW.loads_typed(("msgpack", data)))


def test_the_usual_messages_take_the_short_way() -> None:
    """What a chat is made of is not left to the serializer: else the property tests above would prove little."""
    call = {"name": "f", "args": {"a": 1}, "id": "c", "type": "tool_call"}
    usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "output_token_details": {"reasoning": 1}}
    for message in (
        HumanMessage("hello", id="1"),
        SystemMessage([{"type": "text", "text": "be brief"}]),
        AIMessage("yes", tool_calls=[call], usage_metadata=usage, response_metadata={"model": "m"}),
        ToolMessage("42", tool_call_id="c", artifact={"rows": [1]}),
    ):
        encoded, is_plain = SHAPES[type(message)].encode(message) or (b"", False)
        assert is_plain
        assert encoded == slow_bytes(message)
        refuse = ValueCodec(JsonPlusSerializer(allowed_msgpack_modules=True))
        refuse.serde._unpack_ext_hook = lambda code, data: pytest.fail("the serializer was asked")  # type: ignore[attr-defined]
        assert refuse.loads("msgpack", encoded, "here") == message


# Fingerprints.


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


@pytest.mark.parametrize(
    "change",
    [
        lambda message: setattr(message, "content", "other"),
        lambda message: setattr(message, "id", "other"),
        lambda message: message.additional_kwargs.update(a=1),
        lambda message: message.response_metadata.update(a={"b": [1]}),
        lambda message: message.tool_calls.append({"name": "f", "args": {}, "id": "c", "type": "tool_call"}),
        lambda message: message.tool_calls[0]["args"].update(q=2),
        lambda message: message.usage_metadata.update(input_tokens=99),
    ],
)
def test_a_change_in_place_changes_the_fingerprint(change: Any) -> None:
    """At any depth."""
    message = AIMessage(
        "yes",
        tool_calls=[{"name": "f", "args": {"q": 1}, "id": "c", "type": "tool_call"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    )
    before = CODEC.digests("messages", [message])
    change(message)
    assert CODEC.digests("messages", [message]) != before


def test_messages_of_two_classes_with_the_same_fields_differ() -> None:
    """The class is part of the fingerprint."""
    human, system = HumanMessage("x", id="1"), SystemMessage("x", id="1")
    human.__dict__["type"] = system.__dict__["type"] = "same"
    assert human.__dict__ == system.__dict__
    assert CODEC.digests("messages", [human]) != CODEC.digests("messages", [system])


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
    assert CODEC.is_inline(value) == expected


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


# Frames.


@QUICK
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=20).map(lambda part: part * 9000)))
def test_a_frame_gives_back_its_content(content: bytes) -> None:
    """Small, compressible, large, empty."""
    assert frames.unpack(frames.pack(content), "here") == content


def contents() -> Iterator[bytes]:
    yield b""
    yield b"short"
    yield b"lorem ipsum dolor sit amet " * 20
    yield random.Random(1).randbytes(3000)
    yield b"lorem ipsum dolor sit amet " * 9000
    yield prose(70_000)


@pytest.mark.parametrize("size", [0, 1, 5_000, 50_000])
def test_what_is_soon_gone_is_compressed_only_if_it_is_large(size: int) -> None:
    content = b"message " * (size // 8)
    frame = frames.pack_short_lived(content)
    assert frames.unpack(frame, "here") == content
    assert (len(frame) < len(content)) == (size == 50_000)


def prose(size: int) -> bytes:
    """Words by chance: some come often, no phrase comes twice."""
    dice = random.Random(3)
    words = ["".join(dice.choices("etaoinshrdlucmfwypvbgk", k=dice.randrange(2, 11))) for _ in range(2000)]
    return " ".join(dice.choices(words, range(2000, 0, -1), k=size // 4)).encode()[:size]


def records(size: int) -> bytes:
    """As a tool returns them: names of fields again and again."""
    dice = random.Random(4)
    rows = [{"id": n, "customer_name": f"c{dice.random()}", "is_active": n % 3 == 0} for n in range(size // 60)]
    return CODEC.dumps("rows", {"rows": rows})[1][:size]


def test_a_large_value_is_a_frame_that_any_zstd_reads() -> None:
    """Of prose, records and what cannot be compressed; the last stays as it is."""
    for content in (prose(200_000), records(200_000)):
        frame = frames.pack(content)
        assert frame[0] == frames.ZSTD_PLAIN
        assert zstandard.decompress(frame) == content == frames.unpack(frame, "here")
    noise = random.Random(5).randbytes(200_000)
    assert frames.pack(noise)[0] == frames.RAW


def test_time_is_spent_on_a_large_value_where_it_saves_most() -> None:
    """Records get a table that finds what they repeat; prose, for which it costs most and saves least, gets none."""
    large, small = (
        zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters.from_level(1, hash_log=log))
        for log in (12, 6)
    )
    for content, chosen, other in ((records(200_000), large, small), (prose(200_000), small, large)):
        size = len(frames.pack(content))
        assert abs(size - len(chosen.compress(content))) < 100 < abs(size - len(other.compress(content)))


def test_one_sample_tells_of_eight_values() -> None:
    """Guard: without a bound what once held prose would be taken for prose for ever."""
    text, table = prose(200_000), records(200_000)
    # Where a sample would be taken it is not what it is.
    odd = text[:97_000] + table[:6_000] + text[103_000:]
    frame, hint = frames.pack_large(text)
    assert frame == frames.pack(text)
    taken_for_prose, sampled = frames.pack_large(odd, hint)[0], frames.pack_large(odd)[0]
    assert len(sampled) < len(taken_for_prose)
    found = []
    for _ in range(9):
        frame, hint = frames.pack_large(odd, hint)
        assert frames.unpack(frame, "here") == odd
        found.append(frame)
    assert found == [taken_for_prose] * 7 + [sampled] * 2


def test_large_values_of_before_are_read() -> None:
    """They have no magic number, but a byte of ours."""
    content = prose(100_000)
    format = zstandard.ZstdCompressionParameters.from_level(1, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    frame = bytes([frames.ZSTD]) + zstandard.ZstdCompressor(compression_params=format).compress(content)
    assert frames.unpack(frame, "here") == content


@pytest.mark.parametrize("content", [*contents()], ids=len)
def test_every_damaged_byte_is_noticed(content: bytes) -> None:
    """A frame with any one byte changed, wherever, is refused and never read as something else."""
    frame = frames.pack(content)
    dice = random.Random(2)
    places = range(len(frame)) if len(frame) < 150 else [0, 1, 2, 3, *dice.choices(range(len(frame)), k=150)]
    for place in places:
        for _ in range(2):
            damaged = bytearray(frame)
            damaged[place] ^= dice.randrange(1, 256)
            # A first byte may become one that a later version writes.
            is_later = place == 0 and 3 <= damaged[0] < 32
            with pytest.raises(UnreadableFormatError if is_later else CorruptStateError):
                frames.unpack(bytes(damaged), "here")


def test_every_declared_zstandard_reads_every_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: zstandard 0.23 decompresses no frame without a magic number in one call."""
    every = [frames._WHOLE[kind] for kind in (frames.ZSTD, frames.ZSTD_DICTIONARY_1, frames.ZSTD_PLAIN)]
    every += [frames.pack(content) for content in contents()]
    content = [frames.unpack(frame, "here") for frame in every]
    assert content == [frames._WHOLE_CONTENT] * 3 + [*contents()]
    found = zstandard.ZstdDecompressor

    def older(**options: Any) -> Any:
        assert options.get("format", zstandard.FORMAT_ZSTD1) == zstandard.FORMAT_ZSTD1
        return found(**options)

    monkeypatch.setattr(zstandard, "ZstdDecompressor", older)
    monkeypatch.setattr(frames, "_idle", [])
    assert [frames.unpack(frame, "here") for frame in every] == content


@pytest.mark.parametrize("content", [b"lorem ipsum " * 30, b"lorem ipsum " * 9000], ids=len)
def test_a_zstandard_that_cannot_decompress_is_not_damage(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = frames.pack(content)
    older = SimpleNamespace(decompress=lambda *_: zstandard.ZstdDecompressor().decompress(b"nonsense"))
    with monkeypatch.context() as patch:
        contexts = frames._Contexts()
        contexts.decompress = contexts.decompress_dictionary = older.decompress
        patch.setattr(frames, "_idle", [])
        patch.setattr(frames, "_take_contexts", lambda: contexts)
        with pytest.raises(UnreadableFormatError, match=r"here .* zstandard .* install 0\.23"):
            frames.unpack(frame, "here")
    assert frames.unpack(frame, "here") == content


def test_what_a_later_version_wrote_is_not_damage() -> None:
    """Guard: `on_corrupt="previous"` must not go back behind it."""
    with pytest.raises(UnreadableFormatError, match="frame kind 3 needs a newer version of langgraph_pgstate"):
        frames.unpack(b"\x03whatever", "here")
    fields = [1, 4, "now", {"a": "1"}, {}, False, {"a": [9, "new"]}, {}, {}]
    for changed, why in ((fields, "an entry of kind 9"), ([2, *fields[1:]], "format 2")):
        with pytest.raises(UnreadableFormatError, match=why):
            decode_state(frames.pack(ormsgpack.packb(changed)), [], "here")
    with pytest.raises(UnreadableFormatError, match=r"another serializer.*msgpack\+aes"):
        CODEC.loads("msgpack+aes", b"secret", "here")


@pytest.mark.parametrize(
    ("entries", "is_compressed"),
    [
        ({"a": Inline("msgpack", b"prose of a user " * 60)}, False),
        ({"a": Scalar("prose of a user " * 60)}, False),
        ({"a": Scalar("prose of a user " * 600)}, True),
        ({"a": Inline("msgpack", b"prose"), "b": Scalar(1.5)}, True),
        ({"a": Inline("msgpack", CODEC.dumps("a", {"messages": [HumanMessage("hello " * 150)]})[1])}, True),
        ({"a": Elements(tuple(Run(number, 0, 1) for number in range(90)))}, True),
    ],
    ids=["a value", "a text", "a long text", "little", "a message", "a list"],
)
def test_a_state_that_is_mostly_small_values_is_not_compressed(entries: dict[str, Any], is_compressed: bool) -> None:
    """A dictionary shrinks messages and references, not what a user writes: its time is spent where it saves most."""
    versions = dict.fromkeys(entries, f"{1:032}.{0:016}")
    checkpoint = {"v": 4, "ts": "2026-01-02", "channel_versions": versions, "versions_seen": {}}
    ids = list(range(90))
    data = encode_state(checkpoint, Manifest(versions, dict(entries)), {}, {})
    assert (data[0] != frames.RAW) == is_compressed
    found = decode_state(data, ids, "here")
    assert (found.checkpoint, found.manifest.entries) == (checkpoint, entries)


@pytest.mark.parametrize("content", [*contents()], ids=len)
def test_a_frame_that_is_cut_off_is_noticed(content: bytes) -> None:
    """At any length."""
    frame = frames.pack(content)
    for length in {0, 1, 2, 4, 5, len(frame) // 2, len(frame) - 1} - {len(frame)}:
        with pytest.raises(CorruptStateError):
            frames.unpack(frame[:length], "here")


def test_a_size_that_nobody_has_room_for_is_damage() -> None:
    header = bytes([0b1110_0000]) + (2**55).to_bytes(8, "little") + b"\x01\x00\x00"
    for magic in (bytes([frames.ZSTD]), b"\x28\xb5\x2f\xfd"):
        with pytest.raises(CorruptStateError):
            frames.unpack(magic + header, "here")


# Lists.


@st.composite
def known_list(draw: st.DrawFn) -> tuple[tuple[Run, ...], bytes]:
    """A stored list: runs over segments, and fingerprints drawn from few, so that elements repeat."""
    counts = draw(st.lists(st.integers(1, 12), max_size=20))
    runs = tuple(
        Run(draw(st.integers(1, 4)) * 1000 + number, draw(st.integers(0, 3)), count, count * draw(st.integers(0, 9000)))
        for number, count in enumerate(counts)
    )
    marks = draw(st.lists(st.integers(0, 30), min_size=sum(counts), max_size=sum(counts)))
    return runs, digests_of(marks)


def pieces_of(runs: tuple[Run, ...], old: bytes | None, digests: bytes) -> list[Run | Fresh]:
    """A list as `diff_runs` covers it, from its first element on."""
    kept, rest = diff_runs(runs, old, digests)
    return [*runs[:kept], *rest]


def digests_of(marks: list[int]) -> bytes:
    return b"".join(mark.to_bytes(DIGEST_SIZE, "big") for mark in marks)


def places_of(runs: tuple[Run, ...], digests: bytes) -> dict[tuple[int, int], bytes]:
    places = [(run.segment_id, run.first + offset) for run in runs for offset in range(run.count)]
    return {place: digests[at * DIGEST_SIZE : (at + 1) * DIGEST_SIZE] for at, place in enumerate(places)}


@QUICK
@given(known_list(), st.one_of(st.lists(st.integers(0, 40), max_size=60), st.none()), st.lists(st.integers(0, 99)))
def test_an_arrangement_covers_the_list_exactly(
    known: tuple[tuple[Run, ...], bytes], marks: list[int] | None, appended: list[int]
) -> None:
    """Pieces in order are the list: each run's elements have the fingerprints asked for, the rest is to be written."""
    runs, old = known
    digests = (old if marks is None else digests_of(marks)) + digests_of(appended)
    places = places_of(runs, old)
    at = 0
    for piece in pieces_of(runs, old, digests):
        assert piece.count > 0
        if isinstance(piece, Fresh):
            assert piece.start == at
        else:
            for offset in range(piece.count):
                wanted = digests[(at + offset) * DIGEST_SIZE : (at + offset + 1) * DIGEST_SIZE]
                assert places[piece.segment_id, piece.first + offset] == wanted
        at += piece.count
    assert at * DIGEST_SIZE == len(digests)


def test_nothing_known_means_everything_is_written() -> None:
    """A cold cache costs bytes, not truth."""
    assert diff_runs((Run(1, 0, 3),), None, digests_of([1, 2, 3])) == (0, [Fresh(0, 3)])
    assert diff_runs((), b"", b"") == (0, [])


def test_an_unchanged_list_writes_nothing() -> None:
    """Also when some of its elements are equal."""
    runs = (Run(1, 0, 3, 30), Run(2, 5, 2, 20))
    assert diff_runs(runs, digests_of([1, 1, 2, 1, 1]), digests_of([1, 1, 2, 1, 1])) == (2, [])


def grow(steps: int, size: int, at_once: int = 1) -> tuple[int, int, int]:
    """Append to a list so often; how many runs it has at most, elements written in all, and its length."""
    ids = iter(range(10**9))
    runs: tuple[Run, ...] = ()
    digests = b""
    most = written = 0
    for step in range(steps):
        longer = digests + digests_of([*range(step * at_once, (step + 1) * at_once)])
        new: list[Run] = []
        for piece in pieces_of(runs, digests, longer):
            if isinstance(piece, Fresh):
                written += piece.count
                new.append(Run(next(ids), 0, piece.count, piece.count * size))
            else:
                new.append(piece)
        runs, digests = tuple(new), longer
        most = max(most, len(runs))
    return most, written, steps * at_once


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_long_conversation_is_read_from_few_segments(at_once: int) -> None:
    """Appends of small messages leave a few dozen runs at any time, and write each message a few times at most."""
    most, written, length = grow(1000, 600, at_once)
    assert most <= MERGE_AT + length // MERGE_AT
    assert written <= 7 * length


def test_large_elements_are_not_merged_for_ever() -> None:
    """Elements larger than a segment are written once."""
    _, written, length = grow(200, 100_000)
    assert written == length


def test_a_merge_waits_for_enough_small_runs() -> None:
    """One run fewer than the threshold stays as it is."""
    runs = tuple(Run(number, 0, 1, 10) for number in range(MERGE_AT - 2))
    old = digests_of([*range(MERGE_AT - 2)])
    assert diff_runs(runs, old, old + digests_of([99])) == (len(runs), [Fresh(MERGE_AT - 2, MERGE_AT - 1)])
    runs += (Run(50, 0, 1, 10),)
    old += digests_of([50])
    assert diff_runs(runs, old, old + digests_of([99])) == (0, [Fresh(0, MERGE_AT)])
    # What is many by itself is left alone, and leaves alone.
    many = digests_of([*range(100, 100 + MERGE_AT)])
    assert diff_runs(runs, old, old + many) == (len(runs), [Fresh(MERGE_AT - 1, 2 * MERGE_AT - 1)])
    # An edit at the beginning makes of the first run a fresh element; with one more there are enough.
    edited = digests_of([98]) + old[DIGEST_SIZE:]
    assert diff_runs(runs, old, edited) == (0, [Fresh(0, 1), *runs[1:]])
    assert diff_runs(runs, old, edited + digests_of([99])) == (0, [Fresh(0, MERGE_AT)])


def test_a_merge_waits_for_enough_bytes() -> None:
    """Few runs, each just small enough to be merged, are so when they are a segment's worth together."""
    large, small = Run(1, 0, 3, SEGMENT_BYTES), [Run(number, 0, 1, SEGMENT_BYTES // 8 - 1) for number in range(2, 11)]
    for count, expected in ((8, (9, [Fresh(11, 12)])), (9, (1, [Fresh(3, 13)]))):
        old = digests_of([*range(3 + count)])
        assert diff_runs((large, *small[:count]), old, old + digests_of([99])) == expected


# Pending writes.


@QUICK
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "__error__", "__interrupt__", "__resume__", "__scheduled__"]), PLAIN),
        max_size=7,
    )
)
def test_writes_come_back_under_their_numbers(writes: list[tuple[str, Any]]) -> None:
    """Ordinary writes keep their places in the call, special channels their negative numbers, the last one counting."""
    expected: dict[int, tuple[str, Any]] = {}
    special = {"__error__": -1, "__scheduled__": -2, "__interrupt__": -3, "__resume__": -4}
    for index, (channel, value) in enumerate(writes):
        expected[special.get(channel, index)] = (channel, value)
    rows = encode_writes(CODEC, writes)
    assert len({idx for idx, _ in rows}) == len(rows)
    found = {
        number: (channel, CODEC.loads(type_, data, "here"))
        for _, row in rows
        for number, channel, type_, data in unpack_writes(pack_writes(row), "here")
    }
    assert exactly(found) == exactly(expected)


def test_damaged_writes_are_noticed() -> None:
    """A frame that is whole but holds something else is refused."""
    with pytest.raises(CorruptStateError):
        unpack_writes(frames.pack(b"\x93\x01\x02\x03"), "here")


# Metadata.

META_TEXT = st.one_of(TEXT, st.text(st.characters(exclude_categories=()), max_size=5))
META = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(),
        st.sampled_from([-0.0, 1e16, 1e22, -1e300, 5e-324, math.inf, 0.1]),
        META_TEXT,
        ODD,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(META_TEXT, inner, max_size=3),
        st.dictionaries(st.integers(0, 5), inner, max_size=2),
    ),
    max_leaves=5,
)


def without_nul(value: Any) -> Any:
    """Metadata as LangGraph promises it: no NUL at the top level, tuples as lists where JSON says them."""
    return value.replace("\0", "") if type(value) is str else value


@QUICK
@given(st.dictionaries(META_TEXT.map(without_nul), META.map(without_nul), max_size=4))
def test_metadata_is_split_and_joined_without_loss(metadata: dict[str, Any]) -> None:
    """What JSON says exactly comes from it, the rest from beside it; `jsonb` gets nothing it would refuse."""
    text, exact = split_metadata(metadata)
    assert "\\u0000" not in text
    assert "NaN" not in text
    assert "Infinity" not in text
    text.encode()
    joined = join_metadata(text, exact)
    assert {key: plain(value) for key, value in joined.items()} == {
        key: plain(value) for key, value in metadata.items()
    }


def plain(value: Any) -> Any:
    """To compare metadata by: tuples are lists, NUL is gone at every depth of what JSON says."""
    if type(value) is tuple or type(value) is list:
        return [plain(item) for item in value]
    if type(value) is dict:
        return sorted(((repr(plain(key)), plain(item)) for key, item in value.items()), key=repr)
    if type(value) is str:
        return ("str", value.replace("\0", ""))
    return exactly(value)


# Ids.


def test_segment_ids_are_positive_and_distinct() -> None:
    """They fit `integer`, and none is one that is known to be taken."""
    ids: set[int] = set()
    for _ in range(5000):
        ids.add(new_segment_id(ids))
    assert len(ids) == 5000
    assert all(0 <= id < 2**31 for id in ids)


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
