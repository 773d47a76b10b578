"""Execution of claimed runs in this process, superstep by superstep."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.errors import GraphDrained
from langgraph.pregel import Pregel
from langgraph.runtime import RunControl
from langgraph.types import StateSnapshot

from langgraph_pgstate.arguments import configurable_of
from langgraph_pgstate.codec.frames import content_size
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import (
    ConfigurationError,
    LeaseLostError,
    NotFoundError,
    StaleHeadError,
    ThreadDeletedError,
    UnavailableError,
)
from langgraph_pgstate.heavy import HEAVY_BYTES, beside
from langgraph_pgstate.leases.checking import LeaseCheck
from langgraph_pgstate.leases.registry import HeldLease
from langgraph_pgstate.record.recorder.records import attempt_is_lost, enqueued_run
from langgraph_pgstate.runs.inputs import RunInput, modes_of, open_input
from langgraph_pgstate.runs.options import Backoff
from langgraph_pgstate.runs.types import ClaimedRun, EventBatch, RunKey
from langgraph_pgstate.saver import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.worker.graphs import GraphSource, fitted_context, with_user
from langgraph_pgstate.worker.inputs import Repair, Step, is_among, next_step, with_messages
from langgraph_pgstate.worker.streaming import RunStream, StreamWriter


class SuperstepClock(BaseCallbackHandler):
    """A callback handler that measures the supersteps of a graph, from the first node of each superstep.

    Supersteps of subgraphs are part of the graph's superstep.

    Args:
        seconds: Seconds that a superstep may take.
    """

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._graph_id: UUID | None = None
        self._nodes: set[UUID] = set()
        self._step: Any = None
        self._due_at = float("inf")
        self._lock = threading.Lock()

    @property
    def due_at(self) -> float:
        """Time at which the superstep exceeds its limit, by the monotonic clock; infinity while no node runs."""
        with self._lock:
            return self._due_at if self._nodes else float("inf")

    def on_chain_start(
        self,
        *args: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Remember that the graph or a node begins."""
        with self._lock:
            if self._graph_id is None:
                self._graph_id = run_id
            elif parent_run_id == self._graph_id:
                step = (metadata or {}).get("langgraph_step")
                if step != self._step:
                    self._step, self._due_at = step, time.monotonic() + self._seconds
                self._nodes.add(run_id)

    def on_chain_end(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        """Remember that a node has ended."""
        with self._lock:
            self._nodes.discard(run_id)

    def on_chain_error(self, *args: Any, run_id: UUID, **kwargs: Any) -> None:
        """Remember that a node has failed."""
        self.on_chain_end(run_id=run_id)


Stop = Literal["drain", "cancel", "interrupt", "rollback", "superstep_timeout", "timeout", "lost"]
"""Why an execution was asked to stop. The reason with the highest rank in `_RANKS` prevails."""

_RANKS: Final[Mapping[Stop | None, int]] = {
    None: 0,
    "drain": 1,
    "cancel": 2,
    "interrupt": 2,
    "rollback": 3,
    "superstep_timeout": 4,
    "timeout": 4,
    "lost": 5,
}
# The arguments of LangGraph's TimeoutError for `step_timeout`, in the async and the blocking API.
_STEP_TIMED_OUT: Final = ((), ("Timed out",))

Graph = Pregel[Any, Any, Any, Any]


@dataclass(slots=True, eq=False)
class RunExecution:
    """A claimed run that this process executes.

    Attributes:
        claimed: The claimed run.
        held: The lease of the run.
        tenant: The tenant; `None` if tenants are not kept apart.
        deadline: When the run exceeds its timeout, by the monotonic clock.
        control: Asks the graph to stop at the next superstep boundary.
        supersteps: Measures the supersteps of a run with `superstep_timeout`, in a blocking worker only.
        stop: Why the execution was asked to stop, if at all.
        stopped_at: When the execution was asked to stop, by the monotonic clock.
        has_raised: Whether an exception or a cancellation ended the code.
        reported_at: When the code ended, by the monotonic clock. OS threads of the code may still run.
        forced_at: When the execution was cancelled without waiting for a superstep boundary.
        refuses_writes: Whether writes of the code are refused, because the run no longer belongs to this execution.
        deletes_thread: Whether the thread is deleted if the run succeeds and the queue has no other run of the thread.
        stream: The run's events; `None` before the execution begins.
        is_end_locked: Whether the thread was locked at the last attempt to write the end.
        task: The asyncio task that executes the run, if any.
    """

    claimed: ClaimedRun
    held: HeldLease
    tenant: str | None = None
    deadline: float = float("inf")
    control: RunControl = field(default_factory=RunControl)
    supersteps: SuperstepClock | None = None
    stop: Stop | None = None
    stopped_at: float = float("inf")
    has_raised: bool = False
    reported_at: float = float("inf")
    forced_at: float = float("inf")
    refuses_writes: bool = False
    deletes_thread: bool = False
    stream: RunStream | None = None
    is_end_locked: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def key(self) -> RunKey:
        """Thread, run and fencing token."""
        return self.claimed.key

    @property
    def due_at(self) -> float:
        """Time at which to stop the run because of its timeout; infinity after the run has timed out or was lost."""
        return self.deadline if _RANKS[self.stop] < _RANKS["timeout"] else float("inf")

    @property
    def superstep_due_at(self) -> float:
        """Time at which to stop the run because of `superstep_timeout`; infinity as for `due_at`."""
        is_limited = self.supersteps is not None and _RANKS[self.stop] < _RANKS["timeout"]
        return self.supersteps.due_at if is_limited and self.supersteps is not None else float("inf")

    @property
    def is_reported(self) -> bool:
        """Whether the code has ended. OS threads of the code may still run."""
        return self.reported_at < float("inf")

    @property
    def has_code(self) -> bool:
        """Whether the code, or an OS thread of the code, still runs."""
        return not self.is_reported or (self.has_raised and self.held.work.has_threads)

    @property
    def stopped_or_reported_at(self) -> float:
        """Time at which the execution was asked to stop, or ended if that was earlier."""
        return min(self.stopped_at, self.reported_at)

    @property
    def is_forced(self) -> bool:
        """Whether the execution was cancelled without waiting for a superstep boundary."""
        return self.forced_at < float("inf")

    def ask(self, stop: Stop, now: float) -> bool:
        """Ask the graph to stop at the next superstep boundary. Return false if an earlier reason prevails."""
        if _RANKS[stop] <= _RANKS[self.stop]:
            return False
        self.stop, self.stopped_at = stop, now
        self.control.request_drain(stop)
        if stop == "lost":
            self.refuse_writes()
        return True

    def refuse_writes(self) -> None:
        """Make all further writes of the run fail in this process. The code begins no further work."""
        self.refuses_writes = self.held.is_lost = True
        if self.has_raised or not self.is_reported:
            self.held.stop()
        if self.stream is not None:
            self.stream.end()

    @property
    def unsent(self) -> Sequence[EventBatch]:
        """Events that are not known to be stored."""
        return [] if self.stream is None else self.stream.freeze()


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The change that a worker makes in the queue when an execution has ended.

    Attributes:
        kind: `finish` ends the run with a status. `give_back` requeues the run without counting the attempt. `rollback`
            ends the run and deletes its checkpoints. `leave` changes nothing. If no other worker takes the lease, a
            sweep requeues the run after the lease has expired.
        status: The status of a finished run.
        error: The exception that ended the execution.
    """

    kind: Literal["finish", "give_back", "rollback", "leave"]
    status: str = ""
    error: BaseException | None = None


def run_outcome(execution: RunExecution, error: BaseException | None, *, is_interrupted: bool = False) -> RunOutcome:
    """Return the change to make in the queue when an execution has ended."""
    stop = execution.stop
    # `is_stopped` means that the lease was lost, unless `refuse_writes` has set `is_stopped`.
    is_unconfirmed = execution.held.is_stopped and not execution.refuses_writes
    if stop == "lost" or is_unconfirmed or isinstance(error, LeaseLostError | ThreadDeletedError):
        return RunOutcome("leave")
    if stop == "rollback":
        return RunOutcome("rollback", "cancelled")
    if error is None:
        return RunOutcome("finish", "interrupted" if is_interrupted else "success")
    if isinstance(error, UnavailableError):
        # The last checkpoint is perhaps not stored, so another attempt must continue from the stored state. After the
        # lease has expired, the run is requeued, which counts as a crash (`max_crashes`).
        return RunOutcome("leave")
    if stop == "timeout":
        return RunOutcome("finish", "timeout", TimeoutError("the run took longer than its timeout"))
    if stop == "superstep_timeout":
        return RunOutcome("finish", "timeout", TimeoutError("Timed out"))
    if stop in ("cancel", "interrupt"):
        return RunOutcome("finish", "cancelled" if stop == "cancel" else "interrupted")
    if isinstance(error, GraphDrained | asyncio.CancelledError) or execution.is_forced:
        return RunOutcome("give_back")
    has_limit = execution.claimed.options.get("superstep_timeout") is not None
    is_timeout = has_limit and isinstance(error, TimeoutError) and error.args in _STEP_TIMED_OUT
    return RunOutcome("finish", "timeout" if is_timeout else "error", error)


def retry_delay(claimed: ClaimedRun, error: BaseException | None) -> float | None:
    """Return the seconds until a failed run is retried; `None` if the error is final."""
    if error is None or claimed.attempt >= claimed.max_attempts:
        return None
    backoff: Backoff = claimed.options.get("retry") or Backoff()
    return backoff.delay(claimed.attempt, random.random()) if backoff.retries(error) else None  # nosec B311 # jitter


class GraphExecutor:
    """An executor of claimed runs.

    Args:
        saver: The worker's saver, which writes under the leases of claims.
        own_saver: The saver of the state, with which graphs may be compiled.
        sources: The graphs by name.
        record: Attaches the recorder to a graph.
        codec: Reads requests.
        repair: Changes the input of a new run, if given.
        writer: Stores events.
        enter: Called before each run, in the context (`contextvars`) of the execution.

    Raises:
        ConfigurationError: If a graph was compiled with another checkpointer.
    """

    def __init__(
        self,
        saver: PGStateSaver | AsyncPGStateSaver,
        own_saver: PGStateSaver | AsyncPGStateSaver,
        sources: Mapping[str, GraphSource],
        record: Callable[[Graph], Graph],
        codec: ValueCodec,
        repair: Repair | None,
        writer: StreamWriter,
        enter: Callable[[], object],
    ) -> None:
        self._writer, self._enter = writer, enter
        self._saver, self._own_saver, self._sources = saver, own_saver, sources
        self._record, self._codec, self._repair = record, codec, repair
        self._prepared = {
            name: self._prepare(name, source.graph) for name, source in sources.items() if source.graph is not None
        }

    def execute(self, execution: RunExecution) -> RunOutcome:
        """Execute a run, and return its outcome. Raises nothing."""
        try:
            with self._hold(execution):
                is_interrupted = self._execute(execution)
        except BaseException as error:
            execution.has_raised = True
            return run_outcome(execution, error)
        return run_outcome(execution, None, is_interrupted=is_interrupted)

    async def aexecute(self, execution: RunExecution) -> RunOutcome:
        """Async twin of `execute`."""
        try:
            with self._hold(execution):
                is_interrupted = await self._aexecute(execution)
        except BaseException as error:
            execution.has_raised = True
            return run_outcome(execution, error)
        return run_outcome(execution, None, is_interrupted=is_interrupted)

    @contextmanager
    def _hold(self, execution: RunExecution) -> Iterator[None]:
        claimed = execution.claimed
        self._enter()
        enqueued_run.set((claimed.thread_id, claimed.run_id))
        attempt_is_lost.set(lambda: execution.held.is_lost)
        try:
            with self._saver.lease_manager.hold_claimed(execution.held):
                yield
        finally:
            enqueued_run.set(None)
            attempt_is_lost.set(lambda: False)

    def _execute(self, execution: RunExecution) -> bool:
        claimed = execution.claimed
        request = self._request_of(claimed)
        execution.deletes_thread = request.on_completion == "delete"
        config = config_of(claimed, request)
        with self._sources[claimed.graph].open(config, context=request.context) as made:
            graph = self._graph_for(claimed, made, request)
            starting = choose_step(claimed, request, graph, self._repair)
            try:
                read = next(starting)
                while True:
                    read = starting.send(graph.get_state(read))
            except StopIteration as started:
                step, input = started.value
            stream = execution.stream = self._writer.open(claimed, request)
            if step != "run":
                found = bool(step == "interrupted")
                state = graph.get_state({"configurable": {"thread_id": claimed.thread_id}})
                stream.take_end(state, _outputs_of(graph), is_interrupted=found)
                return found
            found = False
            options = {**stream.options, **_options_of(graph, config, request)}
            seconds = claimed.options.get("superstep_timeout")
            if seconds is not None:
                # LangGraph's own `step_timeout` waits for nodes that run in threads.
                execution.supersteps = SuperstepClock(seconds)
            config = with_callbacks(config, LeaseCheck(execution.held), execution.supersteps, stream.handler)
            for chunk in graph.stream(input, config, control=execution.control, **options):
                found = stream.take(chunk) or found
                stream.wait()
            return found

    async def _aexecute(self, execution: RunExecution) -> bool:
        claimed = execution.claimed
        is_heavy = content_size(claimed.data) > HEAVY_BYTES
        request = await beside(self._request_of, claimed) if is_heavy else self._request_of(claimed)
        execution.deletes_thread = request.on_completion == "delete"
        config = config_of(claimed, request)
        async with self._sources[claimed.graph].aopen(config, context=request.context) as made:
            graph = self._graph_for(claimed, made, request)
            starting = choose_step(claimed, request, graph, self._repair)
            try:
                read = next(starting)
                while True:
                    read = starting.send(await graph.aget_state(read))
            except StopIteration as started:
                step, input = started.value
            stream = execution.stream = self._writer.open(claimed, request)
            if step != "run":
                found = bool(step == "interrupted")
                state = await graph.aget_state({"configurable": {"thread_id": claimed.thread_id}})
                stream.take_end(state, _outputs_of(graph), is_interrupted=found)
                return found
            found = False
            input = await with_messages(graph, input)
            options = {**stream.options, **_options_of(graph, config, request)}
            config = with_callbacks(config, LeaseCheck(execution.held), stream.handler)
            streamed: Any = graph.astream(input, config, control=execution.control, **options)
            async with aclosing(streamed) as chunks:
                async for chunk in chunks:
                    found = await stream.take_async(chunk) or found
                    await stream.wait_async()
            return found

    def _request_of(self, claimed: ClaimedRun) -> RunInput:
        if claimed.unreadable is not None:
            raise claimed.unreadable
        return open_input(self._codec, claimed.data)

    def _graph_for(self, claimed: ClaimedRun, made: Graph, request: RunInput) -> Graph:
        graph = self._prepared.get(claimed.graph) or self._prepare(claimed.graph, made)
        # If no events are stored, yielding early only costs time.
        changes: dict[str, Any] = {} if modes_of(request) else {"stream_eager": False}
        seconds = claimed.options.get("superstep_timeout")
        if seconds is not None:
            changes["step_timeout"] = seconds
        return graph.copy(changes) if changes else graph

    def _prepare(self, name: str, graph: Graph) -> Graph:
        """Return a copy of a graph that uses the worker's saver and the recorder."""
        given = graph.checkpointer
        # With LANGGRAPH_STRICT_MSGPACK, a graph has a clone of the saver. The clone shares the lease manager.
        is_own = given in (None, True) or getattr(given, "lease_manager", None) is self._own_saver.lease_manager
        if not is_own:
            raise ConfigurationError(
                f"graph {name!r} must be compiled without a checkpointer, or with the saver of the worker's state, "
                f"not with {type(given).__name__}"
            )
        # With `stream_eager`, LangGraph yields a superstep's events before the checkpoint is stored. By default, the
        # events come only after the next superstep has begun.
        return self._record(graph.copy({"checkpointer": self._saver, "stream_eager": True}))


def choose_step(
    claimed: ClaimedRun, request: RunInput, graph: Graph, repair: Repair | None
) -> Generator[RunnableConfig, StateSnapshot, tuple[Step, Any]]:
    """Return the next step of a claimed run, and the input of the step.

    This generator yields configs, and receives the states at these configs.

    Raises:
        NotFoundError: If the checkpoint from which the run starts no longer exists.
        StaleHeadError: If the run has no checkpoint, and the thread's newest checkpoint is not `expected_head`.
    """
    configurable = {"thread_id": claimed.thread_id}
    if claimed.checkpoint_id is None:
        if request.expected_head is not None and claimed.head_id != request.expected_head:
            raise StaleHeadError(claimed.thread_id, "", request.expected_head, claimed.head_id)
        # No attempt has stored a checkpoint yet, so start the graph with the run's input or command.
        given = request.input if request.command is None else request.command
        repairs = request.command is None and given is not None and claimed.head_id is not None
        asked = configurable_of(request.config)
        # If the run starts from a checkpoint of a subgraph, `checkpoint_map` names the checkpoint of the root graph.
        past_id = (asked.get("checkpoint_map") or {}).get("") if asked.get("checkpoint_ns") else request.checkpoint_id
        if past_id is not None:
            configurable["checkpoint_id"] = past_id
        elif repair is None or not repairs:
            return "run", given
        state = yield {"configurable": configurable}
        if past_id is not None and state.created_at is None:
            # LangGraph would start with an empty state.
            raise NotFoundError(f"thread {claimed.thread_id!r} no longer has checkpoint {past_id!r}")
        return "run", given if repair is None or not repairs else repair(state, given)
    state = yield {"configurable": configurable}
    before = graph.interrupt_before_nodes if request.interrupt_before is None else request.interrupt_before
    after = graph.interrupt_after_nodes if request.interrupt_after is None else request.interrupt_after
    has_run = False
    if after and state.tasks and state.parent_config is not None and (state.metadata or {}).get("source") == "loop":
        parent = yield state.parent_config
        has_run = is_among(parent.tasks, after)
    return next_step(state, before=before, has_run=has_run), None


def config_of(claimed: ClaimedRun, request: RunInput) -> RunnableConfig:
    """Return the config with which a run's graph is invoked.

    The ids of the thread and the run are in `configurable`, as on the Agent Server, and in the metadata of checkpoints
    and records.
    """
    given: Mapping[str, Any] = request.config or {}
    ids = {"thread_id": claimed.thread_id, "run_id": claimed.run_id}
    configurable = with_user({**given.get("configurable", {}), **ids})
    configurable.pop("checkpoint_id", None)
    if claimed.checkpoint_id is None and request.checkpoint_id is not None:
        configurable["checkpoint_id"] = request.checkpoint_id
    metadata = {
        "graph_id": claimed.graph,
        **given.get("metadata", {}),
        **(request.metadata or {}),
        **ids,
        "run_attempt": claimed.attempt,
    }
    if claimed.queue_key:
        metadata["run_key"] = claimed.queue_key
    config: dict[str, Any] = {**given, "configurable": configurable, "metadata": metadata}
    config.pop("run_id", None)
    with suppress(ValueError):
        config["run_id"] = UUID(claimed.run_id)
    return cast("RunnableConfig", config)


def with_callbacks(config: RunnableConfig, *handlers: BaseCallbackHandler | None) -> RunnableConfig:
    """Return a config with callback handlers."""
    return merge_configs(config, {"callbacks": [handler for handler in handlers if handler is not None]})


def _outputs_of(graph: Graph) -> str | Sequence[str] | None:
    """Return the channels of a graph's output; `None` for an `@entrypoint`, whose whole state is the output."""
    return None if isinstance(graph.stream_channels, str) else graph.output_channels


def _options_of(graph: Graph, config: RunnableConfig, request: RunInput) -> dict[str, Any]:
    options = {
        "context": fitted_context(graph, config, request.context),
        "interrupt_before": request.interrupt_before,
        "interrupt_after": request.interrupt_after,
        "durability": request.durability,
    }
    return {name: value for name, value in options.items() if value is not None}
