"""Runs, spans and events in memory, their rows, and the runs in progress. No I/O."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import orjson

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.codec.ids import new_revision
from langgraph_pgstate.codec.metadata import to_json
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.capture import capture, clean, render, render_error
from langgraph_pgstate.record.recorder.genai import describe_llm, describe_span

_log = logging.getLogger("langgraph_pgstate.record")
_UNSET: Any = object()
_NUL = rb"\u0000"
# Kinds of spans that have no attributes.
_PLAIN_KINDS = frozenset({"node", "chain"})
_MOST_CHECKPOINTS = 256
_INT4_MAX = 2**31 - 1
REFUSED = "refused"
"""The kind of the event that is recorded if a run is refused before it begins."""


class RunRecord:
    """One invocation of a graph. Times are seconds since 1970 by the database's clock, as far as it is known."""

    __slots__ = (
        "agent",
        "attempt",
        "checkpoints",
        "dirty",
        "ended_at",
        "error",
        "events",
        "first_checkpoint_id",
        "first_step",
        "has_thread",
        "holder_id",
        "input",
        "input_json",
        "is_awaited",
        "is_begun",
        "is_changed",
        "is_encrypted",
        "is_interrupted",
        "is_lost",
        "is_new",
        "is_unsettled",
        "key",
        "last_checkpoint_id",
        "last_step",
        "open",
        "output",
        "queue_key",
        "release",
        "resumed",
        "root_id",
        "run_id",
        "started_at",
        "status",
        "taken",
        "tenant_id",
        "thread_id",
        "traceparent",
        "unplaced",
        "user_id",
        "version",
        "written_at",
        "zero",
    )

    def __init__(self, root_id: UUID, run_id: str, thread_id: str, offset: float, holder_id: str) -> None:
        # A run keeps its first clock offset. Otherwise a new offset would change durations.
        self.zero = time.time() + offset - time.perf_counter()
        self.root_id = root_id
        self.run_id = run_id
        self.thread_id = thread_id
        self.key = thread_id, run_id
        self.has_thread = True
        self.holder_id = holder_id
        self.status = "running"
        self.attempt: int | None = None
        self.agent: str | None = None
        self.tenant_id: str | None = None
        self.user_id: str | None = None
        self.queue_key: str | None = None
        self.release: str | None = None
        self.traceparent: str | None = None
        self.is_encrypted = False
        self.started_at = self.now()
        self.ended_at: float | None = None
        self.first_checkpoint_id: str | None = None
        self.last_checkpoint_id: str | None = None
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.error: BaseException | None = None
        self.input: Any = None
        self.input_json: Any = _UNSET
        self.output: Any = None
        # Whether the caller awaits callbacks. An awaited callback can wait without blocking the event loop.
        self.is_awaited = False
        # False while the run may still be refused because another run holds the thread.
        self.is_begun = False
        self.is_new = True
        self.is_lost: Callable[[], bool] = lambda: False
        self.is_unsettled = True
        self.is_changed = True
        self.is_interrupted = False
        self.version = 0
        self.written_at = time.monotonic()
        self.open: dict[UUID, SpanRecord] = {}
        self.dirty: dict[UUID, SpanRecord] = {}
        self.events: dict[str, EventRecord] = {}
        self.taken: dict[tuple[str, str], Any] = {}
        # `checkpoints`: ids of the checkpoints that the run made, by namespace and step.
        # `resumed`: ids of the checkpoints from which the run was resumed, by namespace.
        self.checkpoints: OrderedDict[tuple[str, int], str] = OrderedDict()
        self.resumed: dict[str, str] = {}
        # Spans that were written before the put of their starting checkpoint. The put writes these spans again, with
        # the checkpoint's id.
        self.unplaced: dict[tuple[str, int], set[SpanRecord]] = {}

    def now(self) -> float:
        """Return the current time."""
        return self.zero + time.perf_counter()

    def note_checkpoint(self, namespace: str, step: int | None, checkpoint_id: str) -> None:
        """Remember a checkpoint that is about to be put."""
        if step is not None:
            self.checkpoints[namespace, step] = checkpoint_id
            if len(self.checkpoints) > _MOST_CHECKPOINTS:
                self.checkpoints.popitem(last=False)

    def row(self, settings: RecorderSettings) -> dict[str, Any]:
        """Return the run's row."""
        if self.input_json is _UNSET:
            self.input_json = render("input", self.input, settings)
        return {
            "thread_id": self.key[0],
            "run_id": self.key[1],
            "is_new": self.is_new,
            "has_thread": self.has_thread,
            "attempt": self.attempt,
            "status": self.status,
            "agent": _clean(self.agent),
            "tenant_id": _clean(self.tenant_id),
            "user_id": _clean(self.user_id),
            "holder_id": self.holder_id,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "first_checkpoint_id": self.first_checkpoint_id,
            "last_checkpoint_id": self.last_checkpoint_id,
            "steps": 0 if self.last_step is None or self.first_step is None else self.last_step - self.first_step + 1,
            **render_error(self.error, settings),
            "input": self.input_json,
            "output": render("output", self.output, settings),
            "release": _clean(self.release),
            **({"traceparent": self.traceparent} if self.traceparent is not None else {}),
            **({"is_encrypted": True} if self.is_encrypted else {}),
        }


