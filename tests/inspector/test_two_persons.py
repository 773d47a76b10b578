"""Each action of pages, done by two persons: at once, one after the other, and on a page that is an hour old."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from langgraph_sdk import Auth
from support.acting import ALONE, CASES
from support.pages import Visitor, forms_of, inspected, state_of, visiting

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.inspector.access import ACT, READ
from langgraph_pgstate.inspector.routes import PAGES

Two = tuple[AsyncPGState, Visitor, Visitor]


@pytest.fixture
async def two(dsn: str, schema: str) -> AsyncIterator[Two]:
    """The state of a server, and two visitors: Eve and Adam."""
    async with inspected(dsn, schema) as (server, eve), visiting(server) as adam:
        await eve.introduce("Eve")
        await adam.introduce("Adam")
        yield state_of(server), eve, adam


def test_every_action_says_what_happens_if_two_persons_do_it() -> None:
    actions = {page.name for page in PAGES if not page.is_read}
    cases = {name.partition(" ")[0] for name in CASES}
    assert actions == cases | ALONE.keys(), "a new action needs a case in support/acting.py"
    assert not CASES.keys() & ALONE.keys()


@pytest.mark.parametrize("way", ["at once", "later", "on an old page"])
@pytest.mark.parametrize("name", CASES)
async def test_one_of_two_persons_does_it(two: Two, name: str, way: str) -> None:
    state, eve, adam = two
    case = CASES[name]
    async with case.prepare(state, "t") as aim:
        fields = [
            {**forms_of((await one.client.get(f"/ui{aim.page}")).text)[aim.form], **case.fields, "sure": "1"}
            for one in (eve, adam)
        ]
        persons = [(eve, "Eve"), (adam, "Adam")]
        if way == "on an old page":
            fields[1]["seen"] = (datetime.fromisoformat(fields[1]["seen"]) - timedelta(hours=1)).isoformat()
        if way == "at once":
            sent = await asyncio.gather(
                *(one.act(aim.form, **given) for (one, _), given in zip(persons, fields, strict=True))
            )
        else:
            sent = [await one.act(aim.form, **given) for (one, _), given in zip(persons, fields, strict=True)]
        assert sorted(one.status_code for one in sent) == [303, case.status], [one.text for one in sent]
        first = 0 if sent[0].status_code == 303 else 1
        assert await case.count(state, aim.place) == 1
        assert f"{case.verb} {persons[first][1]}" in _text(sent[1 - first].text), sent[1 - first].text
        # It is named by an event: the first person's.
        events = (await state.events.list(aim.place, kind="action")).items
        assert {one.payload["by"] for one in events} == {persons[first][1], *case.by}


@pytest.mark.slow
async def test_the_sessions_of_two_users_are_two_persons(dsn: str, schema: str) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        return {"identity": headers[b"x-user"].decode(), "permissions": [READ, ACT]}

    async with (
        inspected(dsn, schema, auth=auth) as (server, _),
        visiting(server, {"x-user": "eve"}) as eve,
        visiting(server, {"x-user": "adam"}) as adam,
        visiting(server, {"x-user": "eve"}) as other,
    ):
        state = state_of(server)
        for name in ("thread.edit", "thread.run", "thread.fork"):
            case = CASES[name]
            async with case.prepare(state, name) as aim:
                # A name in a cookie is none where users have names; one user has two sessions.
                adam.client.cookies.set("pgstate_person", "eve")
                pages = [(await one.client.get(f"/ui{aim.page}")).text for one in (eve, adam, other)]
                fields = [{**forms_of(page)[aim.form], **case.fields} for page in pages]
                assert (await eve.act(aim.form, **fields[0])).status_code == 303
                for visitor, given in ((adam, fields[1]), (other, fields[2])):
                    second = await visitor.act(aim.form, **given)
                    assert (second.status_code, f"{case.verb} eve" in _text(second.text)) == (409, True), second.text
                events = (await state.events.list(aim.place, kind="action")).items
                assert {one.payload["by"] for one in events} == {"eve"}
                # The form of one session is none of another's.
                stolen = await adam.client.post(f"/ui{aim.form}", data={**fields[0], "token": "x"})
                assert stolen.status_code == 403


def _text(page: Any) -> str:
    return " ".join(str(page).split())
