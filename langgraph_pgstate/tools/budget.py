"""A callback handler that limits the supersteps and tokens of a run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from langgraph_pgstate.errors import ConfigurationError, RunBudgetExceededError
from langgraph_pgstate.langgraph_compat import close_waiting_callbacks


class _Use:
    """The usage of one run."""

    __slots__ = ("steps", "tokens")

    def __init__(self) -> None:
        self.steps: set[int] = set()
        self.tokens = 0


class Budget(BaseCallbackHandler):
    """A limit that ends a run with an error when its supersteps or tokens are used up. Serves many runs at once.

    A superstep over the limit does not begin. Tokens are known only after a model call, so the call that exceeds the
    limit is the last one. Tokens of subgraphs count for the root graph's run; supersteps of subgraphs do not.

    Args:
        max_steps: Supersteps of the root graph in one invocation.
        max_tokens: Input and output tokens together, as the models report them.

    Raises:
        ConfigurationError: If neither is given, or a limit is not positive.
    """

    raise_error = True
    run_inline = True

    def __init__(self, *, max_steps: int | None = None, max_tokens: int | None = None) -> None:
        if max_steps is None and max_tokens is None:
            raise ConfigurationError("max_steps, max_tokens or both must be given")
        for name, value in (("max_steps", max_steps), ("max_tokens", max_tokens)):
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {value}")
        self._max_steps, self._max_tokens = max_steps, max_tokens
        self._roots: dict[UUID, UUID] = {}
        self._uses: dict[UUID, _Use] = {}
        self._lock = threading.Lock()

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Count a superstep if this is a node of the root graph."""
        use = self._begin(run_id, parent_run_id)
        metadata = metadata or {}
        step, namespace = metadata.get("langgraph_step"), str(metadata.get("langgraph_checkpoint_ns") or "")
        if use is None or not isinstance(step, int) or "|" in namespace:
            return
        use.steps.add(step)
        if self._max_steps is not None and len(use.steps) > self._max_steps:
            raise RunBudgetExceededError("steps", len(use.steps) - 1, self._max_steps)
        self._check_tokens(use)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Remove an ended run."""
        self._end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Remove an ended run."""
        self._end(run_id)

    def on_tool_start(self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """Record the root run of a tool, so that models called by the tool count against the run's budget."""
        self._begin(run_id, parent_run_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Remove an ended run."""
        self._end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Remove an ended run."""
        self._end(run_id)

    def on_retriever_start(self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """Record the root run of a retriever, so that models called by the retriever count against the run's budget."""
        self._begin(run_id, parent_run_id)

    def on_retriever_end(self, documents: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Remove an ended run."""
        self._end(run_id)

    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Remove an ended run."""
        self._end(run_id)

    def on_chat_model_start(self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """Refuse a model call if no tokens are left."""
        if (use := self._begin(run_id, parent_run_id)) is not None:
            self._check_tokens(use)

    def on_llm_start(self, *args: Any, run_id: UUID, parent_run_id: UUID | None = None, **kwargs: Any) -> None:
        """Refuse a model call if no tokens are left."""
        if (use := self._begin(run_id, parent_run_id)) is not None:
            self._check_tokens(use)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Count the tokens of a model call."""
        with self._lock:
            use = self._uses.get(self._roots.get(run_id, run_id))
            if use is not None:
                use.tokens += _tokens_of(response)
        self._end(run_id)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Remove an ended run."""
        self._end(run_id)

    def _begin(self, run_id: UUID, parent_run_id: UUID | None) -> _Use | None:
        with self._lock:
            root = run_id if parent_run_id is None else self._roots.get(parent_run_id, run_id)
            self._roots[run_id] = root
            return self._uses.setdefault(root, _Use())

    def _end(self, run_id: UUID) -> None:
        with self._lock:
            if self._roots.pop(run_id, None) == run_id:
                self._uses.pop(run_id, None)
                # Also remove runs that were refused at their start, because LangChain calls no end callback for such
                # runs.
                self._roots = {run: root for run, root in self._roots.items() if root != run_id}

    def _check_tokens(self, use: _Use) -> None:
        if self._max_tokens is not None and use.tokens >= self._max_tokens:
            close_waiting_callbacks()
            raise RunBudgetExceededError("tokens", use.tokens, self._max_tokens)


def _tokens_of(response: LLMResult) -> int:
    used = 0
    for generations in response.generations:
        for generation in generations:
            message = generation.message if isinstance(generation, ChatGeneration) else None
            if isinstance(message, AIMessage) and message.usage_metadata:
                used += message.usage_metadata["input_tokens"] + message.usage_metadata["output_tokens"]
    return used or _provider_tokens(response.llm_output or {})


def _provider_tokens(output: Mapping[str, Any]) -> int:
    """Return the tokens reported by models that do not use LangChain's messages."""
    usage = output.get("token_usage") or output.get("usage") or {}
    if not isinstance(usage, Mapping):
        return 0
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")]
    return sum(count for count in counts if isinstance(count, int))
