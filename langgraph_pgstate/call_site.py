"""The run and the call site of a caller, read from LangGraph's config and from the stack."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage

from langgraph_pgstate.arguments import configurable_of, thread_id_of
from langgraph_pgstate.langgraph_compat import RUNTIME, calling_loop


def run_of(config: Mapping[str, Any]) -> Any:
    """Return the object that identifies a run and its subgraphs; `None` outside of a run."""
    runtime = configurable_of(config).get(RUNTIME)
    return None if runtime is None else getattr(runtime, "control", None) or runtime


RunOf = Callable[[Mapping[str, Any]], str | None]
"""Function that returns the recorded id of a config's run."""


class Origin(NamedTuple):
    """The place in a run from which a node writes.

    Attributes:
        thread_id: Thread of the run; `None` outside of a run.
        checkpoint_ns: Namespace of the node's graph.
        checkpoint_id: Checkpoint from which the superstep of the node's graph started.
        root_checkpoint_id: Checkpoint from which the superstep of the root graph started.
        run_id: The run.
    """

    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    root_checkpoint_id: str | None = None
    run_id: str | None = None


def origin_of(config: Mapping[str, Any], run_of: RunOf | None) -> Origin:
    """Return the place that a node's config names; an empty `Origin` if the config has no thread."""
    configurable = configurable_of(config)
    if configurable.get("thread_id") is None:
        return Origin()
    thread_id = thread_id_of(configurable["thread_id"])
    # A node's config has the task's namespace, whose last part is the task.
    namespace = str(configurable.get("checkpoint_ns") or "").rpartition("|")[0]
    heads: Mapping[str, str] = configurable.get("checkpoint_map") or {}
    metadata: Mapping[str, Any] = config.get("metadata") or {}
    run_id = (run_of(config) if run_of else None) or config.get("run_id") or metadata.get("run_id")
    return Origin(thread_id, namespace, heads.get(namespace), heads.get(""), str(run_id) if run_id else None)


def lists_of(state: Any) -> Iterator[list[Any]]:
    """Yield all lists of a state, `messages` first."""
    if isinstance(state, list):
        yield state
        return
    values = state if isinstance(state, Mapping) else getattr(state, "__dict__", {})
    for _, value in sorted(values.items(), key=lambda item: item[0] != "messages"):
        if isinstance(value, list):
            yield value


def requested_by(state: Any, tool: str, call_id: str | None) -> tuple[AIMessage, Any] | None:
    """Return the message of a state that requested a tool call, and the call's arguments; or `None`."""
    for messages in lists_of(state):
        for message in reversed(messages):
            if isinstance(message, AIMessage):
                for call in message.tool_calls:
                    if call["id"] == call_id and call["name"] == tool:
                        return message, call["args"]
    return None


@dataclass(slots=True, eq=False)
class CallSite:
    """The task or thread that reads a checkpoint, and the LangGraph loop that reads, if any.

    Attributes:
        starter: The running task or thread.
        exits: The exit stack of LangGraph's loop, which is unwound when the loop has written everything.
        loop: LangGraph's loop.
        taken: The lease taken for the read.
        has_failed: Whether the read failed or was cancelled, so that the lease must be released. `taken` may be set
            before or after `has_failed`. The code that sets the second attribute releases the lease.
        was_sent: Whether the statement that takes the lease was sent.
        asked_at: Time of the last sending, by `lease_clock`.
        is_pending: Whether the statement's response is pending.
    """

    starter: asyncio.Task[Any] | threading.Thread
    exits: ExitStack | AsyncExitStack | None = None
    loop: Any = None
    taken: Any = None
    has_failed: bool = False
    was_sent: bool = False
    asked_at: float = 0.0
    is_pending: bool = False

    @classmethod
    def here(cls) -> CallSite:
        """Return the call site of the caller.

        LangGraph does not report the end of a run to the saver, so LangGraph's loop is searched for on the stack.
        Without the loop, for example in another LangGraph version, leases are released later: when the objects of the
        run are gone, or its task is done.
        """
        starter: asyncio.Task[Any] | threading.Thread | None = None
        with suppress(RuntimeError):
            starter = asyncio.current_task()
        return cls(starter or threading.current_thread(), *calling_loop())
