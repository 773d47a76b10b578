"""Handlers of LangChain's and LangGraph's callbacks: the base of both recorders, and `LoopRecorder` for servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.callbacks import GraphCallbackHandler, GraphInterruptEvent, GraphResumeEvent

from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.checkpoints.delta_channels import learn
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.checkpoints.requests import check_names
from langgraph_pgstate.errors import ArgumentTypeError
from langgraph_pgstate.options import ThreadKeys
from langgraph_pgstate.record.recorder.budgets import Budgets
from langgraph_pgstate.record.recorder.capture import capture
from langgraph_pgstate.record.recorder.records import RunRecord, SpanRecord
from langgraph_pgstate.record.recorder.tracker import Tracker
from langgraph_pgstate.schema.queries import Statement

G = TypeVar("G", bound=Any)
# Keys of `configurable` that name no owner.
_IDS = frozenset({"thread_id", "checkpoint_id", "checkpoint_ns", "run_id"})
_LLM_REQUEST = (
    "model",
    "model_name",
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "seed",
    "stream",
    "stop",
    "stop_sequences",
    "n",
)


class RecordingHandler(GraphCallbackHandler):
    """The callbacks shared by both recorders. Subclasses handle the ends of chains, where a run may end."""

    run_inline = True
    """Call the handler in the graph's own thread or task, so that spans are recorded in the order of their start."""

    _tracker: Tracker
    _budgets: Budgets

    @property
    def thread_keys(self) -> ThreadKeys:
        """Config keys that name a thread's user, tenant and agent."""
        return self._tracker.keys

    def before_put(self, plan: PutPlan, config: Any) -> Sequence[Statement]:
        """Add the thread's pending records to a checkpoint's journal entry. Called by the saver; adds no statement."""
        self._tracker.before_put(plan)
        return ()

    def after_put(self, plan: PutPlan) -> None:
        """Acknowledge the records committed with a checkpoint. Called by the saver."""
        if self._tracker.after_put(plan):
            self._started()

    def run_id_of(self, thread_id: str) -> str | None:
        """Return the id of the thread's open run in this process, or `None`."""
        run = self._tracker.runs.run_on(thread_id)
        return None if run is None else run.run_id

    def is_recording(self, span_id: UUID | None) -> bool:
        """Return whether the recorder has an open span with this id."""
        return span_id is not None and self._tracker.find(span_id) is not None

    def note_owner(self, run_id: UUID, metadata: Mapping[str, Any] | None, labels: Mapping[str, Any]) -> None:
        """Remember the owner that a run's config names. See `Tracker.note_owner`."""
        self._tracker.note_owner(run_id, metadata, labels)

    def _started(self) -> None:
        """Start or wake the writer."""

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Begin a span of a graph, a node or a chain."""
        name = kwargs.get("name") or _name_of(serialized) or "chain"
        span = self._tracker.begin("chain", name, run_id, parent_run_id, tags, metadata, inputs)
        if span is not None and span.parent is None:
            self._started()

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[Any]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Begin a span of a chat model."""
        asked = messages[0] if len(messages) == 1 else messages
        self._begin_llm(serialized, asked, run_id, parent_run_id, tags, metadata, kwargs)

    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Begin a span of a completion model."""
        asked = prompts[0] if len(prompts) == 1 else prompts
        self._begin_llm(serialized, asked, run_id, parent_run_id, tags, metadata, kwargs)

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Remember the time of a model's first chunk."""
        span = self._tracker.find(run_id)
        if span is not None and span.first_chunk_at is None and span.kind == "llm":
            span.first_chunk_at = span.run.now()

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """End the span of a model."""
        generations = [one for each in response.generations for one in each[:1]]
        said = [getattr(one, "message", None) or getattr(one, "text", None) for one in generations]

        def note(span: SpanRecord) -> None:
            span.response = (generations, response.llm_output)
            self._budgets.settle(span)

        self._ended(self._tracker.end(run_id, said[0] if len(said) == 1 else said, found=note))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End the span of a failed model."""
        self._budgets.release(run_id)
        self._ended(self._tracker.end(run_id, error=error))

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Begin a span of a tool."""
        name = kwargs.get("name") or _name_of(serialized) or "tool"
        given = inputs if inputs is not None else input_str
        span = self._tracker.begin("tool", name, run_id, parent_run_id, tags, metadata, given)
        if span is not None:
            span.invocation = {"description": (serialized or {}).get("description")}
            call_id = kwargs.get("tool_call_id")
            span.tool_call_id = None if call_id is None else str(call_id)
            if span.parent is None:
                self._started()

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """End the span of a tool."""

        def note(span: SpanRecord) -> None:
            call_id = getattr(output, "tool_call_id", None)
            if span.tool_call_id is None and call_id is not None:
                span.tool_call_id = str(call_id)

        self._ended(self._tracker.end(run_id, output, found=note))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End the span of a failed tool."""
        self._ended(self._tracker.end(run_id, error=error))

    def on_retriever_start(
        self,
        serialized: dict[str, Any] | None,
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Begin a span of a retriever."""
        name = kwargs.get("name") or _name_of(serialized) or "retriever"
        span = self._tracker.begin("retriever", name, run_id, parent_run_id, tags, metadata, query)
        if span is not None and span.parent is None:
            self._started()

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """End the span of a retriever."""
        self._ended(self._tracker.end(run_id, documents))

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """End the span of a failed retriever."""
        self._ended(self._tracker.end(run_id, error=error))

    def begin_memory(
        self, operation: str, id: UUID, parent_id: UUID | None, store: str, record_id: str | None, query: str | None
    ) -> None:
        """Begin the span of a memory operation, as a child of an open span."""
        span = self._tracker.begin("memory", operation, id, parent_id, None, None, query)
        if span is not None:
            span.invocation = {"store.id": store, "record.id": record_id}

    def end_memory(self, id: UUID, error: BaseException | None = None) -> None:
        """End the span of a memory operation."""
        self._ended(self._tracker.end(id, error=error))

    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        """Record that a graph was interrupted."""
        self._tracker.interrupted(
            event.run_id, event.checkpoint_id, "|".join(event.checkpoint_ns).rstrip("|"), event.interrupts
        )

    def on_resume(self, event: GraphResumeEvent) -> None:
        """Record that a graph was resumed from a checkpoint."""
        self._tracker.resumed(event.run_id, event.checkpoint_id, "|".join(event.checkpoint_ns).rstrip("|"))

    def _ended(self, run: RunRecord | None) -> None:
        """Handle the end of a span, and of its run if `run` is given. Does not wait."""

    def _begin_llm(
        self,
        serialized: dict[str, Any] | None,
        asked: Any,
        run_id: UUID,
        parent_run_id: UUID | None,
        tags: list[str] | None,
        metadata: dict[str, Any] | None,
        kwargs: dict[str, Any],
    ) -> None:
        name = kwargs.get("name") or _name_of(serialized) or "llm"
        span = self._tracker.begin("llm", name, run_id, parent_run_id, tags, metadata, asked)
        if span is None:
            return
        invocation = kwargs.get("invocation_params") or {}
        span.invocation = {key: capture(invocation[key]) for key in _LLM_REQUEST if key in invocation}
        span.metadata = {key: value for key, value in (metadata or {}).items() if key.startswith("ls_")}
        if span.parent is None:
            self._started()


