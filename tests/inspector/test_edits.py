"""How a person changes the state: by a form, after a preview, and on top of what others did meanwhile."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.pregel._checkpoint import create_checkpoint
from support import spread
from support.pages import HOSTILE, Visitor, fields_of, inspected, state_of, statements, travel, visiting, without_bdi

from langgraph_pgstate.server.graphs import config_at

from .conftest import Place
from .test_actions import actions

EDIT = "/threads/t/edit"
FIRST = 'text ["messages",0,"content"]'
BOOKING = 'any ["booking"]'


async def opened(visitor: Visitor, at: str, **query: str) -> dict[str, str]:
    """The fields of the form, as a browser sends them if nobody types."""
    return fields_of(await visitor.page(EDIT, at=at, **query), EDIT)


def form_in(response: Any) -> dict[str, str]:
    """The fields of the form in an answer."""
    return fields_of(without_bdi(response.text), EDIT)


def without_parts(form: dict[str, str], channel: str) -> dict[str, str]:
    """The fields of a form that does not show what is in a channel."""
    return {name: text for name, text in form.items() if f'["{channel}",' not in name}


@pytest.mark.slow
async def test_an_edit_changes_the_state_and_runs_on(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema, worker=True) as (server, visitor):
        state = state_of(server)
        ids = await travel(state)
        await visitor.introduce()
        page = await visitor.page(EDIT, at=ids[0])
        assert "<option>approve</option>" in page
        values = '{"booking": {"hotel": "Astoria"}}'
        response = await visitor.act(EDIT, at=ids[0], values=values, as_node="approve")
        tree = await state.threads.tree("t")
        assert response.headers["location"] == f"/ui/threads/t?at={tree.nodes[0].checkpoint_id}&notice=thread.edit"
        assert (tree.nodes[0].source, tree.nodes[0].parent_checkpoint_id) == ("update", ids[0])
        (event,) = await actions(state, "t")
        assert event.payload == {"action": "edit", "by": "Eve", "edited": ids[0], "channels": ["booking"]}
        again = await visitor.act(
            EDIT, {"accept": "application/json"}, at=ids[2], values="{}", as_node="tools", run="1"
        )
        ended = await state.runs.wait("t", again.json()["run_id"], 30)
        assert ended["__interrupt__"]


@pytest.mark.slow
async def test_an_edit_that_makes_no_sense_changes_nothing(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce()
    cases: list[tuple[dict[str, Any], int]] = [
        ({"values": "{"}, 422),
        ({"values": "[1]"}, 422),
        ({"values": ""}, 422),
        ({"values": '{"booking": {}}', "as_node": "nobody"}, 400),
        ({"values": '{"booking": {}}', "at": "none"}, 404),
        ({}, 422),
        ({'text ["none"]': "x"}, 422),
        ({FIRST: "x", "at": "none"}, 404),
        ({FIRST: "x", "at": "none", "step": "preview"}, 404),
    ]
    for fields, status in cases:
        assert (await visitor.act(EDIT, **{"at": ids[0], **fields})).status_code == status, fields
    assert len((await state_of(server).threads.tree("t")).nodes) == len(ids)
    assert await actions(state_of(server), "t") == []


async def test_an_edit_without_a_change_of_a_busy_thread_is_refused(place: Place) -> None:
    """Guard: the page of the refusal failed, because it named no node."""
    server, visitor = place
    ids = await travel(state_of(server))
    await state_of(server).runs.enqueue("trip", {"messages": []}, thread_id="t")
    await visitor.introduce()
    assert (await visitor.act(EDIT, at=ids[0])).status_code == 409


async def test_one_word_of_a_message_is_one_field(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await visitor.introduce()
    before = (await state.threads.state_at(config_at("t", checkpoint_ns="", checkpoint_id=ids[0]))).values["messages"]
    with statements() as sent:
        form = await opened(visitor, ids[0])
    # One asks whether the thread is archived, because no tool has run on it.
    assert len(sent) <= 6, sent
    argument = 'text ["messages",1,"tool_calls",0,"args","city"]'
    assert form[FIRST] == "A weekend in **Lisbon**."
    assert (form[argument], form['text ["messages",2,"content"]'], form[BOOKING]) == ("Lisbon", "found it", "")
    typed = {**form, FIRST: "A fortnight in **Lisbon**.", BOOKING: '{"hotel": "Astoria"}', "as_node": "tools"}
    typed |= {'remove ["messages",2]': "1", 'add ["messages"]': "Hurry.", argument: "Porto"}

    # The preview says what differs, word by word, and changes nothing.
    with statements() as sent:
        preview = await visitor.act(EDIT, **typed, step="preview")
    assert len(sent) <= 6, sent
    assert preview.status_code == 200
    text = " ".join(without_bdi(preview.text).split())
    assert "A <del>weekend</del><ins>fortnight</ins> in **Lisbon**." in text
    assert "message 2 (ai) search city" in text
    assert ("found it" in text, "Hurry." in text, "Astoria" in text) == (True, True, True)
    assert (await state.threads.tree("t")).nodes[0].checkpoint_id == ids[0]

    # Back in the form all of it stands.
    confirmed = form_in(preview)
    back = form_in(await visitor.act(EDIT, **confirmed, step="form"))
    assert (back[FIRST], back["as_node"], back['remove ["messages",2]']) == (typed[FIRST], "tools", "1")
    assert back['text ["messages",3,"content"]'] == "Hurry."

    assert (await visitor.act(EDIT, **confirmed)).status_code == 303
    found = await state.threads.state_at(config_at("t", checkpoint_ns=""))
    texts = [(one.type, one.text, one.id) for one in found.values["messages"][:-1]]
    assert texts == [("human", "A fortnight in **Lisbon**.", "human"), ("ai", "", "plan")]
    assert found.values["messages"][1] == before[1].model_copy(
        update={"tool_calls": [{**before[1].tool_calls[0], "args": {"city": "Porto"}}]}
    )
    assert isinstance(found.values["messages"][2], HumanMessage)
    assert found.values["booking"] == {"hotel": "Astoria"}
    # What nobody has changed is not written.
    (event,) = await actions(state, "t")
    assert event.payload["channels"] == ["booking", "messages"]
    # The same form once more is the same edit.
    assert (await visitor.act(EDIT, **confirmed)).status_code == 303
    assert len(await actions(state, "t")) == 1
    same = await visitor.act(EDIT, **await opened(visitor, found.checkpoint_id))
    assert (same.status_code, "Nothing is changed" in same.text) == (422, True)


async def test_each_part_may_be_edited_as_json(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await visitor.introduce()
    form = await opened(visitor, ids[0]) | {FIRST: "mine", 'remove ["messages",2]': "1"}
    form = form_in(await visitor.act(EDIT, **form, step='json ["messages"]'))
    messages = json.loads(form['json ["messages"]'])
    assert [one["content"] for one in messages] == ["mine", ""]
    messages[1]["content"] = "No."
    del messages[1]["tool_calls"]
    form['json ["messages"]'] = json.dumps(messages)
    form = form_in(await visitor.act(EDIT, **form, step='fields ["messages"]'))
    assert (form[FIRST], form['text ["messages",1,"content"]']) == ("mine", "No.")
    form = form_in(await visitor.act(EDIT, **form, step='json ["messages",0]'))
    form['json ["messages",0]'] = '{"type": "system", "content": "Be brief."}'
    form = form_in(await visitor.act(EDIT, **form, step="preview"))
    assert (await visitor.act(EDIT, **form)).status_code == 303
    found = (await state.threads.state_at(config_at("t", checkpoint_ns=""))).values["messages"]
    assert [(one.type, one.text) for one in found] == [("system", "Be brief."), ("ai", "No.")]


async def test_what_was_typed_stands_in_the_form_after_a_refusal(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce("Eve")
    form = without_parts(await opened(visitor, ids[0]), "messages")
    typed = {**form, 'json ["messages"]': HOSTILE, 'as_json ["messages"]': "1", "as_node": "approve"}
    for step in ("preview", "apply"):
        refused = await visitor.act(EDIT, **typed, step=step)
        assert refused.status_code == 422
        assert "messages must be JSON" in refused.text
        assert "<script>alert" not in refused.text
        again = form_in(refused)
        assert again['json ["messages"]'] == HOSTILE
        assert (again["as_node"], again["head"]) == ("approve", ids[0])


@pytest.mark.parametrize(
    ("channel", "value", "why"),
    spread(
        [
            ("bookings", {}, "the graph has no channel"),
            ("__start__", {}, "the graph has no channel"),
            ("messages", [{"role": "bogus", "content": "x"}], "messages[0] must be a message: Unexpected message type"),
            ("messages", [{"type": "bogus", "content": "x"}], "messages[0] must be a message"),
            (
                "messages",
                [{"type": "ai", "content": "x", "tool_calls": [{"name": 1}]}],
                "messages[0] must be a message",
            ),
            ("messages", [{"role": "user"}], "it must have a content"),
            ("messages", [7], "it must be an object"),
            ("messages", {"0": 1}, "messages must be a list"),
        ],
        unpack=True,
    ),
)
async def test_an_edit_that_is_refused_says_why(place: Place, channel: str, value: Any, why: str) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce()
    form = without_parts(await opened(visitor, ids[0]), channel)
    refused = await visitor.act(EDIT, **{**form, f'json ["{channel}"]': json.dumps(value)})
    assert (refused.status_code, why.lower() in without_bdi(refused.text).lower()) == (422, True), refused.text
    # The same of a caller who sends only what is to be added.
    values = {channel: value}
    plain = await visitor.act(EDIT, at=ids[0], values=json.dumps(values), as_node="plan")
    assert plain.status_code == 422 or values == {"messages": [{"role": "user"}]}, plain.text
    assert await actions(state_of(server), "t") == [] or plain.status_code == 303


@pytest.mark.slow
async def test_who_is_second_sees_both_versions_and_makes_the_change_on_top(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, eve), visiting(server) as adam:
        state = state_of(server)
        ids = await travel(state)
        await eve.introduce("Eve")
        await adam.introduce("Adam")
        forms = [await opened(one, ids[0]) for one in (eve, adam)]
        news = {"at": ids[0], "head": ids[0]}
        with statements() as sent:
            assert "See it" not in await adam.page(EDIT, **news)
        assert len(sent) <= 5, sent
        assert (await eve.act(EDIT, **{**forms[0], FIRST: "A weekend in **Porto**."})).status_code == 303
        theirs = (await state.threads.tree("t")).nodes[0].checkpoint_id

        # An open form is told while it is open.
        with statements() as sent:
            told = await adam.page(EDIT, **news)
        assert len(sent) <= 5, sent
        assert "This thread was edited just now by Eve." in told
        assert f'href="/ui/threads/t?at={theirs}&amp;view=changes&amp;to={ids[0]}"' in told
        assert '<form method="post"' not in told

        typed = {**forms[1], FIRST: "A month in **Lisbon**.", BOOKING: '"mine"'}
        for step in ("preview", "apply"):
            late = await adam.act(EDIT, **typed, step=step)
            text = " ".join(without_bdi(late.text).split())
            assert late.status_code == 409
            assert "has gone on: edited just now by Eve. Nothing was changed by you." in text
            assert f'href="/ui/threads/t?at={theirs}&amp;view=changes&amp;to={ids[0]}"' in text
            assert "A weekend in **Porto**.</pre>" in text
            assert "A month in **Lisbon**.</pre>" in text
            assert "A <del>weekend</del><ins>month</ins> in **<del>Porto</del><ins>Lisbon</ins>**." in text
            assert "A weekend in **<del>Lisbon</del><ins>Porto</ins>**." in text
            assert "changed by both" in text
        on_top = form_in(late)
        assert (on_top["at"], on_top["head"]) == (theirs, theirs)
        # A third one is first once more: the form expects what it has shown.
        await eve.act(EDIT, at=theirs, values="{}", as_node="plan")
        newest = (await state.threads.tree("t")).nodes[0].checkpoint_id
        late = await adam.act(EDIT, **on_top)
        assert late.status_code == 409
        assert (await adam.act(EDIT, **form_in(late))).status_code == 303
        found = await state.threads.state_at(config_at("t", checkpoint_ns=""))
        assert found.parent_checkpoint_id == newest
        assert (found.values["messages"][0].text, found.values["booking"]) == ("A month in **Lisbon**.", "mine")
        assert [one.payload["by"] for one in await actions(state, "t")] == ["Eve", "Eve", "Adam"]


async def test_a_channel_that_is_gone_meanwhile_is_named(place: Place) -> None:
    """Guard: it has no place in the newer state."""
    server, visitor = place
    state = state_of(server)
    (head, *_) = await travel(state)
    await visitor.introduce()
    form = await opened(visitor, head)
    read = await state.saver.aget_tuple(config_at("t", checkpoint_ns="", checkpoint_id=head))
    assert read is not None
    checkpoint = create_checkpoint(read.checkpoint, None, 9)
    versions = {name: one for name, one in read.checkpoint["channel_versions"].items() if name != "messages"}
    values = {name: one for name, one in read.checkpoint["channel_values"].items() if name != "messages"}
    later: Any = {**checkpoint, "channel_values": values, "channel_versions": versions}
    await state.saver.aput(read.config, later, {"source": "update", "step": 9, "parents": {}}, {})
    late = await visitor.act(EDIT, **{**form, BOOKING: '"mine"'}, step="apply")
    assert late.status_code == 409
    assert "Nothing was changed by you." in without_bdi(late.text)
    assert "messages" in late.text


async def test_a_preview_says_which_nodes_run_next(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce()
    form = await opened(visitor, ids[1])
    preview = await visitor.act(EDIT, **{**form, FIRST: "A month", "step": "preview"})
    assert "Next runs <code>tools</code>." in without_bdi(preview.text)
    assert ">Change and run on</button>" in preview.text
    last = await visitor.act(EDIT, **{**form, FIRST: "A month", "as_node": "approve", "step": "preview"})
    assert "Nothing is left to run after it." in last.text
    assert ">Change and run on</button>" not in last.text
    assert '<button class="button primary">Change</button>' in last.text
    # Nothing was made.
    assert [one.checkpoint_id for one in (await state_of(server).threads.tree("t")).nodes] == ids
    # An open page of a preview says what its button does.
    asked = re.search('data-from="([^"]+)"', preview.text)
    assert asked is not None
    await visitor.act(EDIT, at=ids[0], values="{}", as_node="plan")
    news = await visitor.client.get(html.unescape(asked[1]))
    assert "“Change” shows both versions first" in news.text


async def test_what_cannot_be_read_is_said_once(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce()
    form = await opened(visitor, ids[0])
    name = 'json ["messages"]'
    refused = await visitor.act(EDIT, **form, **{name: "[1", 'as_json ["messages"]': "1"}, step="preview")
    text = without_bdi(refused.text)
    assert refused.status_code == 422
    assert text.count("must be JSON") == 1
    assert "One field cannot be read: see below. Nothing was changed." in text
    assert "(character 3)" in text


@pytest.mark.slow
async def test_a_change_of_an_older_checkpoint_is_made_there(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, eve), visiting(server) as adam:
        state = state_of(server)
        ids = await travel(state)
        await eve.introduce("Eve")
        await adam.introduce("Adam")
        form = await opened(adam, ids[2])
        await eve.act(EDIT, at=ids[0], values="{}", as_node="plan")
        late = await adam.act(EDIT, **{**form, FIRST: "mine"})
        assert (late.status_code, "begins from an older checkpoint" in late.text) == (409, True)
        on_top = form_in(late)
        assert (on_top["at"], on_top["head"] != ids[0]) == (ids[2], True)
        assert (await adam.act(EDIT, **on_top)).status_code == 303
        found = await state.threads.state_at(config_at("t", checkpoint_ns=""))
        assert (found.parent_checkpoint_id, found.values["messages"][0].text) == (ids[2], "mine")


@pytest.mark.slow
async def test_pages_of_a_large_state_are_small(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce()
    values = {"booking": {f"key {number}": {"a": '"' * 2000, "b": ["<"] * 100} for number in range(100)}}
    made = await visitor.act(
        EDIT, {"accept": "application/json"}, at=ids[0], values=json.dumps(values), as_node="approve"
    )
    form = await opened(visitor, made.json()["checkpoint_id"])
    changed = {name: text.replace("<", "&").replace('"""', "&") for name, text in form.items() if "[" in name}
    preview = await visitor.act(EDIT, **{**form, **changed}, step="preview")
    assert (preview.status_code, len(preview.content) <= 300_000) == (200, True), len(preview.content)
    done = await visitor.act(EDIT, **form_in(preview))
    assert done.status_code == 303, done.text.partition('role="alert"')[2][:300]


async def test_a_fork_is_edited_at_once(place: Place) -> None:
    server, visitor = place
    ids = await travel(state_of(server))
    await visitor.introduce()
    made = await visitor.act("/threads/t/fork", at=ids[1], to="forked", edit="1")
    assert made.headers["location"] == f"/ui/threads/forked/edit?at={ids[1]}&notice=thread.fork"
    page = (await visitor.client.get(made.headers["location"])).text
    assert "This is the new thread." in page
    assert fields_of(page, "/threads/forked/edit")["head"] == ids[1]
