"""Which run a saver is called by, and from where."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from langgraph_pgstate.call_site import CallSite, run_of


class State(TypedDict):
    number: int


class Looking(InMemorySaver):
    """Keeps where each read came from, and which run put."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[CallSite] = []
        self.runs: list[Any] = []

    def get_tuple(self, config: Any) -> Any:
        self.sites.append(CallSite.here())
        return super().get_tuple(config)

    def put(self, config: Any, *arguments: Any) -> Any:
        self.runs.append(run_of(config))
        return super().put(config, *arguments)


def test_a_read_that_begins_a_run_knows_its_loop_and_the_stack_that_ends_it() -> None:
    saver = Looking()
    graph = StateGraph(State).add_node("node", lambda state: {"number": 1}).add_edge(START, "node").compile(saver)
    graph.invoke({"number": 0}, {"configurable": {"thread_id": "t"}})
    (site,) = saver.sites
    assert site.starter is threading.current_thread()
    assert site.loop is not None
    assert site.exits is site.loop.stack
    graph.get_state({"configurable": {"thread_id": "t"}})
    assert saver.sites[1].loop is None


def test_all_puts_of_a_run_name_the_same_one_and_those_of_another_do_not() -> None:
    saver = Looking()
    graph = StateGraph(State).add_node("node", lambda state: {"number": 1}).add_edge(START, "node").compile(saver)
    graph.invoke({"number": 0}, {"configurable": {"thread_id": "t"}}, durability="sync")
    first = list(saver.runs)
    graph.invoke({"number": 0}, {"configurable": {"thread_id": "t"}}, durability="sync")
    assert len(first) > 1
    assert len({id(run) for run in first}) == 1
    assert first[0] is not None
    assert all(run is not first[0] for run in saver.runs[len(first) :])


def test_outside_of_a_run_there_is_none() -> None:
    assert run_of({"configurable": {"thread_id": "t"}}) is None


async def test_in_a_task_the_task_is_what_started_it() -> None:
    site = CallSite.here()
    assert site.starter is asyncio.current_task()
    assert (site.loop, site.exits) == (None, None)
