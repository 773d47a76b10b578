"""Policies of tools, and what they decide."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support import spread
from support.ledger import Bench, ask, thread, tool_of

from langgraph_pgstate.errors import ConfigurationError, ToolFailedError, ToolOutcomeUnknownError
from langgraph_pgstate.tools import ToolPolicy, ToolRetry, ToolSettings
from tests.tools.test_ledger import CHARGE, Till, rows, run_and_lose
from tests.tools.test_ledger_more import of_api, one_node

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("handled", [False, True])
async def test_an_error_is_retried_as_often_as_the_policy_says(bench: Bench, handled: bool) -> None:
    till = Till()
    bench.ledger.policy("charge", on_error="retry", retry=ToolRetry(attempts=3, delay=0.001))
    till.errors = [OSError("1"), OSError("2")]
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, handle_tool_errors=handled)
    await bench.invoke(graph, ask(), thread())
    assert till.charged == ["o1"]
    assert (await bench.do(bench.ledger.get, "t", "call_1")).attempt == 3
    till.errors = [OSError(str(number)) for number in range(9)]
    if handled:
        state = await bench.invoke(graph, ask(), thread("u"))
        assert state["messages"][2].status == "error"
    else:
        with pytest.raises(OSError, match="2"):
            await bench.invoke(graph, ask(), thread("u"))
        with pytest.raises(ToolFailedError):
            await bench.invoke(graph, None, thread("u"))
    assert len(till.errors) == 6


def test_an_attempt_of_any_number_has_a_delay() -> None:
    assert ToolRetry(attempts=5000, delay=0.1, max_delay=1.0).seconds(4999) == 1.0
    assert ToolRetry(delay=0.0).seconds(4999) == 0.0


def test_bad_policies_are_refused() -> None:
    for terms in (
        {"on_error": "ignore"},
        {"on_unknown": "guess"},
        {"on_unknown": "check"},
        {"check": bool},
        {"timeout": 0},
        {"on_replay": "both"},
        {"key": "order"},
        {"retry": ToolRetry(attempts=0)},
    ):
        with pytest.raises(ConfigurationError):
            ToolPolicy(**terms)  # type: ignore[arg-type]
    for settings in ({"ttl_seconds": 0}, {"wait_seconds": -1}, {"result_limit": -1}, {"preview_length": -1}):
        with pytest.raises(ConfigurationError):
            ToolSettings(**settings)  # type: ignore[arg-type]


async def test_a_policy_is_found_under_another_name(bench: Bench) -> None:
    done: list[str] = []

    def ship(order: str) -> str:
        """Ship an order."""
        done.append(order)
        return f"shipped {order}"

    decorated = bench.ledger.policy(key=lambda args: args["order"])(of_api(bench, ship))
    once = bench.ledger.once(decorated, name="shipping")
    graph = one_node(bench, lambda state: iter([once("o1"), once("o1")]))
    await bench.invoke(graph, ask(), thread())
    assert done == ["o1"]


# Checks


@pytest.mark.parametrize("answer", spread([0, 1, "", "yes", []]))
async def test_a_check_has_to_say_what_it_means(bench: Bench, connection: psycopg.Connection, answer: Any) -> None:
    """A count of rows, for one, is neither yes nor no."""
    till = Till()
    bench.ledger.policy("charge", on_unknown="check", check=lambda execution: answer)
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    with pytest.raises(ToolOutcomeUnknownError, match="its check returned"):
        await bench.invoke(graph, None, thread())
    assert rows(connection, bench.saver.schema, "status") == [("unknown",)]
    assert till.charged == ["o1"]
