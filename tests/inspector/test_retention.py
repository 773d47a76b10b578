"""The pages of policies: what is shown, counted, asked and refused before anything is removed."""

from __future__ import annotations

import asyncio
import html
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph_sdk import Auth
from support.pages import HOSTILE, Visitor, fields_of, forms_of, inspected, state_of, travel, visiting

from langgraph_pgstate import Encryption, LocalMasterKey
from langgraph_pgstate.encryption.keys import use_keys
from langgraph_pgstate.inspector import retention
from langgraph_pgstate.inspector.access import ACT, READ
from langgraph_pgstate.state import core_of

from .conftest import Place

DAY = timedelta(days=1)


async def age(dsn: str, schema: str, days: int, *ids: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        change = f"UPDATE {schema}.threads SET created_at = created_at - %s, updated_at = updated_at - %s"
        await connection.execute(f"{change} WHERE thread_id = ANY(%s)".encode(), [days * DAY, days * DAY, [*ids]])


async def stored(visitor: Visitor, **fields: str) -> Any:
    """The answer to a form of a policy that is sent as it is, then confirmed."""
    asked = await visitor.act("/retention", **fields)
    assert asked.status_code == 200, asked.text
    return await visitor.act("/retention", **fields_of(asked.text, "/retention"), sure="1")


@pytest.mark.slow
async def test_a_policy_is_made_counted_changed_and_deleted(
    place: Place, dsn: str, schema: str, tmp_path: Path
) -> None:
    server, visitor = place
    state = state_of(server)
    for id in ("old", "held", "new"):
        await travel(state, id, metadata={"kind": "chat"})
    await travel(state, "other")
    await age(dsn, schema, 40, "old", "held", "other")
    await state.threads.hold("held", "case 7", by="counsel")
    assert "There are no policies" in await visitor.page("/retention")
    await visitor.introduce("Eve")
    form = fields_of(await visitor.page("/retention/new"), "/retention")
    assert form["expected"] == "0"
    form |= {"name": f"chats {HOSTILE}", "metadata": "kind=chat", "delete_after": "30d"}
    asked = await visitor.act("/retention", **form)
    assert HOSTILE not in asked.text
    # Three are selected; two are due, of which one is held: the dry run knows.
    assert ": 3 now" in asked.text
    assert "2 threads are deleted" in asked.text
    assert await state.retention.policies() == ()
    # Back to the form, with what was typed.
    again = await visitor.act("/retention", **fields_of(asked.text, "/retention"), step="form")
    assert fields_of(again.text, "/retention")["metadata"] == "kind=chat"
    sent = await visitor.act("/retention", **fields_of(asked.text, "/retention"), sure="1")
    assert sent.status_code == 303
    (policy,) = await state.retention.policies()
    assert (policy.metadata, policy.delete_after, policy.version) == ({"kind": "chat"}, 30 * DAY, 1)
    where = html.unescape(sent.headers["location"].partition("?")[0].removeprefix("/ui"))
    assert "deleted after 30 days without activity" in await visitor.page("/retention")
    page = await visitor.page(where, dry_run="1")
    assert "<li>1 thread deleted</li>" in page
    assert 'href="/ui/threads/held"' in page
    assert "not since it was stored" in page
    assert await state.threads.get("old") is not None
    await state.retention.apply()
    assert "not since it was stored" not in await visitor.page(where)
    assert [one.thread_id for one in (await state.threads.list()).items if one.thread_id == "old"] == []
    change = fields_of(await visitor.page(where), "/retention")
    assert (change["metadata"], change["delete_after"]) == ('{"kind": "chat"}', "30d")
    change |= {"delete_after": "12h", "archive_after": "90m", "archive_to": f"file://{tmp_path}/a", "metadata": ""}
    assert (await stored(visitor, **change)).status_code == 303
    (policy,) = await state.retention.policies()
    assert (policy.metadata, policy.delete_after, policy.version) == (None, timedelta(hours=12), 2)
    shown = fields_of(await visitor.page(where), "/retention")
    assert (shown["delete_after"], shown["archive_after"]) == ("12h", "90m")
    deleting = forms_of(await visitor.page(where))[f"{where}/delete"]
    asked = await visitor.act(f"{where}/delete", **deleting)
    assert "Delete the policy" in asked.text
    assert len(await state.retention.policies()) == 1
    for _ in range(2):
        assert (await visitor.act(f"{where}/delete", **deleting, sure="1")).status_code == 303
    assert await state.retention.policies() == ()
    gone = await visitor.client.get(f"/ui{where}")
    assert (gone.status_code, "deleted just now by Eve" in gone.text) == (404, True)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": ""}, "must not be empty"),
        ({}, "must have at least one of"),
        ({"delete_after": "soon"}, "delete_after: the age must be"),
        ({"delete_after": "0d"}, "delete_after"),
        ({"archive_after": "1d"}, "archive_to"),
        ({"archive_after": "1d", "archive_to": "nowhere"}, "nowhere"),
        ({"archive_after": "2d", "archive_to": "file:///tmp/a", "delete_after": "1d"}, "longer than archive_after"),
        ({"prune_after": "1d", "keep_last": "many"}, "keep_last"),
        ({"prune_after": "1d", "keep_last": "0"}, "keep_last"),
        ({"delete_after": "1d", "metadata": "{"}, "metadata"),
        ({"delete_after": "1d", "status": "asleep"}, "must be one of idle"),
    ],
)
async def test_what_is_refused_stays_in_the_form(place: Place, fields: dict[str, str], says: str) -> None:
    server, visitor = place
    await visitor.introduce("Eve")
    typed = {"name": "p", "agent": f"writer {HOSTILE}", **fields}
    for more in ({}, {"sure": "1"}):
        refused = await visitor.act("/retention", expected="0", **typed, **more)
        assert (refused.status_code, says in refused.text) == (422, True), refused.text
        assert HOSTILE not in refused.text
        kept = fields_of(refused.text, "/retention")
        assert {name: kept[name] for name in typed if name != "status"} == {
            name: text for name, text in typed.items() if name != "status"
        }
        assert 'role="alert"' in refused.text
    assert (await visitor.act("/retention", name="p", delete_after="1d")).status_code == 422
    assert await state_of(server).retention.policies() == ()


