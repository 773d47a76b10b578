"""Ids of segments: random, positive, 31 bits, unique within their thread.

A checkpoint names every segment it refers to, so their size counts: 4 bytes instead of 8 are a tenth of a chat's
checkpoint. That two segments of a thread draw the same id is noticed by the primary key, which refuses the second; its
put is then tried again with another.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

_BITS = 31


def new_segment_id(taken: Collection[int] = ()) -> int:
    """An id that is not among those known to be taken."""
    while (segment_id := secrets.randbits(_BITS)) in taken:
        pass
    return segment_id
