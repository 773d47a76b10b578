"""Outcomes of enqueued runs: a state, as `graph.invoke` returns it, or an error."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from langgraph.constants import END
from langgraph.types import Command

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.checkpoints.differences import read_state
from langgraph_pgstate.checkpoints.versions import StateVersions
from langgraph_pgstate.codec.frames import content_size
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import NotFoundError, RunCancelledError, RunFailedError
from langgraph_pgstate.heavy import HEAVY_BYTES, is_heavy
from langgraph_pgstate.langgraph_compat import is_schedule_channel
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.runs.inputs import change_input, read_field
from langgraph_pgstate.runs.requests import RunRequest
from langgraph_pgstate.schema.queries import Queries

UNFINISHED: Final = ("pending", "running")
_INTERRUPT: Final = "__interrupt__"


async def get_status(db: Connection, queries: Queries, thread_id: str, run_id: str) -> str:
    """Return the status of a run. One round trip.

    Raises:
        NotFoundError: If there is no such run.
        ThreadArchivedError: If the thread is archived.
    """
    found = await db.fetch(queries.get_run_status, {"thread_id": thread_id, "run_id": run_id})
    if not found:
        raise await _not_found(db, queries, thread_id, run_id)
    return str(found[0][0])


async def _not_found(db: Connection, queries: Queries, thread_id: str, run_id: str) -> NotFoundError:
    """Return the error for a run that does not exist. One round trip.

    Raises:
        ThreadArchivedError: If the thread is archived, so that the run may be in the archive.
    """
    await refuse_archived(db, queries, thread_id)
    return NotFoundError(f"thread {thread_id!r} has no run {run_id!r}")


async def get_outcome(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    versions: StateVersions | None,
    thread_id: str,
    run_id: str,
    *,
    is_known: bool = False,
) -> tuple[str, Any]:
    """Return the status of a run, and, after its end, the state that `AsyncRuns.wait` returns.

    Four round trips; one round trip if the run has not ended.

    Raises:
        RunFailedError: If the run ended with an error or exceeded its timeout.
        RunCancelledError: If the run was cancelled. Also if `is_known` and the run no longer exists.
        NotFoundError: If there is no such run.
        ThreadArchivedError: If the thread is archived.
    """
    key = {"thread_id": thread_id, "run_id": run_id}
    found = await db.fetch(queries.get_run_status, key)
    if not found and not is_known:
        raise await _not_found(db, queries, thread_id, run_id)
    if not found or found[0][0] == "cancelled":
        raise RunCancelledError(thread_id, run_id)
    status, error_type, error_message, _ = found[0]
    if status in UNFINISHED:
        return status, {}
    if status in ("error", "timeout"):
        raise RunFailedError(thread_id, run_id, status, error_type, error_message)
    last_id = (await db.fetch(queries.get_last_checkpoint, key))[0][0]
    if last_id is None:
        return status, {}
    loaded, channels = await read_state(db, queries, codec, Address(thread_id, "", last_id), versions)
    values: Any = {name: value for name, value in channels.items() if not is_schedule_channel(name)}
    if END in channels:
        # Only an `@entrypoint` has this channel, which holds its return value.
        values = channels[END]
    if status == "interrupted":
        interrupts = [
            one
            for _, channel, value in loaded.pending_writes or []
            if channel == _INTERRUPT
            for one in (value if isinstance(value, list | tuple) else [value])
        ]
        if interrupts:
            values = {**(values if isinstance(values, dict) else {}), _INTERRUPT: interrupts}
    return status, values


async def resumption(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    thread_id: str,
    interrupted_id: str | None,
    run_id: str,
    command: Command[Any] | None,
    expected_head: str | None = None,
) -> RunRequest | None:
    """Return the run that resumes an interrupted run with a command; `None` if the interrupted run was not enqueued.

    The new run has the graph, the config, the metadata and the options of the interrupted run. One round trip.

    Args:
        interrupted_id: The interrupted run, if it is known.
        run_id: Id of the new run.
        command: The command; `None` to go on without input.
        expected_head: Checkpoint that must be the thread's newest when the new run begins.
    """
    if interrupted_id is None:
        return None
    rows = await db.fetch(queries.get_run_request, {"thread_id": thread_id, "run_id": interrupted_id})
    if not rows:
        return None
    queue, options, data = rows[0]
    where = f"run {interrupted_id!r} of thread {thread_id!r}"
    changed = {"input": None, "command": command, "checkpoint_id": None, "expected_head": expected_head}
    change = partial(change_input, codec, data, where, **changed)
    given = await db.compute(change) if content_size(data) > HEAVY_BYTES or is_heavy(command) else change()
    metadata = read_field(codec, data, "metadata", where) or {}
    return RunRequest.again(codec, thread_id, run_id, queue, options, given, metadata)
