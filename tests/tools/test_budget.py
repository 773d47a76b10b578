"""Runs whose supersteps or tokens are limited."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from support.ledger import Bench, ask, calls, thread

from langgraph_pgstate.errors import ConfigurationError, RunBudgetExceededError
from langgraph_pgstate.tools import Budget
from tests.tools.test_ledger_more import ToolCaller, of_api

# Budgets


async def test_a_run_ends_when_its_steps_are_used_up(bench: Bench) -> None:
    ran: list[int] = []

    def work(state: MessagesState) -> dict[str, Any]:
        ran.append(len(ran))
        return {"messages": [AIMessage("again")]}

    builder = StateGraph(MessagesState)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: "work" if len(ran) % 10 else END)
    graph = builder.compile(checkpointer=bench.saver)
    budget = bench.ledger.budget(max_steps=4)
    limited = graph.with_config(callbacks=[budget])
    with pytest.raises(RunBudgetExceededError, match="4 steps") as raised:
        await bench.invoke(limited, ask(), thread())
    assert (raised.value.kind, raised.value.used, raised.value.limit) == ("steps", 4, 4)
    assert len(ran) == 4
    # Each run has a budget of its own.
    with pytest.raises(RunBudgetExceededError):
        await bench.invoke(limited, None, thread())
    assert len(ran) == 8
    await bench.invoke(limited, None, thread())
    assert len(ran) == 10
    assert budget._roots == {}
    assert budget._uses == {}


async def test_a_run_ends_when_its_tokens_are_used_up(bench: Bench) -> None:
    def search(order: str) -> str:
        """Search."""
        return "nothing"

    answers = iter([calls((f"call_{number}", "search", {"order": "x"})) for number in range(20)])
    agent = create_agent(ToolCaller(messages=answers), [tool(of_api(bench, search))], checkpointer=bench.saver)
    limited = agent.with_config(callbacks=[bench.ledger.budget(max_tokens=250)])
    with pytest.raises(RunBudgetExceededError, match="300 tokens; its budget is 250"):
        await bench.invoke(limited, ask(), thread())
    state = await agent.aget_state(thread())
    assert sum(message.type == "ai" for message in state.values["messages"]) == 3


def test_a_budget_of_nothing_is_refused() -> None:
    for terms in ({}, {"max_steps": 0}, {"max_tokens": -1}):
        with pytest.raises(ConfigurationError):
            Budget(**terms)


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
