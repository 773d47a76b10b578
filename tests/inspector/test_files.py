"""The pages of agents' files: directories, a file with its versions, what changed, and restoring by persons."""

from __future__ import annotations

import asyncio

from support.pages import HOSTILE, forms_of, inspected, state_of, statements, travel, visiting
from support.record import Record

from langgraph_pgstate import AsyncPGState

from .conftest import Place

NAME = "/notes/plan.md"
PATH = "/files/ada~2Fwork/~2Fnotes~2Fplan.md"
ADA = ("ada", "work")


async def plan(state: AsyncPGState) -> None:
    """A file of three versions, beside others."""
    for text in ("# Plan\n\none\n", f"# Plan\n\none\n{HOSTILE}\n", "# Plan\n\ntwo\n"):
        await state.files.write(ADA, NAME, text, by="ada")
    await state.files.write(ADA, "/a.bin", b"\xff\x00")
    await state.files.write(ADA, f"/{HOSTILE.replace('/', '')}", HOSTILE)


async def test_directories_lead_to_files(place: Place) -> None:
    server, visitor = place
    assert "No files yet" in await visitor.page("/files")
    await plan(state_of(server))
    with statements() as sent:
        page = await visitor.page("/files")
    assert len(sent) <= 5, sent
    assert "/ui/files?namespace=ada%2Fwork" in page
    with statements() as sent:
        page = await visitor.page("/files", namespace="ada/work")
    assert len(sent) <= 5, sent
    assert "<script>alert" not in page
    found = await visitor.data("/files", namespace="ada/work", directory="/notes")
    assert [(one["path"], one["version"]) for one in found["entries"]] == [(NAME, 3)]
    assert f'href="/ui{PATH}"' in await visitor.page("/files", namespace="ada/work", directory="/notes")
    assert "The directory is empty" in await visitor.page("/files", namespace="none")
    assert (await visitor.client.get("/ui/files?namespace=a//b")).status_code == 422
    for number in range(51):
        await state_of(server).files.write((f"n{number:02}",), "/a", "")
    first = await visitor.data("/files")
    second = await visitor.data("/files", cursor=first["next"])
    assert (len(first["namespaces"]), [one["text"] for one in second["namespaces"]]) == (50, ["n49", "n50"])


async def test_a_file_shows_its_versions_and_what_changed(place: Place) -> None:
    server, visitor = place
    await plan(state_of(server))
    with statements() as sent:
        page = await visitor.page(PATH)
    assert len(sent) <= 5, sent
    assert "<h1>Plan</h1>" in page
    assert "ada" in page
    assert [one["version"] for one in (await visitor.data(PATH))["versions"]] == [3, 2, 1]
    old = await visitor.page(PATH, version=2)
    assert "<script>alert" not in old
    with statements() as sent:
        page = await visitor.page(PATH, a=2, b=3)
    assert len(sent) <= 5, sent
    assert '<span class="added">+two</span>' in page
    assert "<script>alert" not in page
    assert '<span class="removed">-one</span>' in page
    assert "The file is binary" in await visitor.page("/files/ada~2Fwork/~2Fa.bin")
    for query in ("", "?version=1"):
        assert (await visitor.client.get(f"/ui/files/ada/~2Fnone{query}")).status_code == 404
    assert (await visitor.client.get(f"/ui{PATH}?version=9")).status_code == 404
    assert (await visitor.client.get(f"/ui{PATH}?a=8&b=9")).status_code == 404
    assert (await visitor.client.get("/ui/files/ada~2Fwork/~2Fa.bin?a=0&b=1")).status_code == 422


async def test_a_named_person_restores_a_version_and_the_second_is_told(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, eve), visiting(server) as adam:
        files = state_of(server).files
        await plan(state_of(server))
        assert 'method="post"' not in await eve.page(PATH)
        for visitor, name in ((eve, "Eve"), (adam, "Adam")):
            await visitor.introduce(name)
        path = f"{PATH}/restore"
        forms = [{**forms_of(await one.page(PATH))[path], "version": "1"} for one in (eve, adam)]
        sent = await asyncio.gather(eve.act(path, **forms[0]), adam.act(path, **{**forms[1], "version": "2"}))
        assert sorted(one.status_code for one in sent) == [303, 409]
        first, late = ("Eve", sent[1]) if sent[0].status_code == 303 else ("Adam", sent[0])
        assert f"The file was restored just now by {first}" in late.text
        (newest, *_) = (await files.history(ADA, NAME)).items
        assert (newest.version, newest.operation, newest.changed_by) == (4, "restore", first)
        await files.delete(ADA, NAME, by="ada")
        page = await eve.page(PATH)
        assert "The file was deleted" in page
        assert (await eve.act(path, **{**forms_of(page)[path], "version": "1"})).status_code == 303
        found = await files.read(ADA, NAME)
        assert found is not None
        assert found.content == "# Plan\n\none\n"
        for fields in ({"version": "x", "expected": "6"}, {"version": "1"}):
            assert (await eve.act(path, **fields)).status_code == 422
        assert (await eve.act(path, version="77", expected="6")).status_code == 404


async def test_what_a_run_has_changed_leads_to_the_difference(place: Place, record: Record) -> None:
    server, visitor = place
    await travel(state_of(server))
    await plan(state_of(server))
    record.connection.execute(
        f"UPDATE {record.schema}.file_versions SET thread_id = 't', run_id = 'r' WHERE path = %s AND version = 2",
        [NAME],
    )
    with statements() as sent:
        page = await visitor.page("/memory", thread="t", run="r")
    assert len(sent) <= 5, sent
    assert f"/ui{PATH}?a=1&amp;b=2" in page
    found = await visitor.data("/memory", thread="t", run="r")
    assert [(one["path"], one["version"]) for one in found["files"]] == [(NAME, 2)]
