"""Runs of an `@entrypoint`: what waiting for them and following them gives is what `invoke` returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.func import entrypoint
from langgraph.types import Command, interrupt
from support import GUARD_SECONDS, spread
from support.queue import STATES, call, open_state

from langgraph_pgstate.runs.types import StreamEvent
from langgraph_pgstate.state import PGState
from langgraph_pgstate.worker import AsyncWorker, Worker


def returning(value: Any) -> Any:
    return entrypoint()(lambda given: value)


def saving(value: Any) -> Any:
    @entrypoint()
    def workflow(given: Any, *, previous: Any = None) -> Any:
        return entrypoint.final(value=[value, previous], save=(previous or 0) + 1)

    return workflow


def asking(value: Any) -> Any:
    @entrypoint()
    def workflow(given: Any) -> Any:
        return {"answer": interrupt("?") if given == "ask" else value}

    return workflow


@pytest.mark.parametrize("api", STATES)
@pytest.mark.parametrize("value", spread([1, "text", None, {"a": 1}, [1, 2]]))
@pytest.mark.parametrize("make", [returning, saving, asking])
async def test_waiting_gives_what_invoke_returns(
    api: type, make: Callable[[Any], Any], value: Any, dsn: str, schema: str
) -> None:
    inputs = ["plain", "plain", "ask", Command(resume="yes")] if make is asking else ["plain", "plain"]
    async with open_state(api, dsn, schema) as state:
        graph = make(value)
        plain = graph.copy({"checkpointer": state.saver})
        config: Any = {"configurable": {"thread_id": "plain"}}
        worker: Any = (Worker if api is PGState else AsyncWorker)(state, {"agent": graph})
        async with open_worker(worker):
            for given in inputs:
                expected = await call(plain.invoke if api is PGState else plain.ainvoke, given, config)
                options = {"command": given} if isinstance(given, Command) else {"input": given}
                run = await call(state.runs.enqueue, "agent", thread_id="t", stream_mode="values", **options)
                found = await call(run.wait, GUARD_SECONDS)
                assert without_ids(found) == without_ids(expected)
                events = await gathered(run)
                streamed = [event.data for event in events if event.event == "values"]
                if streamed and given != "ask":
                    assert without_ids(streamed[-1]) == without_ids(expected)


class open_worker:
    """A worker of either API."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    async def __aenter__(self) -> None:
        if isinstance(self.worker, AsyncWorker):
            await self.worker.__aenter__()
        else:
            self.worker.__enter__()

    async def __aexit__(self, *_: Any) -> None:
        await call(self.worker.close)


async def gathered(run: Any) -> list[StreamEvent]:
    events = run.join()
    return [*events] if hasattr(events, "__iter__") else [event async for event in events]


def without_ids(values: Any) -> Any:
    """Interrupts of two threads have different ids."""
    if not isinstance(values, dict) or "__interrupt__" not in values:
        return values
    return {**values, "__interrupt__": [one.value for one in values["__interrupt__"]]}
