"""Pending writes of one call, packed into as few rows as their idempotence allows.

Ordinary writes that follow one another are one row, numbered by the first: `[[channel, type, bytes], …]` in a frame.
A write to a special channel (error, interrupt, resume, scheduled) is a row of its own under its negative number,
because it alone may be replaced later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import WRITES_IDX_MAP

from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import CorruptStateError

Write = tuple[str, str, bytes]


def encode_writes(codec: ValueCodec, writes: Sequence[tuple[str, Any]]) -> list[tuple[int, list[Write]]]:
    """Rows as `(idx, writes)`, encoded but not yet packed."""
    rows: list[tuple[int, list[Write]]] = []
    special: dict[int, list[Write]] = {}
    following = -1
    for index, (channel, value) in enumerate(writes):
        write = (channel, *codec.dumps(channel, value))
        number = WRITES_IDX_MAP.get(channel, index)
        if number < 0:
            special[number] = [write]
        elif index == following:
            rows[-1][1].append(write)
            following += 1
        else:
            rows.append((index, [write]))
            following = index + 1
    return [*special.items(), *rows]


def pack_writes(writes: Sequence[Write]) -> bytes:
    """The data of a row."""
    return frames.pack(ormsgpack.packb(writes))


def unpack_writes(data: bytes, where: str) -> list[Write]:
    """The encoded writes of a row.

    Raises:
        CorruptStateError: If the row is damaged.
    """
    try:
        return [(channel, type_, content) for channel, type_, content in ormsgpack.unpackb(frames.unpack(data, where))]
    except (ormsgpack.MsgpackDecodeError, TypeError, ValueError) as error:
        raise CorruptStateError(where, f"its writes do not decode ({error})") from error
