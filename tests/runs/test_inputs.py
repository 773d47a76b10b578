"""Arguments of runs, sealed as frames: limits, fields of them, and damage."""

from __future__ import annotations

from datetime import timedelta

import ormsgpack
import pytest
from langgraph.types import Command
from support.queue import CODEC

from langgraph_pgstate import DefaultAnswer
from langgraph_pgstate.codec.frames import pack, unpack
from langgraph_pgstate.errors import ConfigurationError, CorruptStateError
from langgraph_pgstate.runs.inputs import change_input, merge_inputs, open_input, read_field
from langgraph_pgstate.runs.requests import request_run

DENY = DefaultAnswer("deny", after=timedelta(days=3))


def test_a_large_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="of which input has"):
        request_run(CODEC, "graph", "x" * 1000, size_limit=900)
    assert request_run(CODEC, "graph", "x" * 1000, size_limit=2000)


def test_fields_are_read_and_changed_without_the_others() -> None:
    """A process that does not know the types of an input can answer its interrupt."""
    data = request_run(CODEC, "graph", {"x": 1}, metadata={"a": 1}, default_answer=DENY).data
    encoded = ormsgpack.unpackb(unpack(data, "here"))
    data = pack(ormsgpack.packb({**encoded, "input": ("unknown", b"nonsense")}))
    assert read_field(CODEC, data, "metadata", "here") == {"a": 1}
    assert read_field(CODEC, data, "default_answer", "here") == "deny"
    assert read_field(CODEC, data, "command", "here") is None
    changed = change_input(CODEC, data, "here", input=None, command=Command(resume=1), metadata={"b": 2})
    found = open_input(CODEC, changed)
    assert found.command is not None
    assert (found.input, found.command.resume, found.metadata) == (None, 1, {"b": 2})
    with pytest.raises(CorruptStateError, match="here"):
        change_input(CODEC, b"nonsense", "here", input=None)


def test_fields_of_newer_arguments_replace_older_ones() -> None:
    old = request_run(CODEC, "graph", {"x": 1}, metadata={"a": 1}, context="old").data
    newer = request_run(CODEC, "graph", {"x": 2}, metadata={"b": 2}).data
    found = open_input(CODEC, merge_inputs(old, newer, {"input", "context"}, "here"))
    assert (found.input, found.context, found.metadata) == ({"x": 2}, None, {"a": 1})


def test_damaged_arguments_are_an_error() -> None:
    data = request_run(CODEC, "graph", {"x": 1}).data
    # Python would allocate as many bytes as the number says.
    number = pack(ormsgpack.packb({"input": ("msgpack", 2**62)}))
    for broken in (b"", data[:-3], data[:9] + bytes([data[9] ^ 255]) + data[10:], number):
        with pytest.raises(CorruptStateError):
            open_input(CODEC, broken)
