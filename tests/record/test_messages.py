"""Messages, as applications search for them."""

from __future__ import annotations

import psycopg
import pytest
from support.record import Parts, Record, ask, at, every_page

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import ConfigurationError


@pytest.fixture
def record(connection: psycopg.Connection, saver: PGStateSaver) -> Record:
    record = Record(connection, saver.schema)
    record.thread()
    return record


async def test_messages_are_found_by_their_words(parts: Parts, record: Record) -> None:
    record.thread("u", user_id="eve", tenant_id="acme")
    record.message("a", "1", 0, "A hotel in Prague" + " among others" * 9, created_at=at(1))
    record.message("b", "1", 1, "a hotel, a hotel, my kingdom for a hotel", created_at=at(2))
    record.message("c", "1", 0, "the Prague hotel is full", thread_id="u", created_at=at(3))
    record.removal("a", "2")
    search = parts.messages.search
    newest = await ask(search("hotel"))
    assert [hit.message.message_id for hit in newest.items] == ["c", "b", "a"]
    assert newest.items[0].snippet == "the Prague «hotel» is full"
    best = await ask(search("hotel", best_first=True))
    assert best.items[0].message.message_id == "b"
    for query, options, found in [
        ("HOTEL prague", {}, "ca"),
        ('"prague hotel"', {}, "c"),
        ("hotel -prague", {}, "b"),
        ("kingdom or full", {}, "cb"),
        ("hotel", {"user_id": "eve"}, "c"),
        ("hotel", {"tenant_id": "acme", "user_id": "eve"}, "c"),
        ("hotel", {"tenant_id": "other"}, ""),
        ("hotel", {"thread_id": "t"}, "ba"),
        ("motel", {}, ""),
        ("the", {"thread_id": "u"}, "c"),
        ("!!!", {}, ""),
    ]:
        assert "".join(hit.message.message_id for hit in (await ask(search(query, **options))).items) == found, query


async def test_what_an_edit_has_replaced_is_not_found(parts: Parts, record: Record) -> None:
    record.message("a", "1", 0, "a hotel")
    record.message("a", "2", 0, "a hostel", change="edited")
    assert (await ask(parts.messages.search("hotel"))).items == ()
    assert len((await ask(parts.messages.search("hostel"))).items) == 1


@pytest.mark.parametrize("best_first", [False, True])
async def test_a_search_is_paged(parts: Parts, record: Record, best_first: bool) -> None:
    for number in range(7):
        text = "hotel " * (number % 3 + 1)
        record.message(f"m{number}", "1", number, text, created_at=at(number // 2), thread_id=f"t{number % 2}")
    whole = [hit.message.message_id for hit in (await ask(parts.messages.search("hotel", best_first=best_first))).items]
    pages = await every_page(parts.messages.search, "hotel", best_first=best_first, limit=2)
    assert [len(page) for page in pages] == [2, 2, 2, 1]
    assert [hit.message.message_id for page in pages for hit in page] == whole
    assert sorted(whole) == [f"m{number}" for number in range(7)]
    cursor = (await ask(parts.messages.search("hotel", best_first=best_first, limit=2))).next
    with pytest.raises(ConfigurationError, match="cursor must be"):
        await ask(parts.messages.search("hotel", best_first=not best_first, cursor=cursor))


@pytest.mark.parametrize("query", ["", "  ", "\0", "\ud800"])
async def test_a_search_for_nothing_is_refused(parts: Parts, query: str) -> None:
    with pytest.raises(ConfigurationError):
        await ask(parts.messages.search(query))
