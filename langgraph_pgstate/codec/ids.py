"""Random ids and revisions."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Final

_REVISION_BITS = 53

# Use a separate generator, because nodes may seed Python's own. A forked process must not repeat its parent's ids.
_generator = random.Random()  # nosec B311 # ids are no secrets
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_generator.seed)


random_bits: Final = _generator.getrandbits
"""Function that returns a random number of some bits."""

new_revision: Callable[[], int] = partial(random_bits, _REVISION_BITS)
"""Function that returns a random 53-bit number."""


def new_entry_id() -> str:
    """Return an id that sorts by this machine's time in nanoseconds."""
    return f"{time.time_ns():016x}{random_bits(64):016x}"
