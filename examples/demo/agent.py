"""The demo's agent: a real LangGraph tool-calling graph that books trips, and a chat model that needs no network."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from typing import Any, Final

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallWithContext
from langgraph.types import Send

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.tools import AsyncToolLedger, ToolLedger

Listener = Callable[[str, str, str], None]
"""A function that is called for every tool with its name, `begin` or `end`, and its arguments or result."""

_INSTRUCTIONS: Final = (
    "You book trips. First search for flights with search_flights. Then, in one go, call book_flight for the cheapest "
    "and book_hotel for two nights. Then convert the total of both prices to dollars with convert_currency, and tell "
    "the traveller in two sentences what is booked. Answer later questions with the tools where they help, the "
    "traveller's taste with remember and recall."
)
FIRST_WISH: Final = "A weekend in Lisbon, from Berlin: flight, hotel, and the total in dollars."
OTHER_WISH: Final = "Not Lisbon after all: make it Porto."
VOUCHER_WISH: Final = "Print the voucher for the hotel, please."
PAYMENT_WISH: Final = "Now pay for the hotel, please."
TASTE_WISH: Final = "Remember, please: I eat no meat, and never fly before nine."
DINNER_WISH: Final = "Hello. Where shall I dine in Porto?"
OFFLINE_MODEL: Final = "offline-1"
AGENT: Final = "travel"

_DOLLARS_PER_EURO: Final = 1.08
_CITIES: Final = ("Lisbon", "Porto", "Madrid", "Athens", "Rome", "Berlin")


def follow_up(turn: int) -> str:
    """Return the user's message in a later turn of the demo conversation; the first such turn is number 2."""
    day, euros = turn % 5 + 1, 15 + turn * 7 % 90
    questions = (
        f"What is the weather like on day {day}?",
        f"Lunch on day {day} is {euros} euros a head. What is that in dollars?",
        f"What should we see on day {day}, before noon?",
        f"And what on the evening of day {day}, for about {euros} euros?",
    )
    return questions[turn % len(questions)]


