"""A travel desk to look at in LangGraph Studio: a chat agent with a tool, and a subgraph that asks a person.

`make studio` starts it. Ask for a hotel in Prague; then say which one to book. Nothing leaves this machine: the model
is a script that answers the same each time.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import agenerate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from typing_extensions import TypedDict

from langgraph_pgstate.agent_server import record, tools

HOTELS = {"Prague": {"Astoria": 180, "Pension Vltava": 75}, "Oslo": {"Fjord": 210}}
PRICES = {hotel: price for hotels in HOTELS.values() for hotel, price in hotels.items()}


class Booking(TypedDict):
    """What is booked, or about to be."""

    hotel: str
    euros: int
    status: str


class Trip(MessagesState):
    """The conversation, and what came of it."""

    booking: NotRequired[Booking]


@dataclass
class Settings:
    """What an assistant in Studio may set.

    Attributes:
        pace: Seconds the model takes for a word.
    """

    pace: float = 0.02


class Script(BaseChatModel):
    """Stands in for a real model: looks at the last message and knows what to say."""

    pace: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "script"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError("ask it with ainvoke or astream")

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages))

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        answer = answer_to(messages)
        for number, word in enumerate(answer.text.split()):
            await asyncio.sleep(self.pace)
            yield ChatGenerationChunk(message=AIMessageChunk(f" {word}" if number else word))
        usage: Any = {"input_tokens": len(messages) * 10, "output_tokens": 12, "total_tokens": len(messages) * 10 + 12}
        yield ChatGenerationChunk(
            message=AIMessageChunk("", tool_calls=answer.tool_calls, usage_metadata=usage, chunk_position="last")
        )


def answer_to(messages: Sequence[BaseMessage]) -> AIMessage:
    """What the script says."""
    last = messages[-1]
    call_id = f"call-{len(messages)}"
    if isinstance(last, ToolMessage):
        return AIMessage(f"{last.text} What else can I do for you?")
    hotel = next((name for name in PRICES if name in last.text), None)
    if hotel:
        return AIMessage("", tool_calls=[{"name": "book_hotel", "args": {"hotel": hotel}, "id": call_id}])
    city = next((name for name in HOTELS if name in last.text), None)
    if city:
        return AIMessage("", tool_calls=[{"name": "find_hotels", "args": {"city": city}, "id": call_id}])
    return AIMessage("I know hotels in Prague and in Oslo; name a city, or the hotel that I shall book for you.")


@tool
@tools.policy(on_unknown="retry")
async def find_hotels(city: str) -> str:
    """Look for hotels in a city."""
    return ", ".join(f"{hotel} at {price} euros" for hotel, price in HOTELS[city].items()) + "."


@tool
async def book_hotel(hotel: str) -> str:
    """Book a room. The ledger sees to it that a crash books no second one."""
    return f"The {hotel} is booked."


async def agent(trip: Trip, runtime: Runtime[Settings]) -> dict[str, Any]:
    """Ask the model."""
    pace = runtime.context.pace if runtime.context else Settings.pace
    return {"messages": [await Script(pace=pace).ainvoke(trip["messages"])]}


def route(trip: Trip) -> Literal["search", "booking", "__end__"]:
    """Where the model's wish leads."""
    said = trip["messages"][-1]
    if not isinstance(said, AIMessage) or not said.tool_calls:
        return "__end__"
    return "booking" if said.tool_calls[0]["name"] == "book_hotel" else "search"


def quote(trip: Trip) -> dict[str, Any]:
    """Say what it would cost."""
    hotel = wish(trip)["args"]["hotel"]
    return {"booking": {"hotel": hotel, "euros": PRICES[hotel], "status": "offered"}}


def confirm(trip: Trip) -> dict[str, Any]:
    """Ask a person. Answer `yes`; anything else declines."""
    booking = trip["booking"]
    said = interrupt({"question": f"Book the {booking['hotel']} for {booking['euros']} euros?", "booking": booking})
    if said in (True, "yes"):
        return {"booking": {**booking, "status": "approved"}}
    declined = ToolMessage(f"The {booking['hotel']} was not booked.", tool_call_id=wish(trip)["id"])
    return {"booking": {**booking, "status": "declined"}, "messages": [declined]}


def is_approved(trip: Trip) -> bool:
    """Whether the person said yes."""
    return trip["booking"]["status"] == "approved"


def wish(trip: Trip) -> Any:
    """The model's tool call."""
    return next(said for said in reversed(trip["messages"]) if isinstance(said, AIMessage)).tool_calls[0]


def booking_graph() -> StateGraph[Any, Any, Any, Any]:
    """Quote, confirm, book."""
    builder = StateGraph(Trip)
    builder.add_node(quote)
    builder.add_node(confirm)
    builder.add_node("book", ToolNode([book_hotel], awrap_tool_call=tools))
    builder.add_edge(START, "quote").add_edge("quote", "confirm").add_edge("book", END)
    builder.add_conditional_edges("confirm", is_approved, {True: "book", False: END})
    return builder


builder = StateGraph(Trip, context_schema=Settings)
builder.add_node(agent)
builder.add_node("search", ToolNode([find_hotels], awrap_tool_call=tools))
builder.add_node("booking", booking_graph().compile(name="booking"))
builder.add_edge(START, "agent").add_conditional_edges("agent", route)
builder.add_edge("search", "agent").add_edge("booking", "agent")

# The server brings the checkpointer.
graph = record(builder.compile())
