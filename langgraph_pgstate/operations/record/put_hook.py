"""Hooks, which add rows to a put, in its transaction and in its round trip."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from langgraph_pgstate.codec.messages import DIGEST_SIZE
from langgraph_pgstate.codec.states import Elements, Entry, Inline
from langgraph_pgstate.langgraph_compat import DeltaSnapshot
from langgraph_pgstate.operations.checkpoints.planning import PutPlan
from langgraph_pgstate.sql import NamedQuery

if TYPE_CHECKING:
    from langgraph_pgstate.operations.checkpoints.writes import WritesRequest

_logger = logging.getLogger("langgraph_pgstate")
_EMPTY_LIST: Final = b"\x90"
# Classes 22 (data), 23 (constraints) and 54 (limits).
_REFUSALS: Final = ("22", "23", "54")

Statement = tuple[NamedQuery, Mapping[str, Any]]


def is_refusal(error: BaseException) -> bool:
    """Return whether the database refuses a statement because of its data, so that a retry would fail as well."""
    return (getattr(error, "sqlstate", None) or "").startswith(_REFUSALS)


class PutHook(Protocol):
    """A hook that adds rows to a put. Called by the saver; it must not use the database itself.

    Rows added to `plan.journal_entry` are stored in the journal by the put's own statement, at almost no cost.
    Statements are for rows that must be in the tables together with the checkpoint. They must be safe to repeat: a put
    is sent again after a lost connection or when its base was removed. If the database refuses a statement because of
    its data, the checkpoint is stored without the statements, and `after_put` is not called.
    """

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """Return statements to send after the checkpoint's own rows, in the same transaction. It must not raise."""
        ...

    def after_put(self, plan: PutPlan) -> None:
        """Handle the commit of the checkpoint and of its statements."""
        ...


class PutHooks:
    """Several hooks combined. An error of one is logged, and its rows are left out; the put continues.

    Args:
        members: The hooks; their statements are sent in this order.
    """

    def __init__(self, *members: PutHook) -> None:
        self._members = members

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """Return the statements of all hooks."""
        statements: list[Statement] = []
        for member in self._members:
            try:
                statements += member.before_put(plan, config)
            except Exception:
                _logger.exception("%s: %s is not recorded", type(member).__name__, plan.request.address)
        return statements

    def after_put(self, plan: PutPlan) -> None:
        """Call all hooks."""
        for member in self._members:
            try:
                member.after_put(plan)
            except Exception:
                _logger.exception("%s: after %s", type(member).__name__, plan.request.address)

    def before_writes(self, request: WritesRequest) -> Sequence[Statement]:
        """Return the statements of the hooks that have a `before_writes`."""
        return [statement for member in self._members for statement in before_writes(member, request)]

    def after_writes(self, request: WritesRequest) -> None:
        """Call the hooks that have an `after_writes`."""
        for member in self._members:
            after_writes(member, request)

    def forget_thread(self, thread_id: str) -> None:
        """Call the hooks that have a `forget_thread`."""
        for member in self._members:
            forget_thread(member, thread_id)


def before_writes(hook: PutHook | None, request: WritesRequest) -> Sequence[Statement]:
    """Return statements to send with a task's writes, in the same transaction, if a hook has a `before_writes`."""
    find = getattr(hook, "before_writes", None)
    found: Sequence[Statement] = () if find is None else find(request)
    return found


def after_writes(hook: PutHook | None, request: WritesRequest) -> None:
    """Tell a hook that a task's writes and its statements are committed, if it has an `after_writes`."""
    note = getattr(hook, "after_writes", None)
    if note is not None:
        note(request)


def forget_thread(hook: PutHook, thread_id: str) -> None:
    """Tell a hook that rows of a thread may have been removed, if it has a `forget_thread`."""
    forget = getattr(hook, "forget_thread", None)
    if forget is not None:
        forget(thread_id)


@dataclass(frozen=True, slots=True)
class ListChange:
    """The difference between a list channel and its parent's.

    Attributes:
        channel: The channel.
        value: The current list.
        fresh: Positions of elements that the parent's list does not have.
        is_appended: Whether they follow the parent's list, which is unchanged.
        is_known: Whether the difference is certain; otherwise all elements count as fresh.
        digests: Concatenated fingerprints of the elements, if they are known.
    """

    channel: str
    value: list[Any]
    fresh: Sequence[int]
    is_appended: bool
    is_known: bool
    digests: bytes | None = None


def list_changes(plan: PutPlan, *, all_channels: bool = False) -> Iterator[ListChange]:
    """Return the differences between the lists of a planned put and those of its parent, by the plan's fingerprints.

    Those of a DeltaChannel are known only for a snapshot.

    Args:
        plan: A complete plan.
        all_channels: Also return the channels with the parent's version, as not known.
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
    """Return the positions of new elements. Equal elements are distinguished by their number only."""
    left = Counter(old)
    fresh = []
    for place, digest in enumerate(new):
        if left[digest] > 0:
            left[digest] -= 1
        else:
            fresh.append(place)
    return fresh
