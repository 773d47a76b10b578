"""LangGraph Studio on this saver: the server is started as `langgraph dev` does, and driven as Studio drives it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError, UnprocessableEntityError
from support import ended, move_journal, open_saver
from support.server import AgentServer

from langgraph_pgstate import AsyncPGStateSaver

pytest.importorskip("langgraph_api")
pytestmark = [pytest.mark.once, pytest.mark.slow]

GRAPH = "travel"
SEARCH = {"messages": [{"role": "user", "content": "A hotel in Prague, please."}]}
BOOK = {"messages": [{"role": "user", "content": "Book the Astoria."}]}
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
# Long enough that a second message comes in while the first is answered.
SLOW = {"pace": 0.2}


@pytest.fixture(scope="module")
def place(dsn: str) -> Iterator[str]:
    """The server's schema."""
    name = f"studio{os.getpid()}"
    yield name
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture(scope="module")
def server(dsn: str, place: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    """One server for this file. At its end it must go within seconds, and must have found nothing to complain of."""
    directory = tmp_path_factory.mktemp("server") / "studio"
    server = AgentServer(directory, {"PGSTATE_DSN": dsn, "PGSTATE_SCHEMA": place})
    server.start()
    yield server
    assert server.stop() in (0, -2, 130)
    # No capability is missing, and nothing blocked the event loop. What a test asks for wrongly is refused by HTTP.
    assert [text for text in server.complaints() if not re.match(r"(GET|POST|DELETE) \S+ 4\d\d ", text)] == []


@pytest.fixture
async def client(server: AgentServer) -> AsyncIterator[LangGraphClient]:
    """The official SDK, as Studio uses its JavaScript twin."""
    async with get_client(url=server.url, api_key=None) as client:
        yield client


@pytest.fixture
async def thread(client: LangGraphClient) -> str:
    """A new thread of Eve's."""
    created = await client.threads.create(metadata={"user_id": "eve"})
    return str(created["thread_id"])


def texts(state: Any) -> list[str]:
    """What was said, without the model's wishes."""
    return [said["content"] for said in state["messages"] if said["content"]]


async def run(client: LangGraphClient, thread: str, input: Any = None, **options: Any) -> Any:
    """Run to the end, or to the next question."""
    return await client.runs.wait(thread, GRAPH, input=input, raise_error=True, **options)


async def head(client: LangGraphClient, thread: str) -> Any:
    """The newest state."""
    return await client.threads.get_state(thread)


def rows(connection: psycopg.Connection, place: str, thread: str) -> dict[str, int]:
    """Rows of a thread, by table; only tables that have some."""
    tables = connection.execute(
        "SELECT DISTINCT table_name FROM information_schema.columns JOIN information_schema.tables "
        "USING (table_schema, table_name) WHERE table_schema = %s AND column_name = 'thread_id' "
        "AND table_type = 'BASE TABLE'",
        [place],
    ).fetchall()
    counts = {
        name: connection.execute(f"SELECT count(*) FROM {place}.{name} WHERE thread_id = %s", [thread]).fetchone()[0]  # type: ignore[index]
        for (name,) in tables
    }
    return {name: count for name, count in counts.items() if count}


async def test_graph_and_schemas(client: LangGraphClient) -> None:
    [assistant] = await client.assistants.search(graph_id=GRAPH)
    schemas = await client.assistants.get_schemas(assistant["assistant_id"])
    assert set(schemas["state_schema"]["properties"]) == {"messages", "booking"}  # type: ignore[index]
    assert "pace" in schemas["context_schema"]["properties"]  # type: ignore[index]
    drawn = await client.assistants.get_graph(assistant["assistant_id"], xray=True)
    assert {"agent", "search", "booking:confirm"} <= {node["id"] for node in drawn["nodes"]}
    assert list(await client.assistants.get_subgraphs(assistant["assistant_id"])) == ["booking"]


async def test_threads_are_created_and_searched(client: LangGraphClient) -> None:
    customer = uuid4().hex
    made = [await client.threads.create(metadata={"customer": customer, "number": number}) for number in range(3)]
    found = await client.threads.search(metadata={"customer": customer}, limit=2)
    assert len(found) == 2
    assert await client.threads.count(metadata={"customer": customer}) == 3
    await run(client, made[0]["thread_id"], SEARCH)
    await run(client, made[1]["thread_id"], BOOK)
    for status, number in (("idle", 0), ("interrupted", 1)):
        # A thread that was never run is idle, too.
        ids = [one["thread_id"] for one in await client.threads.search(metadata={"customer": customer}, status=status)]
        assert made[number]["thread_id"] in ids
    await client.threads.update(made[2]["thread_id"], metadata={"number": 7})
    assert (await client.threads.get(made[2]["thread_id"]))["metadata"]["number"] == 7


async def test_a_run_is_streamed(client: LangGraphClient, thread: str) -> None:
    events: dict[str, list[Any]] = {}
    modes: Any = ["values", "updates", "messages-tuple", "checkpoints", "tasks", "debug"]
    async for part in client.runs.stream(thread, GRAPH, input=SEARCH, stream_mode=modes, stream_subgraphs=True):
        events.setdefault(part.event, []).append(part.data)
    assert not any("error" in name for name in events)
    words = [message["content"] for message, _ in events["messages"] if message["type"] == "AIMessageChunk"]
    assert "".join(words).endswith("What else can I do for you?")
    assert texts(events["values"][-1])[-1] == "".join(words)
    assert [next(iter(update)) for update in events["updates"]] == ["agent", "search", "agent"]
    [done] = await client.runs.list(thread)
    assert done["status"] == "success"
    assert texts((await head(client, thread))["values"]) == texts(events["values"][-1])


async def test_a_run_in_the_background_is_joined(client: LangGraphClient, thread: str) -> None:
    begun = await client.runs.create(thread, GRAPH, input=SEARCH)
    state: Any = await client.runs.join(thread, begun["run_id"])
    assert texts(state) == texts((await head(client, thread))["values"])


async def test_state_and_history(client: LangGraphClient, thread: str) -> None:
    await run(client, thread, SEARCH)
    await run(client, thread, HELLO)
    history = await client.threads.get_history(thread, limit=50)
    assert [one["next"] for one in history] == [
        *([], ["agent"], ["__start__"]),
        *([], ["agent"], ["search"], ["agent"], ["__start__"]),
    ]
    for one, parent in pairwise(history):
        assert one["parent_checkpoint"]["checkpoint_id"] == parent["checkpoint"]["checkpoint_id"]
    assert history[-1]["parent_checkpoint"] is None
    assert {"run_id", "graph_id", "user_id"} <= set(history[0]["metadata"])  # type: ignore[arg-type]
    assert "langgraph_request_id" not in history[0]["metadata"]  # type: ignore[operator]
    page = await client.threads.get_history(thread, limit=2, before=history[1]["checkpoint"])
    assert [one["checkpoint"] for one in page] == [one["checkpoint"] for one in history[2:4]]
    inputs = await client.threads.get_history(thread, metadata={"source": "input"}, limit=50)
    assert [one["checkpoint"] for one in inputs] == [history[2]["checkpoint"], history[7]["checkpoint"]]
    for one in history:
        again = await client.threads.get_state(thread, checkpoint=one["checkpoint"])
        assert (again["values"], again["next"]) == (one["values"], one["next"])


async def test_state_is_edited_at_a_past_checkpoint_and_run_on(client: LangGraphClient, thread: str) -> None:
    await run(client, thread, SEARCH)
    before = await client.threads.get_history(thread, limit=50)
    past = before[-2]
    assert past["next"] == ["agent"]
    edited = {"messages": [{"role": "user", "id": past["values"]["messages"][0]["id"], "content": "One in Oslo."}]}
    answer = await client.threads.update_state(thread, edited, checkpoint=past["checkpoint"])
    assert (await head(client, thread))["checkpoint"]["checkpoint_id"] == answer["checkpoint"]["checkpoint_id"]
    final = await run(client, thread, checkpoint=answer["checkpoint"])
    assert texts(final)[0] == "One in Oslo."
    assert "Fjord" in texts(final)[-1]
    # The other branch is as it was.
    for one in before:
        again = await client.threads.get_state(thread, checkpoint=one["checkpoint"])
        assert (again["values"], again["next"]) == (one["values"], one["next"])
    history = await client.threads.get_history(thread, limit=50)
    parents = [one["parent_checkpoint"] and one["parent_checkpoint"]["checkpoint_id"] for one in history]
    assert parents.count(past["checkpoint"]["checkpoint_id"]) == 2


async def test_a_node_is_updated_as_if_it_had_run(client: LangGraphClient, thread: str) -> None:
    await run(client, thread, HELLO)
    said = {"messages": [{"role": "assistant", "content": "Somebody said this for the model."}]}
    await client.threads.update_state(thread, said, as_node="agent")
    state = await head(client, thread)
    assert (state["next"], texts(state["values"])[-1]) == ([], "Somebody said this for the model.")


async def test_replay(
    client: LangGraphClient, thread: str, connection: psycopg.Connection, place: str, server: AgentServer
) -> None:
    final = await run(client, thread, SEARCH)
    history = await client.threads.get_history(thread, limit=50)
    [before_search] = [one for one in history if one["next"] == ["search"]]
    again = await run(client, thread, checkpoint_id=before_search["checkpoint"]["checkpoint_id"])
    assert texts(again) == texts(final)
    # The tool's recorded result was used.
    found = connection.execute(
        f"SELECT tool, attempt, status FROM {place}.tool_executions WHERE thread_id = %s", [thread]
    ).fetchall()
    assert found == [("find_hotels", 1, "success")]


async def test_interrupt_and_resume(client: LangGraphClient, thread: str) -> None:
    asked = await run(client, thread, BOOK)
    [question] = asked["__interrupt__"]
    assert question["value"]["question"] == "Book the Astoria for 180 euros?"
    found = await client.threads.get(thread)
    assert found["status"] == "interrupted"
    [[waiting]] = found["interrupts"].values()
    assert waiting["value"] == question["value"]
    final = await run(client, thread, command={"resume": "yes"})
    assert final["booking"] == {"hotel": "Astoria", "euros": 180, "status": "approved"}
    assert (await client.threads.get(thread))["status"] == "idle"


async def test_a_question_is_answered_differently_on_a_branch(client: LangGraphClient, thread: str) -> None:
    await run(client, thread, BOOK)
    asked = (await head(client, thread))["checkpoint"]
    booked = await run(client, thread, command={"resume": "yes"})
    first = (await head(client, thread))["checkpoint"]
    # Resumed from there as it is, LangGraph goes on with the subgraph as it is now, on any saver. So it is forked.
    fork: Any = await client.threads.update_state(thread, None, checkpoint=asked)
    again = await run(client, thread, checkpoint=fork["checkpoint"])
    assert again["__interrupt__"][0]["value"]["question"] == "Book the Astoria for 180 euros?"
    declined = await run(client, thread, command={"resume": "no"})
    assert (booked["booking"]["status"], declined["booking"]["status"]) == ("approved", "declined")
    assert texts(declined)[-1].startswith("The Astoria was not booked.")
    assert (await client.threads.get_state(thread, checkpoint=first))["values"]["booking"]["status"] == "approved"


async def test_stopping_before_a_node(client: LangGraphClient, thread: str) -> None:
    await run(client, thread, SEARCH, interrupt_before=["search"])
    assert (await head(client, thread))["next"] == ["search"]
    final = await run(client, thread)
    assert "Astoria at 180 euros" in texts(final)[-1]


async def test_subgraph_state(client: LangGraphClient, thread: str) -> None:
    await run(client, thread, BOOK)
    state = await client.threads.get_state(thread, subgraphs=True)
    inner: Any = state["tasks"][0]["state"]
    assert inner["next"] == ["confirm"]
    assert inner["values"]["booking"]["euros"] == 180
    alone = await client.threads.get_state(thread, checkpoint=inner["checkpoint"])
    assert alone["values"] == inner["values"]
    history = await client.threads.get_history(
        thread, limit=10, checkpoint={"checkpoint_ns": inner["checkpoint"]["checkpoint_ns"]}
    )
    assert [one["next"] for one in history] == [["confirm"], ["quote"], ["__start__"]]
    # As Studio does it: the state inside of the subgraph is edited, and the run goes on with it.
    cheaper = {"booking": {**inner["values"]["booking"], "euros": 99}}
    await client.threads.update_state(thread, cheaper, checkpoint=inner["checkpoint"])
    again = await run(client, thread)
    assert again["__interrupt__"][0]["value"]["question"] == "Book the Astoria for 99 euros?"
    final = await run(client, thread, command={"resume": "yes"})
    assert final["booking"] == {"hotel": "Astoria", "euros": 99, "status": "approved"}


async def test_copy(client: LangGraphClient, thread: str, connection: psycopg.Connection, place: str) -> None:
    await run(client, thread, BOOK)
    original = await client.threads.get_history(thread, limit=50)
    copy = str((await client.threads.copy(thread))["thread_id"])  # type: ignore[index]
    copied = await client.threads.get_history(copy, limit=50)
    assert [one["values"] for one in copied] == [one["values"] for one in original]
    assert [one["checkpoint"]["checkpoint_id"] for one in copied] == [
        one["checkpoint"]["checkpoint_id"] for one in original
    ]
    await client.threads.delete(thread)
    final = await run(client, copy, command={"resume": "yes"})
    assert final["booking"]["status"] == "approved"
    assert rows(connection, place, thread) == {}


async def test_prune(
    client: LangGraphClient, thread: str, connection: psycopg.Connection, place: str, dsn: str
) -> None:
    other = str((await client.threads.create())["thread_id"])
    for one in (thread, other):
        await run(client, one, BOOK)
    # langgraph dev refuses the strategy that keeps the latest, whatever the saver can do.
    with pytest.raises(UnprocessableEntityError):
        await client.threads.prune([thread], strategy="keep_latest")
    async with open_saver(AsyncPGStateSaver, dsn, place, setup=False) as saver:
        assert (await saver.aprune([thread], strategy="keep_latest")).checkpoints
    assert len(await client.threads.get_history(thread, limit=50)) == 1
    assert (await run(client, thread, command={"resume": "yes"}))["booking"]["status"] == "approved"
    assert (await client.threads.prune([thread, other]))["pruned_count"] == 2
    assert rows(connection, place, thread) == rows(connection, place, other) == {}


async def test_delete(client: LangGraphClient, thread: str, connection: psycopg.Connection, place: str) -> None:
    await run(client, thread, BOOK)
    move_journal(connection, place)
    assert {"threads", "checkpoints", "writes", "runs", "spans", "events", "messages"} <= {
        name.partition("_2")[0].removesuffix("_default") for name in rows(connection, place, thread)
    }
    await client.threads.delete(thread)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread)
    assert rows(connection, place, thread) == {}


