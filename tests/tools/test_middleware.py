"""The ledger in langchain's `create_agent`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command
from support.ledger import LEDGERS, Bench, Line, ask, calls, open_bench, open_on_line, thread, tool_of

from langgraph_pgstate.errors import ConfigurationError, ToolSetupError, UnavailableError
from tests.tools.test_ledger import CHARGE, Till
from tests.tools.test_ledger_more import ToolCaller, of_api
from tests.tools.test_ledger_outages import AGAIN


async def test_an_agent_of_langchains_runs_its_tools_once(bench: Bench) -> None:
    done: list[str] = []

    def charge(order: str) -> str:
        """Charge a card."""
        done.append(order)
        return f"charged {order}"

    model = ToolCaller(messages=iter([calls(("call_1", "charge", {"order": "o1"})), AIMessage("done"), AIMessage("x")]))
    agent = create_agent(
        model,
        [tool(of_api(bench, charge))],
        middleware=[bench.ledger.middleware()],
        checkpointer=bench.saver,
        name="cashier",
    )
    state = await bench.invoke(agent, ask(), thread())
    assert state["messages"][2].content == "charged o1"
    found = await bench.do(bench.ledger.get, "t", "call_1")
    assert (found.status, found.agent, found.step) == ("success", "cashier", 2)
    states = [state async for state in agent.aget_state_history(thread())]
    past = next(state for state in states if state.next == ("tools",)).config
    await bench.invoke(agent, None, past)
    assert done == ["o1"]


async def test_an_agent_in_a_tool_whose_model_uses_the_same_id_is_not_the_tool_itself(bench: Bench) -> None:
    """Some providers number the tool calls of each response from 0."""
    till = Till()
    charge = tool_of(bench, "charge", till.charge)
    inner = create_agent(
        ToolCaller(messages=iter([CHARGE, AIMessage("charged")])), [charge], middleware=[bench.ledger.middleware()]
    )

    def blocking(order: str) -> str:
        """Delegate an order."""
        return str(inner.invoke(ask())["messages"][-1].content)

    async def suspending(order: str) -> str:
        """Delegate an order."""
        return str((await inner.ainvoke(ask()))["messages"][-1].content)

    delegate = tool("delegate")(suspending if bench.is_async else blocking)
    model = ToolCaller(messages=iter([calls(("call_1", "delegate", {"order": "o1"})), AIMessage("done")]))
    agent = create_agent(model, [delegate], middleware=[bench.ledger.middleware()], checkpointer=bench.saver)
    state = await bench.invoke(agent, ask(), thread())
    assert [message.content for message in state["messages"][2:]] == ["charged", "done"]
    assert till.charged == ["o1"]


async def test_an_asynchronous_ledger_says_that_it_is_one(dsn: str, schema: str) -> None:
    async with open_bench(LEDGERS[1], dsn, schema) as bench:
        with pytest.raises(ConfigurationError, match="ainvoke"):
            bench.ledger.middleware().wrap_tool_call(None, None)
        with pytest.raises(ConfigurationError, match="async def"):
            bench.ledger.once(lambda: None)


@pytest.fixture(params=LEDGERS, ids=lambda api: api.__name__)
async def broken(request: pytest.FixtureRequest, dsn: str, schema: str) -> AsyncIterator[tuple[Bench, Line]]:
    async with open_on_line(request.param, dsn, schema, pool=False) as pair:
        yield pair


@pytest.mark.parametrize("kind", ["retry", "error"])
async def test_middleware_around_the_ledger_does_not_tell_the_model(broken: tuple[Bench, Line], kind: str) -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import ToolRetryMiddleware
    from langchain.agents.middleware.tool_error import ToolErrorMiddleware
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

    bench, line = broken
    till = Till()

    def charge(order: str) -> str:
        """Charge a card, and lose the database."""
        line.is_down = True
        return till.charge(order)

    around: Any = {
        "retry": lambda: ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False),
        "error": lambda: ToolErrorMiddleware(on_error=lambda error, request: f"try again: {error}"),
    }[kind]()

    def agent(*answers: AIMessage) -> Any:
        return create_agent(
            Model(messages=iter(answers)),
            [tool_of(bench, "charge", charge)],
            middleware=[around, bench.ledger.middleware()],
            checkpointer=bench.saver,
        )

    with pytest.raises(UnavailableError, match="has run") as raised:
        await bench.invoke(agent(CHARGE, AGAIN), ask(), thread())
    assert type(raised.value).__name__ == "UnavailableError"
    line.is_down = False
    state = await bench.invoke(agent(AIMessage("done")), None, thread())
    assert till.charged == ["o1"]
    assert next(m.content for m in state["messages"] if isinstance(m, ToolMessage)) == "charged o1"


@pytest.mark.parametrize("mode", ["batched", "inside", "per_call"])
async def test_an_edit_on_an_old_checkpoint_is_an_action_of_its_own(bench: Bench, mode: str) -> None:
    """The call's id, message and requested arguments are those of the approved call."""
    till = Till()
    options: Any = {"interrupt_mode": "per_call" if mode == "per_call" else "batched"}
    approvals: list[Any] = [HumanInTheLoopMiddleware({"charge": True}, **options), bench.ledger.middleware()]
    agent = create_agent(
        ToolCaller(messages=iter([CHARGE, *(AIMessage("done") for _ in range(4))])),
        [tool_of(bench, "charge", till.charge)],
        middleware=approvals[::-1] if mode == "inside" else approvals,
        checkpointer=bench.saver,
    )
    await bench.invoke(agent, ask(), thread())
    asked = (await agent.aget_state(thread())).config

    def answer(decision: dict[str, Any]) -> Command[Any]:
        return Command(resume=decision if mode == "per_call" else {"decisions": [decision]})

    approve = answer({"type": "approve"})
    await bench.invoke(agent, approve, thread())
    edited = {"name": "charge", "args": {"order": "o2"}}
    edit = answer({"type": "edit", "edited_action": edited})
    for _ in range(2):
        await bench.invoke(agent, None, asked)
        state = await bench.invoke(agent, edit, thread())
        assert "charged o2" in [m.text for m in state["messages"] if isinstance(m, ToolMessage)][-1]
    assert till.charged == ["o1", "o2"]
    await bench.invoke(agent, None, asked)
    await bench.invoke(agent, approve, thread())
    assert till.charged == ["o1", "o2"]


