"""The runs and spans of a recorder that are in progress. No I/O: rows go to a `WriteQueue`."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

import orjson
from langgraph.errors import ParentCommand

from langgraph_pgstate.arguments import check_key_size, identifier
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.checkpoints.requests import PutRequest, check_names
from langgraph_pgstate.codec.traceparent import check_traceparent
from langgraph_pgstate.errors import BudgetExceededError, ConfigurationError, LeaseHeldError, StaleHeadError
from langgraph_pgstate.langgraph_compat import distinct_interrupts
from langgraph_pgstate.options import ThreadKeys
from langgraph_pgstate.process_identity import holder_id
from langgraph_pgstate.record.recorder.capture import capture, status_of, targets_of
from langgraph_pgstate.record.recorder.records import (
    REFUSED,
    EventRecord,
    OpenRuns,
    RunRecord,
    SpanRecord,
    attempt_is_lost,
    enqueued_run,
    place_of,
)
from langgraph_pgstate.record.recorder.write_queue import WriteQueue

_log = logging.getLogger("langgraph_pgstate.record")

_HIDDEN = "langsmith:hidden"
_STEP_TAG = "graph:step"
_UNNAMED = "LangGraph"
# Suffix that LangGraph adds to a graph's name for the span of an update of the state.
_UPDATE = "UpdateState"
_MAY_FORK = ("fork", "update", "input")
_NO_DIGITS = re.compile(r"\D")
# Number of messages kept of an input, by kind of span. Few are enough, because all messages of the state are recorded.
_LAST_MESSAGES = {"graph": 2, "node": 2, "chain": 1, "llm": 4, "tool": 4, "retriever": 4, "memory": 1}
_MOST_ABANDONED = 4096


class Tracker:
    """The runs and spans of a recorder that are in progress."""

    def __init__(self, queue: WriteQueue, keys: ThreadKeys | None = None, is_encrypted: bool = False) -> None:
        self.runs = OpenRuns()
        self._is_encrypted = is_encrypted
        self._queue = queue
        self._content = queue.settings.content
        self.keys = keys or ThreadKeys()
        self._owner_keys = frozenset({*self.keys.user, *self.keys.tenant, *self.keys.agent})
        self._lock = threading.Lock()
        self._open: dict[UUID, SpanRecord] = {}
        # Failed or abandoned spans. A later child of such a span does not begin a new run.
        self._abandoned: dict[UUID, None] = {}
        # Tools that may still run in a thread after the end of their run.
        self._outliving: dict[UUID, SpanRecord] = {}
        # Owners named by configs of runs that have not begun.
        self._labels: dict[UUID, Mapping[str, Any]] = {}
        # Call `holder_id` now, because its first call reads /proc. Callbacks must not wait for files.
        holder_id()

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
        """Begin a span. Return `None` if the span is hidden or the run has ended."""
        metadata = metadata or {}
        labels = self._labels.pop(id, {}) if self._labels else {}
        parent = self._open.get(parent_id) if parent_id is not None else None
        if parent is None and parent_id in self._abandoned:
            self._abandon(id)
            return None
        if parent is None:
            try:
                if labels:
                    check_names(labels, self.keys)
                run = self._begin_run(id, name, metadata, input)
            except ConfigurationError as error:
                # The run has an id that cannot be stored. Do not change the id, because another run could have the new
                # id.
                _log.warning("a run of %s is not recorded: %s", name, error)
                self._abandon(id)
                return None
            if labels:
                self._set_owner(run, {**labels, **metadata})
            # A graph on a thread begins later, when it holds the thread's lease.
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
                # This node runs in a superstep of the parent, so the parent is a graph.
                parent.kind = "graph"
                if parent.name not in (_UNNAMED, parent.node):
                    parent.agent = parent.name
                self._queue.span_changed(parent)
        span = SpanRecord(id, run, parent, kind, name)
        if kind == "node":
            self._locate(span, metadata, task_ns or "")
        if agent := metadata.get("lc_agent_name"):
            span.agent = str(agent)
        if self._content and parent is not None:
            span.input = capture(input, _LAST_MESSAGES[kind])
        self._open[id] = span
        run.open[id] = span
        self._queue.span_changed(span)
        return span

    def note_owner(self, id: UUID, metadata: Mapping[str, Any] | None, labels: Mapping[str, Any]) -> None:
        """Remember the owner that a run's config names, before or after the run has begun.

        Args:
            id: The run's own span.
            metadata: Metadata of the run, which takes precedence.
            labels: Values of `configurable`, which callbacks do not see.
        """
        span = self._open.get(id)
        if span is None:
            self._labels[id] = labels
        elif span.id == id and span.parent is None:
            self._set_owner(span.run, {**labels, **(metadata or {})})

    def _set_owner(self, run: RunRecord, labels: Mapping[str, Any]) -> None:
        owner = {
            "agent": _first(labels, ("lc_agent_name", *self.keys.agent)),
            "tenant_id": _first(labels, self.keys.tenant),
            "user_id": _first(labels, self.keys.user),
        }
        self._queue.run_changed(run, **{name: value for name, value in owner.items() if value is not None})

    def end(
        self,
        id: UUID,
        output: Any = None,
        error: BaseException | None = None,
        found: Callable[[SpanRecord], None] | None = None,
    ) -> RunRecord | None:
        """End a span. Return its run if the run ends with this span or has ended before the span.

        `found` is called with the span before the span is marked as changed.
        """
        if id in self._outliving:
            return self._end_late(self._outliving.pop(id), output, error)
        span = self._open.pop(id, None)
        if span is None or span.id != id:
            return None
        run = span.run
        run.open.pop(id, None)
        if error is not None:
            self._abandon(id)
        if found is not None:
            found(span)
        is_root = span.parent is None
        span.status = "success" if error is None else status_of(error)
        if is_root and error is None and run.is_interrupted:
            span.status = "interrupted"
        if span.status == "error":
            span.error = error
        if self._content and error is None and not is_root:
            span.output = capture(output)
        if error is None or isinstance(error, ParentCommand):
            self._note_handoffs(span, output if error is None else error.args[0])
        span.ended_at = run.now()
        self._queue.span_changed(span)
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
        asked = distinct_interrupts(interrupts)
        found = [{"id": getattr(one, "id", None), "value": getattr(one, "value", one)} for one in asked]
        event = EventRecord(span.run, "interrupt", {"node": span.node}, {"interrupts": found}, span)
        event.checkpoint_ns, event.checkpoint_id = namespace, checkpoint_id
        self._queue.event_happened(event)

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
        self._queue.event_happened(event)

    def refused(self, run: RunRecord, error: BudgetExceededError) -> None:
        """Record that a model call was refused because a budget is used up."""
        facts = {"scope": error.scope, "name": error.name, "spent": str(error.spent), "amount": str(error.amount)}
        if error.reserved:
            facts["reserved"] = str(error.reserved)
        self._queue.event_happened(EventRecord(run, "budget", facts))

    def find(self, id: UUID) -> SpanRecord | None:
        """Return an open span, or `None`."""
        return self._open.get(id)

    def before_put(self, plan: PutPlan) -> None:
        """Add the pending records of the thread to the put's journal entry."""
        try:
            self._before_put(plan)
        except Exception:
            _log.exception(
                "spans could not be added to the put of %s; they are written separately", plan.request.address
            )

    def after_put(self, plan: PutPlan) -> bool:
        """Acknowledge the records committed with a put. Return whether the writer has something to do."""
        address = plan.request.address
        run = self.runs.run_putting(address)
        if run is not None:
            run.is_begun = True
            id = address.checkpoint_id
            if not address.checkpoint_ns and run.last_checkpoint_id != id:
                first = id if run.first_checkpoint_id is None else run.first_checkpoint_id
                self._queue.run_changed(run, last_checkpoint_id=id, first_checkpoint_id=first)
            taken = run.taken.pop(place_of(address), None)
            if taken is not None:
                self._queue.acknowledge(taken)
        if not plan.journal_entry:
            return False
        self._queue.note_journaled(address.thread_id)
        return True

    def _before_put(self, plan: PutPlan) -> None:
        request, journal_entry = plan.request, plan.journal_entry
        assert journal_entry is not None
        address, columns = request.address, request.columns
        # If the put is repeated, the run still has the records of the first try, which were not committed.
        span = None if request.span_id is None else self._open.get(request.span_id)
        run = self.runs.run_putting(address) or (
            self.runs.run_on(address.thread_id, columns["source"], columns["run_id"]) if span is None else span.run
        )
        if run is not None:
            run.note_checkpoint(address.checkpoint_ns, columns["step"], address.checkpoint_id or "")
            if run.unplaced and columns["step"] is not None:
                for span in run.unplaced.pop((address.checkpoint_ns, columns["step"]), ()):
                    self._queue.span_changed(span)
            # Store the run id, so that the checkpoints can be deleted with their run.
            if columns["run_id"] is None:
                columns["run_id"] = run.run_id
            if run.is_new and run.traceparent is None:
                # Callbacks do not see the traceparent in `configurable`, so the first put passes it.
                run.traceparent = check_traceparent(request.merged_metadata.get("traceparent"))
            if not self._owner_keys.isdisjoint(request.merged_metadata):
                for name, value in request.owner.items():
                    if getattr(run, name) is None and value is not None:
                        self._queue.run_changed(run, **{name: value})
            if request.touches_thread and run.agent is not None and request.owner["agent"] is None:
                request.owner["agent"] = run.agent
            pending = self._queue.take(run, put=(address.checkpoint_ns, columns["step"]), journal_entry=journal_entry)
            run.taken[place_of(address)] = pending
        if (fork := _fork_of(request, columns["source"], run)) is not None:
            journal_entry.forks.append(orjson.dumps(fork))

    def _begin_run(self, id: UUID, name: str, metadata: Mapping[str, Any], input: Any) -> RunRecord:
        check_names(metadata, self.keys)
        run_id = identifier("run_id", str(metadata.get("run_id") or id))
        thread_id = metadata.get("thread_id")
        # A run without a thread gets its own run id as thread id.
        found = identifier("thread_id", str(thread_id or run_id))
        check_key_size("thread_id and run_id", found, run_id)
        run = RunRecord(id, run_id, found, self._queue.clock_offset, holder_id())
        run.has_thread = thread_id is not None
        # An enqueued run has a row already. `run_attempt` does not show whether a run was enqueued, because LangGraph's
        # own server numbers attempts, too.
        run.is_new = run.key != enqueued_run.get()
        run.is_lost = attempt_is_lost.get()
        graph = name.removesuffix(_UPDATE)
        run.agent = _first(metadata, ("lc_agent_name", *self.keys.agent)) or (graph if graph != _UNNAMED else None)
        run.tenant_id = _first(metadata, self.keys.tenant)
        run.user_id = _first(metadata, self.keys.user)
        run.queue_key = _first(metadata, ("run_key",))
        run.release = _first(metadata, ("release",)) or self._queue.settings.release
        run.traceparent = check_traceparent(metadata.get("traceparent"))
        run.is_encrypted = self._is_encrypted
        attempt = metadata.get("run_attempt")
        run.attempt = attempt if type(attempt) is int and 0 < attempt < 2**31 else None
        if self._content:
            run.input = capture(input)
        self._queue.add(run)
        self.runs.add(run)
        self._queue.event_happened(EventRecord(run, "status", {"status": "running"}))
        return run

    def _end_run(self, root: SpanRecord, output: Any, error: BaseException | None) -> None:
        run = root.run
        if not run.is_begun and isinstance(error, LeaseHeldError | StaleHeadError):
            self._refuse_run(root, error)
            return
        for span in list(run.open.values()):
            # The tasks of these spans were abandoned because another task failed.
            self._open.pop(span.id, None)
            self._abandon(span.id)
            span.status, span.ended_at = "cancelled", root.ended_at
            self._queue.span_changed(span)
            if span.kind == "tool":
                with self._lock:
                    self._outliving[span.id] = span
                    if len(self._outliving) > _MOST_ABANDONED:
                        del self._outliving[next(iter(self._outliving))]
        run.open.clear()
        run.error = root.error
        run.status = root.status
        if self._content and error is None:
            run.output = capture(output)
        facts = {"status": run.status}
        if run.error is not None:
            facts["error_type"] = type(run.error).__qualname__
        if not run.is_lost():
            self._queue.event_happened(EventRecord(run, "status", facts))
        self._queue.run_changed(run, ended_at=root.ended_at)
        self.runs.remove(run)

    def _end_late(self, span: SpanRecord, output: Any, error: BaseException | None) -> RunRecord:
        """Set the end of a tool that outlived its run. The run's own row does not change."""
        span.status = "success" if error is None else status_of(error)
        if span.status == "error":
            span.error = error
        if self._content and error is None:
            span.output = capture(output)
        span.ended_at = span.run.now()
        self._queue.add(span.run)
        self._queue.span_changed(span)
        return span.run

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
        self._queue.discard(run)
        run.open.clear()
        run.ended_at = root.ended_at
        known = {name: fact for name, fact in facts.items() if fact is not None}
        self._queue.event_happened(EventRecord(run, REFUSED, known))
        self.runs.remove(run)

    def _abandon(self, id: UUID) -> None:
        with self._lock:
            self._abandoned[id] = None
            if len(self._abandoned) > _MOST_ABANDONED:
                del self._abandoned[next(iter(self._abandoned))]

    def _locate(self, span: SpanRecord, metadata: Mapping[str, Any], task_ns: str) -> None:
        """Set a node span's namespaces, step and starting checkpoint."""
        graph_ns = task_ns.rpartition("|")[0]
        path: Sequence[Any] = metadata.get("langgraph_path") or ()
        # A call of a @task runs in its caller's graph, but has a namespace below the namespace of the caller.
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
                first = span.step if run.first_step is None else run.first_step
                self._queue.run_changed(run, first_step=first, last_step=span.step)

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
            self._queue.event_happened(EventRecord(span.run, "handoff", facts, kept, span))


def _fork_of(request: PutRequest, source: str | None, run: RunRecord | None) -> dict[str, Any] | None:
    """Return a fork event if the parent of a checkpoint may have an earlier child, else `None`."""
    address, parent = request.address, request.parent
    if parent is None or not parent.checkpoint_id or source not in _MAY_FORK:
        return None
    # The event id derives from the checkpoint, so that a repeated put stores the same event.
    moment = _NO_DIGITS.sub("", str(request.checkpoint.get("ts") or ""))[:20]
    return {
        "thread_id": address.thread_id,
        "checkpoint_ns": address.checkpoint_ns,
        "checkpoint_id": address.checkpoint_id,
        "parent_checkpoint_id": parent.checkpoint_id,
        "event_id": f"{moment}-fork-{address.checkpoint_id}",
        "run_id": None if run is None else run.key[1],
        "source": source,
    }


def _first(metadata: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    for key in keys:
        value = metadata.get(key)
        if value is not None and value != "":
            return str(value)
    return None