class SpanRecord:
    """One timed operation in a run."""

    __slots__ = (
        "agent",
        "checkpoint_id",
        "ended_at",
        "error",
        "first_chunk_at",
        "graph_ns",
        "handoffs",
        "id",
        "input",
        "input_json",
        "invocation",
        "is_leaf",
        "kind",
        "metadata",
        "name",
        "node",
        "output",
        "parent",
        "response",
        "run",
        "started_at",
        "status",
        "step",
        "taken_at",
        "task_ns",
        "text_id",
        "tool_call_id",
        "version",
        "waits_since",
    )

    def __init__(self, id: UUID, run: RunRecord, parent: SpanRecord | None, kind: str, name: str) -> None:
        self.id = id
        self.text_id = str(id)
        self.run = run
        self.parent = parent
        self.kind = kind
        self.name = name
        self.status = "running"
        self.started_at = run.now()
        self.ended_at: float | None = None
        self.first_chunk_at: float | None = None
        self.graph_ns: str | None = None
        self.task_ns: str | None = None
        self.step: int | None = None
        self.node: str | None = None
        self.agent: str | None = run.agent
        self.checkpoint_id: str | None = None
        self.is_leaf = False
        if parent is not None:
            self.graph_ns = parent.graph_ns
            self.task_ns = parent.task_ns
            self.step = parent.step
            self.node = parent.node
            self.agent = parent.agent
            self.checkpoint_id = parent.checkpoint_id
            self.is_leaf = True
            parent.is_leaf = False
        self.tool_call_id: str | None = None
        self.error: BaseException | None = None
        self.input: Any = None
        self.input_json: Any = _UNSET
        self.output: Any = None
        self.metadata: dict[str, Any] = {}
        self.invocation: dict[str, Any] | None = None
        self.response: Any = None
        self.handoffs: set[str] | None = None
        self.version = 0
        self.taken_at = 0.0
        self.waits_since = 0.0

    def dump(self, settings: RecorderSettings) -> bytes:
        """Return the span's row as JSON."""
        self._place()
        if settings.redact is None and self.kind in _PLAIN_KINDS and self.parent is not None and self.error is None:
            # The fast path for most spans, whose values need no cleaning or truncation.
            text = self._dump_plain(settings.content)
            if text is not None and len(text) <= settings.limit and _NUL not in text:
                return text
        return orjson.dumps(self._row(settings))

    def _place(self) -> None:
        """Set the checkpoint from which the span started."""
        step = self.step
        if self.checkpoint_id is None and step is not None and self.graph_ns is not None:
            run, place = self.run, (self.graph_ns, step - 1)
            self.checkpoint_id = run.checkpoints.get(place)
            if self.checkpoint_id is None:
                run.unplaced.setdefault(place, set()).add(self)
                # Look again: the put may have read `unplaced` before the span was added.
                self.checkpoint_id = run.checkpoints.get(place)

    def _dump_plain(self, with_content: bool) -> bytes | None:
        """Return the row of a successful node or chain; `None` if a value cannot be represented as JSON."""
        key, step, task_ns = self.run.key, self.step, self.task_ns
        row = {
            "thread_id": key[0],
            "run_id": key[1],
            "span_id": self.text_id,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "parent_span_id": self.parent and self.parent.text_id,
            "kind": self.kind,
            "name": self.name,
            "status": self.status,
            "checkpoint_ns": self.graph_ns,
            "checkpoint_id": self.checkpoint_id,
            "step": step if step is not None and -_INT4_MAX <= step <= _INT4_MAX else None,
            "node": self.node,
            "task_id": task_ns and task_ns.rpartition(":")[2],
            "agent": self.agent,
        }
        if self.tool_call_id is not None:
            row["tool_call_id"] = self.tool_call_id
        if with_content:
            if self.input is not None:
                row["input"] = self.input
            if self.output is not None:
                row["output"] = self.output
        try:
            return orjson.dumps(row)
        except TypeError:
            return None

    def _row(self, settings: RecorderSettings) -> dict[str, Any]:
        """Return the row with every column validated."""
        if self.input_json is _UNSET:
            self.input_json = render("input", self.input, settings)
        run, step = self.run, self.step
        error = render_error(self.error, settings)
        error.pop("error_traceback", None)
        return {
            "thread_id": run.key[0],
            "run_id": run.key[1],
            "span_id": self.text_id,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "parent_span_id": None if self.parent is None else self.parent.text_id,
            "kind": self.kind,
            "name": clean(self.name),
            "status": self.status,
            "checkpoint_ns": _clean(self.graph_ns),
            "checkpoint_id": self.checkpoint_id,
            "step": step if step is not None and abs(step) <= _INT4_MAX else None,
            "node": _clean(self.node),
            "task_id": None if self.task_ns is None else clean(self.task_ns.rpartition(":")[2]),
            "agent": _clean(self.agent),
            "tool_call_id": _clean(self.tool_call_id),
            **error,
            "input": self.input_json,
            "output": render("output", self.output, settings),
            **self._described(),
        }

    def _described(self) -> dict[str, Any]:
        """Return the columns that describe the operation. An error is only logged, so that other rows are written."""
        try:
            return describe_llm(self) if self.kind == "llm" else {"attributes": describe_span(self)}
        except Exception:
            _log.exception("span %s is recorded without its attributes", self.text_id)
            return {}


