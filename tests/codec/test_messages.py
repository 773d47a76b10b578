"""Messages as bytes: those of the serializer, whichever way they take."""

from __future__ import annotations

from typing import Any

import ormsgpack
import pytest
from hypothesis import assume, given
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

from langgraph_pgstate.codec.messages import SHAPES, extension
from langgraph_pgstate.codec.values import PLAIN_MARK, ValueCodec, array_header, split_array
from tests.codec.test_values import CODEC, QUICK, SLOW, Loud, any_message, parts_of, slow_bytes

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]


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
@given(any_message())
def test_a_message_is_decoded_as_the_serializer_decodes_it(message: BaseMessage) -> None:
    """The short way builds a message that nobody can tell from the validated one."""
    data = slow_bytes(message)
    assume(data is not None)
    assert data is not None
    assert parts_of(CODEC.loads("msgpack", data, "here")) == parts_of(SLOW.loads_typed(("msgpack", data)))


@pytest.mark.slow
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


@pytest.mark.slow
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
