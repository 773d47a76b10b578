"""How a run goes on after a crash, and repairs of tool calls without a result."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, StateSnapshot, interrupt

from langgraph_pgstate.worker.inputs import next_step, repair_tool_calls

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    broken: bool


def graph_of(*nodes: tuple[str, Any], **options: Any) -> Any:
    """A graph whose nodes all follow the start at once."""
    builder = StateGraph(State)
    for name, node in nodes:
        builder.add_node(name, node)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile(checkpointer=InMemorySaver(), **options)


def nothing(state: State) -> dict[str, Any]:
    return {}


def ask(state: State) -> dict[str, Any]:
    return {"messages": [str(interrupt("sure?"))]}


def fail(state: State) -> dict[str, Any]:
    raise RuntimeError("failed")


def test_a_state_without_tasks_is_a_success() -> None:
    graph = graph_of(("one", nothing))
    graph.invoke({"messages": []}, CONFIG)
    assert next_step(graph.get_state(CONFIG)) == "success"


def test_unanswered_interrupts_stay_interrupts() -> None:
    graph = graph_of(("one", nothing), ("ask", ask), ("too", ask))
    graph.invoke({"messages": []}, CONFIG)
    assert next_step(graph.get_state(CONFIG)) == "interrupted"
    answered = {graph.get_state(CONFIG).interrupts[0].id: "yes"}
    graph.invoke(Command(resume=answered), CONFIG)
    assert next_step(graph.get_state(CONFIG)) == "interrupted"


def test_a_task_without_a_result_goes_on_beside_an_interrupt() -> None:
    graph = graph_of(("fail", fail), ("ask", ask))
    with pytest.raises(RuntimeError):
        graph.invoke({"messages": []}, CONFIG)
    assert next_step(graph.get_state(CONFIG)) == "run"


@pytest.mark.parametrize("nodes", ["*", ["one"]])
def test_going_on_does_not_pass_a_breakpoint(nodes: Any) -> None:
    graph = graph_of(("one", nothing))
    graph.invoke({"messages": []}, CONFIG, interrupt_before=nodes)
    state = graph.get_state(CONFIG)
    assert next_step(state, before=nodes) == "interrupted"
    assert next_step(state, before=["two"]) == next_step(state) == "run"
    assert next_step(state, has_run=True) == "interrupted"
    # The checkpoint of the input, whose only task is hidden.
    first = [*graph.get_state_history(CONFIG)][-1]
    assert next_step(first, before="*") == "run"


def called(*ids: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "book", "args": {}, "id": id} for id in ids])


def state_of(*messages: Any) -> StateSnapshot:
    """The state of a thread with these messages."""
    graph = graph_of(("one", nothing))
    graph.invoke({"messages": list(messages)}, CONFIG)
    found: StateSnapshot = graph.get_state(CONFIG)
    return found


def test_tool_calls_without_a_result_get_an_error() -> None:
    state = state_of(HumanMessage("go"), called("a", "b"), ToolMessage("done", tool_call_id="a"))
    repaired = repair_tool_calls(state, {"messages": "next"})
    answer, following = repaired["messages"]
    assert (answer.tool_call_id, answer.status, answer.name, following) == ("b", "error", "book", "next")
    assert repair_tool_calls(state, {"messages": [HumanMessage("next")]})["messages"][1].content == "next"
    assert len(repair_tool_calls(state, {})["messages"]) == 1


@pytest.mark.parametrize(
    "messages",
    [
        [HumanMessage("go")],
        [HumanMessage("go"), AIMessage("gone")],
        [called("a"), ToolMessage("done", tool_call_id="a")],
        # The provider has accepted this conversation, or nothing can mend it any more.
        [called("a"), HumanMessage("go")],
    ],
)
def test_a_good_conversation_is_left_alone(messages: list[Any]) -> None:
    given = {"messages": ["next"]}
    assert repair_tool_calls(state_of(*messages), given) is given


def test_input_of_another_kind_is_left_alone() -> None:
    assert repair_tool_calls(state_of(called("a")), "next") == "next"


def test_results_of_an_unfinished_superstep_are_used() -> None:
    def run(call: str) -> dict[str, Any]:
        if call == "b":
            raise RuntimeError("killed")
        return {"messages": [ToolMessage("booked", tool_call_id=call)]}

    builder = StateGraph(State)
    builder.add_node("model", lambda state: {"messages": [called("a", "b")]})
    builder.add_node("run", run)  # type: ignore[arg-type]
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: [Send("run", "a"), Send("run", "b")], ["run"])
    graph = builder.compile(checkpointer=InMemorySaver())
    with pytest.raises(RuntimeError):
        graph.invoke({"messages": []}, CONFIG, durability="sync")
    found = repair_tool_calls(graph.get_state(CONFIG), {"messages": []})["messages"]
    assert [(message.tool_call_id, message.status) for message in found] == [("a", "success"), ("b", "error")]
    # LangGraph drops the stored result when a run starts with a new input.
    with pytest.raises(RuntimeError):
        graph.invoke({"messages": found}, CONFIG, durability="sync")
    state = [*graph.get_state_history(CONFIG)][1]
    assert [message.type for message in state.values["messages"]] == ["ai", "tool", "tool"]
