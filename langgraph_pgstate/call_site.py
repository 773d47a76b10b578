"""The run and the call site of a saver's caller, read from LangGraph's config and from the stack."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from langgraph_pgstate.arguments import configurable_of
from langgraph_pgstate.langgraph_compat import RUNTIME, calling_loop


def run_of(config: Mapping[str, Any]) -> Any:
    """Return the object that identifies a run, which its nodes and subgraphs share; `None` outside of a run."""
    runtime = configurable_of(config).get(RUNTIME)
    return None if runtime is None else getattr(runtime, "control", None) or runtime


@dataclass(slots=True, eq=False)
class CallSite:
    """The task or thread that reads a checkpoint, and the LangGraph loop in which it does so, if any.

    Attributes:
        starter: The running task or thread.
        exits: The exit stack of LangGraph's loop, if a loop reads. It is unwound when the loop has written everything.
        loop: That loop.
        taken: The lease taken for the read.
        has_failed: Whether the read failed or was cancelled. Checked after `taken` is set, as `taken` is checked after
            this is set.
        was_sent: Whether the statement that takes the lease was sent.
        asked_at: When it was sent last, by `lease_clock`.
        is_pending: Whether its response is pending.
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

        LangGraph reads from a saver when a run starts, but does not report its end. Therefore the reading loop is
        searched for on the stack. If it is not found, for example in another LangGraph version, leases are released
        later: when the objects of the run are gone, or its task is done.
        """
        starter: asyncio.Task[Any] | threading.Thread | None = None
        with suppress(RuntimeError):
            starter = asyncio.current_task()
        return cls(starter or threading.current_thread(), *calling_loop())
