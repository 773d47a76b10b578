"""The page of a thread."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Interrupt, Send
from langgraph_sdk import Auth
from support.http import failing
from support.pages import HOSTILE, forms_of, inspected, state_of, statements, travel, trip, visiting
from support.record import Record

from langgraph_pgstate import AsyncPGState, AsyncWorker
from langgraph_pgstate.errors import RunFailedError
from langgraph_pgstate.inspector.page import segment
from langgraph_pgstate.inspector.thread import VIEWS
from langgraph_pgstate.server.graphs import config_at
from langgraph_pgstate.threads.api import AsyncThreads

from .conftest import Place


@dataclasses.dataclass
class Secret:
    """A type of the application. Nobody who looks at a state builds it."""

    text: str

    def __post_init__(self) -> None:
        if self.text == "stored":
            raise AssertionError("it was built")


@pytest.mark.slow
async def test_a_fork_says_that_it_has_not_run_since_the_failure(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema, graphs={"failing": failing()}) as (server, visitor):
        state = state_of(server)
        graph = state.record(failing().copy({"checkpointer": state.saver}))
        await state.threads.create("t", agent="failing")
        with suppress(ValueError):
            await graph.ainvoke({"count": 1}, {"configurable": {"thread_id": "t"}})
        await state.flush()
        head = (await state.threads.tree("t")).nodes[0].checkpoint_id
        await state.threads.fork("t", head, "forked")
        old, not_run = "data-not-run", "This thread has not run since."
        assert old not in await visitor.page("/threads/t")
        with statements() as sent:
            page = await visitor.page("/threads/forked")
        assert len(sent) <= 5, sent
        assert "no such hotel" in page
        assert not_run in page
        assert '<a href="/ui/threads/t">t</a>, from before the fork' in page
        await visitor.introduce()
        edit_before = "Fork before it, and edit"
        assert edit_before in await visitor.page("/threads/t")
        assert edit_before not in await visitor.page("/threads/forked")
        await visitor.act("/threads/forked/run", at=head, head=head, mode="on")
        page = await visitor.page("/threads/forked")
        assert "a new run waits in the queue" in page
        assert not_run not in page
        async with AsyncWorker(state, {"failing": failing()}, poll=0.05):
            (run,) = (await state.runs.list(thread_id="forked")).items
            with suppress(RunFailedError):
                await state.runs.wait("forked", run.run_id, 30)
        page = await visitor.page("/threads/forked")
        assert "no such hotel" in page
        assert old not in page


async def put(state: AsyncPGState, thread_id: str, **values: Any) -> str:
    """A checkpoint with a state."""
    from support import put_arguments

    saved = await state.saver.aput(*put_arguments(config_at(thread_id, checkpoint_ns=""), 0, **values))
    return str(saved["configurable"]["checkpoint_id"])


async def test_the_conversation_and_what_waits(place: Place) -> None:
    server, visitor = place
    await travel(state_of(server), title="A trip")
    page = await visitor.page("/threads/t")
    for part in ("A trip", "<strong>Lisbon</strong>", "search", "found it", "Waits for an answer", "Book it?", "<svg"):
        assert part in page, part
    data = await visitor.data("/threads/t")
    assert [one["role"] for one in data["conversation"]["messages"]] == ["human", "ai", "tool"]
    assert (data["interrupts"][0]["question"], data["interrupts"][0]["value"]) == ("Book it?", None)
    assert [one["tasks"] for one in data["tree"]["nodes"]] == [["approve"], ["tools"], ["plan"], ["__start__"]]
    assert data["tree"]["nodes"][0]["pending"] == 1
    await state_of(server).interrupts.answer("t", "yes", by="Adam")
    page = await visitor.page("/threads/t")
    assert ("Waits for an answer" in page, "Answered by Adam: yes" in page) == (False, True)


async def test_what_was_answered_waits_no_more_and_can_run_on(place: Place) -> None:
    server, visitor = place
    await travel(state_of(server))
    await state_of(server).interrupts.answer("t", HOSTILE, by="Adam")
    page = await visitor.page("/threads/t")
    assert "Answered by Adam: &lt;script&gt;" in page
    assert '<span class="tag waits">answered</span>' in page
    assert "Waits for an answer" not in page
    assert "<script>alert" not in page
    assert 'data-does="Answer"' not in page
    form = 'name="mode" value="on"><button class="button primary">Run on</button>'
    assert form not in page
    await visitor.introduce()
    assert form in await visitor.page("/threads/t")


async def test_running_on_says_that_nothing_is_left_to_run(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await visitor.introduce()
    ended = "Nothing is left to run: the graph has ended here."
    assert ended not in await visitor.page("/threads/t")
    graph = trip().copy({"checkpointer": state.saver})
    await graph.ainvoke(Command(resume="yes"), config_at("t"))
    page = await visitor.page("/threads/t")
    assert ended in page
    assert '<button class="button">Run on</button>' in page
    # An older checkpoint is replayed.
    assert ended not in await visitor.page("/threads/t", at=ids[0])


async def test_the_newest_checkpoint_is_run_on_also_while_a_run_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, visitor = place
    state = state_of(server)
    await travel(state)
    await visitor.introduce()
    read = AsyncThreads.tree

    async def late(self: AsyncThreads, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(AsyncThreads, "tree", read)
        await trip().copy({"checkpointer": state.saver}).aupdate_state(config_at("t"), {"messages": []}, "plan")
        return await read(self, *arguments, **options)

    monkeypatch.setattr(AsyncThreads, "tree", late)
    page = await visitor.page("/threads/t")
    assert '<summary class="button">Run on</summary>' in page
    assert forms_of(page)["/threads/t/run"]["mode"] == "on"


async def test_what_was_settled_is_asked_no_more(place: Place, record: Record) -> None:
    server, visitor = place
    state = state_of(server)
    at = await put(state, "t")
    asked = Interrupt({"type": "tool_outcome_unknown", "question": "Did it?", "key": "k"}, id="i")
    config = config_at("t", checkpoint_ns="", checkpoint_id=at)
    await state.saver.aput_writes(config, [("__interrupt__", (asked,))], "task")
    record.execution("k", status="unknown", tool="pay")
    assert "Waits for an answer" in await visitor.page("/threads/t")
    await state.tools.settle("t", "k", "done", by="Adam")
    page = await visitor.page("/threads/t")
    assert "Settled: success" in page
    assert "Waits for an answer" not in page


async def test_any_checkpoint_has_its_state_and_changes(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    old = await visitor.data("/threads/t", at=ids[2], view="state")
    assert old["values"]["messages"]["parts"][0]["content"] == "A weekend in **Lisbon**."
    changes = await visitor.data("/threads/t", at=ids[0], view="changes")
    assert [(one["channel"], one["change"]) for one in changes["changes"]] == [("messages", "added")]
    assert changes["changes"][0]["place"] == "[2]"
    assert changes["to"] == ids[1]
    longer = await visitor.data("/threads/t", at=ids[0], view="changes", to=ids[2])
    assert len(longer["changes"]) == 2
    same = await visitor.page("/threads/t", at=ids[0], view="changes", to=ids[0])
    assert "The states are the same" in same
    first = await visitor.page("/threads/t", at=ids[-1], view="changes")
    assert "The first checkpoint has nothing before it" in first


async def test_a_message_in_the_state_says_which_tools_it_calls(place: Place) -> None:
    server, visitor = place
    await travel(state_of(server))
    page = await visitor.page("/threads/t", view="state")
    assert 'class="peek">→ search(city=&#34;Lisbon&#34;)' in page
    assert "message ai" not in page


async def test_of_an_edited_message_the_words_that_differ_are_marked(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    old = await put(state, "t", messages=[HumanMessage("A room for 2 in Lisbon <b>.", id="m")], odd="a\ud800b c d")
    new = await put(state, "t", messages=[HumanMessage("A room for 3 in Lisbon <b>.", id="m")], odd="a\ud800b c e")
    page = await visitor.page("/threads/t", view="changes", at=new, to=old)
    assert "A room for <del>2</del><ins>3</ins> in Lisbon &lt;b&gt;." in page
    assert page.count("in Lisbon") == 1
    assert "c <del>d</del><ins>e</ins>" in page


async def test_half_of_a_character_is_no_error(place: Place) -> None:
    server, visitor = place
    await put(state_of(server), "t", messages=[HumanMessage("Cut: \ud83d", id="m", name="\udc00")], odd="\ud800")
    for view in VIEWS:
        await visitor.page("/threads/t", view=view)
    assert "Cut: ?" in await visitor.page("/threads/t")


async def test_what_was_asked_is_told_by_its_calls(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    at = await put(state, "t", lines=["x" * 30] * 20)
    asked = Interrupt({"action_requests": [{"name": "pay", "args": {"amount": 5}}] * 15}, id="i")
    await state.saver.aput_writes(
        config_at("t", checkpoint_ns="", checkpoint_id=at), [("__interrupt__", (asked,))], "k"
    )
    page = await visitor.page("/threads/t", view="state")
    assert page.count('<p class="call" dir="auto">pay(amount=5)</p>') == 15
    # What is folded is all there, although its indented JSON is longer than what a text may be.
    assert "The first" not in page


async def test_what_led_to_a_checkpoint_and_who_did_what(place: Place, record: Record) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    origin = (await visitor.data("/threads/t", at=ids[0], view="origin"))["origin"]
    assert origin["run_status"] == "interrupted"
    assert len(origin["run_ids"]) == 1
    assert "interrupted run" not in await visitor.page("/threads/t", at=ids[0])
    record.connection.execute(f"UPDATE {record.schema}.events SET run_id = 'asks' WHERE kind = 'interrupt'")
    page = await visitor.page("/threads/t", at=ids[0], view="origin")
    assert page.count('href="/ui/runs/t/asks"') == 2
    assert "asks" not in await visitor.page("/threads/t", at=ids[1], view="origin")
    assert {span["name"] for span in origin["spans"]} >= {"tools"}
    events = (await visitor.data("/threads/t", view="events"))["events"]
    assert [one["kind"] for one in events][-1] == "status"
    assert "interrupt" in {one["kind"] for one in events}
    only = (await visitor.data("/threads/t", view="events", kind="interrupt"))["events"]
    assert {one["kind"] for one in only} == {"interrupt"}


async def test_what_led_to_an_error_leads_to_the_decision_it_waits_for(place: Place, record: Record) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    record.execution("k", status="unknown", tool="pay")
    assert "did pay" not in await visitor.page("/threads/t", at=ids[0], view="origin")
    failed = "UPDATE {}.runs SET status = 'error', error_type = 'a.ToolOutcomeUnknownError', error_message = 'pay'"
    record.connection.execute(failed.format(record.schema))
    page = await visitor.page("/threads/t", at=ids[0], view="origin")
    assert '<a class="button" href="/ui/tools/t/k">Settle: did pay take effect?</a>' in page


async def sends(state: AsyncPGState, thread_id: str) -> Any:
    """A recorded graph that has sent a task."""
    builder = StateGraph(MessagesState)
    builder.add_node("plan", lambda _: {})
    builder.add_node("work", lambda _: {"messages": ["done"]})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda _: [Send("work", {})], ["work"])
    graph = state.record(builder.compile(checkpointer=state.saver))
    await graph.ainvoke({"messages": ["hello"]}, config_at(thread_id, checkpoint_ns=""))
    return graph


async def test_a_fork_shows_nothing_of_a_source_of_somebody_else(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        return {"identity": "vera", "permissions": ["pages:read", "pages:act"]}

    @auth.on.threads
    async def of_team(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        if value.get("thread_id") == "refused":
            raise Auth.exceptions.HTTPException(403)
        return {"team": "red"}

    async with inspected(dsn, schema, auth=auth) as (server, _):
        state = state_of(server)
        for source in ("blue", "refused"):
            await sends(state, source)
            await state.flush()
            head = (await state.threads.tree(source)).nodes[0].checkpoint_id
            await state.threads.fork(source, head, f"of-{source}")
            await state.threads.update_metadata(f"of-{source}", {"team": "red"})
            async with visiting(server, {"authorization": "vera"}, "10.0.0.7", "pages.example.com") as visitor:
                page = await visitor.page(f"/threads/of-{source}", notice="thread.fork")
            assert "1 sent" in page


async def test_a_fork_names_copied_nodes_and_counts_costs_since_then(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    graph = await sends(state, "t")
    await state.flush()
    head = (await state.threads.tree("t")).nodes[0].checkpoint_id
    await state.threads.fork("t", head, "forked")
    page = await visitor.page("/threads/forked", view="origin")
    assert '<span class="made">work</span>' in page
    assert "1 sent" not in page
    assert "This checkpoint is from before the fork" in page
    # What ran after the fork is the fork's own.
    at = config_at("forked", checkpoint_ns="", checkpoint_id=head)
    await state.saver.aput_writes(at, [("messages", "other")], "task", "~__pregel_pull, other")
    nodes = (await visitor.data("/threads/forked"))["tree"]["nodes"]
    assert [node["tasks"] for node in nodes[:2]] == [["other"], ["work"]]
    await graph.ainvoke({"messages": ["again"]}, config_at("forked", checkpoint_ns=""))
    await state.flush()
    # The runs before the fork are those of the source.
    assert "Cost of the branch since the fork" in await visitor.page("/threads/forked", view="origin")
    assert "since the fork" not in await visitor.page("/threads/t", view="origin")


async def test_no_page_needs_more_than_five_statements(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    for view in VIEWS:
        for at in (None, ids[1]):
            query = {"view": view} | ({} if at is None else {"at": at})
            await visitor.page("/threads/t", **query)
            with statements() as names:
                await visitor.page("/threads/t", **query)
            assert len([name for name in names if name != "find_entries"]) <= 5, (view, names)


@pytest.mark.slow
async def test_a_large_value_shows_its_beginning_and_is_answered_whole(place: Place) -> None:
    server, visitor = place
    at = await put(state_of(server), "t", blob={"text": "ä" * 5_000_000}, messages=[HumanMessage("x" * 10_000)])
    page = await visitor.page("/threads/t", view="state")
    assert "The whole value" in page
    assert len(page) < 60_000
    response = await visitor.client.get("/ui/threads/t/value", params={"at": at, "channel": "blob"})
    assert response.json() == {"text": "ä" * 5_000_000}
    assert response.headers["content-disposition"].startswith("attachment")
    item = await visitor.client.get("/ui/threads/t/value", params={"channel": "messages", "item": "0"})
    assert item.json()["content"] == "x" * 10_000
    assert "The whole message" in await visitor.page("/threads/t")
    for query in ({"channel": "none"}, {"channel": "messages", "item": "9"}, {"channel": "blob", "item": "0"}):
        assert (await visitor.client.get("/ui/threads/t/value", params=query)).status_code == 404


async def test_a_page_stays_small_whatever_the_state_is(place: Place) -> None:
    server, visitor = place
    quotes = [HumanMessage('"' * 3000 + f"{number}") for number in range(100)]
    channels: Any = {f"channel-{number}": ["<" * 40] * 90 for number in range(60)}
    await put(state_of(server), "t", messages=quotes, **channels)
    for view in VIEWS:
        # `page` checks the size.
        await visitor.page("/threads/t", view=view)


async def test_types_of_the_application_are_not_built(place: Place) -> None:
    server, visitor = place
    secret = Secret("kept")
    secret.text = "stored"
    await put(state_of(server), "t", secret=secret)
    data = await visitor.data("/threads/t", view="state")
    assert data["values"]["secret"]["parts"] == {"text": "stored"}


@pytest.mark.slow
async def test_long_threads_are_shown_around_a_checkpoint(place: Place) -> None:
    from support import put_arguments

    server, visitor = place
    config: Any = config_at("t", checkpoint_ns="")
    ids = []
    for step in range(230):
        config = await state_of(server).saver.aput(*put_arguments(config, step))
        ids.append(config["configurable"]["checkpoint_id"])
    newest = (await visitor.data("/threads/t"))["tree"]
    assert [one["checkpoint_id"] for one in newest["nodes"]] == ids[:129:-1]
    assert (newest["has_newer"], newest["has_older"]) == (False, True)
    middle = (await visitor.data("/threads/t", at=ids[60]))["tree"]
    shown = [one["checkpoint_id"] for one in middle["nodes"]]
    assert ids[60] in shown[40:60]
    assert (middle["has_newer"], middle["has_older"], len(shown)) == (True, True, 100)
    page = await visitor.page("/threads/t", at=ids[60])
    assert "Newer checkpoints" in page
    assert "Older checkpoints" in page
    first = (await visitor.data("/threads/t", at=ids[0]))["tree"]
    assert (first["has_newer"], first["has_older"], len(first["nodes"])) == (True, False, 100)


@pytest.mark.slow
async def test_what_is_planted_in_a_state_stays_inert(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    bad = f"[x](javascript:alert(1)) {HOSTILE}"
    names: Any = {"agent": HOSTILE, "user_id": HOSTILE, "tenant_id": HOSTILE, "title": HOSTILE}
    await state.threads.create(HOSTILE, metadata={HOSTILE: HOSTILE}, **names)
    messages = [HumanMessage(bad, name=HOSTILE), {"role": HOSTILE, "content": bad}]
    at = await put(state, HOSTILE, **{"messages": messages[:1], HOSTILE: {HOSTILE: HOSTILE}, "chat": messages[1:]})
    config = config_at(HOSTILE, checkpoint_ns="", checkpoint_id=at)
    await state.saver.aput_writes(config, [("__error__", HOSTILE)], "task")
    await state.threads.label(config, HOSTILE)
    await state.events.add(HOSTILE, HOSTILE, {HOSTILE: HOSTILE, "by": HOSTILE})
    path = f"/threads/{segment(HOSTILE)}"
    assert quote(HOSTILE) not in path
    for view in VIEWS:
        for query in ({}, {"at": at}, {"channel": "chat"}, {"kind": HOSTILE}, {"notice": HOSTILE}):
            page = await visitor.page(path, view=view, **query)
            assert "<script>alert" not in page
            assert "<img" not in page
            assert 'href="javascript' not in page


async def test_an_id_of_any_form_has_a_page(place: Place) -> None:
    server, visitor = place
    for id in ("a/b", "..", "~2F", "a b?c#d", "ä%2F", "x\\y"):
        await put(state_of(server), id)
        path = f"/threads/{segment(id)}"
        assert f'href="/ui{path}"' in await visitor.page("/threads")
        assert (await visitor.data(path))["thread"]["thread_id"] == id


async def test_what_does_not_exist_is_not_found(place: Place) -> None:
    server, visitor = place
    await travel(state_of(server))
    await state_of(server).threads.create("empty")
    for path, status in (("/threads/none", 404), ("/threads/t?at=none", 404), ("/threads/t?view=none", 422)):
        response = await visitor.client.get(f"/ui{path}")
        assert response.status_code == status
        assert 'href="/ui/threads"' in response.text
    assert "no checkpoints yet" in await visitor.page("/threads/empty")


async def test_a_damaged_state_is_explained_and_the_rest_is_shown(place: Place, connection: Any, schema: str) -> None:
    server, visitor = place
    await travel(state_of(server))
    connection.execute(f"UPDATE {schema}.checkpoints SET state = '\\x00'".encode())
    assert (await visitor.client.get("/ui/threads/t")).status_code == 500
    assert "interrupt" in await visitor.page("/threads/t", view="events")


async def test_pages_write_nothing(dsn: str, schema: str) -> None:
    """On a standby every write is refused."""
    async with inspected(dsn, schema) as (server, _):
        ids = await travel(state_of(server))
    from support.pages import visiting

    from langgraph_pgstate.server import create_app

    only_reads = f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20default_transaction_read_only%3Don"
    app = create_app(
        lambda: AsyncPGState.open(only_reads, schema=schema, recover_journal=False), {}, inspector=True, read_only=True
    )
    async with app.lifespan(), visiting(app) as visitor:
        await visitor.page("/threads")
        for view in VIEWS:
            await visitor.page("/threads/t", view=view)
            await visitor.page("/threads/t", view=view, at=ids[1])
