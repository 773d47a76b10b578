"""What a suspicious reader tried against the ledger's promises."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tools import StructuredTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from support_ledger import LEDGERS, Bench, ask, calls, open_bench, thread, tool_of
from test_ledger import CHARGE, Till, leave_behind, rows, run_and_lose
from test_ledger_more import of_api, one_node

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import RunBudgetExceededError, ToolFailedError, ToolOutcomeUnknownError, ToolSetupError
from langgraph_pgstate.operations.tools import tool_executions
from langgraph_pgstate.sql import queries
from langgraph_pgstate.threads import AsyncThreads, Threads
from langgraph_pgstate.tools import Backoff, Budget, ToolLedger, ToolSettings
from langgraph_pgstate.tools.results import masked


@pytest.fixture(params=LEDGERS, ids=lambda api: api.__name__)
async def bench(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[Bench]:
    async with open_bench(request.param, dsn, schema) as bench:
        yield bench


async def past_of(graph: Any) -> Any:
    """The checkpoint from which the first tool was called."""
    states = [state async for state in graph.aget_state_history(thread())]
    return [state for state in states if state.next == ("tools",)][-1].config


def named(bench: Bench, name: str, decorate: Callable[[Any], Any], function: Callable[..., Any]) -> Any:
    """A tool that is called otherwise than its function, which is decorated first."""
    decorated = decorate(of_api(bench, function))
    return StructuredTool.from_function(
        **({"coroutine": decorated} if bench.is_async else {"func": decorated}), name=name, description=name
    )


# The same action with other arguments


async def test_a_new_attempt_says_what_it_intends(bench: Bench, connection: psycopg.Connection) -> None:
    """A check, a person and a compensation go by the arguments of the attempt they are about."""
    refunded: list[Any] = []

    def charge(order: str, euros: int) -> str:
        """Charge a card."""
        if euros == 10:
            raise OSError("declined")
        return f"charged {euros}"

    def refund(execution: Any, result: Any) -> str:
        refunded.append(execution.arguments)
        return "refunded"

    bench.ledger.policy("charge", key=lambda args: args["order"], on_error="retry", retry=Backoff(attempts=2))
    charge_tool = bench.ledger.compensate(of_api(bench, refund))(tool(of_api(bench, charge)))
    bench.ledger.policy("charge", retry=Backoff(attempts=1))
    first = calls(("call_1", "charge", {"order": "o1", "euros": 10}))
    with pytest.raises(OSError, match="declined"):
        await bench.invoke(bench.agent([charge_tool], first), ask(), thread())
    bench.ledger.policy("charge", retry=Backoff(attempts=2))
    second = calls(("call_2", "charge", {"order": "o1", "euros": 20}))
    await bench.invoke(bench.agent([charge_tool], first, second), ask(), thread())
    assert rows(connection, bench.saver.schema, "status, arguments") == [("success", {"order": "o1", "euros": 20})]
    await bench.do(bench.ledger.compensate, "t")
    assert refunded == [{"order": "o1", "euros": 20}]


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


async def test_nobody_can_be_asked_outside_of_a_graph(bench: Bench, connection: psycopg.Connection) -> None:
    till = Till()

    def refund(execution: Any, result: Any) -> str:
        return "refunded"

    bench.ledger.policy("refund", on_unknown="ask")
    bench.ledger.compensate(of_api(bench, refund))(tool_of(bench, "charge", till.charge))
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await bench.invoke(graph, ask(), thread())
    await bench.do(bench.ledger.compensate, "t")
    connection.execute(
        f"""UPDATE {bench.saver.schema}.tool_executions SET compensated_at = NULL, alive_until = now(), holder_id = 'x',
        status = CASE WHEN compensates IS NOT NULL THEN 'running' ELSE status END"""
    )
    report = await bench.do(bench.ledger.compensate, "t")
    assert [type(error) for _, error in report.failed] == [ToolOutcomeUnknownError]
    assert "no graph" in str(report.failed[0][1])


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


# What a function is called with


SHIP = """
import sys
from langgraph.types import Command, interrupt
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_pgstate import PGState

