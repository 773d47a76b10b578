"""Run it twice: the model asks to charge the same order each time, the card is charged once, and all is recorded."""

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from langgraph_pgstate import PGState


def charge(order_id: str, euros: int) -> str:
    """Charge the customer's card."""
    print(f"the card is charged {euros} euros")
    return f"{euros} euros charged for order {order_id}"


def draw(nodes: Sequence[Any], depth: int = 0) -> None:
    for node in nodes:
        print("  " * depth + f"{node.span.kind} {node.span.name}: {node.span.status}")
        draw(node.children, depth + 1)


# Stands in for a real model: asks for the tool, then answers.
wish = {"name": "charge", "args": {"order_id": "17", "euros": 90}, "id": "call-1"}
model = GenericFakeChatModel(messages=iter([AIMessage("", tool_calls=[wish]), AIMessage("Order 17 is paid.")]))

with PGState.embedded() as state:  # or open("postgresql://..."), and state.setup() once
    state.tools.policy("charge", key=lambda arguments: arguments["order_id"])
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda said: {"messages": [model.invoke(said["messages"])]})
    builder.add_node("tools", ToolNode([charge], wrap_tool_call=state.tools))
    builder.add_edge(START, "agent").add_conditional_edges("agent", tools_condition).add_edge("tools", "agent")
    graph = state.record(builder.compile(checkpointer=state.saver))

    thread = {"configurable": {"thread_id": "order-17", "user_id": "eve"}}
    graph.invoke({"messages": [("user", "Please pay for order 17.")]}, thread)

    for message in state.messages.conversation("order-17", last=4):
        print(f"{message.role}: {message.content or [call['name'] for call in message.tool_calls]}")
    [run] = state.runs.list(thread_id="order-17", limit=1).items
    draw(state.spans.tree("order-17", run.run_id))
    for execution in state.tools.list("order-17"):
        print(f"{execution.tool}: {execution.status}, attempt {execution.attempt}, {execution.preview}")
