"""Effects that are taken back, newest first, each once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from langchain_core.tools import StructuredTool, tool
from support.ledger import Bench, ask, calls, open_ledger, thread, tool_of

from langgraph_pgstate.errors import NotFoundError, ToolFailedError, ToolOutcomeUnknownError
from langgraph_pgstate.record.types import ToolExecution
from tests.tools.test_action_runner import divide, past_of
from tests.tools.test_ledger import CHARGE, Till
from tests.tools.test_ledger_more import of_api, one_node

# Compensations


class Shop:
    """Tools that can be taken back."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.log: list[str] = []
        self.broken: set[str] = set()

        def refund(execution: ToolExecution, result: Any) -> str:
            order = execution.arguments["order"]
            if order in self.broken:
                raise OSError(f"{order} cannot be refunded")
            self.log.append(f"refund {order} ({result.content})")
            return f"refunded {order}"

        def charge(order: str) -> str:
            """Charge a card."""
            self.log.append(f"charge {order}")
            return f"charged {order}"

        compensating = bench.ledger.compensate(of_api(bench, refund))
        self.charge = compensating(tool(of_api(bench, charge)))

        def look(order: str) -> str:
            """Look at an order."""
            return "seen"

        self.look = tool(of_api(bench, look))

    def graph(self) -> Any:
        answers = [calls((f"call_{order}", "charge", {"order": f"o{order}"})) for order in range(3)]
        return self.bench.agent([self.charge, self.look], *answers, calls(("call_9", "look", {"order": "o1"})))


async def test_effects_are_taken_back_last_one_first(bench: Bench) -> None:
    shop = Shop(bench)
    await bench.invoke(shop.graph(), ask(), thread())
    shop.log.clear()
    shop.broken = {"o1"}
    report = await bench.do(bench.ledger.compensate, "t")
    assert shop.log == ["refund o2 (charged o2)", "refund o0 (charged o0)"]
    assert [item.idempotency_key for item in report.compensated] == ["call_2", "call_0"]
    assert [(item.idempotency_key, str(error)) for item, error in report.failed] == [
        ("call_1", "o1 cannot be refunded")
    ]
    assert [item.tool for item in report.uncovered] == ["look"]
    assert not report.is_complete
    again = await bench.do(bench.ledger.compensate, "t")
    assert [item.idempotency_key for item, _ in again.failed] == ["call_1"]
    assert again.compensated == ()
    shop.broken.clear()
    last = await bench.do(bench.ledger.compensate, "t")
    assert [item.idempotency_key for item in last.compensated] == ["call_1"]
    assert len(shop.log) == 3
    original = await bench.do(bench.ledger.get, "t", "call_2")
    taken_back = await bench.do(bench.ledger.get, "t", "compensate:call_2")
    assert original.compensated_at is not None
    assert (taken_back.compensates, taken_back.status) == ("call_2", "success")


async def test_a_compensation_is_recorded_together_with_what_it_compensates(
    bench: Bench, connection: psycopg.Connection
) -> None:
    shop = Shop(bench)
    await bench.invoke(shop.graph(), ask(), thread())
    await bench.do(bench.ledger.compensate, "t")
    # Otherwise a call after a crash between the two would return a result whose effect is compensated.
    rows = connection.execute(
        f"""SELECT count(*), count(DISTINCT xmin::text) FROM {bench.saver.schema}.tool_executions
        GROUP BY coalesce(compensates, idempotency_key) HAVING count(*) > 1"""
    ).fetchall()
    assert rows == [(2, 1)] * 3


async def test_a_compensation_that_was_killed_is_left_to_a_person(bench: Bench, connection: psycopg.Connection) -> None:
    shop = Shop(bench)
    await bench.invoke(shop.graph(), ask(), thread())
    await bench.do(bench.ledger.compensate, "t")
    count = len(shop.log)
    connection.execute(
        f"""UPDATE {bench.saver.schema}.tool_executions SET compensated_at = NULL, alive_until = now(), holder_id = 'x',
        status = CASE idempotency_key WHEN 'call_1' THEN 'success' ELSE 'running' END
        WHERE idempotency_key IN ('call_1', 'compensate:call_1')"""
    )
    report = await bench.do(bench.ledger.compensate, "t")
    assert [type(error) for _, error in report.failed] == [ToolOutcomeUnknownError]
    assert report.compensated == ()
    await bench.do(bench.ledger.settle, "t", "compensate:call_1", "done")
    assert (await bench.do(bench.ledger.get, "t", "call_1")).compensated_at is not None
    report = await bench.do(bench.ledger.compensate, "t")
    assert (report.compensated, report.failed) == ((), ())
    assert len(shop.log) == count