async def test_a_run_without_a_thread_leaves_nothing(
    client: LangGraphClient, connection: psycopg.Connection, place: str
) -> None:
    before = connection.execute(f"SELECT count(*) FROM {place}.checkpoints").fetchone()
    state: Any = await client.runs.wait(None, GRAPH, input=SEARCH, raise_error=True)
    assert "Astoria" in texts(state)[-1]
    assert connection.execute(f"SELECT count(*) FROM {place}.checkpoints").fetchone() == before


async def begun(client: LangGraphClient, thread: str) -> str:
    """A run that is being answered slowly, once its first checkpoint is there."""
    created = await client.runs.create(thread, GRAPH, input=HELLO, context=SLOW)
    async with asyncio.timeout(30):
        while not (await client.threads.get_history(thread, limit=1)):
            await asyncio.sleep(0.02)
    return str(created["run_id"])


async def test_a_second_message_is_rejected(client: LangGraphClient, thread: str) -> None:
    first = await begun(client, thread)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await run(client, thread, SEARCH, multitask_strategy="reject")
    assert refused.value.response.status_code == 409
    await client.runs.cancel(thread, first, wait=True)


async def test_a_second_message_waits(client: LangGraphClient, thread: str) -> None:
    first = await client.runs.create(thread, GRAPH, input=HELLO, context={"pace": 0.05})
    final = await run(client, thread, SEARCH, multitask_strategy="enqueue")
    assert [said[:7] for said in texts(final)] == ["Hello", "I know ", "A hotel", "Astoria", "Astoria"]
    assert (await client.runs.get(thread, first["run_id"]))["status"] == "success"


