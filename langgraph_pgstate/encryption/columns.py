"""The list of encrypted columns, for statements, tests and docs."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["bytes", "text", "json", "object", "words", "digest"]
"""Type of a column: `bytea`, `text`, `jsonb`, or `jsonb` objects of which chosen keys stay readable.

`words` (text for searches) and `digest` (a hash of content) are replaced by keyed digests.
"""

SEALED_KEY: Final = "pgstate_encrypted"
"""The key in a `jsonb` object under which the other keys of the object are stored, encrypted."""


class Content(NamedTuple):
    """A column that holds content.

    Attributes:
        kind: Type of the column.
        says: What the column contains, for the docs.
        key: Columns that identify a row. The encrypted value is bound to them.
        is_stable: Whether equal values of one row are encrypted to equal bytes, because SQL compares them.
        readable: Keys of JSON objects that are not encrypted.
        lists_segments: Whether the value is also bound to the segment ids of its row.
        plain: Pattern of texts that SQL statements write. These texts are not encrypted.
        is_value: Whether the column holds values of the store. A value is encrypted even if all its keys are readable.
            A null value of a searchable key has no digest, because filters treat a missing key as null.
        has_words: Whether digests of a value's words follow the encrypted value, if words can be searched.
    """

    kind: Kind
    says: str
    key: tuple[str, ...]
    is_stable: bool = False
    readable: frozenset[str] = frozenset()
    lists_segments: bool = False
    plain: str = ""
    is_value: bool = False
    has_words: bool = False


_RUN: Final = ("thread_id", "run_id")
_SPAN: Final = ("thread_id", "run_id", "span_id")
_MESSAGE: Final = ("thread_id", "message_id")
_EXECUTION: Final = ("thread_id", "idempotency_key")
_BATCH: Final = ("thread_id", "run_id", "fencing_token", "position")
_FILE_VERSION: Final = ("namespace", "path", "version")
_ITEM: Final = ("namespace", "key")
_DIED: Final = r"the (process|worker) that ran it has died|its worker died [a-z0-9 ]*"
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

OWN_DETAILS: Final = frozenset(
    {
        *("action", "by", "from", "to", "source", "target", "status", "error_type", "interrupt_id", "used", "why"),
        *(
            "checkpoints",
            "writes",
            "forked_from",
            "forked_to",
            "node",
            "run_id",
            "checkpoint_id",
            "thread_id",
            "erased",
            "is_default",
        ),
    }
)
"""Keys of the details of events that statements write and search for: ids, names and numbers."""

CONTENTS: Final[dict[str, Content]] = {
    "checkpoints.state": Content("bytes", "values of channels, versions", _CHECKPOINT, lists_segments=True),
    "checkpoints.metadata": Content("object", "metadata of runs and callers", _CHECKPOINT, readable=OWN_METADATA),
    "segments.data": Content("bytes", "values of channels", ("thread_id", "segment_id")),
    "writes.data": Content(
        "bytes", "results, errors and interrupts of tasks", (*_CHECKPOINT, "task_id", "idx"), is_stable=True
    ),
    "journal.data": Content("bytes", "records on their way to their tables", ("thread_id", "entry_id")),
    "answers.value": Content("bytes", "answers to interrupts", (*_CHECKPOINT, "interrupt_id")),
    "threads.title": Content("text", "title", ("thread_id",), is_stable=True),
    "threads.metadata": Content("object", "metadata of threads", ("thread_id",), readable=OWN_METADATA),
    "projections.state": Content("object", "projected channels", ("thread_id",)),
    "runs.input": Content("json", "input", _RUN),
    "runs.output": Content("json", "output", _RUN),
    "runs.error_message": Content("text", "messages of exceptions", _RUN, plain=_DIED),
    "runs.error_traceback": Content("text", "tracebacks of exceptions", _RUN),
    "runs.metadata": Content("object", "metadata of runs", _RUN, readable=OWN_METADATA),
    "spans.input": Content("json", "what a model, tool or node got", _SPAN),
    "spans.output": Content("json", "what it returned", _SPAN),
    "spans.error_message": Content("text", "messages of exceptions", _SPAN, plain=_DIED),
    "spans.attributes": Content("object", "attributes of OpenTelemetry", _SPAN),
    "messages.content": Content("text", "text of a message", _MESSAGE, is_stable=True, has_words=True),
    "messages.tool_calls": Content("json", "tool calls with their arguments", _MESSAGE, is_stable=True),
    "events.payload": Content("object", "details", ("thread_id", "kind"), readable=OWN_DETAILS),
    "tool_executions.fingerprint": Content("text", "fingerprints of what models asked for", _EXECUTION),
    "tool_executions.arguments": Content("json", "arguments of tools", _EXECUTION, plain=r"\{\}"),
    "tool_executions.result": Content("bytes", "results of tools", _EXECUTION),
    "tool_executions.preview": Content("text", "beginnings of results", _EXECUTION),
    "tool_executions.error_message": Content("text", "messages of exceptions", _EXECUTION),
    "file_versions.data": Content("bytes", "versions of files", _FILE_VERSION),
    "file_texts.content": Content(
        "text", "texts of files for searches, stored before encryption was turned on", _FILE_VERSION[:2]
    ),
    "run_requests.data": Content("bytes", "inputs, commands, configs and contexts of enqueued runs", _RUN),
    "stream_batches.data": Content("bytes", "events of streams", _BATCH),
    "schedules.data": Content("bytes", "inputs, configs and contexts of a schedule's runs", ("name",)),
    "schedules.metadata": Content("object", "metadata of schedules", ("name",), readable=OWN_METADATA),
    "assistant_versions.data": Content("bytes", "configs and contexts of assistants", ("assistant_id",)),
    "assistant_versions.description": Content("text", "descriptions of assistants", ("assistant_id",)),
    "assistant_versions.metadata": Content(
        "object", "metadata of assistants", ("assistant_id",), readable=OWN_METADATA
    ),
    "memories.value": Content("object", "values of memories and items", _ITEM, is_stable=True, is_value=True),
    "memories.words": Content("words", "words for searches: none, or digests", _ITEM),
    "memories.digest": Content("digest", "hash of a text, to find equal ones", _ITEM[:1]),
    "memory_versions.value": Content("object", "earlier values", _ITEM, is_stable=True, is_value=True),
    "feedback.comment": Content("text", "comments", (*_RUN, "feedback_id")),
    "feedback.value": Content("bytes", "comments, encoded by a serializer", (*_RUN, "feedback_id")),
}
"""The columns that are encrypted, as `table.column`."""

BOUND_AS: Final = {"memory_versions.value": "memories.value"}
"""Columns whose values SQL copies from another column. The copies stay bound to that column's row."""

