"""Pending writes of a task: their validation, encoding and storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR

from langgraph_pgstate.arguments import Address, address_of, check_key_size, identifier, text_or_none
from langgraph_pgstate.checkpoints.hooks import PutHook, after_writes, before_writes
from langgraph_pgstate.checkpoints.planning import is_large
from langgraph_pgstate.checkpoints.requests import DEFAULT_KEYS, concatenate, owner_of
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.codec.writes import Write, encode_writes, pack_writes, unpack_writes
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import MissingKeyError
from langgraph_pgstate.heavy import HEAVY_BYTES, TooHeavyError
from langgraph_pgstate.leases.guards import Guard
from langgraph_pgstate.options import ThreadKeys
from langgraph_pgstate.schema.queries import Queries, Statement

# A task whose error goes to an error handler writes to this channel. All writes of such a task are kept.
_ERROR_SOURCE: Final = "__error_source_node__"


@dataclass(slots=True)
class WritesRequest:
    """A call of `put_writes`, validated and encoded.

    Attributes:
        address: The checkpoint from which the task started.
        task_id: Id of the task.
        task_path: Path of the task, by which LangGraph orders writes.
        run_id: The task's run, if it is known.
        rows: Encoded writes by row.
        owner: Returns the owner that the config names, on which the encryption key may depend.
        encoded: The query parameters that store all rows.
    """

    address: Address
    task_id: str
    task_path: str
    run_id: str | None
    rows: list[tuple[int, list[Write]]]
    owner: Callable[[], Mapping[str, Any]]
    encoded: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.encoded = self.parameters(self.rows)

    def parameters(self, rows: Sequence[tuple[int, Sequence[Write]]]) -> dict[str, Any]:
        """Return the parameters of the query `put_writes` for some rows."""
        return {
            **self.address._asdict(),
            "task_id": self.task_id,
            "task_path": self.task_path,
            "run_id": self.run_id,
            "idxs": [idx for idx, _ in rows],
            **concatenate([pack_writes(writes) for _, writes in rows], "data", "starts", "lengths"),
        }


def request_writes(
    codec: ValueCodec,
    config: Mapping[str, Any],
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    task_path: str,
    *,
    drops_failed_output: bool = False,
    most: int | None = None,
    keys: ThreadKeys = DEFAULT_KEYS,
) -> WritesRequest:
    """Return a task's writes, validated and encoded.

    Args:
        codec: Encodes the values.
        config: The checkpoint from which the task started.
        writes: Channels and values.
        task_id: Id of the task.
        task_path: Path of the task, by which LangGraph orders writes.
        drops_failed_output: Whether the output of a failed or cancelled task is dropped. With stored output, a resumed
            superstep would take the task for finished.
        most: Maximum of encoded bytes.
        keys: The metadata keys that name the thread's agent, user and tenant.

    Raises:
        ConfigurationError: If an id is missing or cannot be stored.
        SerializationError: If a value cannot be stored.
        TooHeavyError: If the writes take more than `most` bytes.
    """
    address = address_of(config)
    if address.checkpoint_id is None:
        raise MissingKeyError("the config of put_writes must have a checkpoint_id: the id of the task's checkpoint")
    task_id = identifier("task_id", str(task_id))
    check_key_size("thread_id, checkpoint_ns, checkpoint_id and task_id", *address, task_id)
    for channel, _ in writes:
        identifier("channel name", channel)
    channels = {channel for channel, _ in writes} if drops_failed_output else ()
    if ERROR in channels and _ERROR_SOURCE not in channels:
        writes = [write for write in writes if write[0] in WRITES_IDX_MAP]
    rows = encode_writes(codec, writes)
    if most is not None and sum(len(data) for _, found in rows for *_, data in found) > most:
        raise TooHeavyError
    path, run_id = identifier("task_path", task_path), _run_id_of(config)
    return WritesRequest(address, task_id, path, run_id, rows, partial(owner_of, config, keys))


def request_writes_quickly(
    codec: ValueCodec, config: Mapping[str, Any], writes: Sequence[tuple[str, Any]], *arguments: Any, **options: Any
) -> WritesRequest | None:
    """Return a task's writes, or `None` if `request_writes` is slow enough to run in a thread."""
    if any(is_large(value) for _, value in writes):
        return None
    try:
        return request_writes(codec, config, writes, *arguments, **options, most=HEAVY_BYTES)
    except TooHeavyError:
        return None


