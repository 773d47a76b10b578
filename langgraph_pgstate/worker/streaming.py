"""Storing of the events of runs that a worker executes.

The events of all runs are stored together, every 50 ms. A transaction that stores a checkpoint or the writes of a task
also stores the run's events so far, because stored work is not repeated after a crash. The transaction that ends a run
stores the last events. An event that a checkpoint usually follows waits longer, to be stored with the checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from langchain_core.callbacks import BaseCallbackHandler
from langgraph.types import StateSnapshot

from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.checkpoints.writes import WritesRequest
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.heavy import compute, start_thread
from langgraph_pgstate.langgraph_compat import event_handler
from langgraph_pgstate.runs import streams
from langgraph_pgstate.runs.inputs import RunInput, modes_of
from langgraph_pgstate.runs.types import ClaimedRun, EventBatch, RunKey
from langgraph_pgstate.schema.queries import Queries, Statement
from langgraph_pgstate.schema.tenancy import of_tenant, open_database
from langgraph_pgstate.worker.settings import KEY_SECONDS

# Minimum number of seconds between two commits of events.
_INTERVAL: Final = 0.05
# How long events of a finished task wait to be stored with a checkpoint.
_CHECKPOINT_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.5
_CLOSE_SECONDS: Final = 1.0
# Bytes of a run's encoded events that are not stored yet. Above this size, the graph waits.
_MOST_BYTES: Final = 1 << 20
_BATCH_BYTES: Final = 64 * 1024
_INTERRUPT: Final = "__interrupt__"
# Modes that show interrupts and the number of the superstep.
_NEEDED: Final = ("updates", "checkpoints")

# Modes that stream results of finished tasks. A resumed superstep streams the results again. A checkpoint usually
# follows the results.
_FINISHED: Final = frozenset(("updates", "values", "checkpoints"))

_log = logging.getLogger("langgraph_pgstate.worker")


class RunStream:
    """The events of one execution that are not stored yet. Thread-safe.

    Attributes:
        options: Arguments of `graph.stream`.
        handler: Adds events of the mode `events`, if this mode is stored.
        is_repeated: Whether a resumed superstep streams all events of finished tasks again.

    Args:
        codec: Encodes events.
        claimed: The claimed run.
        request: The run's enqueued request.
        wake: Set when an event must be stored without waiting for a checkpoint.
    """

    def __init__(self, codec: ValueCodec, claimed: ClaimedRun, request: RunInput, wake: threading.Event) -> None:
        kept = modes_of(request)
        modes = [mode for mode in dict.fromkeys((*kept, *_NEEDED)) if mode != streams.EVENTS]
        self.options = {"stream_mode": modes if kept else ["updates"], "subgraphs": request.stream_subgraphs}
        self._name = (request.config or {}).get("run_name") or claimed.graph
        self.handler: BaseCallbackHandler | None = event_handler(self._take_event) if streams.EVENTS in kept else None
        self._kept = frozenset(kept)
        self.is_repeated = self._kept <= _FINISHED and not request.stream_subgraphs
        self._codec, self._key, self._attempt, self._wake = codec, claimed.key, claimed.attempt, wake
        self._has_namespaces = request.stream_subgraphs
        self._step = self._told_step = streams.NO_STEP
        self._changed = threading.Condition()
        # Encoded events, each with its superstep.
        self._events: list[tuple[bytes, int]] = []
        self._frozen: deque[EventBatch] = deque()
        self._bytes = self._frozen_to = 0
        self._due_at = float("inf")
        # For each transaction of the saver, the number of this execution's events that are stored after the commit.
        self._sent: dict[Hashable, int] = {}
        self._has_ended = self._is_closed = False
        self._readers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        if kept:
            self._add(streams.METADATA, (), {"run_id": claimed.run_id, "attempt": claimed.attempt}, None)

    @property
    def key(self) -> RunKey:
        """Thread, run and fencing token."""
        return self._key

    @property
    def has_events(self) -> bool:
        """Whether events of any mode are stored."""
        return bool(self._kept)

    @property
    def is_due(self) -> bool:
        """Whether events must be stored now, without a checkpoint."""
        return time.monotonic() >= self._due_at

    @property
    def is_done(self) -> bool:
        """Whether no event is left to store."""
        return self._is_closed or (self._has_ended and not self._bytes)

    def take(self, chunk: Any) -> bool:
        """Add an event that the graph has yielded. Return whether the event is an interrupt of the root graph."""
        namespace, mode, data = chunk if self._has_namespaces else ((), *chunk)
        if mode in self._kept:
            self._add(mode, namespace, data, self._step)
        return self._note(namespace, mode, data)

    async def take_async(self, chunk: Any) -> bool:
        """Async twin of `take`. Large events are encoded in a thread."""
        namespace, mode, data = chunk if self._has_namespaces else ((), *chunk)
        if mode in self._kept:
            await compute(data, self._add, mode, namespace, data, self._step)
        return self._note(namespace, mode, data)

    def _note(self, namespace: Sequence[str], mode: str, data: Any) -> bool:
        if namespace:
            return False
        if mode == "checkpoints":
            self._step = data["metadata"]["step"] + 1
        return mode == "updates" and isinstance(data, dict) and _INTERRUPT in data

    def _take_event(self, event: Mapping[str, Any]) -> None:
        """Add an event of the mode `events`. The root's events get `run_name` of the config, or the graph's name."""
        name = event["name"] if event["parent_ids"] else self._name
        self._add(streams.EVENTS, (), {**event, "name": name}, self._step)

    def take_end(self, state: StateSnapshot, outputs: str | Sequence[str] | None, *, is_interrupted: bool) -> None:
        """Add the last events of a run whose worker died after the last superstep.

        `outputs` are the channels of the graph's output; `None` for an `@entrypoint`.
        """
        self._step = (state.metadata or {}).get("step", streams.NO_STEP) + is_interrupted
        values: Any = state.values
        if outputs is not None and isinstance(values, Mapping):
            values = values.get(outputs) if isinstance(outputs, str) else {k: values[k] for k in outputs if k in values}
        if is_interrupted:
            found = {_INTERRUPT: state.interrupts}
            values = {**values, **found} if isinstance(values, Mapping) else found
            self.take(("updates", found) if not self._has_namespaces else ((), "updates", found))
        self.take(("values", values) if not self._has_namespaces else ((), "values", values))

    def wait(self) -> None:
        """Wait while too many events are not stored."""
        if self._is_full:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_full)

    async def wait_async(self) -> None:
        """Async twin of `wait`."""
        while self._is_full:
            loop = asyncio.get_running_loop()
            reader = (loop, loop.create_future())
            with self._changed:
                self._readers.append(reader)
            # Check again. If the events were stored before the future was in the list, nothing completes the future.
            if self._is_full:
                await reader[1]

    def freeze(self) -> list[EventBatch]:
        """Return the events that are not known to be stored, in batches that do not change later."""
        with self._changed:
            while self._events and not self._is_closed:
                size = count = 0
                for event, _ in self._events:
                    if count and size + len(event) > _BATCH_BYTES:
                        break
                    size, count = size + len(event), count + 1
                events, self._events = self._events[:count], self._events[count:]
                data = streams.encode_batch([event for event, _ in events])
                self._bytes += len(data) - size
                batch = EventBatch(self._key, self._attempt, self._frozen_to, count, events[-1][1], data)
                self._frozen.append(batch)
                self._frozen_to += count
            return [*self._frozen]

    def send(self, transaction: Hashable) -> list[EventBatch]:
        """Return the batches to store in a transaction of the saver. After the commit, call `note_commit`."""
        batches = self.freeze()
        # Do not use `_frozen_to`, because another OS thread may have frozen more events after `freeze` returned.
        self._sent[transaction] = batches[-1].position + batches[-1].length if batches else 0
        return batches

    def note_commit(self, transaction: Hashable) -> None:
        """Remember that a transaction has committed."""
        self.note_stored(self._sent.pop(transaction, 0))

    def note_stored(self, upto: int) -> None:
        """Remember that the first `upto` events of this execution are stored."""
        with self._changed:
            while self._frozen and self._frozen[0].position + self._frozen[0].length <= upto:
                self._bytes -= len(self._frozen.popleft().data)
            if not self._bytes:
                self._due_at = float("inf")
            self._release()

    def end(self) -> None:
        """Accept no more events. Accepted events are still stored."""
        with self._changed:
            self._has_ended = True
            self._release()

    def close(self) -> None:
        """Drop the events that are not stored. The run has ended, or belongs to another worker."""
        with self._changed:
            self._has_ended = self._is_closed = True
            self._events.clear()
            self._frozen.clear()
            self._bytes = 0
            self._release()

    @property
    def _is_full(self) -> bool:
        return self._bytes >= _MOST_BYTES and not self._has_ended

    def _add(self, mode: str, namespace: Sequence[str], data: Any, step: int | None) -> None:
        # Encode the event at once, because nodes may change the value later.
        event = streams.encode_event(self._codec, mode, namespace, data, step)
        with self._changed:
            if self._has_ended:
                return
            if step is not None:
                self._told_step = step
            self._events.append((event, self._told_step))
            self._bytes += len(event)
            waits = mode in _FINISHED and not self._is_full
            self._due_at = min(self._due_at, time.monotonic() + _CHECKPOINT_SECONDS if waits else 0.0)
        if not waits:
            self._wake.set()

    def _release(self) -> None:
        if self._is_full:
            return
        self._changed.notify_all()
        readers, self._readers = self._readers, []
        for loop, reader in readers:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, reader)


def _resolve(reader: asyncio.Future[None]) -> None:
    if not reader.done():
        reader.set_result(None)


class StreamWriter:
    """An OS thread that stores the events of a worker's runs, with its own connection. Thread-safe.

    The worker's saver calls the hooks `before_put`, `after_put`, `before_writes` and `after_writes`.

    Args:
        dsn: Connection string of the PostgreSQL server.
        tenant: The tenant of the runs; `None` if tenants are not kept apart.
        prepare_threshold: As in `ConnectionOptions`.
        queries: The queries of the schema.
        codec: Encodes events.
        keys: The data keys of the state, if any.
    """

    def __init__(
        self,
        dsn: str,
        tenant: str | None,
        prepare_threshold: int | None,
        queries: Queries,
        codec: ValueCodec,
        keys: KeyRing | None = None,
    ) -> None:
        self._dsn, self._tenant, self._prepare_threshold, self._keys = dsn, tenant, prepare_threshold, keys
        self._queries, self._codec = queries, codec
        self._wake, self._closed = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._streams: dict[str, RunStream] = {}
        self._thread: threading.Thread | None = None
        # The thread of `_owner` stores the events of all `_members`.
        self._owner: StreamWriter = self
        self._members: set[StreamWriter] = {self}
        self._database: tuple[Database, Database] | None = None

    def for_tenant(self, tenant: str) -> StreamWriter:
        """Return a writer for the runs of a tenant, with the thread and the connection of this writer."""
        made = StreamWriter(self._dsn, tenant, self._prepare_threshold, self._queries, self._codec)
        made._owner, made._wake, made._members = self, self._wake, set()
        with self._lock:
            self._members = {*self._members, made}
        return made

    def open(self, claimed: ClaimedRun, request: RunInput) -> RunStream:
        """Return the stream of a run. If a later execution has the thread, the stream is closed."""
        stream = RunStream(self._codec, claimed, request, self._wake)
        if not stream.has_events:
            return stream
        self._owner.start()
        with self._lock:
            newer = self._streams.get(claimed.thread_id)
            if newer is not None and newer.key.fencing_token > claimed.key.fencing_token:
                # The run was lost. Close the stream, so that the run does not wait until events are stored.
                stream.close()
                return stream
            self._streams[claimed.thread_id] = stream
        # Wake the thread again, because the first event was added before the stream was registered.
        self._wake.set()
        return stream

    def start(self) -> None:
        """Start the thread, unless the thread runs."""
        with self._lock:
            if self._thread is None:
                self._thread = start_thread(self._work, "pgstate-streams")

    def forget(self, member: StreamWriter) -> None:
        """Store no more events of a writer that shares this thread."""
        with self._lock:
            self._members = self._members - {member}

    def close(self) -> None:
        """Stop the thread, unless the thread belongs to another writer. Call this when no run executes any more."""
        if self._owner is not self:
            self._owner.forget(self)
            return
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def before_put(self, plan: PutPlan, config: Mapping[str, Any]) -> Sequence[Statement]:
        """Return statements that store the run's events with a checkpoint."""
        return self._statements(plan.request.address.thread_id, id(plan))

    def after_put(self, plan: PutPlan) -> None:
        """Remember that the events are stored."""
        stream = self._streams.get(plan.request.address.thread_id)
        if stream is not None:
            stream.note_commit(id(plan))

    def before_writes(self, request: WritesRequest) -> Sequence[Statement]:
        """Return statements that store the run's events with a task's writes, unless the events are repeated."""
        stream = self._streams.get(request.address.thread_id)
        if stream is None or stream.is_repeated:
            return ()
        return self._statements(request.address.thread_id, id(request))

    def after_writes(self, request: WritesRequest) -> None:
        """Remember that the events are stored, if `before_writes` returned statements."""
        stream = self._streams.get(request.address.thread_id)
        if stream is not None and not stream.is_repeated:
            stream.note_commit(id(request))

    def _statements(self, thread_id: str, transaction: int) -> Sequence[Statement]:
        stream = self._streams.get(thread_id)
        batches = [] if stream is None else stream.send(transaction)
        return streams.append_statements(self._queries, batches)

    def _work(self) -> None:
        while not self._closed.is_set():
            try:
                options: Any = {"pool": False, "prepare_threshold": self._prepare_threshold}
                with open_database(self._dsn, self._queries, self._tenant, self._keys, **options) as database:
                    database.key_seconds = KEY_SECONDS
                    began_at = time.monotonic()
                    while not self._closed.is_set():
                        if not self._wake.is_set() and self._wake.wait(self._wait_seconds):
                            # Wait a full interval after the first event. If the run ends meanwhile, the transaction of
                            # the end stores the events.
                            began_at = time.monotonic()
                        self._closed.wait(max(0.0, began_at + _INTERVAL - time.monotonic()))
                        began_at = time.monotonic()
                        self._wake.clear()
                        self._write_all(database)
            except PGStateError as error:
                _log.warning("events of runs cannot be stored yet: %s", error)
                self._closed.wait(_RETRY_SECONDS)
            except Exception:
                _log.exception("events of runs cannot be stored yet")
                self._closed.wait(_RETRY_SECONDS)

    @property
    def _wait_seconds(self) -> float | None:
        return _CHECKPOINT_SECONDS if any(one._streams for one in self._members) else None

    def _write_all(self, database: Database) -> None:
        """Store the events of all writers, even if storing the events of a writer fails."""
        failed: BaseException | None = None
        for one in self._members:
            try:
                one._write(one._of(database))
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _of(self, database: Database) -> Database:
        """Return a database for this writer's tenant, on the connection of `database`."""
        if self._owner is self:
            return database
        if self._database is None or self._database[0] is not database:
            self._database = database, of_tenant(database, self._tenant, self._queries)
        return self._database[1]

    def _write(self, database: Database) -> None:
        with self._lock:
            self._streams = {id: stream for id, stream in self._streams.items() if not stream.is_done}
            found = {stream.key: (stream, stream.freeze()) for stream in self._streams.values() if stream.is_due}
        found = {key: one for key, one in found.items() if one[1]}
        if not found:
            return
        try:
            batches = [batch for _, several in found.values() for batch in several]
            stored, lost = database.run(streams.append, self._queries, batches)
        except BaseException:
            self._wake.set()
            raise
        for key, (stream, several) in found.items():
            if key in stored:
                stream.note_stored(several[-1].position + several[-1].length)
            elif key in lost:
                stream.close()
            else:
                self._wake.set()
