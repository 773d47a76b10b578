"""LangChain's and LangGraph's callbacks, told to a tracker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from langgraph.callbacks import GraphCallbackHandler, GraphInterruptEvent, GraphResumeEvent

from langgraph_pgstate.operations.checkpoints.planning import PutPlan
from langgraph_pgstate.operations.record.put_hook import Statement
from langgraph_pgstate.record.capture import capture
from langgraph_pgstate.record.records import RunRecord, SpanRecord
from langgraph_pgstate.record.tracker import Tracker

# What has been in the journal for so long was left there: a process that lives moves it every 0.4 s.
_STUCK_SECONDS: Final = 1.0
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
    """What both recorders hear, and how they note it. The ends of chains are theirs, for there a run may end."""

    run_inline = True
    """In the graph's own thread or task, so that what starts first is noted first."""

    _tracker: Tracker
    _recovered_at: float | None

    def _due_recovery(self) -> float | None:
        """For how many seconds something must have been in the journal to be moved by who asks now; `None`: do not."""
        now, before = time.monotonic(), self._recovered_at
        if before is not None and now - before < _STUCK_SECONDS:
            return None
        self._recovered_at = now
        return 0.0 if before is None else _STUCK_SECONDS

    def before_put(self, plan: PutPlan, config: Any) -> Sequence[Statement]:
        """Notes what a thread has waiting with its checkpoint; the saver asks for it. No statement."""
        self._tracker.before_put(plan)
        return ()

    def after_put(self, plan: PutPlan) -> None:
        """The checkpoint, and what was noted with it, are committed; the saver says so."""
        if self._tracker.after_put(plan):
            self._started()

    def run_id_of(self, thread_id: str) -> str | None:
        """The run that is under way on a thread in this process, if there is one."""
        run = self._tracker.run_on(thread_id)
        return None if run is None else run.run_id

    def is_recording(self, span_id: UUID | None) -> bool:
        """Whether a span of this id is under way here."""
        return span_id is not None and self._tracker.find(span_id) is not None

    def _started(self) -> None:
        """Something was noted that has to be written soon."""

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
        """A graph, a node or a chain starts."""
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
        """A chat model is asked."""
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
        """A completion model is asked."""
        asked = prompts[0] if len(prompts) == 1 else prompts
        self._begin_llm(serialized, asked, run_id, parent_run_id, tags, metadata, kwargs)

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A model has begun to answer."""
        span = self._tracker.find(run_id)
        if span is not None and span.first_chunk_at is None and span.kind == "llm":
            span.first_chunk_at = span.run.now()

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A model has answered."""
        generations = [one for each in response.generations for one in each[:1]]
        said = [getattr(one, "message", None) or getattr(one, "text", None) for one in generations]

        def note(span: SpanRecord) -> None:
            span.response = (generations, response.llm_output)

        self._ended(self._tracker.end(run_id, said[0] if len(said) == 1 else said, found=note))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A model has failed."""
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
        """A tool starts."""
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
        """A tool has answered."""

        def note(span: SpanRecord) -> None:
            call_id = getattr(output, "tool_call_id", None)
            if span.tool_call_id is None and call_id is not None:
                span.tool_call_id = str(call_id)

        self._ended(self._tracker.end(run_id, output, found=note))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A tool has failed."""
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
        """A retriever starts."""
        name = kwargs.get("name") or _name_of(serialized) or "retriever"
        span = self._tracker.begin("retriever", name, run_id, parent_run_id, tags, metadata, query)
        if span is not None and span.parent is None:
            self._started()

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """A retriever has found something."""
        self._ended(self._tracker.end(run_id, documents))

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """A retriever has failed."""
        self._ended(self._tracker.end(run_id, error=error))

    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        """A graph pauses."""
        self._tracker.interrupted(
            event.run_id, event.checkpoint_id, "|".join(event.checkpoint_ns).rstrip("|"), event.interrupts
        )

    def on_resume(self, event: GraphResumeEvent) -> None:
        """A graph goes on from a checkpoint."""
        self._tracker.resumed(event.run_id, event.checkpoint_id, "|".join(event.checkpoint_ns).rstrip("|"))

    def _ended(self, run: RunRecord | None) -> None:
        """A span has ended, and its run with it if one is given. Waits for nothing."""

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
