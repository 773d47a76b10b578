"""Threads and their states, by LangGraph's client."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, BadRequestError, ConflictError, NotFoundError, UnprocessableEntityError
from support.http import ANSWER, HELLO, chat, http, sdk, serving
from support.pages import statements

from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.server import AgentServer


async def test_a_thread_is_created_once(client: LangGraphClient) -> None:
    made = await client.threads.create(thread_id="mine", metadata={"topic": "travel"}, graph_id="chat")
    assert made["metadata"] == {"topic": "travel", "graph_id": "chat"}
    assert (made["status"], made["values"], made["interrupts"]) == ("idle", None, {})
    with pytest.raises(ConflictError):
        await client.threads.create(thread_id="mine")
    assert await client.threads.create(thread_id="mine", if_exists="do_nothing") == made
    assert await client.threads.get("mine") == made
    with pytest.raises(NotFoundError):
        await client.threads.get("yours")


async def test_metadata_are_merged(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t", metadata={"a": 1, "b": {"c": 1}})
    updated = await client.threads.update("t", metadata={"b": {"d": 2}, "e": "2"})
    assert updated["metadata"] == {"a": 1, "b": {"d": 2}, "e": "2"}
    assert await client.threads.update("t", metadata={"a": 2}, return_minimal=True) is None
    assert (await client.threads.get("t"))["metadata"]["a"] == 2
    with pytest.raises(NotFoundError):
        await client.threads.update("none", metadata={})


async def test_threads_expire(client: LangGraphClient, server: AgentServer) -> None:
    await client.threads.create(thread_id="t", ttl=1)
    found: Any = await client.threads.get("t", include=["ttl"])
    first = datetime.fromisoformat(found["ttl"]["expires_at"])
    await client.threads.update("t", metadata={}, ttl=60)
    found = await client.threads.get("t", include=["ttl"])
    assert (datetime.fromisoformat(found["ttl"]["expires_at"]) - first).total_seconds() > 50 * 60
    assert found["ttl"]["strategy"] == "delete"
    await client.threads.update("t", metadata={}, ttl={"ttl": 60, "strategy": "keep_latest"})
    found = await client.threads.get("t", include=["ttl"])
    assert found["ttl"]["strategy"] == "keep_latest"
    await client.threads.create(thread_id="other", ttl={"ttl": 60, "strategy": "keep_latest"})
    found = await client.threads.get("other", include=["ttl"])
    assert found["ttl"]["strategy"] == "keep_latest"


async def test_threads_are_searched_and_counted(client: LangGraphClient) -> None:
    for number in range(5):
        await client.threads.create(thread_id=f"t{number}", metadata={"number": number, "even": number % 2 == 0})

    async def found(**filters: Any) -> list[str]:
        return [thread["thread_id"] for thread in await client.threads.search(**filters)]

    assert await found(metadata={"even": True}, sort_by="thread_id", sort_order="asc") == ["t0", "t2", "t4"]
    assert await found(sort_by="created_at", limit=2, offset=1) == ["t3", "t2"]
    assert await found(sort_by="created_at", sort_order="asc", limit=2) == ["t0", "t1"]
    assert await found(sort_by="thread_id", limit=1) == ["t4"]
    assert await found(ids=["t3", "t9"]) == ["t3"]
    assert await found(status="busy") == []
    assert await client.threads.search(ids=["t1"], select=["metadata"]) == [{"metadata": {"number": 1, "even": False}}]
    assert await client.threads.count() == 5
    assert await client.threads.count(metadata={"even": True}) == 3


async def test_a_page_says_where_the_next_one_begins(server: AgentServer) -> None:
    async with sdk(server) as client:
        for _ in range(3):
            await client.threads.create()
        first = await client.http.client.post("/threads/search", json={"limit": 2})
        last = await client.http.client.post("/threads/search", json={"limit": 2, "offset": 2})
    assert (first.headers["X-Pagination-Next"], first.headers["X-Pagination-Total"]) == ("2", "3")
    assert "X-Pagination-Next" not in last.headers
    assert last.headers["X-Pagination-Total"] == "3"


async def test_a_thread_without_a_run_has_an_empty_state(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    state = await client.threads.get_state("t")
    assert (state["values"], state["next"], state["tasks"], state["interrupts"]) == ({}, [], [], [])
    assert await client.threads.get_history("t") == []
    with pytest.raises(BadRequestError, match="has no graph"):
        await client.threads.update_state("t", {"count": 1})


async def test_states_are_read_at_every_checkpoint(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    await client.runs.wait("t", "chat", input=HELLO)
    newest, middle, first = await client.threads.get_history("t")
    assert [len(state["values"]["messages"]) for state in (newest, middle, first)] == [2, 1, 0]  # type: ignore[call-overload]
    assert (middle["next"], middle["tasks"][0]["name"], newest["next"]) == (["speak"], "speak", [])
    assert newest["parent_checkpoint"] == middle["checkpoint"]
    assert await client.threads.get_state("t") == newest
    assert await client.threads.get_state("t", checkpoint=middle["checkpoint"]) == middle
    by_id = await client.threads.get_state("t", checkpoint_id=middle["checkpoint"]["checkpoint_id"] or "")
    assert by_id["values"] == middle["values"]
    assert await client.threads.get_history("t", limit=1) == [newest]
    assert await client.threads.get_history("t", before=newest["checkpoint"]) == [middle, first]
    assert await client.threads.get_history("t", before=middle["checkpoint"]["checkpoint_id"]) == [first]
    assert await client.threads.get_history("t", before={"configurable": middle["checkpoint"]}) == [first]
    with pytest.raises(UnprocessableEntityError, match="checkpoint_id"):
        await client.threads.get_history("t", before={"configurable": {}})
    assert await client.threads.get_history("t", metadata={"source": "input"}) == [first]
    assert await client.threads.get_state("t", select=["next", "values.messages"]) == {
        "next": [],
        "values": newest["values"],
    }


async def test_a_past_state_is_changed_and_run_on_from(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    await client.runs.wait("t", "chat", input=HELLO)
    head, middle, _ = await client.threads.get_history("t")
    other = {"messages": [{"role": "user", "content": "Bye.", "id": "bye"}]}
    updated = await client.threads.update_state("t", other, checkpoint=middle["checkpoint"], as_node="__start__")
    assert updated["checkpoint"]["checkpoint_id"] != head["checkpoint"]["checkpoint_id"]
    values: Any = await client.runs.wait("t", "chat", input=None, checkpoint=updated["checkpoint"])
    assert [message["content"] for message in values["messages"]][:2] == ["Hello.", "Bye."]
    with pytest.raises(BadRequestError):
        await client.threads.update_state("t", other, as_node="nobody")


async def test_a_busy_thread_is_not_changed(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    run = await client.runs.create("t", "slow", input={"count": 1000})
    with pytest.raises(ConflictError, match="busy"):
        await client.threads.update_state("t", {"count": 1})
    await client.runs.cancel("t", run["run_id"], wait=True)


async def test_a_copy_outlives_its_source(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t", metadata={"topic": "travel"})
    await client.runs.wait("t", "chat", input=HELLO)
    state = await client.threads.get_state("t")
    copy: Any = await client.threads.copy("t")
    await client.threads.delete("t")
    with pytest.raises(NotFoundError):
        await client.threads.delete("t")
    assert copy["metadata"]["topic"] == "travel"
    assert (await client.threads.get_state(copy["thread_id"]))["values"] == state["values"]


async def test_threads_are_pruned(client: LangGraphClient, server: AgentServer) -> None:
    for id in ("a", "b"):
        await client.threads.create(thread_id=id)
        await client.runs.wait(id, "chat", input=HELLO)
    assert await client.threads.prune(["a", "none"], strategy="keep_latest") == {"pruned_count": 1}
    assert len(await client.threads.get_history("a")) == 1
    assert len(await client.threads.get_history("b")) == 3
    threads = server.service.state.threads
    await threads.hold("b", "case 7", by="ada")
    assert await client.threads.prune(["a", "b"]) == {"pruned_count": 1}
    await threads.release("b", "case 7", by="ada")
    assert await client.threads.prune(["b"]) == {"pruned_count": 1}
    assert await client.threads.count() == 0


async def test_a_thread_is_created_with_a_state(client: LangGraphClient) -> None:
    steps: Any = [
        {"updates": [{"values": HELLO, "as_node": "__start__"}]},
        {"updates": [{"values": {"messages": [{"role": "ai", "content": "Hi."}]}, "as_node": "speak"}]},
    ]
    made = await client.threads.create(graph_id="chat", supersteps=steps)
    assert [message["content"] for message in made["values"]["messages"]] == ["Hello.", "Hi."]  # type: ignore[index]
    assert made["status"] == "idle"


async def test_an_update_of_no_subgraph_and_a_filter_of_no_text_are_refused(
    client: LangGraphClient, server: AgentServer
) -> None:
    await client.threads.create(thread_id="t", graph_id="asking")
    update = {"values": {"count": 1}, "checkpoint": {"checkpoint_ns": "nobody"}}
    with pytest.raises(UnprocessableEntityError, match="nobody not found"):
        await client.http.post("/threads/t/state", json=update)
    async with http(server, {"content-type": "application/json"}) as raw:
        refused = await raw.post("/threads/t/history", content='{"metadata": {"\\ud800": 1}}')
        assert (refused.status_code, "surrogate" in refused.text) == (422, True)


@pytest.mark.parametrize("graph", ["chat", "none"])
async def test_a_thread_whose_state_is_refused_is_not_created(client: LangGraphClient, graph: str) -> None:
    """The corrected request has the same id."""
    steps: Any = [
        {"updates": [{"values": HELLO, "as_node": "__start__"}]},
        {"updates": [{"values": HELLO, "as_node": "of nobody"}]},
    ]
    with pytest.raises(BadRequestError):
        await client.threads.create(thread_id="t", graph_id=graph, supersteps=steps)
    assert await client.threads.count() == 0
    made = await client.threads.create(thread_id="t", graph_id="chat", supersteps=steps[:1])
    assert [message["content"] for message in made["values"]["messages"]] == ["Hello."]  # type: ignore[index]
    with pytest.raises(BadRequestError):
        await client.threads.create(thread_id="t", if_exists="do_nothing", supersteps=steps[1:])
    assert await client.threads.count() == 1


async def test_a_thread_that_is_created_before_a_node_waits(client: LangGraphClient) -> None:
    steps: Any = [{"updates": [{"values": {"count": 1}, "as_node": "__start__"}]}]
    made = await client.threads.create(graph_id="asking", supersteps=steps)
    assert made["status"] == (await client.threads.get(made["thread_id"]))["status"] == "interrupted"


async def test_the_late_record_of_a_run_does_not_undo_the_status_of_an_update(
    client: LangGraphClient, server: AgentServer
) -> None:
    await client.threads.create(thread_id="t")
    await client.runs.wait("t", "asking", input={"count": 0})
    await client.threads.update_state("t", {"answer": "yes"}, as_node="approval")
    assert server.service is not None
    state = server.service.state
    await state._database.run(refresh, queries(state.schema))
    assert (await client.threads.get("t"))["status"] == "idle"
    # A run after it counts.
    await client.runs.wait("t", "asking", input={"count": 0})
    await state._database.run(refresh, queries(state.schema))
    assert (await client.threads.get("t"))["status"] == "interrupted"


async def refresh(db: Any, named: Any) -> None:
    await db.execute(named.refresh_thread_statuses, {"thread_ids": ["t"]})


async def test_a_thread_shows_its_interrupts_and_its_error(client: LangGraphClient) -> None:
    for id in ("a", "b"):
        await client.threads.create(thread_id=id)
    await client.runs.wait("a", "asking", input={"count": 0})
    await client.runs.wait("b", "failing", input={}, raise_error=False)
    [asked] = await client.threads.search(status="interrupted")
    [interrupts] = asked["interrupts"].values()
    assert (asked["values"], interrupts[0]["value"]) == ({"count": 1}, {"question": "Go on?"})
    with_subgraphs = await client.threads.get_state("a", subgraphs=True)
    assert with_subgraphs["tasks"][0]["state"]["next"] == ["ask"]  # type: ignore[index]
    assert with_subgraphs["interrupts"] == interrupts
    inner = with_subgraphs["tasks"][0]["state"]["checkpoint"]  # type: ignore[index]
    assert (await client.threads.get_state("a", checkpoint=inner))["next"] == ["ask"]
    failed: Any = await client.threads.get("b")
    assert (failed["status"], failed["error"]) == ("error", {"error": "ValueError", "message": "no such hotel"})


async def test_many_threads_are_described_at_once(dsn: str, schema: str) -> None:
    """More than there are connections."""
    async with serving(dsn, schema) as server, sdk(server) as client:
        made = [client.threads.create(metadata={"n": n}, graph_id="chat") for n in range(30)]
        await asyncio.gather(*made)
        assert len(await client.threads.search(limit=100)) == 30


@pytest.mark.slow
async def test_one_statement_reads_the_states_of_a_page(client: LangGraphClient) -> None:
    for number in range(4):
        await client.threads.create(thread_id=f"t{number}")
        if number:
            await client.runs.wait(
                f"t{number}", "chat" if number == 1 else "asking", input=HELLO if number == 1 else {"count": 0}
            )
    alone = [await client.threads.get(f"t{number}") for number in range(4)]
    with statements() as sent:
        found = await client.threads.search(sort_by="thread_id", sort_order="asc")
    assert found == alone
    assert [name for name in sent if "checkpoint" in name] == ["get_latest_checkpoints"]
    with statements() as sent:
        await client.threads.search(select=["thread_id", "status"])
    assert not [name for name in sent if "checkpoint" in name]


async def test_a_thread_is_created_in_one_statement(client: LangGraphClient) -> None:
    with statements() as sent:
        await client.threads.create(thread_id="t", graph_id="chat")
    assert [name for name in sent if "thread" in name or "checkpoint" in name] == ["create_thread"]


async def test_what_is_invalid_is_refused_with_its_place(client: LangGraphClient) -> None:
    for path, body, place in (
        ("/threads/search", {"limit": 1001}, "limit"),
        ("/threads/search", {"status": "asleep"}, "status"),
        ("/threads", {"if_exists": "maybe"}, "if_exists"),
        ("/threads", {"ttl": {"ttl": -1}}, "ttl.ttl"),
        ("/threads", {"metadata": [1]}, "metadata"),
        ("/threads", [1], "dictionary"),
        ("/threads/search", {"select": ["zz"]}, "select"),
        ("/threads/t/history", {"select": ["zz"]}, "select"),
        ("/threads/t/state/checkpoint", {"checkpoint": {}, "select": ["metadata.step"]}, "select"),
        ("/assistants/search", {"select": ["zz"]}, "select"),
        ("/assistants", {"graph_id": "chat", "context": 7}, "context"),
        ("/runs/crons/search", {"select": ["zz"]}, "select"),
        ("/runs/crons", {"assistant_id": "chat", "schedule": "0 0 1 1 *", "context": [1]}, "context"),
        ("/runs/wait", {"assistant_id": "chat", "context": 7}, "context"),
    ):
        with pytest.raises(APIStatusError, match=place) as refused:
            await client.http.post(path, json=body)  # type: ignore[arg-type]
        assert refused.value.status_code == 422


async def test_what_is_invalid_in_a_query_is_refused(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    for path, name in (
        ("/threads/t/state", "select=zz"),
        ("/threads/t/state", "select=values,metadata.step"),
        ("/threads/t/runs", "select=run_id,zz"),
        ("/threads/t/runs", "select=values.a"),
        *(("/assistants/chat/graph", f"xray={given}") for given in ("zz", "-1", "0", "1.5")),
    ):
        with pytest.raises(UnprocessableEntityError, match=name.partition("=")[0]):
            await client.http.get(f"{path}?{name}")
    assert await client.http.get("/threads/t/state?select=values.a,next") == {"next": [], "values": {}}
    assert await client.http.get("/threads/t/runs?select=kwargs,run_id") == []


async def test_parts_of_threads_are_extracted(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t", metadata={"team": {"name": "sales"}})
    await client.runs.wait("t", "chat", input=HELLO)
    paths = {
        "last": "values.messages[-1].content",
        "first": "values.messages[0].type",
        "team": "metadata.team.name",
        "none": "values.messages[7].content",
        "nothing": "metadata.team[0].name",
    }
    (found,) = await client.threads.search(select=["thread_id"], extract=paths)
    told = {"last": ANSWER, "first": "human", "team": "sales", "none": None, "nothing": None}
    assert found == {"thread_id": "t", "extracted": told}
    for refused in ({"a": "values..b"}, {"a": "values[x]"}, {str(number): "values" for number in range(11)}):
        with pytest.raises(UnprocessableEntityError):
            await client.threads.search(extract=refused)


async def test_nul_is_taken_out_of_content_and_refused_elsewhere(client: LangGraphClient, server: AgentServer) -> None:
    """Without it, an id, a user or a tenant would be another's."""
    await client.threads.create(thread_id="t", metadata={"user_id": "ann"})
    for change in ({"thread_id": "t\0"}, {"metadata": {"user_id": "ann\0"}}, {"metadata": {"user_id\0": "ann"}}):
        with pytest.raises(UnprocessableEntityError, match="NUL"):
            await client.threads.create(if_exists="do_nothing", **change)
    with pytest.raises(UnprocessableEntityError, match="NUL"):
        await client.threads.get("t\0")
    config: Any = {"configurable": {"user_id": "ann\0"}}
    with pytest.raises(UnprocessableEntityError, match="NUL"):
        await client.runs.create("t", "chat", input={"messages": []}, config=config)
    found: Any = await client.runs.wait("t", "chat", input={"messages": [{"role": "user", "content": "a\0b"}]})
    assert found["messages"][0]["content"] == "ab"