class Client:
    pass

ballast = [object() for _ in range(int(sys.argv[3]))]
with PGState.open(sys.argv[1], schema=sys.argv[2]) as state:
    @state.tools.once
    def ship(client, orders, more):
        print("shipped", flush=True)

    def node(_):
        ship(Client(), {"o1", "o2", "o3", "o4"}, {"by": [Client(), frozenset({"x", "y", "z"})]})
        if sys.argv[4] == "die":
            import os
            os._exit(9)

    builder = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=state.saver)
    config = {"configurable": {"thread_id": "t"}}
    graph.invoke({"messages": []} if sys.argv[4] == "die" else None, config, durability="sync")
"""


def test_a_function_is_known_again_whatever_its_arguments_address_or_order(dsn: str, schema: str) -> None:
    """An object's address, and the order of a set, are others in each process."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
    said = ""
    for number, what in enumerate(["die", "go on"]):
        ran = subprocess.run(
            [sys.executable, "-c", SHIP, dsn, schema, str(number * 1000), what],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(number + 1)},
            check=False,
        )
        assert ran.returncode == (9 if what == "die" else 0), ran.stderr
        said += ran.stdout
    assert said == "shipped\n"


# Checks


@pytest.mark.parametrize("answer", [0, 1, "", "yes", []])
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


# Cancelled at the wrong moment


