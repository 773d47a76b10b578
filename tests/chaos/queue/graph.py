"""The graph of enqueued runs: it counts its supersteps, notes each, and does in some what its task says."""

from __future__ import annotations

import asyncio
import operator
import random
import time
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt

from langgraph_pgstate.tools import Happened, current_execution

from ..agents import Outside
from ..journal import Journal

# What a task does in one of its supersteps, or in all: nothing, an effect, an error, an interrupt, or nothing slowly.
DEEDS = ("count", "count", "count", "charge", "charge", "post", "fail", "ask", "slow")


class PlannedError(Exception):
    """What a task raises that is to fail."""


class State(TypedDict, total=False):
    """What a thread keeps: its current task, the number of its next superstep, and all supersteps of all tasks."""

    task: dict[str, Any]
    n: int
    log: Annotated[list[str], operator.add]


def draw_task(draw: random.Random, name: str, steps: int | None = None) -> dict[str, Any]:
    """A task; with a number of supersteps it does nothing else but count."""
    count = draw.randint(2, 12) if steps is None else steps
    # Of a thread's runs that are enqueued at about the same time, each asks for the same effects.
    order = int(time.monotonic() / 2)
    return {
        "id": name,
        "order": order,
        "do": "count" if steps is not None else draw.choice(DEEDS),
        "steps": count,
        "at": draw.randrange(count),
        "times": draw.choice((1, 2, 9)),
        "pause": draw.choice((0.0, 0.002, 0.01, 0.05)),
    }


def input_of(task: dict[str, Any]) -> dict[str, Any]:
    """The input of a run with a task."""
    return {"task": task, "n": 0}


def build(journal: Journal, outside: Outside, ledger: Any, *, is_async: bool) -> StateGraph[Any]:
    """The graph.

    Args:
        journal: Of this process.
        outside: What its tools change.
        ledger: Has each tool take effect once.
        is_async: Whether its node is a coroutine.
    """

    def act(order: str) -> str:
        me = current_execution()
        journal.note("enter", thread=me.thread_id, tool=me.tool, key=me.key, attempt=me.attempt)
        journal.point("before an effect")
        outside.perform(me.thread_id, me.tool, me.key, me.token, once=me.tool == "post")
        journal.point("after an effect")
        return order

    def block(order: str) -> str:
        # In a thread, which no cancellation ends.
        time.sleep(random.Random(order).choice((0.0, 0.003, 0.06, 0.4)))
        return act(order)

    async def aact(order: str) -> str:
        await asyncio.sleep(0.001)
        return act(order)

    async def ablock(order: str) -> str:
        await asyncio.sleep(0.001)
        return await asyncio.to_thread(block, order)

    def tell(execution: Any) -> Any:
        happened = outside.has_happened(execution.thread_id, execution.tool, execution.idempotency_key)
        return Happened("it had happened") if happened else False

    by_order: dict[str, Any] = {"key": lambda args: args["order"]}
    ledger.policy("charge", **by_order, on_unknown="check", check=tell)
    tools = {
        "charge": ledger.once(ablock if is_async else act, name="charge"),
        "post": ledger.once(aact if is_async else act, name="post", **by_order, on_unknown="retry"),
    }
    blocking = StructuredTool.from_function(block, name="charge", description="charge")
    node = ToolNode([blocking], awrap_tool_call=ledger.acall)

    def begin(state: State, config: RunnableConfig) -> dict[str, Any]:
        about, task, n = config["metadata"], state["task"], state["n"]
        ids = {"run": about["run_id"], "thread": about["thread_id"], "attempt": about["run_attempt"]}
        journal.note("step", task=task["id"], n=n, step=about["langgraph_step"], **ids)
        journal.point("in a node")
        if n == task["at"]:
            if task["do"] == "fail" and about["run_attempt"] <= task["times"]:
                raise PlannedError(f"{task['id']} in attempt {about['run_attempt']}")
            if task["do"] == "ask":
                interrupt(task["id"])
        return {"n": n + 1, "log": [f"{task['id']}/{n}"]}

    def pause_of(state: State) -> float:
        task = state["task"]
        return 0.4 if task["do"] == "slow" and state["n"] == task["at"] else float(task["pause"])

    def step(state: State, config: RunnableConfig) -> dict[str, Any]:
        done = begin(state, config)
        time.sleep(pause_of(state))
        if tool := tools.get(state["task"]["do"]):
            tool(f"{state['task']['order']}.{state['n']}")
        return done

    async def astep(state: State, config: RunnableConfig) -> dict[str, Any]:
        done = begin(state, config)
        await asyncio.sleep(pause_of(state))
        order = f"{state['task']['order']}.{state['n']}"
        if state["task"]["do"] == "charge" and state["n"] % 2:
            call = {"name": "charge", "args": {"order": order}, "id": f"{state['task']['id']}.{state['n']}"}
            await node.ainvoke({"messages": [AIMessage("", tool_calls=[call])]}, config)
        elif tool := tools.get(state["task"]["do"]):
            await tool(order)
        return done

    builder: StateGraph[Any] = StateGraph(State)
    builder.add_node("step", astep if is_async else step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["n"] < state["task"]["steps"] else END)
    return builder