def _run_id_of(config: Mapping[str, Any]) -> str | None:
    """Return the id of a config's run, if the config names it."""
    for part in ("metadata", "configurable"):
        found = (config.get(part) or {}).get("run_id")
        if found is not None:
            return text_or_none(identifier("run_id", str(found)))
    return None


async def put_writes(
    db: Connection,
    queries: Queries,
    request: WritesRequest,
    guard: Guard | None = None,
    hook: PutHook | None = None,
    *,
    gives_way: bool = False,
) -> None:
    """Store a task's writes. One statement, and two more if the task has stored other writes before.

    Idempotent: writes to special channels replace the task's earlier writes; ordinary writes replace nothing.

    `hook` adds statements to guarded writes only. With `gives_way`, other tasks of the event loop run before guarded
    writes are sent.

    Raises:
        StaleHeadError: If the guard refuses the writes because the branch was advanced.
        LeaseLostError: If the guard refuses the writes because the lease was taken over.
        ThreadDeletedError: If the guard refuses the writes because the thread was deleted.
    """
    if not request.rows:
        return
    if db.keys is not None:
        db.keys.note_owner(request.address.thread_id, request.owner)
    if guard is None:
        await _put_writes(db, queries, request, ())
        return
    try:
        try:
            others = before_writes(hook, request)
            if gives_way:
                await db.give_way()
            await _put_writes(db, queries, request, [*guard.before_writes(queries, request.address), *others])
        except Exception as error:
            if not guard.misses_thread(error):
                raise
            guard = guard.with_thread()
            await _put_writes(db, queries, request, [*guard.before_writes(queries, request.address), *others])
    except Exception as error:
        broken = guard.broken(error, request.address, request.address.checkpoint_id)
        if broken is None:
            raise
        raise broken from error
    after_writes(hook, request)


async def _put_writes(db: Connection, queries: Queries, request: WritesRequest, guards: Sequence[Statement]) -> None:
    first, _ = request.rows[0]
    is_plain = len(request.rows) == 1 and first >= 0
    query = queries.put_new_writes if is_plain else queries.put_writes
    parameters = {**request.encoded, "idx": first}
    if guards:
        if (await db.execute_together([*guards, (query, parameters)]))[-1] == len(request.rows):
            return
        # Rows of special channels (negative `idx`) are always stored, so the missing rows have another `idx`.
        refused = [(idx, writes) for idx, writes in request.rows if idx >= 0]
    else:
        stored = {row[0] for row in await db.fetch(query, parameters)}
        refused = [(idx, writes) for idx, writes in request.rows if idx not in stored]
    if refused:
        await _add_missing(db, queries, request, refused, guards)


async def _add_missing(
    db: Connection,
    queries: Queries,
    request: WritesRequest,
    refused: Sequence[tuple[int, list[Write]]],
    guards: Sequence[Statement],
) -> None:
    """Store the writes whose numbers the task has not used yet."""
    async with db.transaction():
        for query, parameters in guards:
            await db.execute(query, parameters)
        missing = [write for _, writes in refused for write in writes]
        while missing:
            rows = await db.fetch(queries.get_task_writes, {**request.address._asdict(), "task_id": request.task_id})
            where = f"writes of task {request.task_id!r}"
            used = {number for _, data in rows for number, *_ in unpack_writes(data, where)}
            missing = [write for write in missing if write[0] not in used]
            following = max((idx for idx, _ in rows), default=-1) + 1
            # If no row was stored, another call has used this `idx`. The other call's writes came first, so check
            # again.
            if missing and await db.fetch(queries.put_writes, request.parameters([(following, missing)])):
                return
