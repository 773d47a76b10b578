"""Upcasting of stored checkpoints to the current version of the state."""

from __future__ import annotations

from typing import Any, Final

from langgraph.checkpoint.base import CheckpointTuple

from langgraph_pgstate.admin.types import UpcastReport
from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.getting import get_tuple
from langgraph_pgstate.checkpoints.planning import plan_put
from langgraph_pgstate.checkpoints.reading import is_old_format, load_tuple
from langgraph_pgstate.checkpoints.requests import PutRequest
from langgraph_pgstate.checkpoints.sending import row_parameters, segment_parameters
from langgraph_pgstate.checkpoints.versions import FIRST_VERSION, StateVersions
from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConfigurationError, PGStateError, SerializationError
from langgraph_pgstate.options import ThreadKeys
from langgraph_pgstate.record.types import Problem
from langgraph_pgstate.schema.queries import Queries

_PAGE: Final = 100


async def upcast_thread(
    db: Connection, queries: Queries, codec: ValueCodec, states: StateVersions, thread_id: str, dry_run: bool
) -> UpcastReport:
    """Upcast the checkpoints of one thread. One transaction for each checkpoint; safe to repeat.

    Safe while runs append: a checkpoint that is written again meanwhile is skipped. A checkpoint that cannot be upcast
    is reported as a problem. Two round trips for each outdated checkpoint.
    """
    report = UpcastReport(threads=1, dry_run=dry_run)
    cursor = ("", "")
    while True:
        rows = await db.fetch(
            queries.scan_outdated,
            {
                "thread_id": thread_id,
                "cursor_ns": cursor[0],
                "cursor_id": cursor[1],
                "state_version": states.current,
                "page_size": _PAGE,
            },
        )
        for namespace, checkpoint_id in rows:
            cursor = (namespace, checkpoint_id)
            await _upcast(db, queries, codec, states, Address(thread_id, namespace, checkpoint_id), report)
        if len(rows) < _PAGE:
            return report


async def refuse_newer_state(db: Connection, queries: Queries, thread_id: str) -> None:
    """Refuse an import into a thread that has checkpoints of a newer state version. One round trip.

    Imported checkpoints have the first version, but would inherit values of the newer version.

    Raises:
        ConfigurationError: If the thread has a checkpoint of a newer version than the first.
    """
    first = {"thread_id": thread_id, "cursor_ns": "", "cursor_id": "", "state_version": FIRST_VERSION, "page_size": 1}
    if await db.fetch(queries.scan_outdated, first):
        raise ConfigurationError(
            f"thread {thread_id!r} already has checkpoints of a newer state version: nothing was imported"
        )


async def _upcast(
    db: Connection, queries: Queries, codec: ValueCodec, states: StateVersions, address: Address, report: UpcastReport
) -> None:
    found = await get_tuple(db, queries, codec, address)
    if found is None or states.is_current(found[0].state_version):
        return
    row, segments, _, sends = found
    report.outdated += 1
    try:
        before, manifest = load_tuple(codec, row, segments, (), sends)
        # An upcaster may change its argument, so decode the checkpoint again.
        after = states.upcast(load_tuple(codec, row, segments, (), sends)[0], row.state_version)
        _count_changes(codec, before, after, report)
        if report.dry_run:
            report.upcast += 1
            return
        state = row.decode()
        if is_old_format(state):
            # Do not store the pending sends twice. The parent's writes already have these sends.
            report.problems.append(Problem(address.thread_id, str(address), "its format is too old to be written"))
            return
        checkpoint: Any = after.checkpoint
        exact = {key: (type_, data) for key, (type_, data) in state.exact_metadata.items()}
        request = PutRequest(
            address, None, checkpoint, checkpoint["channel_versions"], row.metadata, exact, {}, {}, ThreadKeys()
        )
        request.states = states
        plan = plan_put(codec, request, manifest, {})
    except PGStateError as error:
        report.problems.append(Problem(address.thread_id, str(address), str(error)))
        return
    plan.manifest.revision = new_revision()
    parameters = {**row_parameters(plan), **segment_parameters(plan), "base_revision": row.revision}
    if (await db.fetch(queries.upcast_checkpoint, parameters))[0][0]:
        report.upcast += 1


def _count_changes(codec: ValueCodec, before: CheckpointTuple, after: CheckpointTuple, report: UpcastReport) -> None:
    old, new = before.checkpoint["channel_values"], after.checkpoint["channel_values"]
    report.added.update(new.keys() - old.keys())
    report.removed.update(old.keys() - new.keys())
    report.changed.update(name for name in old.keys() & new.keys() if not _is_same(codec, old[name], new[name]))


def _is_same(codec: ValueCodec, one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and codec.dumps("it", one) == codec.dumps("it", other)
    except SerializationError:
        return False
