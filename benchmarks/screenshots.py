"""Screenshots of the inspector for the README and the documents: `make screenshots`.

Runs an agent on an embedded PostgreSQL, with models that need no network, and takes pictures of its pages with
Chromium, into `docs/images/`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import uvicorn
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from playwright.async_api import async_playwright

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.server import AgentServer, create_app

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
CHROMIUM: Final = "/usr/bin/chromium"
MOST_BYTES: Final = 150_000
_SIZE: Final = {"width": 1280, "height": 800}
_DAYS: Final = 29
_MODELS: Final = {"planner": "claude-sonnet-4-5", "writer": "gpt-5-mini"}


class ScriptedModel(BaseChatModel):
    """A model that says what it is told to, with the usage of a real one."""

    model: str
    says: list[AIMessage]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return {"ls_provider": "openai", "ls_model_name": self.model, "ls_model_type": "chat"}

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        await asyncio.sleep(random.uniform(0.1, 0.5))
        said = self.says.pop(0)
        read, written = random.randint(900, 4000), random.randint(40, 600)
        usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
        answer = said.model_copy(
            update={"usage_metadata": usage, "response_metadata": {"model_name": self.model}, "id": None}
        )
        return ChatResult(generations=[ChatGeneration(message=answer)])


class NoRoomError(Exception):
    """The hotel has no room left."""


@tool
async def search_hotels(city: str) -> str:
    """Find hotels in a city."""
    await asyncio.sleep(random.uniform(0.1, 0.4))
    return f"Astoria (180 EUR), Riverside (140 EUR) in {city}"


@tool
async def check_weather(city: str) -> str:
    """Tell the weather of a city."""
    await asyncio.sleep(random.uniform(0.05, 0.2))
    return f"{city}: 19 degrees, sunny"


@tool
async def book_room(hotel: str, nights: int) -> str:
    """Book a room."""
    await asyncio.sleep(0.2)
    if hotel == "Riverside":
        raise NoRoomError("Riverside has no room for these nights")
    return f"booked {hotel} for {nights} nights"


def _calls(*calls: tuple[str, dict[str, Any]]) -> AIMessage:
    named = [{"name": name, "args": args, "id": f"call-{random.randrange(10**9)}"} for name, args in calls]
    return AIMessage("", tool_calls=named)


def trip(ledger: Any, city: str = "Lisbon", hotel: str = "Astoria", *, asks: bool = False) -> Any:
    """Return an agent that plans a weekend: a model, tools, a person if `asks`, a model."""
    searching = _calls(("search_hotels", {"city": city}), ("check_weather", {"city": city}))
    planner = ScriptedModel(
        model=_MODELS["planner"], says=[searching, _calls(("book_room", {"hotel": hotel, "nights": 2}))]
    )
    text = f"You are booked at the **{hotel}** in {city} for two nights, breakfast included. Enjoy the *miradouros*!"
    writer = ScriptedModel(model=_MODELS["writer"], says=[AIMessage(text)])

    async def plan(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await planner.ainvoke(state["messages"])]}

    async def approve(state: MessagesState) -> dict[str, Any]:
        if asks:
            interrupt({"question": f"Book the {hotel} for 360 EUR?", "hotel": hotel, "total": "360 EUR"})
        return {}

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await writer.ainvoke(state["messages"])]}

    tools = ToolNode([search_hotels, check_weather, book_room], awrap_tool_call=ledger, handle_tool_errors=False)
    builder = StateGraph(MessagesState)
    for name, node in (("plan", plan), ("tools", tools), ("approve", approve), ("answer", answer)):
        builder.add_node(name, node)
    builder.add_edge(START, "plan").add_edge("answer", END).add_edge("approve", "tools")
    builder.add_conditional_edges(
        "plan", lambda state: "approve" if state["messages"][-1].tool_calls[0]["name"] == "book_room" else "tools"
    )
    builder.add_conditional_edges(
        "tools", lambda state: "answer" if state["messages"][-1].name == "book_room" else "plan"
    )
    return builder.compile()


async def fill(state: AsyncPGState) -> None:
    """Let the agent work: trips that succeed, one that fails, and two that wait for a person."""
    random.seed(7)
    for model, price in (("claude-sonnet-4-5", (3, 15)), ("gpt-5-mini", (0.25, 2))):
        await state.prices.set(model, *price)
    plans: Sequence[tuple[str, str, str, bool]] = [
        ("lisbon", "Lisbon", "Astoria", False),
        ("porto", "Porto", "Riverside", False),
        ("prague", "Prague", "Astoria", True),
        ("vienna", "Vienna", "Imperial", True),
        *((f"trip-{number}", "Rome", "Astoria", False) for number in range(6)),
    ]

    async def travel(thread_id: str, city: str, hotel: str, asks: bool) -> None:
        graph = state.record(trip(state.tools, city, hotel, asks=asks).copy({"checkpointer": state.saver}))
        user = random.choice(["eve", "adam", "noor"])
        config: Any = {"configurable": {"thread_id": thread_id, "user_id": user, "agent": "travel"}}
        text = f"A weekend in {city} for two, please: a hotel by the river."
        with suppress(NoRoomError):
            await graph.ainvoke({"messages": [HumanMessage(text)]}, config)
        await state.threads.set_title(thread_id, f"A weekend in {city}")

    await asyncio.gather(*(travel(*plan) for plan in plans))
    await state.flush()
    head = await state.threads.get("lisbon")
    assert head is not None
    nodes = (await state.threads.tree("lisbon")).nodes
    before = {"configurable": {"thread_id": "lisbon", "checkpoint_ns": "", "checkpoint_id": nodes[3].checkpoint_id}}
    await state.threads.label(before, "before the booking")
    again = state.record(trip(state.tools, "Lisbon", "Imperial").copy({"checkpointer": state.saver}))
    await again.aupdate_state(before, {"messages": [HumanMessage("Rather the Imperial.")]}, as_node="tools")
    await state.flush()


def backdate(dsn: str, schema: str) -> None:
    """Copy the runs and spans to the days before, so that the costs of a month have a shape."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"SET search_path = {schema}")
        connection.execute("SELECT setseed(0.4)")
        for table, times in (("runs", ("started_at", "ended_at")), ("spans", ("started_at", "ended_at"))):
            names = connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
                "AND is_generated = 'NEVER'",
                [schema, table],
            ).fetchall()
            columns = [str(name) for (name,) in names]
            values = [
                f"t.{name} - d * interval '1 day'"
                if name in times
                else f"t.{name} || '-' || d"
                if name == "run_id"
                else f"t.{name}"
                for name in columns
            ]
            connection.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM {table} t, "
                f"generate_series(1, {_DAYS}) AS d WHERE hashtext(t.run_id || d) %% 10 < 4 + 3 * sin(d)".encode(),
                [],
            )
        connection.execute("ANALYZE")


