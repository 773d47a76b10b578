"""The differences between the lists of a checkpoint to store and the lists of its parent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.codec.messages import DIGEST_SIZE
from langgraph_pgstate.codec.states import Elements, Entry, Inline
from langgraph_pgstate.langgraph_compat import DeltaSnapshot

_EMPTY_LIST: Final = b"\x90"


@dataclass(frozen=True, slots=True)
class ListChange:
    """The difference between a channel's list and the parent's list.

    Attributes:
        channel: Name of the channel.
        value: The current list.
        fresh: Positions of elements that the parent's list does not have.
        is_appended: Whether the fresh elements follow the parent's unchanged list.
        is_known: Whether the difference is certain. If not, all elements count as fresh.
        digests: Concatenated fingerprints of the elements, if they are known.
    """

    channel: str
    value: list[Any]
    fresh: Sequence[int]
    is_appended: bool
    is_known: bool
    digests: bytes | None = None


def list_changes(plan: PutPlan, *, all_channels: bool = False) -> Iterator[ListChange]:
    """Yield the differences between the lists of a checkpoint to store and the lists of its parent.

    With `all_channels`, yield channels whose version has not changed, too, and treat every difference as unknown.
    """
    values = plan.request.checkpoint["channel_values"]
    parent = plan.parent
    for channel, version in plan.manifest.versions.items():
        value = values.get(channel)
        is_old = not all_channels and parent is not None and parent.versions.get(channel) == version
        if type(value) is not list:
            if type(value) is DeltaSnapshot and type(value.value) is list:
                yield ListChange(channel, value.value, range(len(value.value)), False, False)
            elif parent is not None and type(parent.entries.get(channel)) is Elements and not is_old:
                # The list was emptied, or is not a list any more.
                yield ListChange(channel, [], (), False, True)
            continue
        if is_old:
            continue
        new = _digests(plan.manifest.entries.get(channel))
        if new is not None and len(new) != len(value) * DIGEST_SIZE:
            new = None
        old = _digests(parent.entries.get(channel) if parent is not None else None)
        if all_channels or old is None or new is None:
            yield ListChange(channel, value, range(len(value)), False, False, new)
        elif new.startswith(old):
            yield ListChange(channel, value, range(len(old) // DIGEST_SIZE, len(value)), True, True, new)
        else:
            yield ListChange(channel, value, _fresh(split_digests(old), split_digests(new)), False, True, new)


def split_digests(digests: bytes) -> list[bytes]:
    """Return concatenated fingerprints as a list."""
    return [digests[at : at + DIGEST_SIZE] for at in range(0, len(digests), DIGEST_SIZE)]


def _digests(entry: Entry | None) -> bytes | None:
    """Return the fingerprints of a list's elements, or `None` if they are not known."""
    if isinstance(entry, Elements):
        return entry.fingerprints.digests if entry.fingerprints is not None else None
    return b"" if entry is None or (isinstance(entry, Inline) and entry.data == _EMPTY_LIST) else None


def _fresh(old: Sequence[bytes], new: Sequence[bytes]) -> list[int]:
    """Return the positions of new elements. Of equal elements, the last positions are new."""
    left = Counter(old)
    fresh = []
    for place, digest in enumerate(new):
        if left[digest] > 0:
            left[digest] -= 1
        else:
            fresh.append(place)
    return fresh