async def test_of_two_persons_the_second_is_told_who_was_first(place: Place) -> None:
    server, eve = place
    state = state_of(server)
    await state.retention.put("p", delete_after=30 * DAY)
    async with visiting(server) as adam:
        await eve.introduce("Eve")
        await adam.introduce("Adam")
        forms = [fields_of(await one.page("/policies/p"), "/retention") for one in (eve, adam)]
        forms[0] |= {"delete_after": "20d"}
        forms[1] |= {"delete_after": "10d"}
        confirmed = [
            fields_of((await one.act("/retention", **form)).text, "/retention")
            for one, form in zip((eve, adam), forms, strict=True)
        ]
        sent = await asyncio.gather(
            *(one.act("/retention", **form, sure="1") for one, form in zip((eve, adam), confirmed, strict=True))
        )
        assert sorted(one.status_code for one in sent) == [303, 409]
        first = 0 if sent[0].status_code == 303 else 1
        refused = sent[1 - first].text
        assert f"changed just now by {('Eve', 'Adam')[first]}" in refused
        # What was typed is kept, on top of what is stored now.
        kept = fields_of(refused, "/retention")
        assert (kept["expected"], kept["delete_after"]) == ("2", ("10d", "20d")[first])
        # On the same old page: asked before anything is confirmed. Sent twice: it is stored already.
        late = await (eve, adam)[1 - first].act("/retention", **forms[1 - first])
        assert late.status_code == 409
        assert (await (eve, adam)[first].act("/retention", **confirmed[first], sure="1")).status_code == 303
        second = (eve, adam)[1 - first]
        assert (await stored(second, **kept)).status_code == 303
        assert [one.version for one in await state.retention.policies()] == [3]
        # A new policy under a name that is taken.
        assert (await eve.act("/retention", name="p", expected="0", delete_after="1s")).status_code == 409
        deleting = forms_of(await adam.page("/policies/p"))["/policies/p/delete"]
        await state.retention.put("p", by="Eve", delete_after=7 * DAY)
        refused = (await adam.act("/policies/p/delete", **deleting, sure="1")).text
        assert "changed just now by Eve" in refused
        assert len(await state.retention.policies()) == 1


