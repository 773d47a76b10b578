"""What others want written together with a checkpoint: in its transaction, in its round trip."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from langgraph_pgstate.codec.messages import DIGEST_SIZE
from langgraph_pgstate.codec.states import Elements, Entry, Inline
from langgraph_pgstate.langgraph_compat import DeltaSnapshot
from langgraph_pgstate.operations.checkpoints.planning import PutPlan
from langgraph_pgstate.sql import NamedQuery

_logger = logging.getLogger("langgraph_pgstate")
_EMPTY_LIST: Final = b"\x90"
# Classes 22 (data), 23 (constraints) and 54 (limits).
_REFUSALS: Final = ("22", "23", "54")

Statement = tuple[NamedQuery, Mapping[str, Any]]


def is_refusal(error: BaseException) -> bool:
    """Whether the database refuses a statement for what it says, so that trying again changes nothing."""
    return (getattr(error, "sqlstate", None) or "").startswith(_REFUSALS)


class PutHook(Protocol):
    """Somebody who has something to add to a put. Called by the saver; must not touch the database itself.

    What it adds to `plan.note` the put's own statement notes in the journal, which costs next to nothing. Its
    statements are for what has to be in the tables with the checkpoint. They have to be safe to repeat: a put that
    lost its connection or its base is sent again. When the database refuses one for what it is, the checkpoint is
    stored without them, and `after_put` is not called.
    """

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """What to write after the checkpoint's own rows, in the same transaction. It may raise nothing."""
        ...

    def after_put(self, plan: PutPlan) -> None:
        """The checkpoint, and the statements returned for it, are committed."""
        ...


class PutHooks:
    """Several hooks as one. One that fails is logged and left out: its rows are missing, the put goes on.

    Args:
        members: The hooks; their statements are sent in this order.
    """

    def __init__(self, *members: PutHook) -> None:
        self._members = members

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """All their statements."""
        statements: list[Statement] = []
        for member in self._members:
            try:
                statements += member.before_put(plan, config)
            except Exception:
                _logger.exception("%s: %s is not recorded", type(member).__name__, plan.request.address)
        return statements

    def after_put(self, plan: PutPlan) -> None:
        """Tell each of them."""
        for member in self._members:
            try:
                member.after_put(plan)
            except Exception:
                _logger.exception("%s: after %s", type(member).__name__, plan.request.address)

    def forget_thread(self, thread_id: str) -> None:
        """Tell those that remember threads."""
        for member in self._members:
            forget_thread(member, thread_id)


def forget_thread(hook: PutHook, thread_id: str) -> None:
    """Tell a hook that rows of a thread may be gone, if it wants to know: if it has a `forget_thread`."""
    forget = getattr(hook, "forget_thread", None)
    if forget is not None:
        forget(thread_id)


@dataclass(frozen=True, slots=True)
class ListChange:
    """How a list channel differs from its parent's.

    Attributes:
        channel: The channel.
        value: The list as it is now.
        fresh: Places of the elements that the parent's list does not have.
        is_appended: Whether they come after all that the parent's list has, which is as it was.
        is_known: Whether the difference is certain; if not, every element counts as fresh.
        digests: The elements' fingerprints end to end, if they are known.
    """

    channel: str
    value: list[Any]
    fresh: Sequence[int]
    is_appended: bool
    is_known: bool
    digests: bytes | None = None


def list_changes(plan: PutPlan, *, all_channels: bool = False) -> Iterator[ListChange]:
    """How the lists of a planned put differ from those of its parent, by the fingerprints the plan was made from.

    A DeltaChannel's are known when it takes a snapshot only.

    Args:
        plan: A complete plan.
        all_channels: Also give the channels whose version is the parent's, as not known.
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
                # Emptied, or something else than a list now.
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
    """Fingerprints one by one."""
    return [digests[at : at + DIGEST_SIZE] for at in range(0, len(digests), DIGEST_SIZE)]


def _digests(entry: Entry | None) -> bytes | None:
    """The fingerprints of a list's elements; `None` if they are not known."""
    if isinstance(entry, Elements):
        return entry.fingerprints.digests if entry.fingerprints is not None else None
    return b"" if entry is None or (isinstance(entry, Inline) and entry.data == _EMPTY_LIST) else None


def _fresh(old: Sequence[bytes], new: Sequence[bytes]) -> list[int]:
    """Return the places of new elements; equal elements are told apart by number only."""
    left = Counter(old)
    fresh = []
    for place, digest in enumerate(new):
        if left[digest] > 0:
            left[digest] -= 1
        else:
            fresh.append(place)
    return fresh