@asynccontextmanager
async def listening(server: AgentServer) -> AsyncIterator[str]:
    """Serve an application that runs on a free port of this machine."""
    config = uvicorn.Config(server, lifespan="off", log_level="error", ws="none")
    listener = socket.create_server(("127.0.0.1", 0))
    served = uvicorn.Server(config)
    running = asyncio.create_task(served._serve([listener]))
    try:
        while not served.started:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        served.should_exit = True
        await running


async def shoot(dsn: str, folder: Path) -> list[Path]:
    """Fill a database, and take the pictures."""
    async with AsyncPGState.open(dsn) as state:
        await state.setup()
        await fill(state)
        await state.maintain()
        schema = state.schema
    await asyncio.to_thread(backdate, dsn, schema)
    made = []
    graphs = {"travel": StateGraph(MessagesState).add_node("plan", lambda state: {}).add_edge(START, "plan")}
    server = create_app(lambda: AsyncPGState.open(dsn), graphs, inspector=True, worker=False)
    async with server.lifespan(), listening(server) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = await browser.new_context(viewport=_SIZE, color_scheme="light")  # type: ignore[arg-type]
        await context.add_cookies([{"name": "pgstate_person", "value": "Eve", "url": url}])
        page = await context.new_page()
        await page.goto(f"{url}/ui/runs?status=error")
        failed = await page.locator("tbody a.id").first.get_attribute("href")
        for name, path in (("thread", "/ui/threads/lisbon"), ("run", failed), ("costs", "/ui/costs")):
            await page.goto(f"{url}{path}")
            await page.screenshot(path=folder / f"{name}.png")
            made.append(folder / f"{name}.png")
        await browser.close()
    return made


def main() -> None:
    """Take the pictures, and refuse large ones."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="pgstate-images-") as directory,
        embedded_server(Path(directory) / "data") as dsn,
    ):
        for path in asyncio.run(shoot(dsn, IMAGES)):
            size = path.stat().st_size
            print(f"{path.relative_to(IMAGES.parents[1])}: {size:,} bytes")
            if size > MOST_BYTES:
                raise SystemExit(f"{path.name} has more than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