async def test_only_what_came_after_a_checkpoint_is_taken_back(bench: Bench) -> None:
    shop = Shop(bench)
    graph = shop.graph()
    await bench.invoke(graph, ask(), {**thread(), "metadata": {"run_id": "run-1"}})
    states = [state async for state in graph.aget_state_history(thread())]
    waiting = [state.config["configurable"]["checkpoint_id"] for state in states if state.next == ("tools",)]
    # Newest first: look, o2, o1, o0.
    report = await bench.do(bench.ledger.compensate, "t", to_checkpoint=waiting[2])
    assert [item.idempotency_key for item in report.compensated] == ["call_2", "call_1"]
    with pytest.raises(NotFoundError):
        await bench.do(bench.ledger.compensate, "t", to_checkpoint="none")
    nothing = await bench.do(bench.ledger.compensate, "t", run_id="another")
    assert (nothing.compensated, nothing.is_complete) == ((), True)
    rest = await bench.do(bench.ledger.compensate, "t", run_id="run-1")
    assert [item.idempotency_key for item in rest.compensated] == ["call_0"]


def named(bench: Bench, name: str, decorate: Callable[[Any], Any], function: Callable[..., Any]) -> Any:
    """A tool that is called otherwise than its function, which is decorated first."""
    decorated = decorate(of_api(bench, function))
    return StructuredTool.from_function(
        **({"coroutine": decorated} if bench.is_async else {"func": decorated}), name=name, description=name
    )


# What was taken back


async def test_what_was_taken_back_is_done_again_when_it_comes_up(bench: Bench) -> None:
    till = Till()
    refunded: list[str] = []

    def refund(execution: Any, result: Any) -> str:
        refunded.append(execution.idempotency_key)
        return "refunded"

    bench.ledger.compensate(of_api(bench, refund))(tool_of(bench, "charge", till.charge))
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await bench.invoke(graph, ask(), thread())
    past = await past_of(graph)
    for number in (1, 2):
        await bench.do(bench.ledger.compensate, "t")
        assert len(refunded) == number
        for _ in range(2):
            state = await bench.invoke(graph, None, past)
            assert state["messages"][2].content == "charged o1"
            assert till.charged == ["o1"] * (number + 1)
    assert len(set(till.tokens)) == 3
    assert len(set(refunded)) == 2


async def test_a_result_that_could_not_be_stored_does_not_keep_from_taking_back(bench: Bench) -> None:
    refunded: list[Any] = []

    def opener(name: str) -> Any:
        """Answer something that cannot be stored."""
        return threading.Lock()

    def close(execution: Any, result: Any) -> str:
        refunded.append((execution.arguments, result))
        return "closed"

    once = bench.ledger.once(bench.ledger.compensate(of_api(bench, close))(of_api(bench, opener)))
    await bench.invoke(one_node(bench, lambda state: iter([once("x")])), ask(), thread())
    report = await bench.do(bench.ledger.compensate, "t")
    assert (len(report.compensated), report.failed, refunded) == (1, (), [({"name": "x"}, None)])


# Names


async def test_a_compensation_is_found_under_another_name(bench: Bench) -> None:
    refunded: list[str] = []

    def refund(execution: Any, result: Any) -> str:
        refunded.append(execution.tool)
        return "refunded"

    def charge(order: str) -> str:
        """Charge a card."""
        return f"charged {order}"

    def ship(order: str) -> str:
        """Ship an order."""
        return f"shipped {order}"

    compensated = bench.ledger.compensate(of_api(bench, refund))
    pay = named(bench, "pay", compensated, charge)
    await bench.invoke(bench.agent([pay], calls(("call_1", "pay", {"order": "o1"}))), ask(), thread())
    once = bench.ledger.once(compensated(of_api(bench, ship)), name="shipping")
    await bench.invoke(one_node(bench, lambda state: iter([once("o1")])), ask(), thread())
    report = await bench.do(bench.ledger.compensate, "t")
    assert report.uncovered == ()
    assert refunded == ["shipping", "pay"]