async def test_a_second_message_interrupts(client: LangGraphClient, thread: str) -> None:
    first = await begun(client, thread)
    final = await run(client, thread, SEARCH, multitask_strategy="interrupt")
    # The first run's message stays, its answer never came.
    assert [said[:7] for said in texts(final)] == ["Hello", "A hotel", "Astoria", "Astoria"]
    assert (await client.runs.get(thread, first))["status"] == "interrupted"


async def test_a_second_message_rolls_back(
    client: LangGraphClient, thread: str, connection: psycopg.Connection, place: str
) -> None:
    await run(client, thread, BOOK)
    await run(client, thread, command={"resume": "no"})
    kept = await client.threads.get_history(thread, limit=50)
    first = await begun(client, thread)
    final = await run(client, thread, SEARCH, multitask_strategy="rollback")
    assert "Hello" not in texts(final)
    history = await client.threads.get_history(thread, limit=50)
    assert [one["checkpoint"] for one in history[-len(kept) :]] == [one["checkpoint"] for one in kept]
    with pytest.raises(NotFoundError):
        await client.runs.get(thread, first)
    for table in ("checkpoints", "writes", "runs", "spans", "events"):
        found = connection.execute(f"SELECT count(*) FROM {place}.{table} WHERE run_id = %s", [first]).fetchone()
        assert (table, found) == (table, (0,))


