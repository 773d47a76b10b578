"""The part of a thread's tree around a checkpoint, and the state of a checkpoint."""

from __future__ import annotations

from typing import Any

from langgraph_pgstate.arguments import Address, identifier, thread_id_of
from langgraph_pgstate.checkpoints.differences import read_state
from langgraph_pgstate.checkpoints.getting import MAX_ID
from langgraph_pgstate.checkpoints.versions import StateVersions
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.protocol import Connection, Read, Rows
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.langgraph_compat import HANDLER_PATH, PULL_PATH, is_schedule_channel, next_nodes
from langgraph_pgstate.paging import page_size
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.threads.types import CheckpointState, CheckpointTree, TreeNode


def list_tree(thread_id: str, checkpoint_id: str | None, checkpoint_ns: str, limit: int) -> Read[CheckpointTree]:
    """Return a `Read` of the checkpoints around a checkpoint, newest first."""
    size, middle = page_size(limit), MAX_ID if checkpoint_id is None else identifier("checkpoint_id", checkpoint_id)
    parameters = {
        "thread_id": thread_id_of(thread_id),
        "checkpoint_ns": identifier("checkpoint_ns", checkpoint_ns),
        "checkpoint_id": middle,
        "page_size": size + 1,
        # The namespaces of the subgraphs sort between these two limits.
        "first_ns": f"{checkpoint_ns}|" if checkpoint_ns else "",
        "last_ns": f"{checkpoint_ns}}}" if checkpoint_ns else MAX_ID,
        "pull": PULL_PATH,
        "handler": HANDLER_PATH,
    }
    return Read("list_tree", parameters, lambda rows: _tree_of(rows, size, middle))


def _tree_of(rows: Rows, limit: int, middle: str) -> CheckpointTree:
    newer = sum(row[0] > middle for row in rows)
    older = len(rows) - newer
    # Show half of the checkpoints on each side, unless one side has fewer.
    first = newer - min(newer, max(limit // 2, limit - older))
    shown = rows[first : first + limit]
    nodes = []
    for id, parent, step, source, at, run_id, label, tasks, asked, pending, answered, interrupted, subgraphs in shown:
        written = tuple(tasks), asked, pending, tuple(answered), interrupted, tuple(subgraphs)
        nodes.append(TreeNode(id, parent, step, source, at, run_id, label, *written))
    return CheckpointTree(tuple(nodes), first > 0, first + limit < len(rows))


def find_step(thread_id: str, step: int, checkpoint_ns: str) -> Read[str | None]:
    """Return a `Read` of the newest checkpoint of a superstep, or of the last earlier superstep."""
    if isinstance(step, bool) or not isinstance(step, int) or abs(step) >= 2**31:
        raise ConfigurationError(f"step must be a whole number of 32 bits, not {step!r}")
    key = {"thread_id": thread_id_of(thread_id), "checkpoint_ns": identifier("checkpoint_ns", checkpoint_ns)}
    return Read("find_step", {**key, "step": step}, lambda rows: None if rows[0][0] is None else str(rows[0][0]))


async def read_checkpoint(
    db: Connection, queries: Queries, codec: ValueCodec, address: Address, versions: StateVersions | None = None
) -> CheckpointState:
    """Return one checkpoint with its state, its interrupts and the errors of its tasks.

    One round trip, two more with DeltaChannels.

    Raises:
        NotFoundError: If there is no such checkpoint.
    """
    loaded, values = await read_state(db, queries, codec, address, versions)
    parent = (loaded.parent_config or {}).get("configurable", {})
    writes = loaded.pending_writes or []
    return CheckpointState(
        **loaded.config["configurable"],
        parent_checkpoint_id=parent.get("checkpoint_id"),
        metadata=loaded.metadata,
        values={name: value for name, value in values.items() if not is_schedule_channel(name)},
        schedule={name: value for name, value in values.items() if is_schedule_channel(name)},
        next=tuple(next_nodes(values)),
        interrupts=tuple(one for _, channel, given in writes if channel == "__interrupt__" for one in _several(given)),
        errors=tuple(given for _, channel, given in writes if channel == "__error__"),
    )


def _several(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, list | tuple) else (given,)