async def test_a_dry_run_that_takes_long_says_that_there_is_more(
    place: Place, monkeypatch: pytest.MonkeyPatch, dsn: str, schema: str
) -> None:
    server, visitor = place
    state = state_of(server)
    ids = [f"t-{number}" for number in range(60)]
    for id in ids:
        await state.threads.create(id)
    await age(dsn, schema, 2, *ids)
    await state.retention.put("p", delete_after=DAY)
    assert "60 threads deleted" in await visitor.page("/policies/p", dry_run="1")
    monkeypatch.setattr(retention, "_DRY_RUN", timedelta(microseconds=1))
    assert "there may be more" in await visitor.page("/policies/p", dry_run="1")


async def test_policies_are_for_those_who_see_all_and_are_read_where_pages_are_read(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        return {"identity": headers[b"x-user"].decode(), "permissions": [READ, ACT]}

    @auth.on.threads
    async def own(ctx: Any, value: dict[str, Any]) -> Any:
        return {"owner": ctx.user.identity}

    async with inspected(dsn, schema, auth=auth) as (server, _), visiting(server, {"x-user": "eve"}) as eve:
        await state_of(server).retention.put("p", delete_after=DAY)
        for path in ("/retention", "/retention/new", "/policies/p", "/policies/p?dry_run=1"):
            assert (await eve.client.get(f"/ui{path}")).status_code == 403
        fields = {"name": "p", "expected": "1", "delete_after": "1s", "sure": "1"}
        for path in ("/retention", "/policies/p/delete"):
            assert (await eve.act(path, **fields)).status_code == 403
    async with inspected(dsn, schema, read_only=True) as (server, visitor):
        assert "1 day" in await visitor.page("/retention")
        assert forms_of(await visitor.page("/policies/p")) == {}
        assert (await visitor.client.get("/ui/policies/p?dry_run=1")).status_code == 403
        assert [one.version for one in await state_of(server).retention.policies()] == [1]


async def test_times_to_live_are_a_policy_without_a_form(place: Place, dsn: str, schema: str) -> None:
    server, visitor = place
    state = state_of(server)
    await travel(state, "t")
    await state.threads.expire("t", after=timedelta(0))
    await age(dsn, schema, 1, "t")
    await visitor.introduce("Eve")
    page = await visitor.page("/retention")
    assert "threads with a time to live" in page
    assert "not since it was stored" not in page
    page = await visitor.page("/policies/ttl", dry_run="1")
    assert "1 thread deleted" in page
    assert "checkpointer.ttl" in page
    assert not [form for form in forms_of(page) if "/retention" in str(form) or "/policies" in str(form)]


async def test_digests_of_metadata_are_not_taken_for_the_values(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    core = core_of(state)
    use_keys(core.database, Encryption(LocalMasterKey(bytes(range(32))), searchable=("case",)), core.queries)
    await state.threads.create("t", metadata={"case": "7"})
    made = await state.retention.put("p", metadata={"case": "7"}, delete_after=DAY)
    await visitor.introduce("Eve")
    page = await visitor.page("/policies/p")
    assert "Of case only digests are stored" in page
    assert {*forms_of(page)} == {"/policies/p/delete"}
    refused = await visitor.act("/retention", name="p", expected="1", delete_after="1d", sure="1")
    assert (refused.status_code, "digests of case" in refused.text) == (409, True)
    assert made in await state.retention.policies()
    # A new one is typed in plain words, and finds its threads.
    form = {"name": "q", "expected": "0", "metadata": '{"case": "7"}', "delete_after": "1d"}
    assert ": 1 now" in (await visitor.act("/retention", **form)).text
