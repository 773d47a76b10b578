"""Threads, listed, shown and changed."""

from __future__ import annotations

import pytest
from support import counted
from support.record import Parts, Record, ask, at, every_page, open_parts

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, StaleVersionError

pytestmark = pytest.mark.smoke


async def test_threads_are_listed_latest_first_page_by_page(parts: Parts, record: Record) -> None:
    for number in range(7):
        record.thread(f"t{number}", updated=number // 2, user_id="eve" if number % 2 else "bob")
    pages = await every_page(parts.threads.list, limit=3)
    assert [[item.thread_id for item in page] for page in pages] == [["t6", "t4", "t5"], ["t2", "t3", "t0"], ["t1"]]
    pages = await every_page(parts.threads.list, limit=2, user_id="eve")
    assert [[item.thread_id for item in page] for page in pages] == [["t5", "t3"], ["t1"]]


async def test_a_thread_is_shown_with_its_head_and_its_state(parts: Parts, record: Record) -> None:
    record.thread(title="Prague", metadata={"topic": "travel"}, expires_at=at(9))
    record.chain(["1", "2"])
    record.checkpoint("3", checkpoint_ns="sub")
    record.add("projections", thread_id="t", checkpoint_id="2", state={"booking": None})
    thread = await ask(parts.threads.get("t"))
    assert (thread.head_checkpoint_id, thread.state, thread.title) == ("2", {"booking": None}, "Prague")
    assert (thread.metadata, thread.version, thread.expires_at) == ({"topic": "travel"}, 1, at(9))
    assert await ask(parts.threads.get("nobody")) is None
    record.thread("7")
    bare = await ask(parts.threads.get(7))
    assert (bare.thread_id, bare.head_checkpoint_id, bare.state) == ("7", None, None)


async def test_an_owner_with_nul_is_no_other_owner(parts: Parts, record: Record) -> None:
    """PostgreSQL's JSON has no NUL: without it, the metadata would be those of somebody else's thread."""
    record.thread(metadata={"owner": "ann"})
    for owned in ({"owner": "ann\0"}, {"owner\0": "ann"}, {"owner": ["a\0nn"]}, {"of": {"owner": "ann\0"}}):
        asked = [
            lambda owned=owned: parts.threads.get("t", scope=owned),
            lambda owned=owned: parts.threads.get("t", scope=[{"x": 1}, owned]),
            lambda owned=owned: parts.threads.search(metadata=owned),
            lambda owned=owned: parts.threads.count(metadata=owned),
            lambda owned=owned: parts.threads.create("u", metadata=owned),
            lambda owned=owned: parts.threads.update_metadata("t", owned),
        ]
        for ask_for in asked:
            with pytest.raises(ConfigurationError, match=r"(scope|metadata)\['.*'\] holds NUL"):
                await ask(ask_for())
    assert (await ask(parts.threads.get("t"))).metadata == {"owner": "ann"}


async def test_metadata_merge_and_count_versions(parts: Parts, record: Record) -> None:
    record.thread(metadata={"a": 1, "b": {"c": 1}})
    changed = await ask(parts.threads.update_metadata("t", {"b": {"d": 2}, "e": None}))
    assert (changed.metadata, changed.version) == ({"a": 1, "b": {"d": 2}, "e": None}, 2)
    same = await ask(parts.threads.update_metadata("t", {"a": 1}))
    assert same.version == 2
    titled = await ask(parts.threads.set_title("t", "Prague", expected_version=2))
    assert (titled.title, titled.version, titled.metadata) == ("Prague", 3, changed.metadata)
    assert (await ask(parts.threads.set_title("t", None))).title is None
    assert (await ask(parts.threads.get("t"))).updated_at == at(0)


async def test_a_stale_version_is_refused(parts: Parts, record: Record) -> None:
    record.thread(metadata={"a": 1})
    await ask(parts.threads.update_metadata("t", {"a": 2}, expected_version=1))
    with pytest.raises(StaleVersionError) as raised:
        await ask(parts.threads.update_metadata("t", {"a": 3}, expected_version=1))
    assert (raised.value.thread_id, raised.value.expected, raised.value.found) == ("t", 1, 2)
    with pytest.raises(StaleVersionError):
        await ask(parts.threads.set_title("t", "x", expected_version=7))
    assert (await ask(parts.threads.get("t"))).metadata == {"a": 2}


async def test_a_change_whose_answer_was_lost_is_not_stale(dsn: str, record: Record) -> None:
    """It is repeated, and finds its own work."""
    record.thread()
    with counted(dsn) as proxy:
        async with open_parts(Database, proxy.dsn, record.schema) as parts:
            parts.threads.get("t")
            proxy.answers_to_lose = 1
            changed = parts.threads.update_metadata("t", {"a": 1}, expected_version=1)
            assert proxy.answers_to_lose == 0
    assert (changed.metadata, changed.version) == ({"a": 1}, 2)


async def test_an_unknown_thread_cannot_be_changed(parts: Parts) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        await ask(parts.threads.update_metadata("nobody", {"a": 1}))
