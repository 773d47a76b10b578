"""The agents: one graph whose turns do what their message says, and tools that change a world outside of PostgreSQL."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import operator
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt

from langgraph_pgstate.tools import Happened, ToolRetry, current_execution

from .journal import Journal

# Tools, and a function that a node calls, each with what its effect promises: at most once, exactly once, once by
# token, or at least once.
PROMISES = {
    "pay": "most",
    "charge": "exactly",
    "mail": "most",
    "plain": "most",
    "book": "exactly",
    "post": "token",
    "search": "least",
    "flaky": "token",
    "hold": "exactly",
    "ship": "most",
}
TOOLS = tuple(PROMISES)[:-1]
# Tools that block also on an event loop, which runs them in threads that no cancellation ends.
BLOCKING = ("pay", "charge", "plain", "search", "flaky", "hold")
_HOLD_SECONDS = 0.1
DEEDS = ("say", "say", "edit", "tools", "tools", "tools", "send", "ask", "sub", "lasting", "many", "ship")
_MOST_ASKED = 2


class FlakyError(Exception):
    """What the tool `flaky` raises on its first attempt."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How a thread is run, whoever runs it.

    Attributes:
        guard: The saver's guard.
        is_recorded: Whether its runs are recorded; else there is a saver alone, and no tools.
        is_delta: Whether its messages are in a DeltaChannel.
        hands_errors: Whether its model is told of a tool's errors.
    """

    guard: str | None
    is_recorded: bool
    is_delta: bool
    hands_errors: bool

    @classmethod
    def of(cls, seed: str, thread_id: str) -> Profile:
        """The profile of a thread; that of the thread it was copied from, if it is a copy."""
        draw = random.Random(f"{seed} profile {thread_id.partition('~')[0]}")
        guard = draw.choice((None, None, "head", "lease"))
        return cls(guard, draw.random() < 0.8, draw.random() < 0.3, draw.random() < 0.3)


class Outside:
    """The world that tools change: a file for each action, a line in it for each effect.

    Args:
        directory: Where the files are.
        journal: Of the process whose tools these are.

    Attributes:
        blocking: The orders of tools that block a thread now.
    """

    def __init__(self, directory: Path, journal: Journal) -> None:
        self._directory, self._journal = directory, journal
        self.blocking: list[str] = []
        directory.mkdir(exist_ok=True)

    def perform(self, thread_id: str, tool: str, key: str, token: str, *, once: bool) -> None:
        """Do it; one that honours idempotency keys does nothing twice."""
        line = json.dumps({"thread": thread_id, "tool": tool, "key": key, "token": token, "by": self._journal.name})
        place = self._file(f"token {token}" if once else f"{thread_id} {tool} {key}")
        # One write, so that a kill leaves the whole line or none.
        file = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        fcntl.flock(file, fcntl.LOCK_EX)
        if not (once and self._has_line(place)):
            os.write(file, line.encode() + b"\n")
        os.close(file)

    def has_happened(self, thread_id: str, tool: str, key: str) -> bool:
        """Tell the truth about an action."""
        return self._has_line(self._file(f"{thread_id} {tool} {key}"))

    def _has_line(self, place: Path) -> bool:
        return place.exists() and place.stat().st_size > 0

    def _file(self, name: str) -> Path:
        return self._directory / hashlib.sha256(name.encode()).hexdigest()[:24]


def _add_all(state: list[AnyMessage], writes: Sequence[Any]) -> Any:
    return reduce(add_messages, writes, state)


class State(TypedDict, total=False):
    """What an agent keeps."""

    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    part: Any


class DeltaState(TypedDict, total=False):
    """The same, with messages of which only the changes are stored."""

    messages: Annotated[list[AnyMessage], DeltaChannel(_add_all, snapshot_frequency=6)]
    notes: Annotated[list[str], operator.add]
    part: Any


class EmptiedError(Exception):
    """A run was resumed that an operator has removed: LangGraph begins an empty one."""


def task_of(state: Any) -> dict[str, Any]:
    """What the last message of a person says."""
    message = next((one for one in reversed(state["messages"]) if isinstance(one, HumanMessage)), None)
    if message is None:
        raise EmptiedError("nobody has said anything")
    task: dict[str, Any] = json.loads(str(message.content))
    return task


def message_of(task: dict[str, Any]) -> dict[str, Any]:
    """A turn's input."""
    return {"messages": [HumanMessage(json.dumps(task), id=task["turn"])]}


def _said(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [AIMessage(text, id=uuid4().hex, **more)]}


