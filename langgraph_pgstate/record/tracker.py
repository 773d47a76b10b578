"""What is under way and what is still to be written. Knows neither database nor loop: both recorders have one.

The callbacks note, under a lock that is held for no longer than it takes to put something into a dict; `collect` and
`take` make rows of it elsewhere. Whatever has not been acknowledged stays.
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
# What a node or an edge's function is given is the state, whose messages have rows of their own: of a long conversation
# a few say where it was. What a model is asked has more.
_LAST_MESSAGES = {"graph": 2, "node": 2, "chain": 1, "llm": 4, "tool": 4, "retriever": 4}
_BATCH_RECORDS = 500
_BATCH_BYTES = 4_000_000
# A put that is under way has them; if it comes to nothing they are written a moment later.
_TAKEN_SECONDS = 1.0
_CLOCK_SECONDS = 60.0
_MOST_LEFT = 4096


@dataclass(slots=True)
class Pending:
    """Records on their way to the database, each with the version of it that the rows have.

    Attributes:
        journal_entry: The rows.
        runs: Runs.
        spans: Spans.
        events: Events.
        is_complete: Whether that was all there is.
    """

    journal_entry: JournalEntry
    runs: list[tuple[RunRecord, int]] = field(default_factory=list)
    spans: list[tuple[SpanRecord, int]] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    is_complete: bool = True


class Tracker:
    """Runs, spans and events from the first word of them until they are written.

    Args:
        settings: What is written, and when.
        keys: Keys of the config that say whose a thread is.
        has_writer: Whether somebody writes in the background what has waited for a while.
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
        # Spans that failed or were left alone by their runs: a thread that goes on in one begins no run of its own.
        self._left: dict[UUID, None] = {}
        self._runs: dict[UUID, RunRecord] = {}
        self._by_thread: dict[str, list[RunRecord]] = {}
        # How often something was put into the journal of a thread since it was empty.
        self._noted: dict[str, int] = {}
        self._renewed_at = time.monotonic()
        self._clock_at = float("-inf")
        # Reads /proc, which no callback should have to.
        holder_id()

    # What happens, told by the callbacks

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
        """Note that a span starts; return `None` for one that is hidden, or whose run has ended."""
        metadata = metadata or {}
        parent = self._open.get(parent_id) if parent_id is not None else None
        if parent is None and parent_id in self._left:
            self._leave(id)
            return None
        if parent is None:
            run = self._begin_run(id, name, metadata, input)
            # A graph first takes the right to its thread, and may wait for it.
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
        """A span ends.

        Args:
            id: The span.
            output: What came out of it.
            error: What it raised.
            found: Called with the span before it is handed on.

        Returns:
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
        """A graph pauses."""
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
        """A graph goes on from a checkpoint."""
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
        """An open span."""
        return self._open.get(id)

    def changed(self, span: SpanRecord) -> None:
        """Something was added to a span."""
        self._changed(span)

    # What a checkpoint's put takes along

    def before_put(self, plan: PutPlan) -> None:
        """Adds to a put's note what its thread has waiting."""
        try:
            self._before_put(plan)
        except Exception:
            log.exception("spans could not be noted with %s; they follow on their own", plan.request.address)

    def after_put(self, plan: PutPlan) -> bool:
        """The checkpoint and its note are committed; whether there is something for a writer to do."""
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
        """Something was put into the journal of a thread."""
        with self._lock:
            self._noted[thread_id] = self._noted.get(thread_id, 0) + 1

    def noted(self) -> dict[str, int]:
        """The threads that have something in the journal, each with a number that changes when more is added."""
        with self._lock:
            return dict(self._noted)

    def moved(self, noted: dict[str, int]) -> None:
        """What these threads had in the journal is in the tables."""
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
        """A run's rows for its journal; whoever writes them has to `acknowledge` them.

        Args:
            run: The run.
            everything: Also the run's own row, when it was written before.
            put: Namespace and step of the checkpoint that takes them along; what a later one may is left for that.
            journal_entry: Its note, to which the rows are added.
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
        """Return the run that is under way on a thread, the last of several.

        One that has not begun comes last, for it may be waiting for the others; it begins with an input.

        Args:
            thread_id: The thread.
            source: That of the checkpoint that is put.
        """
        runs = list(self._by_thread.get(thread_id, ()))
        of_its_kind = [run for run in runs if run.is_begun is (source != "input")]
        return next(reversed(of_its_kind or runs), None)

    def _before_put(self, plan: PutPlan) -> None:
        request, journal_entry = plan.request, plan.journal_entry
        assert journal_entry is not None
        address, columns = request.address, request.columns_without_owner
        run = self.run_on(address.thread_id, columns.get("source"))
        if run is not None:
            run.note_checkpoint(address.checkpoint_ns, columns["step"], address.checkpoint_id or "")
            if run.unplaced and columns["step"] is not None:
                for span in run.unplaced.pop((address.checkpoint_ns, columns["step"]), ()):
                    self._changed(span)
            # So that a checkpoint leads to its run, and a run that is deleted takes its checkpoints along.
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
            run.taken[address.checkpoint_ns, address.checkpoint_id or ""] = pending
        source = columns.get("source")
        parent = request.parent
        if parent is not None and parent.checkpoint_id and source in _MAY_FORK:
            # Its id is that of the checkpoint: a put that is sent again says the same.
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

    # What is to be written

    def collect(self, everything: bool = True) -> Pending | None:
        """The next rows to write, at most some hundred; `None` if there are none.

        Args:
            everything: Also what has come in just now, which the next checkpoint may take along, and what a put that is
                under way has taken.
        """
        pending = self._rows(self._told(), everything=everything)
        return pending if pending.journal_entry else None

    def acknowledge(self, pending: Pending) -> None:
        """These rows are committed. What has changed since stays."""
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
        """Whether a run is under way, or something waits."""
        return bool(self._runs or self._noted)

    @property
    def has_news(self) -> bool:
        """Whether there is something that is not in the tables yet."""
        return bool(self._noted) or any(run.is_changed or run.dirty or run.events for run in self._told())

    def own_runs(self) -> list[tuple[str, str]]:
        """Thread and id of the runs under way."""
        return [run.key for run in list(self._runs.values()) if run.ended_at is None]

    def due_renewals(self) -> list[tuple[str, str]]:
        """The runs to say that they are alive; none while that was said not long ago."""
        now = time.monotonic()
        if now - self._renewed_at < self.settings.ttl / 3:
            return []
        self._renewed_at = now
        return self.own_runs()

    @property
    def is_clock_due(self) -> bool:
        """Whether the database's clock should be asked for."""
        return time.monotonic() - self._clock_at > _CLOCK_SECONDS

    def set_clock(self, database: float, before: float, after: float) -> None:
        """What the database's clock said between two moments of our own."""
        self.set_offset(database, before, after)
        self._clock_at = time.monotonic()

    def set_offset(self, database: float, before: float, after: float) -> None:
        """Date runs by what the database's clock said between two moments; when to ask again stays as it is."""
        self.offset = database - (before + after) / 2

    # Inside

    def _told(self) -> list[RunRecord]:
        """The runs that are written about."""
        return [run for run in list(self._runs.values()) if run.is_begun or run.ended_at is not None]

    def _begin_run(self, id: UUID, name: str, metadata: Mapping[str, Any], input: Any) -> RunRecord:
        # A key that no index entry holds would make the checkpoint's put fail, too.
        run_id = str(metadata.get("run_id") or id)[:_MOST_ID_CHARACTERS]
        thread_id = metadata.get("thread_id")
        # A run without a thread is its own.
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
            # Tasks that were left alone when another one failed.
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
        """Keep nothing of a run but an event that it was refused: the thread is another run's, and so is its status."""
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
        """Where in the graph a node's span is."""
        graph_ns = task_ns.rpartition("|")[0]
        path: Sequence[Any] = metadata.get("langgraph_path") or ()
        # A call of a @task runs in its caller's graph, but its namespace is below its caller's.
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
        """Rows of these runs.

        Args:
            among: The runs.
            everything: Also what has come in just now, and what a put that is under way has taken.
            with_runs: Also the runs' own rows.
            put: Namespace and step of the checkpoint that takes them along, if a later one may do so as well.
            journal_entry: A note of the same thread to add them to.
        """
        runs: list[tuple[RunRecord, int]] = []
        spans: list[tuple[SpanRecord, int]] = []
        events: list[EventRecord] = []
        now = time.monotonic()
        # Of spans a half, because puts may leave them to the writer, who comes once in an interval.
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
                # Spans of a run that has no row yet would not be written; it is never due later than they are.
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
        """Rows of these records, of as many as fit. Unless the spans are complete, no run counts as written to its end.

        A run's totals are made of its spans, so its end has to come with the last of them, or again after them.
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
    """Rows as JSON, as many as fit a statement; and those records."""
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
    """Whether a span that has changed just now had better wait for a later put, to be written once instead of twice.

    It has only begun and has nothing below it; or it is of a later superstep than the next one, for nodes run ahead of
    the puts, and the checkpoint it starts from is still to come.
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
