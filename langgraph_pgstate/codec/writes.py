"""Pending writes of one call, packed into as few rows as idempotence allows.

The ordinary writes of a call are one row: `[[number, channel, type, bytes], …]` in a frame. A task's first such row has
the `idx` 0. A second call of the task conflicts with this row, and adds only the missing writes, under the next `idx`.
A write to a special channel (error, interrupt, resume, scheduled) may be replaced later, so it has its own row, under
its negative number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import WRITES_IDX_MAP

from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import CorruptStateError

# A write: its number among the task's writes, its channel, its type and its bytes.
Write = tuple[int, str, str, bytes]


def encode_writes(codec: ValueCodec, writes: Sequence[tuple[str, Any]]) -> list[tuple[int, list[Write]]]:
    """Return the rows of a call as `(idx, writes)`, encoded but not yet packed."""
    special: dict[int, list[Write]] = {}
    ordinary: list[Write] = []
    for index, (channel, value) in enumerate(writes):
        number = WRITES_IDX_MAP.get(channel, index)
        write = (number, channel, *codec.dumps(channel, value))
        if number < 0:
            special[number] = [write]
        else:
            ordinary.append(write)
    return [*special.items(), (0, ordinary)] if ordinary else [*special.items()]


def pack_writes(writes: Sequence[Write]) -> bytes:
    """Return encoded writes as the data of a row."""
    return frames.pack(ormsgpack.packb(writes))


def unpack_writes(data: bytes, where: str) -> list[Write]:
    """Return the encoded writes of a row.

    Raises:
        CorruptStateError: If the row is damaged.
    """
    try:
        return [
            (number, channel, type_, content)
            for number, channel, type_, content in ormsgpack.unpackb(frames.unpack(data, where))
        ]
    except (ormsgpack.MsgpackDecodeError, TypeError, ValueError) as error:
        raise CorruptStateError(where, f"its writes do not decode ({error})") from error
