"""Threads, filtered and searched."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo
from support import config_of, put_arguments
from support.record import Parts, Record, ask, at, every_page

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.paging import encode_cursor

pytestmark = pytest.mark.smoke


def ids(page: Any) -> list[str]:
    return [item.thread_id for item in page.items]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, "dcba"),
        ({"user_id": "eve"}, "ca"),
        ({"tenant_id": "acme"}, "ba"),
        ({"user_id": "eve", "tenant_id": "acme"}, "a"),
        ({"tenant_id": "acme", "user_id": "nobody"}, ""),
        ({"agent": "travel"}, "dc"),
        ({"status": "error"}, "b"),
        ({"status": "idle"}, "dca"),
        ({"status": "error", "user_id": "eve"}, ""),
        ({"updated_after": at(20)}, "dc"),
        ({"updated_before": at(20)}, "ba"),
        ({"created_after": at(0), "created_before": at(1)}, "dcba"),
        ({"created_after": at(1)}, ""),
    ],
)
async def test_threads_are_filtered(parts: Parts, record: Record, filters: dict[str, Any], found: str) -> None:
    record.thread("a", 0, user_id="eve", tenant_id="acme")
    record.thread("b", 10, user_id="bob", tenant_id="acme", status="error")
    record.thread("c", 20, user_id="eve", agent="travel")
    record.thread("d", 30, agent="travel")
    assert "".join(ids(await ask(parts.threads.list(**filters)))) == found
    assert "".join(ids(await ask(parts.threads.search(**filters)))) == found


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"metadata": {"topic": "travel"}}, "ba"),
        ({"metadata": {"nested": {"deep": 1}}}, "c"),
        ({"metadata": {"price": 1.5}}, "c"),
        ({"metadata": {}}, "cba"),
        ({"state": {"booking": {"hotel": "Astoria"}}}, "b"),
        ({"state": {"booking": {"hotel": "Astoria"}}, "metadata": {"topic": "none"}}, ""),
        ({"where": '$.booking.check_in >= "2027-03-01" && $.booking.check_in < "2027-04-01"'}, "ba"),
        ({"where": '$.booking.check_in < "2027-03-15"', "metadata": {"topic": "travel"}}, "a"),
        ({"where": '$.booking.check_in < "2027-03-15"', "user_id": "bob"}, ""),
        ({"where": '$.booking.check_in > "2027-03-15"', "user_id": "bob"}, "b"),
        ({"where": '$.booking.hotel == "Astoria"', "tenant_id": "acme"}, ""),
        ({"text": "hotel river"}, "ca"),
        ({"text": '"hotel by"', "user_id": "eve"}, "a"),
        ({"text": "river", "metadata": {"topic": "travel"}}, "a"),
        ({"text": "river", "scope": {"price": 1.5}}, "c"),
        ({"text": "b"}, "b"),
        ({"text": "nowhere"}, ""),
        ({"scope": {"topic": "travel"}}, "ba"),
        ({"scope": {"topic": "travel"}, "user_id": "bob"}, "b"),
        ({"scope": {}}, "cba"),
    ],
)
async def test_threads_are_searched(parts: Parts, record: Record, wanted: dict[str, Any], found: str) -> None:
    record.thread("a", 0, metadata={"topic": "travel"}, user_id="eve")
    record.thread("b", 10, metadata={"topic": "travel", "tags": [1, 2]}, user_id="bob")
    record.thread("c", 20, metadata={"nested": {"deep": 1, "more": 2}, "price": 1.5}, user_id="bob")
    record.add("projections", thread_id="a", checkpoint_id="1", state={"booking": {"check_in": "2027-03-02"}})
    late = {"booking": {"check_in": "2027-03-30", "hotel": "Astoria"}}
    record.add("projections", thread_id="b", checkpoint_id="1", state=late)
    for id in "ac":
        fields = {"checkpoint_id": "1", "checkpoint_ns": "", "channel": "messages", "position": 0, "change": "added"}
        record.add("messages", thread_id=id, message_id="m", content="A hotel by the river", role="human", **fields)
    assert "".join(ids(await ask(parts.threads.search(**wanted)))) == found
    assert (
        "".join(item.thread_id for page in await every_page(parts.threads.search, limit=1, **wanted) for item in page)
        == found
    )


@pytest.mark.parametrize("bad", [{"a": object()}, {"a": float("nan")}, {"a": "\ud800"}, {1: 2}, {"a": [b""]}])
async def test_metadata_that_json_cannot_say_are_refused(parts: Parts, record: Record, bad: dict[Any, Any]) -> None:
    record.thread()
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.update_metadata("t", bad))
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.search(metadata=bad))


@pytest.mark.parametrize(
    "bad",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": True},
        {"cursor": "x"},
        {"cursor": ""},
        {"cursor": "é"},
        {"cursor": encode_cursor("runs", ("2026-01-01", ""))},
        {"cursor": encode_cursor("threads", ("yesterday", ""))},
        {"cursor": encode_cursor("threads", ("2026-01-01", 1))},
        {"cursor": encode_cursor("threads", ("2026-01-01", "\0"))},
        {"status": "sleeping"},
        {"user_id": "\0"},
        {"user_id": 7},
        {"updated_after": datetime(2026, 1, 1)},
        {"updated_after": "2026-01-01"},
    ],
)
async def test_what_cannot_be_searched_for_is_refused(parts: Parts, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.list(**bad))


@pytest.mark.parametrize("bad", ["$.booking.", "not a path", ""])
async def test_a_path_that_is_none_is_refused(parts: Parts, bad: str) -> None:
    with pytest.raises(ConfigurationError, match="is invalid"):
        await ask(parts.threads.search(where=bad))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "dcba"),
        ({"ascending": True}, "abcd"),
        ({"by": "created_at"}, "acbd"),
        ({"by": "created_at", "ascending": True}, "dbca"),
        ({"by": "thread_id"}, "dcba"),
        ({"by": "status"}, "cabd"),
        ({"by": "status", "ascending": True}, "dabc"),
        ({"limit": 2, "offset": 1}, "cb"),
        ({"ids": ["a", "c", "none"]}, "ca"),
        ({"ids": []}, ""),
        ({"metadata": {"topic": "travel"}}, "ba"),
        ({"scope": {"owner": "eve"}}, "ca"),
        ({"scope": {"owner": "eve"}, "metadata": {"topic": "travel"}}, "a"),
        ({"scope": {"owner": "eve"}, "metadata": {"owner": "bob"}}, ""),
        ({"scope": {"owner": "eve"}, "ids": ["a", "b"]}, "a"),
        ({"scope": {"shared_with": ["ann"]}}, "d"),
        ({"state": {"booking": 1}, "user_id": "bob"}, "b"),
        ({"where": "$.booking == 1"}, "ba"),
    ],
)
async def test_threads_are_sorted_and_counted(parts: Parts, record: Record, given: dict[str, Any], found: str) -> None:
    record.thread("a", 0, metadata={"topic": "travel", "owner": "eve"}, created_at=at(9))
    record.thread("b", 10, metadata={"topic": "travel", "owner": "bob"}, created_at=at(5), user_id="bob")
    record.thread("c", 20, metadata={"owner": "eve"}, created_at=at(7), status="interrupted")
    record.thread("d", 30, metadata={"shared_with": ["ann", "eve"]}, created_at=at(1), status="busy")
    for id in "ab":
        record.add("projections", thread_id=id, checkpoint_id="1", state={"booking": 1})
    assert "".join(thread.thread_id for thread in await ask(parts.threads.sorted(**given))) == found
    filters = {name: value for name, value in given.items() if name not in ("by", "ascending", "limit", "offset")}
    assert await ask(parts.threads.count(**filters)) == (len(found) if "limit" not in given else 4)


@pytest.mark.parametrize(
    "bad",
    [
        {"by": "title"},
        {"ascending": 1},
        {"offset": -1},
        {"offset": True},
        {"cursor": "x"},
        {"ids": "abc"},
        {"ids": ["\0"]},
        {"scope": {"a": object()}},
        {"where": "$."},
        {"limit": 0},
        {"owner": "eve"},
        {"text": "words"},
    ],
)
async def test_what_cannot_be_sorted_is_refused(parts: Parts, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.sorted(**bad))
    if bad.keys() & {"by", "ascending", "offset", "limit"}:
        return
    with pytest.raises(ConfigurationError):
        await ask(parts.threads.count(**bad))


def test_the_beginning_of_an_id_is_found_whatever_it_has(dsn: str, schema: str, saver: PGStateSaver) -> None:
    for thread_id in ("a%b", "a%bc", "axb", "a\\b", "a_"):
        saver.put(*put_arguments(config_of(thread_id), 0))
    with PGState.open(make_conninfo(dsn, options="-c standard_conforming_strings=off"), schema=schema) as state:
        for text, found in (("a%b", {"a%b", "a%bc"}), ("a\\", {"a\\b"}), ("a_", {"a_"}), ("b", set())):
            assert {*ids(state.threads.search(text=text))} == found, text
