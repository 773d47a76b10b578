"""Arguments with which enqueued runs call their graphs, and their encoding as a frame. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import ormsgpack
from langgraph.types import Command

from langgraph_pgstate.codec.frames import pack, unpack
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ConfigurationError, CorruptStateError
from langgraph_pgstate.runs.options import DEFAULT_SIZE_LIMIT

# Default values of fields, which are not stored.
_LEFT_OUT: Final[Mapping[str, Any]] = {"config": {}, "metadata": {}, "on_completion": "keep", "stream_subgraphs": False}


@dataclass(frozen=True, slots=True)
class RunInput:
    """The arguments with which an enqueued run calls its graph.

    Attributes:
        input: The input. With `None`, the run continues from the newest checkpoint.
        command: The command instead of an input.
        config: The config, as it was given.
        context: The context of the graph, for `Runtime.context`.
        metadata: Metadata of the run.
        checkpoint_id: Checkpoint from which the run starts.
        interrupt_before: Nodes before which the run stops.
        interrupt_after: Nodes after which the run stops.
        durability: When checkpoints are stored.
        stream_mode: Modes of the events to store; see `modes_of`.
        stream_subgraphs: Whether events of subgraphs are stored.
        on_completion: `keep` or `delete`.
        default_answer: The answer to interrupts that are not answered in time.
        expected_head: Checkpoint that must be the thread's newest when the run begins.
    """

    input: Any = None
    command: Command[Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_id: str | None = None
    interrupt_before: Any = None
    interrupt_after: Any = None
    durability: Any = None
    stream_mode: list[str] | None = None
    on_completion: str = "keep"
    stream_subgraphs: bool = False
    default_answer: Any = None
    expected_head: str | None = None


def modes_of(given: RunInput) -> list[str]:
    """Return the stream modes whose events are stored."""
    return ["updates"] if given.stream_mode is None else given.stream_mode


def seal_input(codec: ValueCodec, given: RunInput, limit: int = DEFAULT_SIZE_LIMIT) -> bytes:
    """Encode the arguments of a run as one frame (`codec.frames`).

    Raises:
        SerializationError: If a value cannot be stored. The error names the value.
        ConfigurationError: If the frame is larger than `limit` bytes.
    """
    fields = {name: getattr(given, name) for name in RunInput.__dataclass_fields__}
    encoded = {
        name: codec.dumps_exactly(name, value)
        for name, value in fields.items()
        if value is not None and not (name in _LEFT_OUT and value == _LEFT_OUT[name])
    }
    size = sum(len(data) for _, data in encoded.values())
    if size > limit:
        largest = max(encoded, key=lambda name: len(encoded[name][1]))
        raise ConfigurationError(
            f"the arguments of the run must have at most {limit:,} bytes, not {size:,}, of which {largest} has "
            f"{len(encoded[largest][1]):,}. Store the data elsewhere and pass a name, or increase size_limit"
        )
    return pack(ormsgpack.packb(encoded))


def open_input(codec: ValueCodec, data: bytes, where: str = "an enqueued run") -> RunInput:
    """Decode the arguments of a run.

    Raises:
        CorruptStateError: If the bytes are damaged.
        UnreadableFormatError: If a newer version of this package, or another serializer, wrote the bytes.
        UnsafeTypeError: If the arguments have a type that may not be built.
    """
    known = RunInput.__dataclass_fields__
    return RunInput(
        **{
            name: codec.loads(*value, f"{name} of {where}")
            for name, value in _encoded_fields(data, where).items()
            if name in known
        }
    )


def read_field(codec: ValueCodec, data: bytes, name: str, where: str) -> Any:
    """Return one field of a run's encoded arguments; `None` if the field is not set. No other field is decoded."""
    found = _encoded_fields(data, where).get(name)
    return None if found is None else codec.loads(*found, f"{name} of {where}")


def change_input(codec: ValueCodec, data: bytes, where: str, **fields: Any) -> bytes:
    """Return a run's encoded arguments with some fields replaced; `None` removes a field. No field is decoded."""
    encoded = _encoded_fields(data, where)
    for name, value in fields.items():
        encoded.pop(name, None)
        if value is not None:
            encoded[name] = codec.dumps_exactly(name, value)
    return pack(ormsgpack.packb(encoded))


def merge_inputs(data: bytes, newer: bytes, names: Collection[str], where: str) -> bytes:
    """Return a run's encoded arguments with the named fields of newer arguments. No field is decoded.

    A named field that the newer arguments lack is removed.
    """
    encoded, given = _encoded_fields(data, where), _encoded_fields(newer, where)
    kept = {name: value for name, value in encoded.items() if name not in names}
    return pack(ormsgpack.packb(kept | {name: given[name] for name in names if name in given}))


def _encoded_fields(data: bytes, where: str) -> dict[str, tuple[str, bytes]]:
    try:
        encoded = ormsgpack.unpackb(unpack(data, where))
        fields = {name: (type_, value) for name, (type_, value) in encoded.items()}
        if any(type(type_) is not str or type(value) is not bytes for type_, value in fields.values()):
            raise TypeError("a field is not an encoded value")
        return fields
    except (ormsgpack.MsgpackDecodeError, AttributeError, TypeError, ValueError) as error:
        raise CorruptStateError(where, f"it is not the encoded arguments of a run ({error})") from error
