"""Random ids of segments and revisions of checkpoints.

An id of a segment has only 31 bits, because each checkpoint stores the ids of all its segments. If two segments of a
thread get the same id, the primary key refuses the second segment, and the put is retried with another id.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection
from functools import partial

_SEGMENT_BITS = 31
_REVISION_BITS = 53

# Use a separate generator, because nodes may seed Python's own. A forked process must not repeat its parent's ids.
_generator = random.Random()  # nosec B311 # ids are no secrets
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_generator.seed)


def new_segment_id(taken: Collection[int] = (), also_taken: Collection[int] = ()) -> int:
    """Return a positive 31-bit id that is in neither collection."""
    while True:
        segment_id = _generator.getrandbits(_SEGMENT_BITS)
        if segment_id not in taken and segment_id not in also_taken:
            return segment_id


new_revision: Callable[[], int] = partial(_generator.getrandbits, _REVISION_BITS)
"""Function that returns a random 53-bit number."""


def new_entry_id() -> str:
    """Return an id that sorts by this machine's time in nanoseconds."""
    return f"{time.time_ns():016x}{_generator.getrandbits(64):016x}"