def _name_of(serialized: dict[str, Any] | None) -> str | None:
    if not serialized:
        return None
    name = serialized.get("name")
    if name:
        return str(name)
    path = serialized.get("id")
    return str(path[-1]) if path else None


def attach(graph: G, *handlers: BaseCallbackHandler) -> G:
    """Return a graph with callback handlers attached.

    Raises:
        ArgumentTypeError: If the graph is remote or cannot take callbacks.
    """
    # Imported here, because a program that records no graph need not load these modules.
    from langgraph.pregel import Pregel
    from langgraph.pregel.remote import RemoteGraph

    if isinstance(graph, RemoteGraph):
        raise ArgumentTypeError("graph must run in this process, got a RemoteGraph: record the graph on its own server")
    if not isinstance(graph, Pregel):
        raise ArgumentTypeError(f"graph must be a compiled graph or an @entrypoint, not {type(graph).__name__}")
    learn(graph)
    bound: Any = graph.with_config(callbacks=[*handlers])
    kind: Any = type(bound)
    if not isinstance(bound, _Recorded):
        # Copy the graph as `Pregel.copy` does.
        given = {name: value for name, value in vars(bound).items() if name != "__orig_class__"}
        bound = _recorded(kind)(**given)
    made: G = bound
    return made


class _Recorded:
    """A graph that passes the thread and owner of a run to its recorders, because callbacks see no `configurable`."""

    config: Mapping[str, Any] | None

    def stream(self, input: Any, config: Any = None, **options: Any) -> Any:
        return super().stream(input, self._told(config), **options)  # type: ignore[misc]

    def astream(self, input: Any, config: Any = None, **options: Any) -> Any:
        return super().astream(input, self._told(config), **options)  # type: ignore[misc]

    def bulk_update_state(self, config: Any, supersteps: Any) -> Any:
        return super().bulk_update_state(self._told(config), supersteps)  # type: ignore[misc]

    def abulk_update_state(self, config: Any, supersteps: Any) -> Any:
        return super().abulk_update_state(self._told(config), supersteps)  # type: ignore[misc]

    def _told(self, config: Any) -> Any:
        given = config or {}
        own, called = ((part or {}).get("configurable") or {} for part in (self.config, given))
        thread_id = next((part["thread_id"] for part in (called, own) if part.get("thread_id") is not None), None)
        ambient: Mapping[str, Any] = {}
        listening = (self.config or {}).get("callbacks") or ()
        handlers = listening.handlers if isinstance(listening, BaseCallbackManager) else listening
        for keys in [handler.thread_keys for handler in handlers if hasattr(handler, "thread_keys")]:
            for part in (called, own, given.get("metadata") or {}):
                if keys is not None:
                    check_names(part, keys)
        if thread_id is not None:
            identifier("thread_id", str(thread_id))
            given = {**given, "metadata": {**(given.get("metadata") or {}), "thread_id": thread_id}}
        else:
            # A graph that is called inside another graph continues the thread of the outer graph.
            ambient = (var_child_runnable_config.get() or {}).get("configurable") or {}
        labels = {name: value for name, value in {**ambient, **own, **called}.items() if _is_label(name, value)}
        if not labels:
            return given or config
        note = _OwnerNote(labels, [one for one in handlers if hasattr(one, "note_owner")])
        callbacks = given.get("callbacks")
        if isinstance(callbacks, BaseCallbackManager):
            callbacks = callbacks.copy()
            callbacks.add_handler(note, inherit=False)
        else:
            callbacks = [*(callbacks or ()), note]
        return {**given, "callbacks": callbacks}