def build_agent(
    model: BaseChatModel,
    checkpointer: BaseCheckpointSaver[Any] | None,
    listener: Listener,
    *,
    hotel_seconds: float = 0.1,
    effects: Sequence[Callable[..., str]] = (),
    ledger: ToolLedger | AsyncToolLedger | None = None,
    memory: Sequence[BaseTool] = (),
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Return the graph: `agent` calls the model, `tools` runs each tool call as a separate task.

    Args:
        model: The chat model.
        checkpointer: Saves the state; `None` if a server brings it.
        listener: Called when a tool begins and ends.
        hotel_seconds: Seconds that `book_hotel` takes.
        effects: Other tools, with effects outside the database.
        ledger: Runs the tools, if given.
        memory: Tools of long-term memory, which need the message that the user sent last.
    """
    tools = [*_trip_tools(listener, hotel_seconds), *memory]
    tools += [StructuredTool.from_function(_announced(effect, listener)) for effect in effects]
    thinker = model.bind_tools(tools)

    def agent(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [thinker.invoke([SystemMessage(_INSTRUCTIONS), *state["messages"]])]}

    def route(state: MessagesState) -> list[Send] | str:
        last = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        if memory:
            recent = {"messages": state["messages"][-2:]}
            return [Send("tools", _with_state(call, recent)) for call in calls] or END
        return [Send("tools", [call]) for call in calls] or END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    is_async = isinstance(ledger, AsyncToolLedger)
    wrapped: Any = {"awrap_tool_call" if is_async else "wrap_tool_call": ledger}
    builder.add_node("tools", ToolNode(tools, **wrapped))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", route, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=checkpointer, name=AGENT)


def _with_state(call: ToolCall, state: dict[str, Any]) -> ToolCallWithContext:
    return ToolCallWithContext(__type="tool_call_with_context", tool_call=call, state=state)


def payment(ledger: ToolLedger | AsyncToolLedger, seconds: float = 0.1) -> Callable[..., str]:
    """Return a tool whose effect cannot be looked up, so that the ledger asks a person.

    Args:
        ledger: The ledger of the tool.
        seconds: Seconds that a payment takes.
    """

    @ledger.policy(on_unknown="ask")
    def pay_hotel(hotel: str, euros: int) -> str:
        """Pay for a hotel."""
        time.sleep(seconds)
        return f"paid {euros} EUR to {hotel}"

    return pay_hotel


def _trip_tools(listener: Listener, hotel_seconds: float) -> list[BaseTool]:
    """Return the tools. Their results depend only on their arguments."""

    def search_flights(origin: str, destination: str) -> str:
        """Find flights between two cities."""
        number = _number(origin, destination)
        base, line = 60 + number % 80, number % 40
        carriers = (f"TP {528 + line}", f"LH {1167 + line}", f"FR {2913 + line}")
        return "; ".join(f"{name} at {base + 35 * place} EUR" for place, name in enumerate(carriers))

    def book_flight(flight: str) -> str:
        """Book a flight by its number. It costs money."""
        return f"booked {flight}, ticket {_number(flight) % 900000 + 100000}"

    def book_hotel(city: str, nights: int) -> str:
        """Book a hotel in a city. It costs money."""
        time.sleep(hotel_seconds)
        return f"booked Hotel {city} Central, {nights} nights, {nights * (70 + _number(city) % 40)} EUR"

    def convert_currency(euros: float) -> str:
        """Convert euros to dollars."""
        return f"{euros:.2f} EUR is {euros * _DOLLARS_PER_EURO:.2f} USD"

    def weather(city: str, day: int) -> str:
        """The forecast for a city and a day of the trip."""
        sky = ("sunny", "some cloud", "light wind from the sea", "a shower in the afternoon")[_number(city, day) % 4]
        return f"{city}, day {day}: {sky}, {17 + _number(day, city) % 9} degrees"

    functions = (search_flights, book_flight, book_hotel, convert_currency, weather)
    return [StructuredTool.from_function(_announced(function, listener)) for function in functions]


def _announced(function: Callable[..., str], listener: Listener) -> Callable[..., str]:
    @wraps(function)
    def announced(**arguments: Any) -> str:
        listener(function.__name__, "begin", ", ".join(str(value) for value in arguments.values()))
        answer = function(**arguments)
        listener(function.__name__, "end", answer)
        return answer

    return announced


class ChatOffline(BaseChatModel):
    """A chat model whose answers depend only on the conversation; it needs no network and no key."""

    model: str = OFFLINE_MODEL

    @property
    def _llm_type(self) -> str:
        return "offline"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Return the model unchanged: its fixed answers already contain the tool calls."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = _answer([message for message in messages if not isinstance(message, SystemMessage)])
        read, written = sum(map(_tokens, messages)), _tokens(answer)
        answer.usage_metadata = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        return ChatResult(generations=[ChatGeneration(message=answer)])


def offline_model() -> ChatOffline:
    """Return the model of the demo without `--model`."""
    return ChatOffline()


def provider_model(name: str) -> BaseChatModel:
    """Return the chat model of a provider.

    Args:
        name: `provider:model`, as langchain's `init_chat_model` takes it.

    Raises:
        ConfigurationError: If its packages or its key are missing; the message says what to do.
    """
    provider = name.partition(":")[0]
    try:
        init_chat_model = import_module("langchain.chat_models").init_chat_model
    except ImportError as error:
        raise ConfigurationError(
            f"--model needs langchain and the provider's package: pip install langchain langchain-{provider}"
        ) from error
    try:
        model: BaseChatModel = init_chat_model(name)
    except ImportError as error:
        raise ConfigurationError(f"--model {name}: pip install langchain-{provider} ({error})") from error
    except Exception as error:  # each provider has its own errors for a missing key
        raise ConfigurationError(f"--model {name}: {str(error).splitlines()[0]}") from error
    return model


def _answer(messages: Sequence[BaseMessage]) -> AIMessage:
    """Return the next message: calls of the tools that are still needed, or the answer."""
    id = f"ai-{len(messages)}-{_number(*(message.content for message in messages)):08x}"
    wish_at = max(at for at, message in enumerate(messages) if isinstance(message, HumanMessage))
    wish = str(messages[wish_at].content)
    answers = {
        str(message.name): str(message.content) for message in messages[wish_at:] if isinstance(message, ToolMessage)
    }
    city = _city(messages[: wish_at + 1])
    steps: list[tuple[str, dict[str, Any]]] = []
    if wish == VOUCHER_WISH:
        steps = [] if answers else [("print_voucher", {"hotel": f"Hotel {city} Central"})]
    elif wish == PAYMENT_WISH:
        hotel = {"hotel": f"Hotel {city} Central", "euros": _hotel_price(messages)}
        steps = [] if answers else [("pay_hotel", hotel)]
    elif wish == TASTE_WISH:
        steps = [] if answers else [("remember", {**taste}) for taste in _TASTE]
    elif wish == DINNER_WISH:
        steps = [] if answers else [("recall", {"query": "dinner"})]
    else:
        steps = _trip(city, answers) if wish in (FIRST_WISH, OTHER_WISH) else _question(wish, city, answers)
    calls = [
        ToolCall(name=name, args=arguments, id=f"call-{id[3:]}-{place}", type="tool_call")
        for place, (name, arguments) in enumerate(steps)
    ]
    return AIMessage(content="" if calls else _say(wish, city, answers, wish_at), tool_calls=calls, id=id)


def _trip(city: str, answers: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
    if "search_flights" not in answers:
        return [("search_flights", {"origin": "Berlin", "destination": city})]
    if "book_hotel" not in answers:
        cheapest = answers["search_flights"].split(" at ")[0]
        return [("book_flight", {"flight": cheapest}), ("book_hotel", {"city": city, "nights": 2})]
    if "convert_currency" not in answers:
        flight, hotel = _euros(answers["search_flights"]), _euros(answers["book_hotel"])
        return [("convert_currency", {"euros": float(flight + hotel)})]
    return []


def _question(wish: str, city: str, answers: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
    numbers = [int(number) for number in re.findall(r"\d+", wish)]
    if "weather" in wish and "weather" not in answers:
        return [("weather", {"city": city, "day": numbers[0]})]
    if "dollars" in wish and "convert_currency" not in answers:
        return [("convert_currency", {"euros": float(numbers[1])})]
    return []


def _say(wish: str, city: str, answers: dict[str, str], turn: int) -> str:
    if "print_voucher" in answers:
        return f"Here it is: {answers['print_voucher']}."
    if "pay_hotel" in answers:
        return f"The hotel: {answers['pay_hotel']}."
    if "remember" in answers:
        return "I will remember it, in all our conversations."
    if "recall" in answers:
        known = sorted(one["content"].rstrip(".") for one in json.loads(answers["recall"]))
        return f"I know of you: {'; '.join(known)}. So the market hall of {city}, which has no meat on its upper floor."
    if "book_hotel" in answers:
        return (
            f"{city} it is: {answers['book_flight']}, and {answers['book_hotel'].removeprefix('booked ')}. "
            f"Together {answers['convert_currency']}."
        )
    first = next(iter(answers.values()), f"For that, {city} has more than one good answer")
    chosen = sorted(_ADVICE, key=lambda sentence: _number(turn, sentence))[:5]
    return f"{first}. " + " ".join(sentence.format(city=city) for sentence in chosen)


_TASTE: Final = (
    {"content": "Eats no meat.", "kind": "fact", "key": "diet"},
    {"content": "Never flies before nine.", "kind": "preference", "key": "flights"},
)
_ADVICE: Final = (
    "The old quarter of {city} is at its best before ten, when the delivery vans have gone and the tiles are dry.",
    "Trams fill up by eleven; walking uphill and riding down costs nothing and shows twice as much.",
    "The covered market has a counter at the back where the fishmongers eat, and they know why.",
    "Museums are free on the first Sunday of the month, and so are the queues in front of them.",
    "If it rains, the station hall and its painted walls are worth an hour, coffee included.",
    "For the evening, book a table near the river for eight; the kitchens of {city} are slow until then.",
    "Take the ferry for one stop and back: the view of {city} from the water is the one on the postcards.",
    "There is a garden behind the cathedral that no guide mentions, with benches in the shade.",
    "Small places close between three and seven, so have something with you for the afternoon.",
    "A day ticket pays off from the third ride on; the machine on platform two takes cards.",
    "The lookout above the steps is crowded at sunset; the one a street further up is not.",
    "Ask for the menu of the day rather than the card: it is half the price and cooked this morning.",
    "The bookshop on the corner sells maps drawn by hand; {city} is on the third page.",
    "On Saturdays musicians play under the arches until the neighbours of the square come home.",
)


def _city(messages: Sequence[BaseMessage]) -> str:
    """Return the destination: the city in the last message that names one."""
    for message in reversed(messages):
        if isinstance(message, HumanMessage):
            wish = str(message.content)
            if changed := re.search(r"make it (\w+)", wish):
                return changed.group(1)
            if named := [city for city in _CITIES if city in wish]:
                return named[0]
    return _CITIES[0]


def _hotel_price(messages: Sequence[BaseMessage]) -> int:
    """Return the price of the hotel that was booked last."""
    booked = [message for message in messages if isinstance(message, ToolMessage) and message.name == "book_hotel"]
    return _euros(str(booked[-1].content)) if booked else 0


def _tokens(message: BaseMessage) -> int:
    """Return about as many tokens as a message has."""
    calls = message.tool_calls if isinstance(message, AIMessage) else ""
    return (len(str(message.content)) + len(str(calls))) // 4


def _euros(text: str) -> int:
    return int(re.findall(r"(\d+) EUR", text)[0])


def _number(*parts: object) -> int:
    """Return a number that depends only on the parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")
