"""The columns that are encrypted, and those that stay readable: one list, for statements, tests and docs."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["bytes", "text", "json", "object"]
"""Type of a column: `bytea`, `text`, `jsonb`, or `jsonb` objects of which chosen keys stay readable."""

SEALED_KEY: Final = "pgstate_encrypted"
"""The key of a `jsonb` object under which its other keys are, encrypted."""


class Content(NamedTuple):
    """A column that holds content.

    Attributes:
        kind: Its type.
        says: What it holds, for the docs.
        key: Columns that tell its row from others, which the encrypted value is bound to.
        is_stable: Whether equal values of one row are encrypted to equal bytes, because SQL compares them.
        readable: Keys of objects that are not encrypted.
        lists_segments: Whether it is bound to the segments that its row names, too.
    """

    kind: Kind
    says: str
    key: tuple[str, ...]
    is_stable: bool = False
    readable: frozenset[str] = frozenset()
    lists_segments: bool = False


_CHECKPOINT: Final = ("thread_id", "checkpoint_ns", "checkpoint_id")

OWN_METADATA: Final = frozenset(
    {
        *("source", "step", "parents", "run_id", "thread_id", "checkpoint_id", "checkpoint_ns", "attempt"),
        *("user_id", "tenant_id", "agent", "owner", "langgraph_auth_user_id"),
        *("graph_id", "assistant_id", "created_by", "run_attempt", "counters_since_delta_snapshot"),
        *("langgraph_version", "langgraph_plan", "langgraph_host", "langgraph_api_url"),
        *("langgraph_node", "langgraph_step", "langgraph_triggers", "langgraph_path", "langgraph_checkpoint_ns"),
    }
)
"""Keys of metadata that LangGraph and this package set and search for: ids, names and numbers."""

CONTENTS: Final[dict[str, Content]] = {
    "checkpoints.state": Content("bytes", "values of channels, versions", _CHECKPOINT, lists_segments=True),
    "checkpoints.metadata": Content("object", "metadata of runs and callers", _CHECKPOINT, readable=OWN_METADATA),
    "segments.data": Content("bytes", "values of channels", ("thread_id", "segment_id")),
    "writes.data": Content(
        "bytes", "results, errors and interrupts of tasks", (*_CHECKPOINT, "task_id", "idx"), is_stable=True
    ),
    "journal.data": Content("bytes", "records on their way to their tables", ("thread_id", "entry_id")),
}
"""The columns that are encrypted, as `table.column`."""

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "checkpoints": _CHECKPOINT,
    "segments": ("thread_id", "segment_id"),
    "writes": (*_CHECKPOINT, "task_id", "idx"),
    "journal": ("thread_id", "entry_id"),
}
"""The primary keys of these tables."""


def contents_of(table: str) -> dict[str, Content]:
    """Return the columns of a table that are encrypted."""
    return {name.partition(".")[2]: one for name, one in CONTENTS.items() if name.partition(".")[0] == table}