class _OwnerNote(BaseCallbackHandler):
    """A callback handler that passes the owner in `configurable` to a graph's recorders when a run begins.

    The owner is not passed as metadata, because streams and tracers show metadata.
    """

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True
    ignore_chain = False

    def __init__(self, labels: Mapping[str, Any], recorders: Sequence[Any]) -> None:
        self._labels, self._recorders = labels, recorders

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, metadata: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.ignore_chain = True
        for recorder in self._recorders:
            recorder.note_owner(run_id, metadata, self._labels)


def _is_label(name: str, value: Any) -> bool:
    return (isinstance(value, str | UUID) or type(value) is int) and name not in _IDS and not name.startswith("__")


@cache
def _recorded(kind: type[Any]) -> type[Any]:
    names = {name: getattr(kind, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type(kind.__name__, (_Recorded, kind), names)


class LoopRecorder(GraphCallbackHandler):
    """A handler that forwards every callback to the recorder of the current event loop.

    A server imports a graph once and runs it on several loops, each with its own connections and recorder. A callback
    from another thread, such as the thread of a blocking node, goes to the recorder that has the parent span. Without a
    recorder, callbacks do nothing.

    Args:
        here: Returns the recorder of the running event loop, or `None`.
        everywhere: Returns all recorders of the process.
    """

    run_inline = True

    def __init__(
        self, here: Callable[[], RecordingHandler | None], everywhere: Callable[[], Iterable[RecordingHandler]]
    ) -> None:
        self._here = here
        self._everywhere = everywhere

    def __getattribute__(self, name: str) -> Any:
        """Return the callback of the current recorder.

        For each call, LangChain looks up the callback by name, and tests whether the callback must be awaited. So the
        recorder's own callback is returned.
        """
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        recorder = self._here()
        return partial(self._find_by_span, name) if recorder is None else getattr(recorder, name)

    def note_owner(self, run_id: UUID, metadata: Mapping[str, Any] | None, labels: Mapping[str, Any]) -> None:
        """Forward to the recorder of the current event loop."""
        recorder = self._here()
        if recorder is not None:
            recorder.note_owner(run_id, metadata, labels)

    @property
    def thread_keys(self) -> ThreadKeys | None:
        """Config keys of the current recorder that name a thread's user, tenant and agent."""
        recorder = self._here()
        return None if recorder is None else recorder.thread_keys

    def record(self, graph: G) -> G:
        """Return the graph with this recorder attached.

        Raises:
            ConfigurationError: If the graph is remote or cannot take callbacks.
        """
        return attach(graph, self)

    def _find_by_span(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        ids = [kwargs.get("run_id"), kwargs.get("parent_run_id")]
        # The callbacks of interrupts and resumptions pass the run id in an event object.
        ids += [getattr(event, "run_id", None) for event in args[:1]]
        for recorder in self._everywhere():
            if any(recorder.is_recording(id) for id in ids):
                return getattr(recorder, name)(*args, **kwargs)
        return None