def build(profile: Profile, journal: Journal, outside: Outside, ledger: Any, *, is_async: bool) -> StateGraph[Any]:
    """The graph of a profile.

    Args:
        profile: How its threads are run.
        journal: Of this process.
        outside: What its tools change.
        ledger: What sees to it that they do so once; `None` for an agent without tools.
        is_async: Whether it runs on an event loop, where some tools are coroutines.
    """
    state = DeltaState if profile.is_delta else State
    builder: StateGraph[Any] = StateGraph(state)

    def begin(state: Any) -> dict[str, Any]:
        journal.point("in a node")
        return {"notes": [task_of(state)["turn"]]}

    def route(state: Any) -> Any:
        task = task_of(state)
        if task["do"] in ("send", "ask"):
            asks = task["do"] == "ask"
            return [Send("part", {"part": {**task, "number": n, "asks": asks}}) for n in range(task["width"])]
        return {"tools": "model", "many": "loop"}.get(task["do"], task["do"])

    def say(state: Any) -> dict[str, Any]:
        return _said(f"heard {task_of(state)['turn']}")

    def edit(state: Any) -> dict[str, Any]:
        own = [one for one in state["messages"] if isinstance(one, AIMessage) and not one.tool_calls]
        changes: list[Any] = [own[-1].model_copy(update={"content": f"{own[-1].content}!"})] if own else []
        changes += [RemoveMessage(id=own[0].id)] if len(own) > 2 else []
        return {"messages": [*changes, AIMessage("edited", id=uuid4().hex)]}

    def part(given: Any) -> dict[str, Any]:
        task = given["part"]
        answer = interrupt({"turn": task["turn"], "number": task["number"]}) if task["asks"] else "done"
        return {"notes": [f"{task['turn']}/{task['number']}={answer}"], **_said(f"part {task['number']}")}

    def loop(state: Any) -> dict[str, Any]:
        return {"notes": [f"{task_of(state)['turn']}+"], **_said("again")}

    def is_looped(state: Any) -> str:
        return "loop" if state["notes"].count(f"{task_of(state)['turn']}+") < 4 else "finish"

    def model(state: Any) -> dict[str, Any]:
        task, messages = task_of(state), state["messages"]
        since = messages[max(i for i, one in enumerate(messages) if isinstance(one, HumanMessage)) :]
        asked = sum(bool(getattr(one, "tool_calls", None)) for one in since)
        failed = {one.tool_call_id for one in since if isinstance(one, ToolMessage) and one.status == "error"}
        if asked and (not failed or asked >= _MOST_ASKED):
            return _said("done")
        # A model that is told of an error asks again, under new ids.
        before = [call for one in since if isinstance(one, AIMessage) for call in one.tool_calls]
        again = [(call["name"], call["args"]["order"]) for call in before if call["id"] in failed]
        if asked:
            journal.note("asked again", turn=task["turn"], ids=sorted(failed), calls=again)
        calls = [
            {"name": name, "args": {"order": order}, "id": uuid4().hex}
            for name, order in (again if asked else task["calls"])
        ]
        return _said("calls", tool_calls=calls)

    def has_called(state: Any) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else "finish"

    def finish(state: Any) -> dict[str, Any]:
        journal.point("in a node")
        return {"notes": [f"{task_of(state)['turn']}."]}

    def inner(state: Any) -> dict[str, Any]:
        task = task_of(state)
        answer = interrupt({"turn": task["turn"], "number": 9}) if task["width"] == 3 else "inner"
        return {"notes": [f"{task['turn']}/9={answer}"]}

    lower: StateGraph[Any] = StateGraph(state)
    lower.add_sequence([("hear", lambda state: _said("below")), ("inner", inner)])
    lower.add_edge(START, "hear")

    def below(compiled: Any) -> Any:
        def only_new(state: Any, found: Any) -> dict[str, Any]:
            known = {one.id for one in state["messages"]}
            return {"messages": [one for one in found["messages"] if one.id not in known], "notes": found["notes"][-1:]}

        def run(state: Any) -> dict[str, Any]:
            return only_new(state, compiled.invoke({"messages": state["messages"], "notes": state["notes"]}))

        async def arun(state: Any) -> dict[str, Any]:
            given = {"messages": state["messages"], "notes": state["notes"]}
            return only_new(state, await compiled.ainvoke(given))

        return arun if is_async else run

    for node in (begin, say, edit, part, loop, model, finish):
        builder.add_node(node.__name__, node)
    builder.add_node("sub", below(lower.compile()))
    builder.add_node("lasting", below(lower.compile(checkpointer=True)))
    if ledger is not None:
        wrap = {"awrap_tool_call" if is_async else "wrap_tool_call": ledger}
        tools, ship = make_tools(journal, outside, ledger, is_async=is_async)
        builder.add_node("ship", ship)
        builder.add_node("tools", ToolNode(tools, handle_tool_errors=profile.hands_errors, **wrap))
        builder.add_edge("tools", "model")
    else:
        builder.add_node("ship", say)
        builder.add_node("tools", say)
        builder.add_edge("tools", "finish")
    builder.add_edge(START, "begin")
    builder.add_conditional_edges("begin", route, ["say", "edit", "part", "model", "loop", "sub", "lasting", "ship"])
    builder.add_conditional_edges("loop", is_looped, ["loop", "finish"])
    builder.add_conditional_edges("model", has_called, ["tools", "finish"])
    for node in ("say", "edit", "part", "sub", "lasting", "ship"):
        builder.add_edge(node, "finish")
    builder.add_edge("finish", END)
    return builder