async def test_a_run_is_cancelled_and_rolled_back(
    client: LangGraphClient, connection: psycopg.Connection, place: str
) -> None:
    """The server deletes for the run twice at once, and finds no run if its first deletion returns second."""
    for _ in range(6):
        one = str((await client.threads.create())["thread_id"])
        first = await begun(client, one)
        await client.runs.cancel(one, first, action="rollback", wait=False)
        async with asyncio.timeout(30):
            while await client.runs.list(one):
                await asyncio.sleep(0.02)
        found = connection.execute(f"SELECT count(*) FROM {place}.checkpoints WHERE run_id = %s", [first]).fetchone()
        assert found == (0,)


async def test_a_deleted_run_takes_its_checkpoints_along(
    client: LangGraphClient, thread: str, connection: psycopg.Connection, place: str
) -> None:
    await run(client, thread, HELLO)
    second = await client.runs.create(thread, GRAPH, input=SEARCH)
    await client.runs.join(thread, second["run_id"])
    await client.runs.delete(thread, second["run_id"])
    assert [said[:7] for said in texts((await head(client, thread))["values"])] == ["Hello", "I know "]
    query = f"SELECT count(*) FROM {place}.checkpoints WHERE run_id = %s"
    assert connection.execute(query, [second["run_id"]]).fetchone() == (0,)


