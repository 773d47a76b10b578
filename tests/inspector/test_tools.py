"""The pages of tools, and the decision about an unknown effect."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from langchain_core.tools import StructuredTool
from langgraph.prebuilt import ToolNode
from support import GUARD_SECONDS
from support.ledger import agent_graph, ask, calls, open_async_ledger, thread
from support.pages import HOSTILE, forms_of, inspected, read_together, state_of, statements, visiting
from support.record import Record

from langgraph_pgstate.errors import ToolFailedError, ToolOvertakenError
from langgraph_pgstate.inspector import tools
from langgraph_pgstate.tools import ToolSettings

from .conftest import Place


async def test_tools_show_unknown_effects_and_statistics(place: Place, record: Record) -> None:
    _, visitor = place
    record.thread("t")
    record.execution("k1", 0, tool="pay", status="unknown", arguments={"card": HOSTILE}, run_id="r")
    record.execution("k2", 5, tool="mail", preview=HOSTILE)
    record.connection.execute(f"UPDATE {record.schema}.tool_executions SET started_at = now() - interval '1 h'")
    record.span("s", "tool", 0, 2, name="mail")
    record.connection.execute(
        f"UPDATE {record.schema}.spans SET started_at = now() - interval '1 h', ended_at = now() - interval '59 min'"
    )
    with statements() as sent:
        html = await visitor.page("/tools")
    assert len(sent) <= 5, sent
    assert "<script>alert" not in html
    data = await visitor.data("/tools")
    assert [one["idempotency_key"] for one in data["unknown"]] == ["k1"]
    assert {one["tool"]: one["unknown"] for one in data["actions"]} == {"pay": 1, "mail": 0}
    assert [(one["tool"], one["p95"]) for one in data["calls"]] == [("mail", 60.0)]
    assert [one["idempotency_key"] for one in (await visitor.data("/tools", tool="mail"))["recent"]] == ["k2"]
    assert "No effect is unknown" in await visitor.page("/tools", tool="mail")
    assert (await visitor.client.get("/ui/tools", params={"since": "x"})).status_code == 422


async def test_the_wait_for_a_person_is_no_duration(place: Place, record: Record) -> None:
    _, visitor = place
    record.execution("k1", 0, 900, tool="pay", alive_until=None)
    assert "15 min" not in await visitor.page("/tools")
    record.execution("k2", 0, 900, tool="mail")
    assert "15 min" in await visitor.page("/tools")


async def test_statistics_of_too_many_calls_say_so(place: Place, record: Record, monkeypatch: object) -> None:
    _, visitor = place
    record.execution("k1", status="success")
    record.connection.execute(f"UPDATE {record.schema}.tool_executions SET started_at = now()")
    before, tools.NEWEST = tools.NEWEST, 1  # type: ignore[misc]
    try:
        assert "Of the newest 1 calls" in await visitor.page("/tools")
    finally:
        tools.NEWEST = before  # type: ignore[misc]
    assert "Of the newest" not in await visitor.page("/tools")


@pytest.mark.slow
async def test_a_named_person_settles_an_effect(dsn: str, schema: str, record: Record) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        record.thread("t")
        for key in ("a/b#1", "k2", "k3"):
            record.execution(key, status="unknown", run_id="r", arguments={"card": 1})
        path = "/tools/t/a~2Fb%231"
        assert "Did it take effect?" in await visitor.page(path)
        assert (await visitor.act(f"{path}/settle", decision="done")).status_code == 403
        await visitor.introduce("Eve")
        assert (await visitor.act(f"{path}/settle", decision="maybe")).status_code == 422
        settled = await visitor.act(f"{path}/settle", decision="done", result='{"paid": true}')
        assert settled.headers["location"] == f"/ui{path}?notice=tool.settle&of=t"
        html = await visitor.page(path)
        assert "Did it take effect?" not in html
        assert "paid" in html
        await visitor.introduce("Adam")
        second = await visitor.act(f"{path}/settle", decision="fail")
        assert (second.status_code, "settled just now by Eve" in second.text) == (409, True)
        await visitor.introduce("Eve")
        old = await visitor.act("/tools/t/k2/settle", decision="retry", expects="error 1")
        assert (old.status_code, "has changed" in old.text) == (409, True)
        assert (await visitor.act("/tools/t/k2/settle", decision="retry")).status_code == 303
        assert (await visitor.act("/tools/t/k3/settle", decision="fail")).status_code == 303
        assert "It failed" in await visitor.page("/tools/t/k3")
        assert (await visitor.act("/tools/t/none/settle", decision="fail")).status_code == 404
        assert (await visitor.client.get("/ui/tools/t/none")).status_code == 404
        events = await state_of(server).events.list("t", kind="action")
        done = [(one.payload["action"], one.payload["by"], one.payload["key"]) for one in events.items]
        assert done == [("settle", "Eve", key) for key in ("a/b#1", "k2", "k3")]


@pytest.mark.parametrize(("first", "second"), [("fail", "done"), ("retry", "fail")])
async def test_two_persons_settle_an_effect_at_once(
    dsn: str, schema: str, record: Record, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    async with inspected(dsn, schema) as (server, eve), visiting(server) as adam:
        record.thread("t")
        record.execution("k", status="unknown", run_id="r")
        await eve.introduce("Eve")
        await adam.introduce("Adam")
        form = forms_of(await eve.page("/tools/t/k"))["/tools/t/k/settle"]
        read_together(monkeypatch, tools, "_found")
        sent = await asyncio.gather(
            eve.act("/tools/t/k/settle", **form, decision=first), adam.act("/tools/t/k/settle", **form, decision=second)
        )
        assert sorted(one.status_code for one in sent) == [303, 409], [one.text for one in sent]
        (event,) = (await state_of(server).events.list("t", kind="action")).items
        winner, late = ("Eve", sent[1]) if sent[0].status_code == 303 else ("Adam", sent[0])
        assert event.payload["by"] == winner
        assert f"settled just now by {winner}" in late.text


class Charging:
    """A tool that charges when it is told to, in a run that waits for it.

    Attributes:
        graph: Its model calls the tool once.
        run: The run.
        charged: The orders that were charged.
    """

    def __init__(self, graph_of: Any) -> None:
        self._begun, self.go_on = threading.Event(), threading.Event()
        self.charged: list[str] = []
        tool = StructuredTool.from_function(func=self._charge, name="charge", description="charge")
        self.graph = graph_of(tool)
        self.run = asyncio.create_task(self.graph.ainvoke(ask(), thread()))

    def _charge(self, order: str) -> str:
        self._begun.set()
        self.go_on.wait(GUARD_SECONDS)
        self.charged.append(order)
        return f"charged {order}"

    async def begin(self) -> None:
        """Wait until the tool runs."""
        await asyncio.to_thread(self._begun.wait, GUARD_SECONDS)

    async def say(self) -> str:
        """Run the graph again, and return what the tool told the model."""
        state = await self.graph.ainvoke(None, thread())
        return str(state["messages"][2].content)


@asynccontextmanager
async def charging(dsn: str, schema: str) -> AsyncIterator[Charging]:
    """A tool that runs, in a process whose liveness is not renewed soon."""
    settings = ToolSettings(ttl_seconds=60, wait_seconds=GUARD_SECONDS)
    async with open_async_ledger(dsn, schema, settings=settings) as (saver, ledger):
        asked = calls(("call_1", "charge", {"order": "o1"}))
        made = Charging(
            lambda tool: agent_graph(ToolNode([tool], awrap_tool_call=ledger.acall), asked).compile(checkpointer=saver)
        )
        await made.begin()
        try:
            yield made
        finally:
            made.go_on.set()
            await asyncio.gather(made.run, return_exceptions=True)


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["waiting", "cancelled"])
async def test_what_a_tool_does_is_not_settled_while_it_runs(dsn: str, schema: str, is_cancelled: bool) -> None:
    """Also after its caller has stopped waiting: the outcome that comes late is the one that counts."""
    path = "/tools/t/call_1"
    async with inspected(dsn, schema) as (server, visitor), charging(dsn, schema) as tool:
        await visitor.introduce("Eve")
        if is_cancelled:
            tool.run.cancel()
            await asyncio.gather(tool.run, return_exceptions=True)
        assert (await visitor.data("/tools"))["unknown"] == []
        assert "Did it take effect?" not in await visitor.page(path)
        for decision in ("done", "retry", "fail"):
            for accepted in ("text/html", "application/json"):
                refused = await visitor.act(f"{path}/settle", decision=decision, headers={"accept": accepted})
                assert (refused.status_code, "its status is running" in refused.text) == (409, True)
        tool.go_on.set()
        await asyncio.gather(tool.run, return_exceptions=True)
        assert (await tool.say(), tool.charged) == ("charged o1", ["o1"])
        assert (await visitor.act(f"{path}/settle", decision="retry")).status_code == 409
        assert (await state_of(server).events.list("t", kind="action")).items == ()


@pytest.mark.parametrize(
    ("decision", "told", "times"), [("done", "by hand", 1), ("retry", "charged o1", 2), ("fail", None, 1)]
)
async def test_a_decision_stands_although_the_tool_was_not_dead(
    dsn: str, schema: str, connection: psycopg.Connection, decision: str, told: str | None, times: int
) -> None:
    """Its process was cut off from the database, and counts as dead: what the tool answers late is discarded."""
    path = "/tools/t/call_1"
    async with inspected(dsn, schema) as (_, visitor), charging(dsn, schema) as tool:
        await visitor.introduce("Eve")
        connection.execute(
            f"UPDATE {schema}.tool_executions SET holder_id = 'elsewhere', alive_until = now() - interval '1 minute'"
        )
        assert "Did it take effect?" in await visitor.page(path)
        fields = {"result": '"by hand"'} if decision == "done" else {}
        assert (await visitor.act(f"{path}/settle", decision=decision, **fields)).status_code == 303
        tool.go_on.set()
        with pytest.raises(ToolOvertakenError, match="discarded"):
            await tool.run
        if told is None:
            with pytest.raises(ToolFailedError, match="settled it as failed"):
                await tool.say()
        else:
            assert await tool.say() == told
        assert tool.charged == ["o1"] * times
