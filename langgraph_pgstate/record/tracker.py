"""The in-memory state of a recorder: open runs and rows that are not written yet. Does no I/O.

Callbacks add records under a lock that is held only for dict operations. `collect` and `take` make rows of them outside
the callbacks. A record stays until it is acknowledged.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
from langgraph.errors import ParentCommand

from langgraph_pgstate.errors import LeaseHeldError, StaleHeadError
from langgraph_pgstate.operations.checkpoints.planning import PutPlan
from langgraph_pgstate.operations.record.journal_entry import JournalEntry
from langgraph_pgstate.process_identity import holder_id
from langgraph_pgstate.record.capture import capture, status_of, targets_of
from langgraph_pgstate.record.records import REFUSED, EventRecord, RunRecord, SpanRecord
from langgraph_pgstate.settings import RecorderSettings, ThreadKeys

log = logging.getLogger("langgraph_pgstate.record")

_HIDDEN = "langsmith:hidden"
_STEP_TAG = "graph:step"
_UNNAMED = "LangGraph"
_MAY_FORK = ("fork", "update", "input")
_NO_DIGITS = re.compile(r"\D")
_MOST_ID_CHARACTERS = 256
# The input of a node or of an edge's function is the state, whose messages have their own rows; a few are enough. The
# input of a model has more.
_LAST_MESSAGES = {"graph": 2, "node": 2, "chain": 1, "llm": 4, "tool": 4, "retriever": 4}
_BATCH_RECORDS = 500
_BATCH_BYTES = 4_000_000
# A put in progress holds these records; they are written after this time if it fails.
_TAKEN_SECONDS = 1.0
_CLOCK_SECONDS = 60.0
_MOST_LEFT = 4096


@dataclass(slots=True)
class Pending:
    """Records that are being written, each with the version that its row has.

    Attributes:
        journal_entry: The rows.
        runs: Runs and their versions.
        spans: Spans and their versions.
        events: Events.
        is_complete: Whether no record was left out.
    """

    journal_entry: JournalEntry
    runs: list[tuple[RunRecord, int]] = field(default_factory=list)
    spans: list[tuple[SpanRecord, int]] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    is_complete: bool = True


class Tracker:
    """Runs, spans and events from their start until they are written.

    Args:
        settings: Recorder settings.
        keys: Config keys that name a thread's user, tenant and agent.
        has_writer: Whether a background writer writes records that have waited for a while.
    """

    def __init__(self, settings: RecorderSettings, keys: ThreadKeys | None = None, *, has_writer: bool = True) -> None:
        self.settings = settings
        self._has_writer = has_writer
        self._keys = keys or ThreadKeys()
        self._owner_keys = frozenset({*self._keys.user, *self._keys.tenant, *self._keys.agent})
        self.waiting = 0
        self.offset = 0.0
        self._lock = threading.Lock()
        self._open: dict[UUID, SpanRecord] = {}
        # Failed or abandoned spans. A later child of one of them does not begin a new run.
        self._left: dict[UUID, None] = {}
        self._runs: dict[UUID, RunRecord] = {}
        self._by_thread: dict[str, list[RunRecord]] = {}
        # Number of journal entries of each thread since its journal was empty.
        self._noted: dict[str, int] = {}
        self._renewed_at = time.monotonic()
        self._clock_at = float("-inf")
        # Read /proc here, so that no callback has to.
        holder_id()

    # Called by the callbacks

    def begin(
        self,
        kind: str,
        name: str,
        id: UUID,
        parent_id: UUID | None,
        tags: Sequence[str] | None,
        metadata: Mapping[str, Any] | None,
        input: Any,
    ) -> SpanRecord | None:
        """Begin a span. Return `None` if it is hidden or its run has ended."""
        metadata = metadata or {}
        parent = self._open.get(parent_id) if parent_id is not None else None
        if parent is None and parent_id in self._left:
            self._leave(id)
            return None
        if parent is None:
            run = self._begin_run(id, name, metadata, input)
            # A graph first acquires the lease of its thread, and may wait for it.
            run.is_begun = kind != "chain" or not run.has_thread
            kind = "graph" if kind == "chain" else kind
        else:
            run = parent.run
            run.is_begun = True
            if tags and _HIDDEN in tags:
                self._open[id] = parent
                return None
        task_ns = metadata.get("langgraph_checkpoint_ns")
        if kind == "chain" and task_ns and parent is not None and task_ns != parent.task_ns:
            kind = "node"
            if parent.kind == "chain" and tags and any(tag.startswith(_STEP_TAG) for tag in tags):
                # Only a graph has supersteps.
                parent.kind = "graph"
                if parent.name not in (_UNNAMED, parent.node):
                    parent.agent = parent.name
                self._changed(parent)
        span = SpanRecord(id, run, parent, kind, name)
        if kind == "node":
            self._place(span, metadata, task_ns or "")
        if agent := metadata.get("lc_agent_name"):
            span.agent = str(agent)
        if self.settings.content and parent is not None:
            span.input = capture(input, _LAST_MESSAGES[kind])
        self._open[id] = span
        run.open[id] = span
        self._changed(span)
        return span

    def end(
        self,
        id: UUID,
        output: Any = None,
        error: BaseException | None = None,
        found: Callable[[SpanRecord], None] | None = None,
    ) -> RunRecord | None:
        """End a span.

        Args:
            id: The span.
            output: Its output.
            error: The exception it raised.
            found: Called with the span before it is marked as changed.

        Returns:
            Its run, if the run ends with this span.
            Its run, if that ends with it.
        """
        span = self._open.pop(id, None)
        if span is None or span.id != id:
            return None
        run = span.run
        run.open.pop(id, None)
        if error is not None:
            self._leave(id)
        if found is not None:
            found(span)
        is_root = span.parent is None
        span.status = "success" if error is None else status_of(error)
        if is_root and error is None and run.is_interrupted:
            span.status = "interrupted"
        if span.status == "error":
            span.error = error
        if self.settings.content and error is None and not is_root:
            span.output = capture(output)
        if error is None or isinstance(error, ParentCommand):
            self._note_handoffs(span, output if error is None else error.args[0])
        span.ended_at = run.now()
        self._changed(span)
        if not is_root:
            return None
        self._end_run(span, output, error)
        return run

    def interrupted(self, id: UUID | None, checkpoint_id: str, namespace: str, interrupts: Iterable[Any]) -> None:
        """Record that a graph was interrupted."""
        span = self._open.get(id) if id is not None else None
        if span is None:
            return
        if span.parent is None:
            span.run.is_interrupted = True
        found = [{"id": getattr(one, "id", None), "value": getattr(one, "value", one)} for one in interrupts]
        event = EventRecord(span.run, "interrupt", {"node": span.node}, {"interrupts": found}, span)
        event.checkpoint_ns, event.checkpoint_id = namespace, checkpoint_id
        self._happened(event)

    def resumed(self, id: UUID | None, checkpoint_id: str, namespace: str) -> None:
        """Record that a graph was resumed from a checkpoint."""
        span = self._open.get(id) if id is not None else None
        if span is None:
            return
        run = span.run
        run.resumed[namespace] = checkpoint_id
        if span.parent is not None:
            return
        if run.first_checkpoint_id is None:
            run.first_checkpoint_id = checkpoint_id
        given = run.input.get("resume") if isinstance(run.input, dict) else None
        event = EventRecord(run, "resume", {}, None if given is None else {"resume": given}, span)
        event.checkpoint_ns, event.checkpoint_id = namespace, checkpoint_id
        self._happened(event)

    def find(self, id: UUID) -> SpanRecord | None:
        """Return an open span, or `None`."""
        return self._open.get(id)

    def changed(self, span: SpanRecord) -> None:
        """Mark a span as changed."""
        self._changed(span)

    # Called by the saver around the put of a checkpoint

    def before_put(self, plan: PutPlan) -> None:
        """Add the pending records of the thread to the put's journal entry."""
        try:
            self._before_put(plan)
        except Exception:
            log.exception(
                "spans could not be added to the put of %s; they are written separately", plan.request.address
            )

    def after_put(self, plan: PutPlan) -> bool:
        """Acknowledge the records committed with a put. Return whether the writer has something to do."""
        address = plan.request.address
        key = (address.checkpoint_ns, address.checkpoint_id or "")
        run = next((run for run in list(self._by_thread.get(address.thread_id, ())) if key in run.taken), None)
        if run is not None:
            run.is_begun = True
            if not address.checkpoint_ns and run.last_checkpoint_id != address.checkpoint_id:
                run.last_checkpoint_id = address.checkpoint_id
                if run.first_checkpoint_id is None:
                    run.first_checkpoint_id = address.checkpoint_id
                with self._lock:
                    run.change()
            taken = run.taken.pop(key, None)
            if taken is not None:
                self.acknowledge(taken)
        if not plan.journal_entry:
            return False
        self.note(address.thread_id)
        return True

    def note(self, thread_id: str) -> None:
        """Note that an entry was added to the journal of a thread."""
        with self._lock:
            self._noted[thread_id] = self._noted.get(thread_id, 0) + 1

    def noted(self) -> dict[str, int]:
        """Return the threads with journal entries, each with a number that changes when entries are added."""
        with self._lock:
            return dict(self._noted)

    def moved(self, noted: dict[str, int]) -> None:
        """Note that the journal entries of these threads were moved to the tables."""
        with self._lock:
            for thread_id, number in noted.items():
                if self._noted.get(thread_id) == number:
                    del self._noted[thread_id]

    def take(
        self,
        run: RunRecord,
        *,
        everything: bool = False,
        put: tuple[str, int | None] | None = None,
        journal_entry: JournalEntry | None = None,
    ) -> Pending | None:
        """Return a run's rows for its journal. The caller must `acknowledge` them once they are committed.

        Args:
            run: The run.
            everything: Also return the run's own row if it was written before.
            put: Namespace and step of the checkpoint that is put. Rows that a later put can take are left out.
            journal_entry: The put's journal entry, to which the rows are added.
        """
        put = put if self._has_writer else None
        pending = self._rows(
            [run], everything=True, with_runs=everything or run.is_new, put=put, journal_entry=journal_entry
        )
        now = time.monotonic()
        for span, _ in pending.spans:
            span.taken_at = now
        return pending if pending.runs or pending.spans or pending.events else None

    def run_on(self, thread_id: str, source: str | None = None) -> RunRecord | None:
        """Return the run in progress on a thread, the last of several, or `None`.

        A run that has not begun may be waiting for the others, so it comes last. It begins with an input checkpoint.

        Args:
            thread_id: The thread.
            source: Source of the checkpoint that is put.
        """
        runs = list(self._by_thread.get(thread_id, ()))
        of_its_kind = [run for run in runs if run.is_begun is (source != "input")]
        return next(reversed(of_its_kind or runs), None)

    def _before_put(self, plan: PutPlan) -> None:
        request, journal_entry = plan.request, plan.journal_entry
        assert journal_entry is not None
        address, columns = request.address, request.columns_without_owner
        key = (address.checkpoint_ns, address.checkpoint_id or "")
        # A put that is sent again belongs to the same run: what it took along the first time was not committed.
        of_put = (run for run in list(self._by_thread.get(address.thread_id, ())) if key in run.taken)
        run = next(of_put, None) or self.run_on(address.thread_id, columns.get("source"))
        if run is not None:
            run.note_checkpoint(address.checkpoint_ns, columns["step"], address.checkpoint_id or "")
            if run.unplaced and columns["step"] is not None:
                for span in run.unplaced.pop((address.checkpoint_ns, columns["step"]), ()):
                    self._changed(span)
            # The run id links a checkpoint to its run; deleting a run also deletes its checkpoints.
            if columns.get("run_id") is None:
                columns["run_id"] = run.run_id
            if not self._owner_keys.isdisjoint(request.labels):
                columns = request.columns
                for name in ("user_id", "tenant_id", "agent"):
                    if getattr(run, name) is None and columns[name] is not None:
                        setattr(run, name, columns[name])
                        with self._lock:
                            run.change()
            pending = self.take(run, put=(address.checkpoint_ns, columns["step"]), journal_entry=journal_entry)
            run.taken[key] = pending
        source = columns.get("source")
        parent = request.parent
        if parent is not None and parent.checkpoint_id and source in _MAY_FORK:
            # The event id derives from the checkpoint, so that a repeated put stores the same event.
            moment = _NO_DIGITS.sub("", str(request.checkpoint.get("ts") or ""))[:20]
            fork = {
                "thread_id": address.thread_id,
                "checkpoint_ns": address.checkpoint_ns,
                "checkpoint_id": address.checkpoint_id,
                "parent_checkpoint_id": parent.checkpoint_id,
                "event_id": f"{moment}-fork-{address.checkpoint_id}",
                "run_id": None if run is None else run.key[1],
                "source": source,
            }
            journal_entry.forks.append(orjson.dumps(fork))

    # Called by the writer

    def collect(self, everything: bool = True) -> Pending | None:
        """Return the next rows to write, at most some hundred, or `None` if there are none.

        Args:
            everything: Also return recent records that the next put could take, and those of a put in progress.
        """
        pending = self._rows(self._told(), everything=everything)
        return pending if pending.journal_entry else None

    def acknowledge(self, pending: Pending) -> None:
        """Remove committed records from the queue. A record that changed since then stays."""
        with self._lock:
            for run, version in pending.runs:
                run.is_new = False
                run.is_unsettled = False
                run.written_at = time.monotonic()
                if run.version == version:
                    run.is_changed = False
            for span, version in pending.spans:
                if span.version == version and span.run.dirty.pop(span.id, None) is not None:
                    self.waiting -= 1
            for event in pending.events:
                if event.run.events.pop(event.event_id, None) is not None:
                    self.waiting -= 1
            for run in {id(run): run for run, _ in pending.runs}.values():
                self._forget_if_done(run)
            for span, _ in pending.spans:
                self._forget_if_done(span.run)

    @property
    def is_busy(self) -> bool:
        """Whether a run is in progress or the journal has entries."""
        return bool(self._runs or self._noted)

    @property
    def has_news(self) -> bool:
        """Whether some records are not in the tables yet."""
        return bool(self._noted) or any(run.is_changed or run.dirty or run.events for run in self._told())

    def own_runs(self) -> list[tuple[str, str]]:
        """Return thread and run id of the runs in progress."""
        return [run.key for run in list(self._runs.values()) if run.ended_at is None]

    def due_renewals(self) -> list[tuple[str, str]]:
        """Return the runs whose liveness must be renewed now; empty if it was renewed recently."""
        now = time.monotonic()
        if now - self._renewed_at < self.settings.ttl / 3:
            return []
        self._renewed_at = now
        return self.own_runs()

    @property
    def is_clock_due(self) -> bool:
        """Whether the database's clock should be read again."""
        return time.monotonic() - self._clock_at > _CLOCK_SECONDS

    def set_clock(self, database: float, before: float, after: float) -> None:
        """Set the clock offset from a database time read between two local times, and the time of this reading."""
        self.set_offset(database, before, after)
        self._clock_at = time.monotonic()

    def set_offset(self, database: float, before: float, after: float) -> None:
        """Set the clock offset from a database time read between two local times."""
        self.offset = database - (before + after) / 2

    # Private

    def _told(self) -> list[RunRecord]:
        """Return the runs that are written: those that have begun or ended."""
        return [run for run in list(self._runs.values()) if run.is_begun or run.ended_at is not None]

    def _begin_run(self, id: UUID, name: str, metadata: Mapping[str, Any], input: Any) -> RunRecord:
        # An id too long for an index entry would also make the put fail.
        run_id = str(metadata.get("run_id") or id)[:_MOST_ID_CHARACTERS]
        thread_id = metadata.get("thread_id")
        # A run without a thread gets its own run id as thread id.
        run = RunRecord(id, run_id, str(thread_id or run_id), self.offset, holder_id())
        run.has_thread = thread_id is not None
        run.agent = _first(metadata, ("lc_agent_name", *self._keys.agent)) or (name if name != _UNNAMED else None)
        run.tenant_id = _first(metadata, self._keys.tenant)
        run.user_id = _first(metadata, self._keys.user)
        attempt = metadata.get("run_attempt")
        run.attempt = attempt if type(attempt) is int and 0 < attempt < 2**31 else None
        if self.settings.content:
            run.input = capture(input)
        with self._lock:
            self._runs[id] = run
            self._by_thread.setdefault(run.thread_id, []).append(run)
        self._happened(EventRecord(run, "status", {"status": "running"}))
        return run

    def _end_run(self, root: SpanRecord, output: Any, error: BaseException | None) -> None:
        run = root.run
        if not run.is_begun and isinstance(error, LeaseHeldError | StaleHeadError):
            self._refuse_run(root, error)
            return
        for span in list(run.open.values()):
            # Tasks that were abandoned because another one failed.
            self._open.pop(span.id, None)
            self._leave(span.id)
            span.status, span.ended_at = "cancelled", root.ended_at
            self._changed(span)
        run.open.clear()
        run.error = root.error
        run.status = root.status
        if self.settings.content and error is None:
            run.output = capture(output)
        facts = {"status": run.status}
        if run.error is not None:
            facts["error_type"] = type(run.error).__qualname__
        self._happened(EventRecord(run, "status", facts))
        with self._lock:
            run.ended_at = root.ended_at
            run.change()
        self._leave_thread(run)

    def _refuse_run(self, root: SpanRecord, error: LeaseHeldError | StaleHeadError) -> None:
        """Drop a refused run's records and keep one event. The thread and its status belong to another run."""
        run = root.run
        facts: dict[str, str | None] = {
            "run_id": run.key[1],
            "error_type": type(error).__qualname__,
            "reason": str(error),
        }
        if isinstance(error, LeaseHeldError):
            since = error.acquired_at
            facts |= {"held_by": error.run_id, "since": None if since is None else since.isoformat()}
        with self._lock:
            self.waiting -= len(run.dirty) + len(run.events)
            run.dirty.clear()
            run.events.clear()
            run.open.clear()
            run.is_changed = False
            run.ended_at = root.ended_at
        self._happened(EventRecord(run, REFUSED, {name: fact for name, fact in facts.items() if fact is not None}))
        self._leave_thread(run)

    def _leave_thread(self, run: RunRecord) -> None:
        with self._lock:
            runs = self._by_thread.get(run.thread_id, [])
            if run in runs:
                runs.remove(run)
            if not runs:
                self._by_thread.pop(run.thread_id, None)

    def _leave(self, id: UUID) -> None:
        with self._lock:
            self._left[id] = None
            if len(self._left) > _MOST_LEFT:
                del self._left[next(iter(self._left))]

    def _place(self, span: SpanRecord, metadata: Mapping[str, Any], task_ns: str) -> None:
        """Set a node span's namespaces, step and starting checkpoint."""
        graph_ns = task_ns.rpartition("|")[0]
        path: Sequence[Any] = metadata.get("langgraph_path") or ()
        # A call of a @task runs in its caller's graph, but has a namespace below the caller's.
        while len(path) == 4 and path[3] is True:
            graph_ns = graph_ns.rpartition("|")[0]
            path = path[1]
        step = metadata.get("langgraph_step")
        run = span.run
        span.task_ns, span.graph_ns = task_ns, graph_ns
        span.node = metadata.get("langgraph_node")
        span.step = step if type(step) is int else None
        span.checkpoint_id = None
        if span.step is not None:
            if (graph_ns, span.step - 1) not in run.checkpoints and graph_ns in run.resumed:
                span.checkpoint_id = run.resumed.pop(graph_ns)
            if not graph_ns and span.step != run.last_step:
                with self._lock:
                    run.note_step(span.step)

    def _note_handoffs(self, span: SpanRecord, output: Any) -> None:
        if span.kind not in ("node", "tool"):
            return
        for target, update in targets_of(output):
            holders = []
            above: SpanRecord | None = span
            while above is not None:
                holders.append(above)
                above = above.parent
            seen = span.handoffs or set()
            if target in seen or target == span.node:
                continue
            for one in holders:
                one.handoffs = (one.handoffs or set()) | {target}
            made_by = span.name if span.kind == "tool" else None
            source = span.agent if made_by and span.agent else span.node
            facts = {"from": source, "to": target, "node": span.node, "tool": made_by}
            content = {"reason": span.input if made_by else update}
            kept = {name: value for name, value in content.items() if value is not None}
            self._happened(EventRecord(span.run, "handoff", facts, kept, span))

    def _changed(self, span: SpanRecord) -> None:
        dirty = span.run.dirty
        with self._lock:
            span.version += 1
            if span.id not in dirty:
                dirty[span.id] = span
                span.waits_since = time.monotonic()
                self.waiting += 1

    def _happened(self, event: EventRecord) -> None:
        with self._lock:
            event.run.events[event.event_id] = event
            self.waiting += 1

    def _forget_if_done(self, run: RunRecord) -> None:
        if run.ended_at is not None and not (run.is_changed or run.dirty or run.events):
            self._runs.pop(run.root_id, None)

    def _rows(
        self,
        among: Sequence[RunRecord],
        *,
        everything: bool,
        with_runs: bool = True,
        put: tuple[str, int | None] | None = None,
        journal_entry: JournalEntry | None = None,
    ) -> Pending:
        """Return rows of these runs.

        Args:
            among: The runs.
            everything: Also return recent records, and those of a put in progress.
            with_runs: Also return the runs' own rows.
            put: Namespace and step of the checkpoint that is put; leaves out spans that a later put can take.
            journal_entry: A journal entry of the same thread to which the rows are added.
        """
        runs: list[tuple[RunRecord, int]] = []
        spans: list[tuple[SpanRecord, int]] = []
        events: list[EventRecord] = []
        now = time.monotonic()
        # Half the interval for spans: puts may leave them to the writer, which runs once per interval.
        arrived, begun, taken = now - self.settings.interval, now - self.settings.interval / 2, now - _TAKEN_SECONDS
        is_complete = True
        with self._lock:
            for run in among:
                space = _BATCH_RECORDS - len(spans) - len(events)
                if space <= 0:
                    is_complete = False
                    break
                is_due = everything or run.written_at < arrived
                found = [
                    (span, span.version)
                    for span in run.dirty.values()
                    if (
                        put is None or span.waits_since < begun or not _is_early(span, *put)
                        if everything
                        else span.waits_since < begun and span.taken_at < taken
                    )
                ]
                spans += found[:space]
                if is_due:
                    events += list(run.events.values())[: max(0, space - len(found))]
                # Spans need their run's row first; a run is never due later than its spans.
                if with_runs and run.is_changed and is_due:
                    runs.append((run, run.version))
                is_complete = is_complete and len(found) <= space
        return self._pack(runs, spans, events, journal_entry, is_complete=is_complete)

    def _pack(
        self,
        runs: list[tuple[RunRecord, int]],
        spans: list[tuple[SpanRecord, int]],
        events: list[EventRecord],
        journal_entry: JournalEntry | None = None,
        *,
        is_complete: bool = True,
    ) -> Pending:
        """Return rows of these records, as many as fit. Without all spans, no run counts as completely written.

        A run's totals are computed from its spans, so its end must be written with or after the last of them.
        """
        settings = self.settings
        given = len(spans)
        run_rows, runs = _dumps(runs, lambda pair: orjson.dumps(pair[0].row(settings)))
        span_rows, spans = _dumps(spans, lambda pair: pair[0].dump(settings))
        is_complete = is_complete and len(spans) == given
        if not is_complete:
            runs = [(run, -1) for run, _ in runs]
        event_rows, events = _dumps(events, lambda event: orjson.dumps(event.row(settings)))
        if journal_entry is None:
            threads = {run.key[0] for run, _ in runs}
            threads.update([span.run.key[0] for span, _ in spans])
            threads.update([event.run.key[0] for event in events])
            journal_entry = JournalEntry(thread_ids=sorted(threads), ttl=settings.ttl)
        journal_entry.ttl = max(journal_entry.ttl, settings.ttl)
        journal_entry.spans += span_rows
        if runs:
            journal_entry.runs += run_rows
            journal_entry.begun += [run.key for run, _ in runs if run.is_unsettled]
            journal_entry.ended += [
                (*run.key, run.started_at) for run, at in runs if run.ended_at is not None and at >= 0
            ]
        journal_entry.events += event_rows
        return Pending(journal_entry, runs, spans, events, is_complete)


def _dumps(records: list[Any], dump: Callable[[Any], bytes]) -> tuple[list[bytes], list[Any]]:
    """Return rows as JSON, as many as fit a statement, and their records."""
    rows: list[bytes] = []
    if not records:
        return rows, records
    size = 0
    for record in records:
        rows.append(dump(record))
        size += len(rows[-1])
        if size > _BATCH_BYTES:
            break
    return rows, records[: len(rows)]


def _is_early(span: SpanRecord, namespace: str, step: int | None) -> bool:
    """Return whether a recently changed span should wait for a later put, so that it is written once instead of twice.

    True if it has only begun and has no children, or if it belongs to a superstep after the next one. Nodes can run
    ahead of puts, so the checkpoint from which such a span starts is not stored yet.
    """
    if span.is_leaf and span.ended_at is None:
        return True
    later = span.step
    return later is not None and step is not None and later > step + 1 and span.graph_ns == namespace


def _first(metadata: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    for key in keys:
        value = metadata.get(key)
        if value is not None and value != "":
            return str(value)
    return None