async def test_one_cancelled_while_it_takes_over_has_not_begun(
    dsn: str, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    till = Till()
    async with open_bench(LEDGERS[1], dsn, schema) as bench:
        graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
        await bench.invoke(graph, ask(), thread())
        leave_behind(connection, schema)
        await bench.ledger.settle("t", "call_1", "retry")
        taken = asyncio.Event()
        take_over = tool_executions.take_over

        async def slow(*args: Any, **kwargs: Any) -> int:
            await take_over(*args, **kwargs)
            taken.set()
            await asyncio.sleep(60)
            return 0

        past = await past_of(graph)
        with monkeypatch.context() as patch:
            patch.setattr(tool_executions, "take_over", slow)
            running = asyncio.create_task(graph.ainvoke(None, past))
            await taken.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert rows(connection, schema, "status") == [("pending",)]
        await graph.ainvoke(None, past)
        assert till.charged == ["o1", "o1"]


# Large results


async def test_a_large_result_that_is_no_text_is_kept_at_the_door(bench: Bench) -> None:
    picture = [{"type": "image", "base64": "x" * 50_000, "mime_type": "image/png"}]

    def look(at: str) -> Any:
        """Look at something."""
        return (
            ToolMessage(picture, tool_call_id="call_1")
            if at == "a"
            else ToolMessage(  # type: ignore[arg-type]
                "small", tool_call_id="call_1", artifact={"rows": list(range(20_000))}
            )
        )

    bench.ledger.policy("look", result_limit=1000)
    for at in "ab":
        graph = bench.agent([tool_of(bench, "look", look)], calls(("call_1", "look", {"at": at})))
        state = await bench.invoke(graph, ask(), thread(at))
        shown = state["messages"][2]
        assert len(str(shown)) < 2000
        whole = await bench.do(bench.ledger.result, shown.content.split("kept as ")[1].rstrip("]"))
        assert (whole.content, whole.artifact) == (
            (picture, None) if at == "a" else ("small", {"rows": list(range(20_000))})
        )


# Budgets


def answered(**more: Any) -> LLMResult:
    return LLMResult(generations=[[ChatGeneration(message=AIMessage("x"))]], **more)


def test_tokens_that_only_the_provider_counts_are_counted() -> None:
    from uuid import uuid4

    budget = Budget(max_tokens=100)
    root, llm = uuid4(), uuid4()
    budget.on_chain_start({}, {}, run_id=root)
    budget.on_chat_model_start({}, [], run_id=llm, parent_run_id=root)
    budget.on_llm_end(answered(llm_output={"token_usage": {"prompt_tokens": 90, "completion_tokens": 20}}), run_id=llm)
    with pytest.raises(RunBudgetExceededError, match="110 tokens"):
        budget.on_chat_model_start({}, [], run_id=uuid4(), parent_run_id=root)


def test_a_retrievers_model_uses_its_runs_tokens() -> None:
    from uuid import uuid4

    budget = Budget(max_tokens=100)
    root, retriever, llm = uuid4(), uuid4(), uuid4()
    budget.on_chain_start({}, {}, run_id=root)
    budget.on_retriever_start({}, "x", run_id=retriever, parent_run_id=root)
    budget.on_chat_model_start({}, [], run_id=llm, parent_run_id=retriever)
    message = AIMessage("x", usage_metadata={"input_tokens": 200, "output_tokens": 0, "total_tokens": 200})
    budget.on_llm_end(LLMResult(generations=[[ChatGeneration(message=message)]]), run_id=llm)
    budget.on_retriever_end([], run_id=retriever)
    with pytest.raises(RunBudgetExceededError, match="200 tokens"):
        budget.on_chat_model_start({}, [], run_id=uuid4(), parent_run_id=root)


async def test_a_run_without_budget_left_is_an_error_on_record(dsn: str, schema: str) -> None:
    from langgraph_pgstate import AsyncPGState

    async with AsyncPGState.open(dsn, schema=schema) as state:
        await state.setup()
        builder = StateGraph(MessagesState)
        builder.add_node("work", lambda values: {"messages": [AIMessage("again")]})
        builder.add_edge(START, "work")
        builder.add_edge("work", "work")
        graph = state.record(builder.compile(checkpointer=state.saver)).with_config(
            callbacks=[state.tools.budget(max_steps=3)]
        )
        with pytest.raises(RunBudgetExceededError):
            await graph.ainvoke(ask(), thread())
        (run,) = (await state.runs.list(thread_id="t")).items
        assert run.status == "error"
        assert "RunBudgetExceededError" in run.error_type
        assert "its budget is 3" in run.error_message


# Answers


@pytest.mark.parametrize("word", ["yes", "fail"])
async def test_an_answer_given_to_what_is_on_record_is_not_given_to_the_next_question(bench: Bench, word: str) -> None:
    """A tool that was allowed is not asked again; what the task asks after it is another question."""
    allowed: list[str] = []

    def charge(order: str) -> str:
        """Charge a card if somebody agrees, twice."""
        allowed.append(interrupt(f"may I charge {order}?") + interrupt("really?"))
        if word == "fail":
            raise OSError("declined")
        return "charged"

    once = bench.ledger.once(of_api(bench, charge))
    got: list[str] = []

    def body(state: Any) -> Any:
        for order in ("o1", "o2"):
            yield settled(once, order, bench.is_async)
            got.append(interrupt(f"and now, after {order}?"))

    graph = one_node(bench, body)
    state = await bench.invoke(graph, ask(), thread())
    asked = []
    for answer in "abcdef":
        asked.append(state["__interrupt__"][0].value)
        state = await bench.invoke(graph, Command(resume=answer), thread())
    assert "__interrupt__" not in state
    assert asked == [
        *("may I charge o1?", "really?", "and now, after o1?"),
        *("may I charge o2?", "really?", "and now, after o2?"),
    ]
    assert allowed == ["ab", "de"]
    assert got[-2:] == ["c", "f"]


def settled(once: Any, order: str, is_async: bool) -> Any:
    """Call a function, and take its error for an answer."""

    async def suspending() -> Any:
        with suppress(OSError, ToolFailedError):
            return await once(order)

    if is_async:
        return suspending()
    with suppress(OSError, ToolFailedError):
        return once(order)


async def test_a_word_on_an_unknown_outcome_is_not_given_to_the_next_question(
    bench: Bench, connection: psycopg.Connection
) -> None:
    got: list[str] = []

    def ship(order: str) -> str:
        """Ship an order."""
        return "shipped"

    once = bench.ledger.once(of_api(bench, ship), on_unknown="ask")
    fail = [True]

    def body(state: Any) -> Any:
        yield once("o1")
        if fail and fail.pop():
            raise OSError("after the effect")
        got.append(interrupt("and now?"))

    graph = one_node(bench, body)
    with pytest.raises(OSError, match="after"):
        await bench.invoke(graph, ask(), thread())
    leave_behind(connection, bench.saver.schema)
    state = await bench.invoke(graph, None, thread())
    assert state["__interrupt__"][0].value["type"] == "tool_outcome_unknown"
    state = await bench.invoke(graph, Command(resume="done"), thread())
    assert state["__interrupt__"][0].value == "and now?"
    await bench.invoke(graph, Command(resume="later"), thread())
    assert got == ["later"]


async def test_what_follows_what_is_on_record_is_asked_once_after_a_crash(bench: Bench) -> None:
    """The process died between the receipt and the task's end, and takes the answer to the tool's question along."""
    asked: list[str] = []
    got: list[str] = []

    def charge(order: str) -> str:
        """Charge a card if somebody agrees."""
        return str(interrupt("may I?"))

    once = bench.ledger.once(of_api(bench, charge))
    fail = [True]

    def body(state: Any) -> Any:
        interrupt("before?")
        yield once("o1")
        if fail and fail.pop():
            raise OSError("after the receipt")
        got.append(interrupt("and now?"))

    graph = one_node(bench, body)

    async def go_on(state: Any, answer: str) -> Any:
        asked.append(state["__interrupt__"][0].value)
        return await bench.invoke(graph, Command(resume={state["__interrupt__"][0].id: answer}), thread())

    state = await go_on(await bench.invoke(graph, ask(), thread()), "a")
    with pytest.raises(OSError, match="receipt"):
        await go_on(state, "b")
    await bench.invoke(graph, None, thread())
    state = await go_on(await bench.invoke(graph, None, thread()), "c")
    assert "__interrupt__" not in state
    assert asked == ["before?", "may I?", "and now?"]
    assert got == ["c"]


async def test_an_answer_given_to_what_a_check_vouches_for_is_not_given_to_the_next_question(
    bench: Bench, connection: psycopg.Connection
) -> None:
    got: list[str] = []

    def charge(order: str) -> str:
        """Charge a card if somebody agrees."""
        interrupt("may I?")
        raise OSError("after the effect")

    once = bench.ledger.once(of_api(bench, charge), on_unknown="check", check=lambda execution: True)

    def body(state: Any) -> Any:
        yield once("o1")
        got.append(interrupt("and now?"))

    graph = one_node(bench, body)
    await bench.invoke(graph, ask(), thread())
    with pytest.raises(OSError, match="effect"):
        await bench.invoke(graph, Command(resume="yes"), thread())
    # As if the process had been killed: neither the ledger nor LangGraph knows that the answer was used.
    schema = bench.saver.schema
    leave_behind(connection, schema)
    connection.execute(f"UPDATE {schema}.tool_executions SET answers = 0")
    connection.execute(f"DELETE FROM {schema}.writes WHERE idx < 0 AND task_id <> '{UUID(int=0)}'")
    state = await bench.invoke(graph, None, thread())
    assert state["__interrupt__"][0].value == "and now?"
    await bench.invoke(graph, Command(resume="later"), thread())
    assert got == ["later"]


BINARY = bytes(range(256)) * 4


async def test_bytes_are_counted_as_such(bench: Bench) -> None:
    """Not as the text that Python prints for them."""

    def draw(q: str) -> tuple[str, bytes]:
        """Draw a picture."""
        return "here", BINARY

    picture = tool(of_api(bench, draw), response_format="content_and_artifact")
    bench.ledger.policy("draw", result_limit=1028)
    state = await bench.invoke(bench.agent([picture], calls(("c", "draw", {"q": "a"}))), ask(), thread())
    assert (state["messages"][2].content, state["messages"][2].artifact) == ("here", BINARY)
    bench.ledger.policy("draw", result_limit=1027)
    state = await bench.invoke(bench.agent([picture], calls(("c", "draw", {"q": "a"}))), ask(), thread("u"))
    assert "[… 1,028 bytes in all" in state["messages"][2].content


@dataclass
class Page:
    """What a tool may return."""

    body: bytes


@pytest.mark.parametrize(
    ("held", "size"),
    [
        ({"rows": [{"thumbnail": BINARY}]}, 1024 + len('{"rows":[{"thumbnail":null}]}')),
        ((bytearray(BINARY), memoryview(BINARY)), 2048 + len("[null,null]")),
        (Page(BINARY), 1024 + len('{"body":null}')),
        (array("d", range(100)), 800),
        ({"none": None, "empty": b""}, len('{"none":null,"empty":null}')),
        ("ä", 2),
        ([{1, 2}, object], len(f'[[1,2],"{object}"]')),
    ],
)
def test_bytes_are_counted_wherever_they_are_held(held: Any, size: int) -> None:
    settings = ToolSettings(preview_length=10)
    message = ToolMessage("", tool_call_id="c", artifact=held)
    assert masked(message, size, "ref", settings) is message
    assert f"[… {size:,} bytes in all" in masked(message, size - 1, "ref", settings).content
    if not isinstance(held, str):
        assert masked(held, size, "ref", settings) is held
        assert masked(held, size - 1, "ref", settings)["bytes"] == size


# A caller's own connection


async def test_an_intent_that_could_be_rolled_back_lets_no_tool_run(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    till = Till()
    with psycopg.connect(dsn) as mine:
        saver = PGStateSaver(mine, schema=schema)
        saver.setup()
        mine.commit()
        ledger = ToolLedger(saver._database, queries(schema))
        bench = Bench(saver, ledger)
        graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE, handle_tool_errors=True)
        mine.execute("SELECT 1")
        with pytest.raises(ToolSetupError, match="in a transaction"):
            graph.invoke(ask(), thread())
        assert till.charged == []
        mine.rollback()
        graph.invoke(ask(), thread())
        assert till.charged == ["o1"]
        mine.rollback()
        assert rows(connection, schema, "status") == [("success",)]
        ledger.close()


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


@pytest.mark.parametrize("how", ["copy", "fork"])
async def test_an_attempt_on_a_fork_at_what_was_begun_before_has_the_same_token(
    bench: Bench, connection: psycopg.Connection, how: str
) -> None:
    """Whoever is called elsewhere takes both for one; done there again, it is this thread's to take back."""
    till = Till()
    bench.ledger.policy("charge", on_unknown="retry")
    graph = bench.agent([tool_of(bench, "charge", till.charge)], CHARGE)
    await run_and_lose(bench, graph, connection)
    await divide(bench, how)
    await bench.invoke(graph, None, thread("u"))
    await bench.invoke(graph, None, thread())
    assert len(till.tokens) == 3
    assert len(set(till.tokens)) == 1
    bench.ledger.compensate(of_api(bench, lambda execution, result: "refunded"))(tool_of(bench, "charge", till.charge))
    report = await bench.do(bench.ledger.compensate, "u")
    assert (len(report.compensated), report.elsewhere) == (1, ())


async def divide(bench: Bench, how: str) -> None:
    """Make thread `u` of `t`."""
    if how == "fork":
        part = (AsyncThreads if bench.is_async else Threads)(bench.saver._database, queries(bench.saver.schema))
        await bench.do(part.fork, "t", to="u")
    elif bench.is_async:
        await bench.saver.acopy_thread("t", "u")
    else:
        await bench.do(bench.saver.copy_thread, "t", "u")
