"""The pages of long-term memory: lists, one memory with its versions, where it comes from, and changes by persons."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph_sdk import Auth
from support.pages import HOSTILE, Visitor, forms_of, inspected, state_of, statements, travel, visiting

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.inspector.memory import labels_in, namespace_text

from .conftest import Place

EVE = "/memory/memories~2Fuser~2Feve"


async def home(state: AsyncPGState, **options: Any) -> None:
    """Two versions of where Eve lives."""
    for city in ("Prague", "Vienna"):
        await state.memory.remember(f"Lives in {city}.", key="home", user_id="eve", **options)


async def test_memories_are_listed_by_namespace_user_kind_and_text(place: Place) -> None:
    server, visitor = place
    memory = state_of(server).memory
    assert "Nothing is remembered yet" in await visitor.page("/memory")
    await home(state_of(server))
    await memory.remember(HOSTILE, "preference", user_id="eve", agent=HOSTILE)
    await memory.aput(("files", "a/b~c"), "k", {"text": "An item of LangGraph's store"})
    await (await memory.notes("move", user_id="eve")).save(goal="Move", next_action=HOSTILE)
    with statements() as sent:
        page = await visitor.page("/memory")
    assert len(sent) <= 5, sent
    assert "/ui/memory?namespace=memories%2Fuser%2Feve" in page
    found = await visitor.data("/memory", namespace=namespace_text(("files", "a/b~c")))
    assert [(one["key"], one["kind"]) for one in found["items"]] == [("k", None)]
    with statements() as sent:
        page = await visitor.page("/memory", user="eve")
    assert len(sent) <= 5, sent
    assert "<script>alert" not in page
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({"user": "eve"}, ["notes", "preference", "fact"]),
        ({"user": "eve", "kind": "fact"}, ["fact"]),
        ({"user": "eve", "q": "VIENNA"}, ["fact"]),
        ({"user": "eve", "q": "Prague"}, []),
        ({"namespace": "memories/user"}, ["preference", "fact"]),
        ({"user": "eve", "agent": HOSTILE}, ["preference"]),
        ({"user": "adam"}, []),
    ]
    for query, kinds in cases:
        assert [one["kind"] for one in (await visitor.data("/memory", **query))["items"]] == kinds, query
    assert "Name a user or a namespace, too" in await visitor.page("/memory", q="Vienna")
    assert (await visitor.client.get("/ui/memory", params={"namespace": "a//b"})).status_code == 422
    # Nobody is told that a person has looked.
    await memory.flush()
    assert [one["access_count"] for one in (await visitor.data("/memory", user="eve"))["items"]] == [0, 0, 0]


async def test_pages_of_many_memories_follow_each_other(place: Place) -> None:
    server, visitor = place
    for number in range(51):
        await state_of(server).memory.aput(("many", "a"), f"{number:02}", {"n": number})
        await state_of(server).memory.aput(("namespaces", f"{number:02}"), "k", {"n": number})
    first = await visitor.data("/memory", namespace="many")
    second = await visitor.data("/memory", namespace="many", cursor=first["next"])
    keys = [one["key"] for one in (*first["items"], *second["items"])]
    assert keys == [f"{number:02}" for number in reversed(range(51))]
    assert second["next"] is None
    assert 'rel="next"' in await visitor.page("/memory", namespace="many")
    first = await visitor.data("/memory")
    second = await visitor.data("/memory", cursor=first["next"])
    assert (len(first["namespaces"]), len(second["namespaces"])) == (50, 2)


async def test_a_memory_shows_its_versions_and_the_words_that_differ(place: Place) -> None:
    server, visitor = place
    memory = state_of(server).memory
    await home(state_of(server), by="importer")
    await memory.remember(f"Lives in {HOSTILE}", key="home", user_id="eve", metadata={"street": HOSTILE})
    with statements() as sent:
        page = await visitor.page(f"{EVE}/home", a=1, b=2)
    assert len(sent) <= 5, sent
    assert "<script>alert" not in page
    assert "From version 1 to 2" in page
    assert "Lives in <del>Prague</del><ins>Vienna</ins>." in page
    assert "importer" in page
    found = await visitor.data(f"{EVE}/home")
    assert [one["version"] for one in found["versions"]] == [3, 2, 1]
    assert 'method="post"' not in page
    assert (await visitor.client.get(f"/ui{EVE}/none")).status_code == 404
    assert (await visitor.client.get(f"/ui{EVE}/home?a=1&b=9")).status_code == 404
    for number in range(30):
        await memory.aput(("items",), "k", {"n": number, "text": HOSTILE})
    found = await visitor.data("/memory/items/k")
    older = await visitor.data("/memory/items/k", cursor=found["next"])
    assert [one["version"] for one in found["versions"]] == [*range(30, 10, -1)]
    assert [one["version"] for one in older["versions"]] == [10]
    assert "&#34;n&#34;: <del>28</del><ins>29</ins>" in await visitor.page("/memory/items/k")


async def test_a_memory_leads_to_the_message_that_caused_it_and_back(place: Place) -> None:
    server, visitor = place
    state = state_of(server)
    ids = await travel(state)
    await state.threads.fork("t", ids[0], "forked")
    await state.memory.remember(
        f"Wants Lisbon. {HOSTILE}", user_id="eve", thread_id="t", checkpoint_id=ids[-1], message_id="human"
    )
    (one,) = (await visitor.data("/memory", user="eve"))["items"]
    with statements() as sent:
        page = await visitor.page(f"{EVE}/{one['key']}")
    assert len(sent) <= 5, sent
    assert "A weekend in <strong>Lisbon</strong>." in page
    (link,) = {part.partition('"')[0] for part in page.split('href="/ui')[1:] if "message=human" in part}
    assert 'id="hit"' in (await visitor.client.get(f"/ui{link.replace('&amp;', '&')}")).text
    for thread_id in ("t", "forked"):
        with statements() as sent:
            page = await visitor.page(f"/threads/{thread_id}", view="conversation")
        assert len(sent) <= 5, sent
        assert f'Remembered: <a href="/ui{EVE}/{one["key"]}">Wants Lisbon. &lt;script' in page
    with statements() as sent:
        page = await visitor.page("/memory", thread="t")
    assert len(sent) <= 5, sent
    assert "Wants Lisbon. &lt;script" in page
    assert (await visitor.data("/memory", thread="t", run="none"))["memories"] == []
    found = (await visitor.data("/memory", thread="forked", message="human"))["memories"]
    assert [one["message_id"] for one in found] == ["human"]
    assert (await visitor.data("/memory", thread="t", run="none", message="human"))["memories"] == []
    assert (await visitor.client.get("/ui/memory?thread=none")).status_code == 404


async def test_notes_are_shown_as_markdown_and_edited_step_by_step(place: Place) -> None:
    server, visitor = place
    notes = await state_of(server).memory.notes("move", user_id="eve")
    await notes.save(goal="Move by **June**", completed=["Found a flat"], next_action=HOSTILE)
    path = "/memory/notes~2Fuser~2Feve/move"
    page = await visitor.page(path)
    assert "<strong>June</strong>" in page
    assert "<script>alert" not in page
    await visitor.introduce("Eve")
    fields = {**forms_of(await visitor.page(path))[f"{path}/edit"], "goal": "Move", "context": "By train"}
    fields |= {"completed": "Found a flat\n\n Booked a van ", "blockers": "", "next_action": "Pack"}
    assert (await visitor.act(f"{path}/edit", **fields)).status_code == 303
    await notes.read()
    assert (notes.completed, notes.blockers, notes.next_action) == (["Found a flat", "Booked a van"], [], "Pack")
    assert (notes.version, notes.changed_by) == (2, "Eve")
    assert "<ins>" in await visitor.page(path)


async def test_a_named_person_edits_forgets_and_restores(place: Place) -> None:
    server, visitor = place
    memory = state_of(server).memory
    await memory.remember("Lives in Prague.", key="home", user_id="eve", importance=0.5)
    path = f"{EVE}/home"
    assert (await visitor.act(f"{path}/edit", expected="1", content="x")).status_code == 403
    assert "Say who you are to change it" in await visitor.page(path)
    await visitor.introduce("Eve")
    form = forms_of(await visitor.page(path))[f"{path}/edit"]
    empty = await visitor.act(f"{path}/edit", **form, content="  ")
    assert (empty.status_code, "Nothing was changed: a memory must have a text" in empty.text) == (422, True)
    edited = await visitor.act(f"{path}/edit", **form, content="Lives in Vienna.")
    assert edited.headers["location"] == f"/ui{path}?notice=memory.edit"
    (found,) = await memory.recall(user_id="eve")
    assert (found.content, found.changed_by, found.version, found.importance) == ("Lives in Vienna.", "Eve", 2, 0.5)
    # What is told again is known again.
    assert (await memory.remember("lives in VIENNA", user_id="eve")).key == "home"
    asked = await visitor.act(f"{path}/forget", expected="2")
    assert "Forget this?" in asked.text
    assert "Lives in Vienna." in asked.text
    assert (await visitor.act(f"{path}/forget", expected="2", sure="1")).status_code == 303
    page = await visitor.page(path)
    assert "forgotten <time" in page
    assert "by Eve" in page
    restored = await visitor.act(f"{path}/restore", **forms_of(page)[f"{path}/restore"] | {"version": "1"})
    assert restored.status_code == 303
    (found,) = await memory.recall(user_id="eve")
    assert (found.content, found.version) == ("Lives in Prague.", 3)
    gone = await visitor.act(f"{path}/forget", expected="3", purge="1", sure="1")
    assert gone.headers["location"].startswith("/ui/memory?namespace=memories%2Fuser%2Feve&")
    assert await memory.history(("memories", "user", "eve"), "home") == []


async def test_an_item_is_edited_as_json(place: Place) -> None:
    server, visitor = place
    await state_of(server).memory.aput(("a",), "k/1", {"n": 1}, index=False)
    await visitor.introduce()
    path = "/memory/a/k~2F1"
    form = forms_of(await visitor.page(path))[f"{path}/edit"]
    for value, why in (("[1]", "must be a JSON object"), ("{", "must be JSON"), ('{"a": "\\u0000"}', "NUL")):
        refused = await visitor.act(f"{path}/edit", **form, value=value)
        assert (refused.status_code, why in refused.text) == (422, True), refused.text
    assert (await visitor.act(f"{path}/edit", **form, value='{"n": 2, "big": 1e400}')).status_code == 422
    assert (await visitor.act(f"{path}/edit", **form, value='{"n": 2}')).status_code == 303
    found = await state_of(server).memory.aget(("a",), "k/1")
    assert found is not None
    assert found.value == {"n": 2}


@pytest.mark.parametrize("first", ["edit", "forget", "restore"])
@pytest.mark.parametrize("second", ["edit", "forget", "restore"])
async def test_the_second_of_two_persons_is_told_who_was_first(dsn: str, schema: str, first: str, second: str) -> None:
    async with inspected(dsn, schema) as (server, eve), visiting(server) as adam:
        await home(state_of(server))
        fields: dict[str, dict[str, str]] = {
            "edit": {"content": "Lives in Rome."},
            "forget": {"sure": "1"},
            "restore": {"version": "1"},
        }
        given = []
        for visitor, name in ((eve, "Eve"), (adam, "Adam")):
            await visitor.introduce(name)
            given.append(forms_of(await visitor.page(f"{EVE}/home")))
        path = f"{EVE}/home/{first}"
        assert (await eve.act(path, **{**given[0][path], **fields[first]})).status_code == 303
        path = f"{EVE}/home/{second}"
        late = await adam.act(path, **{**given[1][path], **fields[second], "content": "Lives in Oslo."})
        verb = "forgotten" if first == "forget" else "changed"
        assert (late.status_code, f"It was {verb} just now by Eve" in late.text) == (409, True), late.text
        if second == "edit" and first != "forget":
            # With what was typed, as a change of what the first person has made of it.
            assert "Lives in Oslo." in late.text
            again = {**forms_of(late.text)[path], "content": "Lives in Oslo."}
            assert (await adam.act(path, **again)).status_code == 303
        versions = await state_of(server).memory.history(("memories", "user", "eve"), "home")
        assert [one.changed_by for one in versions][:-2] in (["Eve"], ["Adam", "Eve"], [])


async def test_of_two_persons_at_once_one_changes_it(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, eve), visiting(server) as adam:
        await home(state_of(server))
        persons: list[tuple[Visitor, str]] = [(eve, "Eve"), (adam, "Adam")]
        for visitor, name in persons:
            await visitor.introduce(name)
        path = f"{EVE}/home/edit"
        forms = [forms_of(await visitor.page(f"{EVE}/home"))[path] for visitor, _ in persons]
        sent = await asyncio.gather(
            *(
                visitor.act(path, **form, content=f"{name} was here.")
                for (visitor, name), form in zip(persons, forms, strict=True)
            )
        )
        assert sorted(one.status_code for one in sent) == [303, 409]
        (found,) = await state_of(server).memory.recall(user_id="eve")
        assert found.version == 3
        winner = "Eve" if sent[0].status_code == 303 else "Adam"
        assert (found.changed_by, found.content) == (winner, f"{winner} was here.")


def auth(*, store: bool) -> Auth:
    """Vera sees all threads, Carl those of a team; a handler of the store may leave Vera one namespace."""
    made = Auth()

    @made.authenticate
    async def authenticate(authorization: str | None) -> Any:
        return {"identity": authorization or "", "permissions": ["pages:act"]}

    @made.on.threads
    async def of_team(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        return {"team": "red"} if ctx.user.identity == "carl" else True

    if store:

        @made.on.store
        async def of_red(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
            return tuple(value["namespace"][:1]) == ("red",)

    return made


@pytest.mark.parametrize("store", [False, True])
async def test_memories_are_for_those_who_see_all_threads_and_whom_the_store_admits(
    dsn: str, schema: str, store: bool
) -> None:
    async with inspected(dsn, schema, auth=auth(store=store)) as (server, _):
        await travel(state_of(server), metadata={"team": "red"})
        await state_of(server).memory.aput(("red",), "k", {"n": 1})
        await state_of(server).memory.aput(("blue",), "k", {"n": 1})
        await state_of(server).files.write(("red",), "/a", "text")
        await state_of(server).memory.aput(("red",), "m", {"n": 1})
        async with visiting(server, {"authorization": "carl"}) as carl:
            for path in ("/memory", "/memory?thread=t", "/memory/red/k", "/files", "/files/red/~2Fa"):
                assert (await carl.client.get(f"/ui{path}")).status_code == 403, path
            assert (await carl.act("/memory/red/k/forget", expected="1", sure="1")).status_code == 403
            assert "Memories and files" not in await carl.page("/threads/t")
        async with visiting(server, {"authorization": "vera"}) as vera:
            shown = {
                path: (await vera.client.get(f"/ui{path}")).status_code
                for path in (
                    "/memory",
                    "/memory/red/k",
                    "/memory/blue/k",
                    "/files?namespace=red",
                    "/files?namespace=blue",
                )
            }
            limited = 403 if store else 200
            assert shown == {**dict.fromkeys(shown, limited), "/memory/red/k": 200, "/files?namespace=red": 200}
            acted = await vera.act("/memory/blue/k/forget", expected="1", sure="1")
            assert acted.status_code == (403 if store else 303)
            assert (await vera.act("/memory/red/k/forget", expected="1", sure="1")).status_code == 303
        assert (await state_of(server).memory.history(("red",), "k"))[0].deleted_by == "vera"


async def test_a_read_only_server_shows_no_action(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, _):
        await home(state_of(server))
    async with inspected(dsn, schema, read_only=True) as (_, visitor):
        assert 'method="post"' not in await visitor.page(f"{EVE}/home")


def test_namespaces_are_read_as_they_are_written() -> None:
    for labels in (("a",), ("a/b", "~", "~1", "c.d"), (HOSTILE, "ü")):
        assert labels_in(namespace_text(labels)) == labels


async def test_an_item_of_an_empty_key_has_a_page(place: Place) -> None:
    server, visitor = place
    for key in ("", "~"):
        await state_of(server).memory.aput(("a",), key, {"n": f"value of {key!r}"}, index=False)
    await visitor.introduce()
    shown = await visitor.page("/memory", namespace="a")
    for key, path in (("", "/memory/a/~"), ("~", "/memory/a/~7E")):
        assert f'href="/ui{path}"' in shown
        assert f"value of {key!r}".replace("'", "&#39;") in await visitor.page(path)
        form = forms_of(await visitor.page(path))[f"{path}/forget"]
        assert (await visitor.act(f"{path}/forget", **form, sure="1")).status_code == 303
        assert await state_of(server).memory.aget(("a",), key) is None