async def test_threads_that_cannot_be_read_are_listed_without_values(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A factory that needs a key of the config, a graph whose types are not allowed, a damaged row."""

    def demanding(config: RunnableConfig) -> Any:
        if "tier" not in config["configurable"]:
            raise KeyError("tier")
        return chat()

    async with serving(dsn, schema, graphs={"chat": chat(), "demanding": demanding}) as server, sdk(server) as client:
        for thread_id in ("damaged", "good"):
            await client.runs.wait(thread_id, "chat", input=HELLO, if_not_exists="create")
        given: Any = {"configurable": {"tier": "gold"}}
        await client.runs.wait("built", "demanding", input=HELLO, config=given, if_not_exists="create")
        connection.execute(
            f"UPDATE {schema}.checkpoints SET state = '\\xff00', revision = revision + 1 WHERE thread_id = 'damaged'"
        )
        found = {one["thread_id"]: one for one in await client.threads.search()}
        assert found["good"]["values"]["messages"][-1]["content"] == ANSWER
        assert (found["built"]["values"], found["built"]["error"]) == (
            None,
            {"error": "KeyError", "message": "the values cannot be read: KeyError"},
        )
        assert found["damaged"]["values"] is None
        assert "the values cannot be read" in found["damaged"]["error"]["message"]


@pytest.mark.parametrize(("node", "status"), [("__end__", "idle"), ("approval", "idle"), ("count", "interrupted")])
async def test_a_thread_whose_state_is_changed_waits_if_nodes_are_next(
    client: LangGraphClient, node: str, status: str
) -> None:
    """So agent-inbox ignores an interrupt."""
    await client.threads.create(thread_id="t")
    await client.runs.wait("t", "asking", input={"count": 0})
    assert (await client.threads.get("t"))["status"] == "interrupted"
    await client.threads.update_state("t", {"count": 3} if node == "count" else None, as_node=node)
    assert (await client.threads.get("t"))["status"] == status
    assert len(await client.threads.search(status=status)) == 1


@pytest.mark.slow
async def test_states_are_filtered_by_nested_metadata_of_their_runs(client: LangGraphClient) -> None:
    await client.threads.create(thread_id="t")
    for number in range(4):
        metadata = {"order": {"city": "Prague", "nights": number % 2}, "tags": [number]}
        await client.runs.wait("t", "chat", input=HELLO, metadata=metadata)
    whole = await client.threads.get_history("t", limit=100)

    async def places(metadata: Any, **options: Any) -> list[int]:
        found = await client.threads.get_history("t", metadata=metadata, **{"limit": 100, **options})
        return [whole.index(state) for state in found]

    # Three states of a run each; newest first.
    assert await places({"order": {"city": "Prague", "nights": 0}}) == [3, 4, 5, 9, 10, 11]
    assert await places({"order": {"city": "Prague", "nights": 0}}, limit=4) == [3, 4, 5, 9]
    assert await places({"tags": [1], "source": "loop"}) == [6, 7]
    assert await places({"tags": [1]}, before=whole[7]["checkpoint"]) == [8]
    assert await places({"order": {"city": "Prague"}}) == []


@pytest.mark.slow
async def test_an_archived_thread_is_found_and_says_how_it_is_restored(
    client: LangGraphClient, server: AgentServer
) -> None:
    await client.threads.create(thread_id="t", metadata={"topic": "travel"}, graph_id="chat")
    await client.runs.wait("t", "chat", input=HELLO)
    values = (await client.threads.get_state("t"))["values"]
    assert server.service is not None
    archive = server.service.state.archive
    assert (await archive.put(["t"], to="memory://of-a-server", idle_for=timedelta(0))).threads == 1
    (found,) = await client.threads.search(metadata={"topic": "travel"})
    assert found == await client.threads.get("t")
    assert (found["values"], found["metadata"]["topic"]) == (None, "travel")
    told: Any = found
    assert "is archived since" in told["error"]["message"]
    for call in (
        lambda: client.threads.get_state("t"),
        lambda: client.threads.get_history("t"),
        lambda: client.threads.update_state("t", HELLO),
        lambda: client.runs.create("t", "chat", input=HELLO),
        lambda: client.threads.copy("t"),
        lambda: client.threads.delete("t"),
    ):
        with pytest.raises(ConflictError, match="restore it by `pgstate archive restore t`"):
            await call()
    assert (await archive.restore(["t"])).threads == 1
    assert (await client.threads.get_state("t"))["values"] == values
    await client.runs.wait("t", "chat", input=HELLO)
