"""Pages, and the cursors that lead to the next."""

from __future__ import annotations

from datetime import datetime

import pytest
from support.record import Parts, Record, at, every_page

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.paging import decode_cursor, encode_cursor, sorting_of

pytestmark = pytest.mark.smoke


async def test_a_page_that_is_just_full_is_the_last(parts: Parts, record: Record) -> None:
    for number in range(4):
        record.thread(f"t{number}")
    assert [len(page) for page in await every_page(parts.threads.list, limit=2)] == [2, 2]


def test_a_cursor_carries_what_it_was_given() -> None:
    values = (at(0.123456), "id ÿ", 7, 0.1)
    found = decode_cursor("x", encode_cursor("x", values), ("-infinity", "", 0, 0.0))
    assert [datetime.fromisoformat(found[0]), *found[1:]] == [*values]


def test_a_list_by_offset_has_a_known_order() -> None:
    found = {"by": "name", "ascending": False, "offset": 0, "page_size": 20}
    assert sorting_of({}, "things", ("name", "age")) == found
    assert sorting_of({"by": "age", "ascending": True}, "things", ("name", "age")) == {
        **found,
        "by": "age",
        "ascending": True,
    }
    with pytest.raises(ConfigurationError, match="by must be one of name, age for a list of things, not 'size'"):
        sorting_of({"by": "size"}, "things", ("name", "age"))
    with pytest.raises(ConfigurationError, match="ascending"):
        sorting_of({"ascending": "yes"}, "things", ("name",))