async def test_an_approval_within_the_action_is_refused(bench: Bench) -> None:
    """Its edit would act under the key of what the model asked for, and its rejection be recorded as a failure."""
    till = Till()
    bench.ledger.policy("charge", key=lambda arguments: arguments["order"])
    approval = HumanInTheLoopMiddleware({"charge": True}, interrupt_mode="per_call")

    def agent(*middleware: Any) -> Any:
        return create_agent(
            ToolCaller(messages=iter([CHARGE, AIMessage("done")])),
            [tool_of(bench, "charge", till.charge)],
            middleware=middleware,
            checkpointer=bench.saver,
        )

    with pytest.raises(ToolSetupError, match=r"must be listed before ledger.middleware"):
        await bench.invoke(agent(bench.ledger.middleware(), approval), ask(), thread())
    assert till.charged == []
    right = agent(approval, bench.ledger.middleware())
    await bench.invoke(right, None, thread())
    state = await bench.invoke(right, Command(resume={"type": "approve"}), thread())
    assert [m.text for m in state["messages"] if isinstance(m, ToolMessage)] == ["charged o1"]
    assert till.charged == ["o1"]


async def test_an_approval_of_an_agent_within_a_tool_is_none_of_its_own(bench: Bench) -> None:
    till = Till()
    inner = create_agent(
        ToolCaller(messages=iter([CHARGE, AIMessage("charged")])),
        [tool_of(bench, "charge", till.charge)],
        middleware=[
            HumanInTheLoopMiddleware({"charge": True}, interrupt_mode="per_call"),
            bench.ledger.middleware(),
        ],
    )

    def blocking(order: str) -> str:
        """Delegate an order."""
        return str(inner.invoke(ask())["messages"][-1].content)

    async def suspending(order: str) -> str:
        """Delegate an order."""
        return str((await inner.ainvoke(ask()))["messages"][-1].content)

    delegate = tool("delegate")(suspending if bench.is_async else blocking)
    model = ToolCaller(messages=iter([calls(("call_1", "delegate", {"order": "o1"})), AIMessage("done")]))
    agent = create_agent(model, [delegate], middleware=[bench.ledger.middleware()], checkpointer=bench.saver)
    state = await bench.invoke(agent, ask(), thread())
    assert len(state["__interrupt__"]) == 1
    await bench.invoke(agent, Command(resume={"type": "approve"}), thread())
    assert till.charged == ["o1"]