class EventRecord:
    """An event of a run. `facts` come from this package. `content` comes from the application, and is redacted."""

    __slots__ = ("agent", "checkpoint_id", "checkpoint_ns", "content", "created_at", "event_id", "facts", "kind", "run")

    def __init__(
        self,
        run: RunRecord,
        kind: str,
        facts: dict[str, Any],
        content: dict[str, Any] | None = None,
        span: SpanRecord | None = None,
    ) -> None:
        self.run = run
        self.kind = kind
        self.created_at = run.now()
        self.event_id = _new_event_id(self.created_at, kind)
        self.facts = facts
        self.content = {name: capture(value) for name, value in (content or {}).items()}
        self.agent = span.agent if span is not None else run.agent
        self.checkpoint_ns = span.graph_ns if span is not None else ""
        self.checkpoint_id = span.checkpoint_id if span is not None else None

    def row(self, settings: RecorderSettings) -> dict[str, Any]:
        """Return the event's row."""
        content = {name: render("payload", value, settings) for name, value in self.content.items()}
        return {
            "thread_id": self.run.key[0],
            "event_id": self.event_id,
            "created_at": self.created_at,
            "kind": self.kind,
            # A refused run has no row, so the event names no run.
            "run_id": None if self.kind == REFUSED else self.run.key[1],
            "checkpoint_ns": _clean(self.checkpoint_ns),
            "checkpoint_id": self.checkpoint_id,
            "agent": _clean(self.agent),
            "payload": {**to_json(self.facts)[0], **{name: item for name, item in content.items() if item is not None}},
        }


def _new_event_id(seconds: float, kind: str) -> str:
    """Return an id that sorts by time within a thread."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y%m%d%H%M%S%f}-{kind}-{new_revision():014x}"


def _clean(text: str | None) -> str | None:
    return None if text is None else clean(text)


enqueued_run: Final[ContextVar[tuple[str, str] | None]] = ContextVar("enqueued_run", default=None)
"""Thread and id of the enqueued run that a worker executes in this context. It has a row, unless it was deleted."""

attempt_is_lost: Final[ContextVar[Callable[[], bool]]] = ContextVar("attempt_is_lost", default=lambda: False)
"""Returns whether the worker has lost the attempt that it executes in this context. Then no status is recorded."""


class OpenRuns:
    """The runs of a recorder that are in progress. Thread-safe."""

    def __init__(self) -> None:
        self._by_thread: dict[str, list[RunRecord]] = {}
        self._lock = threading.Lock()

    def add(self, run: RunRecord) -> None:
        """Add a run that begins."""
        with self._lock:
            self._by_thread.setdefault(run.thread_id, []).append(run)

    def remove(self, run: RunRecord) -> None:
        """Remove a run that has ended."""
        with self._lock:
            runs = self._by_thread.get(run.thread_id, [])
            if run in runs:
                runs.remove(run)
            if not runs:
                self._by_thread.pop(run.thread_id, None)

    def run_on(self, thread_id: str, source: str | None = None, run_id: str | None = None) -> RunRecord | None:
        """Return the run that puts a checkpoint on a thread, or `None` if no run is in progress on the thread.

        A run begins with an `input` checkpoint. So if there are several runs, an `input` checkpoint belongs to the
        last run that has not begun, and any other checkpoint belongs to the last run that has begun.
        """
        runs = self._of(thread_id)
        if run_id is not None and (named := [run for run in runs if run.run_id == run_id]):
            return named[-1]
        of_its_kind = [run for run in runs if run.is_begun is (source != "input")]
        return next(reversed(of_its_kind or runs), None)

    def run_putting(self, address: Address) -> RunRecord | None:
        """Return the run whose records are in the journal entry of a put, or `None`."""
        place = place_of(address)
        return next((run for run in self._of(address.thread_id) if place in run.taken), None)

    def _of(self, thread_id: str) -> list[RunRecord]:
        return list(self._by_thread.get(thread_id, ()))


def place_of(address: Address) -> tuple[str, str]:
    """Return the key under which `RunRecord.taken` holds the records in the journal entry of a checkpoint's put."""
    return address.checkpoint_ns, address.checkpoint_id or ""
