"""Which run a saver is called by, and from where: what LangGraph does not tell it, looked up in what it passes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from langgraph_pgstate.langgraph_compat import RUNTIME, calling_loop
from langgraph_pgstate.operations.checkpoints.addresses import configurable_of


def run_of(config: Mapping[str, Any]) -> Any:
    """What tells a run from others: an object that its nodes and subgraphs share. Outside of one: `None`."""
    runtime = configurable_of(config).get(RUNTIME)
    return None if runtime is None else getattr(runtime, "control", None) or runtime


@dataclass(slots=True, eq=False)
class CallSite:
    """Where a read comes from.

    Attributes:
        starter: The task or thread that is running.
        exits: The exit stack of the loop that reads, if it is one of LangGraph's: unwound when it has written all.
        loop: That loop.
        taken: The lease that was taken for the read.
        is_left: Whether the read was cancelled; checked after `taken` is set, as `taken` is after this is.
        was_asked: Whether the statement that takes the lease was sent.
        is_asking: Whether it is being answered.
    """

    starter: asyncio.Task[Any] | threading.Thread
    exits: ExitStack | AsyncExitStack | None = None
    loop: Any = None
    taken: Any = None
    is_left: bool = False
    was_asked: bool = False
    is_asking: bool = False

    @classmethod
    def here(cls) -> CallSite:
        """Where the caller was called from.

        LangGraph tells a saver when a run starts, by reading; but not when it ends. So the loop is looked for that
        reads. Where it is not found, as in a version that is made differently, leases are given back later: when the
        run's objects are gone, or its task is done.
        """
        starter: asyncio.Task[Any] | threading.Thread | None = None
        with suppress(RuntimeError):
            starter = asyncio.current_task()
        return cls(starter or threading.current_thread(), *calling_loop())
