"""Ids of segments: 41 bits of milliseconds, 22 bits that tell processes apart.

Two processes that write to the same thread in the same millisecond agree on an id once in four million times; the
primary key then refuses the second, and its put is tried again with another.
"""

from __future__ import annotations

import itertools
import secrets
import time
from typing import Final

_EPOCH_MS: Final = 1_735_689_600_000  # 2025-01-01
_SEQUENCE_BITS: Final = 22

_sequence = itertools.count(secrets.randbits(_SEQUENCE_BITS))


def new_segment_id() -> int:
    """A positive 63-bit id, larger than those of earlier milliseconds."""
    milliseconds = time.time_ns() // 1_000_000 - _EPOCH_MS
    return (milliseconds << _SEQUENCE_BITS) | (next(_sequence) & ((1 << _SEQUENCE_BITS) - 1))
