"""Threads that are created before their first checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support import config_of, put_arguments
from support.record import Parts, Record, ask

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import ConfigurationError, ThreadDeletedError, ThreadExistsError

pytestmark = pytest.mark.smoke


async def test_a_thread_is_created_with_all_that_it_is_given(parts: Parts, record: Record) -> None:
    given: Any = {"metadata": {"a": [1]}, "title": "Prague", "user_id": "eve", "tenant_id": "acme", "agent": "travel"}
    thread = await ask(parts.threads.create("t", ttl=timedelta(hours=1), **given))
    assert {name: getattr(thread, name) for name in given} == given
    assert (thread.status, thread.version, thread.head_checkpoint_id) == ("idle", 1, None)
    assert thread.expires_at - thread.created_at == timedelta(hours=1)
    assert await ask(parts.threads.get("t")) == thread


async def test_a_thread_without_a_name_gets_one(parts: Parts) -> None:
    first, second = [await ask(parts.threads.create()) for _ in range(2)]
    assert first.thread_id != second.thread_id
    assert (await ask(parts.threads.create(7))).thread_id == "7"


async def test_a_thread_that_exists_is_refused_or_returned(parts: Parts) -> None:
    made = await ask(parts.threads.create("t", metadata={"owner": "eve"}))
    with pytest.raises(ThreadExistsError, match="'t'") as refused:
        await ask(parts.threads.create("t"))
    assert refused.value.thread_id == "t"
    for scope in (None, {"owner": "eve"}):
        assert await ask(parts.threads.create("t", metadata={"b": 1}, if_exists="do_nothing", scope=scope)) == made
    with pytest.raises(ThreadExistsError):
        await ask(parts.threads.create("t", if_exists="do_nothing", scope={"owner": "bob"}))
    # Nobody's scope hides a thread from whoever has made it.
    assert await ask(parts.threads.create("new", scope={"owner": "bob"}))


async def test_a_thread_is_shown_within_a_scope_only(parts: Parts) -> None:
    await ask(parts.threads.create("t", metadata={"owner": "eve", "shared_with": ["ann", "bob"]}))
    for scope in ({"owner": "eve"}, {"shared_with": ["bob"]}, {"owner": "eve", "shared_with": ["bob", "ann"]}, {}):
        assert await ask(parts.threads.get("t", scope=scope))
    for scope in ({"owner": "ann"}, {"owner": ["eve"]}, {"shared_with": ["eve"]}, {"other": None}):
        assert await ask(parts.threads.get("t", scope=scope)) is None


async def test_the_first_checkpoint_keeps_what_was_given(parts: Parts, saver: PGStateSaver) -> None:
    await ask(parts.threads.create("t", metadata={"a": 1}, user_id="eve", ttl=timedelta(hours=1)))
    saver.put(*put_arguments(config_of("t"), 0))
    thread = await ask(parts.threads.get("t"))
    assert (thread.metadata, thread.user_id, thread.head_checkpoint_id is None) == ({"a": 1}, "eve", False)
    assert thread.expires_at is not None


async def test_a_deleted_thread_is_not_created_again(parts: Parts, record: Record) -> None:
    record.add("tombstones", thread_id="t", expires_at=datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(ThreadDeletedError):
        await ask(parts.threads.create("t"))
    record.add("tombstones", thread_id="expired", expires_at=datetime.now(UTC))
    assert (await ask(parts.threads.create("expired"))).thread_id == "expired"


@pytest.mark.parametrize(
    "bad",
    [
        {"thread_id": ""},
        {"thread_id": "x" * 3000},
        {"metadata": [1]},
        {"metadata": {"a": object()}},
        {"title": 7},
        {"user_id": "\0"},
        {"ttl": 60},
        {"ttl": timedelta(0)},
        {"if_exists": "maybe"},
        {"owner": "eve"},
    ],
)
async def test_what_cannot_be_created_is_refused(parts: Parts, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.create(**bad))
    assert await ask(parts.threads.count()) == 0