async def test_a_compensation_may_be_transactional(bench: Bench, connection: psycopg.Connection) -> None:
    till = Till()
    schema = bench.saver.schema
    connection.execute(f"CREATE TABLE {schema}.refunds (what text)")
    fail = [True]

    def refund(execution: Any, result: Any, connection: psycopg.Connection) -> str:
        connection.execute(f"INSERT INTO {schema}.refunds VALUES ('x')")  # type: ignore[arg-type]
        if fail.pop():
            raise OSError("after the refund")
        return "refunded"

    async def arefund(execution: Any, result: Any, connection: psycopg.AsyncConnection) -> str:
        await connection.execute(f"INSERT INTO {schema}.refunds VALUES ('x')")  # type: ignore[arg-type]
        if fail.pop():
            raise OSError("after the refund")
        return "refunded"

    function: Any = arefund if bench.is_async else refund
    compensator = bench.ledger.transactional(function)
    bench.ledger.compensate(compensator)(tool_of(bench, "charge", till.charge))
    await bench.invoke(bench.agent([tool_of(bench, "charge", till.charge)], CHARGE), ask(), thread())
    report = await bench.do(bench.ledger.compensate, "t")
    assert [str(error) for _, error in report.failed] == ["after the refund"]
    assert connection.execute(f"SELECT count(*) FROM {schema}.refunds").fetchone() == (0,)
    fail.append(False)
    for number in (1, 0):
        assert len((await bench.do(bench.ledger.compensate, "t")).compensated) == number
        assert connection.execute(f"SELECT count(*) FROM {schema}.refunds").fetchone() == (1,)


# Forks


@pytest.mark.parametrize("how", ["copy", "fork"])
async def test_an_effect_is_taken_back_on_the_thread_it_was_made_on(bench: Bench, how: str) -> None:
    till = Till()
    refunded: list[str] = []

    def refund(execution: Any, result: Any) -> str:
        refunded.append(execution.thread_id)
        return "refunded"

    bench.ledger.compensate(of_api(bench, refund))(tool_of(bench, "charge", till.charge))
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, calls(("call_2", "charge", {"order": "o2"})))
    await bench.invoke(graph, ask(), thread(), interrupt_after=["tools"])
    await divide(bench, how)
    await bench.invoke(graph, None, thread("u"))
    report = await bench.do(bench.ledger.compensate, "u")
    assert [item.idempotency_key for item in report.compensated] == ["call_2"]
    assert [item.idempotency_key for item in report.elsewhere] == ["call_1"]
    assert report.is_complete
    report = await bench.do(bench.ledger.compensate, "t")
    assert (len(report.compensated), report.elsewhere, refunded) == (1, (), ["u", "t"])


async def test_a_compensation_that_a_person_has_given_up_is_not_tried_again(
    bench: Bench, connection: psycopg.Connection
) -> None:
    shop = Shop(bench)
    await bench.invoke(shop.graph(), ask(), thread())
    connection.execute(
        f"""INSERT INTO {bench.saver.schema}.tool_executions (thread_id, idempotency_key, tool, status, arguments,
        compensates) VALUES ('t', 'compensate:call_1', 'refund', 'unknown', '{{}}', 'call_1')"""
    )
    await bench.do(bench.ledger.settle, "t", "compensate:call_1", "fail", by="Eve")
    report = await bench.do(bench.ledger.compensate, "t")
    assert [(effect.idempotency_key, type(error)) for effect, error in report.failed] == [("call_1", ToolFailedError)]
    assert "call_1" not in [effect.idempotency_key for effect in report.compensated]


def test_an_asynchronous_compensation_of_a_blocking_ledger_has_not_begun(dsn: str, schema: str) -> None:
    def charge(order: str) -> str:
        """Charge a card."""
        return "charged"

    async def later(execution: Any, result: Any) -> str:
        return "refunded"

    def refund(execution: Any, result: Any) -> str:
        return "refunded"

    with open_ledger(dsn, schema) as (saver, ledger):
        tool = tool_of(Bench(saver, ledger), "charge", charge)
        ledger.compensate(later)(tool)
        Bench(saver, ledger).agent([tool], CHARGE).invoke(ask(), thread())
        assert "asynchronous" in str(ledger.compensate("t").failed[0][1])
        ledger.compensate(refund)(tool)
        assert len(ledger.compensate("t").compensated) == 1
