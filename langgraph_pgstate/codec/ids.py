"""Ids of segments and revisions of checkpoints: random numbers.

A checkpoint names every segment it refers to, so the size of a segment's id counts: 4 bytes instead of 8 are a tenth
of a chat's checkpoint. That two segments of a thread draw the same id is noticed by the primary key, which refuses the
second; its put is then tried again with another.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Collection

_SEGMENT_BITS = 31
_REVISION_BITS = 53

# A generator of our own: nodes may seed Python's, and a forked process must not go on with its parent's sequence.
_generator = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_generator.seed)


def new_segment_id(taken: Collection[int] = (), also_taken: Collection[int] = ()) -> int:
    """A positive 31-bit id that is not among those known to be taken."""
    while True:
        segment_id = _generator.getrandbits(_SEGMENT_BITS)
        if segment_id not in taken and segment_id not in also_taken:
            return segment_id


def new_revision() -> int:
    """A 53-bit number."""
    return _generator.getrandbits(_REVISION_BITS)


def new_entry_id() -> str:
    """An id that sorts by this machine's time, to the nanosecond."""
    return f"{time.time_ns():016x}{_generator.getrandbits(64):016x}"