async def test_the_trace_and_the_tools_are_there(
    client: LangGraphClient, thread: str, connection: psycopg.Connection, place: str
) -> None:
    await run(client, thread, SEARCH)
    await run(client, thread, BOOK)
    await run(client, thread, command={"resume": "yes"})
    known = [one["run_id"] for one in reversed(await client.runs.list(thread))]
    expected = zip(known, ("success", "interrupted", "success"), strict=True)
    assert ended(connection, place, thread) == [(run_id, status, GRAPH, "eve", None) for run_id, status in expected]
    spans = connection.execute(
        f"SELECT kind, name FROM {place}.spans WHERE thread_id = %s AND run_id = %s AND kind <> 'chain' "
        "ORDER BY started_at",
        [thread, known[2]],
    ).fetchall()
    assert spans == [
        ("graph", "travel"),
        ("node", "booking"),
        ("graph", "booking"),
        ("node", "confirm"),
        ("node", "book"),
        ("tool", "book_hotel"),
        ("node", "agent"),
        ("llm", "Script"),
    ]
    tools = connection.execute(
        f"SELECT tool, status, run_id FROM {place}.tool_executions WHERE thread_id = %s ORDER BY started_at", [thread]
    ).fetchall()
    assert tools == [("find_hotels", "success", known[0]), ("book_hotel", "success", known[2])]
    kinds = connection.execute(
        f"SELECT kind FROM {place}.events WHERE thread_id = %s AND kind IN ('interrupt', 'resume')", [thread]
    ).fetchall()
    assert sorted({kind for (kind,) in kinds}) == ["interrupt", "resume"]
    owner = connection.execute(
        f"SELECT user_id, agent, status FROM {place}.threads WHERE thread_id = %s", [thread]
    ).fetchone()
    assert owner == ("eve", GRAPH, "idle")
    said = connection.execute(
        f"SELECT content FROM {place}.conversations WHERE thread_id = %s ORDER BY number", [thread]
    )
    values = (await head(client, thread))["values"]
    assert [text for (text,) in said.fetchall()] == [one["content"] for one in values["messages"]]


async def test_many_threads_at_once(client: LangGraphClient) -> None:
    made = [str((await client.threads.create())["thread_id"]) for _ in range(8)]
    answers = await asyncio.gather(*(run(client, one, SEARCH) for one in made))
    assert {tuple(texts(answer)) for answer in answers} == {tuple(texts(answers[0]))}
