"""Time that the supersteps of a blocking run take."""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler


class SuperstepClock(BaseCallbackHandler):
    """A callback handler that finds when the current superstep of a graph has taken too long.

    A superstep begins with its first node, and has no time limit while none of its nodes runs. Those of subgraphs are
    part of it.

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
        """Time at which the superstep has taken too long, by the monotonic clock."""
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
        """Remember that the graph or one of its nodes begins."""
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