VECTORS: Final = frozenset({"memory_indexes", "memory_vectors_0"})
"""Tables of embeddings. Embeddings are not encrypted, and are refused unless they are allowed."""

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "checkpoints": _CHECKPOINT,
    "segments": ("thread_id", "segment_id"),
    "writes": (*_CHECKPOINT, "task_id", "idx"),
    "journal": ("thread_id", "entry_id"),
    "answers": (*_CHECKPOINT, "interrupt_id"),
    "threads": ("thread_id",),
    "projections": ("thread_id",),
    "runs": _RUN,
    "spans": (*_SPAN, "started_at"),
    "messages": ("thread_id", "message_id", "checkpoint_id", "channel"),
    "events": ("thread_id", "event_id"),
    "feedback": (*_RUN, "feedback_id"),
    "tool_executions": _EXECUTION,
    "run_requests": _RUN,
    "stream_batches": ("thread_id", "run_id", "last_seq", "created_at"),
    "schedules": ("name",),
    "assistant_versions": ("assistant_id", "version"),
    "file_versions": _FILE_VERSION,
    "file_texts": _FILE_VERSION[:2],
    "memories": _ITEM,
    "memory_versions": (*_ITEM, "version"),
}
"""The primary keys of the tables with encrypted columns."""


def contents_of(table: str) -> dict[str, Content]:
    """Return the encrypted columns of a table."""
    return {name.partition(".")[2]: one for name, one in CONTENTS.items() if name.partition(".")[0] == table}