def make_tools(journal: Journal, outside: Outside, ledger: Any, *, is_async: bool) -> tuple[list[Any], Any]:
    """One tool for each policy, on a ledger, and a node that calls a function of it."""

    def enter() -> Any:
        me = current_execution()
        journal.note("enter", thread=me.thread_id, tool=me.tool, key=me.key, attempt=me.attempt)
        journal.point("before an effect")
        return me

    def act(order: str) -> str:
        me = enter()
        if me.tool == "flaky" and me.attempt == 1:
            raise FlakyError(order)
        outside.perform(me.thread_id, me.tool, me.key, me.token, once=PROMISES[me.tool] == "token")
        journal.point("after an effect")
        return f"{me.tool} {order}"

    def block(order: str) -> str:
        # Longer than it takes to cancel it, and than `hold` may take.
        outside.blocking.append(order)
        time.sleep(0.5 if order.endswith("slow") else random.Random(order).choice((0.0, 0.003, 0.06)))
        outside.blocking.remove(order)
        return act(order)

    async def aact(order: str) -> str:
        await asyncio.sleep(0.002)
        answer = act(order)
        await asyncio.sleep(0.002)
        return answer

    insert = b"INSERT INTO public.bookings (thread_id, key, booked_by) VALUES (%s, %s, %s)"

    def book(order: str, connection: Any) -> str:
        me = enter()
        connection.execute(insert, [me.thread_id, me.key, journal.name])
        journal.point("after an effect")
        return f"book {order}"

    async def abook(order: str, connection: Any) -> str:
        me = enter()
        await connection.execute(insert, [me.thread_id, me.key, journal.name])
        journal.point("after an effect")
        return f"book {order}"

    def tell(execution: Any) -> Any:
        happened = outside.has_happened(execution.thread_id, execution.tool, execution.idempotency_key)
        return Happened("it had happened") if happened else False

    by_order: dict[str, Any] = {"key": lambda args: args["order"]}
    ledger.policy("pay", **by_order)
    ledger.policy("charge", **by_order, on_unknown="check", check=tell)
    ledger.policy("hold", **by_order, on_unknown="check", check=tell, timeout=_HOLD_SECONDS)
    ledger.policy("mail", **by_order, on_unknown="ask")
    ledger.policy("post", **by_order, on_unknown="retry")
    ledger.policy("search", on_unknown="retry")
    ledger.policy("flaky", **by_order, on_unknown="retry", on_error="retry", retry=ToolRetry(3, 0.01))
    functions: dict[str, Callable[..., Any]] = dict.fromkeys(TOOLS, aact if is_async else act)
    functions |= dict.fromkeys(BLOCKING if is_async else ["hold"], block)
    functions["book"] = abook if is_async else book
    functions["book"].__name__ = "book"
    functions["book"] = ledger.transactional(functions["book"])
    tools = [
        StructuredTool.from_function(
            **{"coroutine" if asyncio.iscoroutinefunction(f) else "func": f}, name=n, description=n
        )
        for n, f in functions.items()
    ]
    shipped = ledger.once(aact if is_async else act, name="ship", **by_order)

    def ship(state: Any) -> dict[str, Any]:
        return _said(shipped(task_of(state)["turn"]))

    async def aship(state: Any) -> dict[str, Any]:
        return _said(await shipped(task_of(state)["turn"]))

    return tools, aship if is_async else ship
