"""Events, as applications ask for them."""

from __future__ import annotations

import pytest
from support.record import Parts, Record, ask, every_page

from langgraph_pgstate.errors import ConfigurationError

pytestmark = pytest.mark.smoke


async def test_events_are_listed_oldest_first_page_by_page(parts: Parts, record: Record) -> None:
    for number, kind in enumerate(["status", "interrupt", "resume", "fork", "status"]):
        record.event(f"e{number}", kind, payload={"number": number}, run_id="r" if number else None)
    pages = await every_page(parts.events.list, "t", limit=2)
    assert [[item.payload["number"] for item in page] for page in pages] == [[0, 1], [2, 3], [4]]
    assert [item.event_id for item in (await ask(parts.events.list("t", kind="status"))).items] == ["e0", "e4"]
    assert [item.event_id for item in (await ask(parts.events.list("t", kind="status", run_id="r"))).items] == ["e4"]


async def test_the_newest_come_first_if_that_is_wanted(parts: Parts, record: Record) -> None:
    for number in range(5):
        record.event(f"e{number}", "status", payload={"number": number})
    pages = await every_page(parts.events.list, "t", limit=2, newest_first=True)
    assert [[item.payload["number"] for item in page] for page in pages] == [[4, 3], [2, 1], [0]]


async def test_an_application_adds_events(parts: Parts) -> None:
    await ask(parts.events.add("t", "action", {"by": "eve", "list": [1, None]}, run_id="r", checkpoint_id="c"))
    await ask(parts.events.add("t", "action", {"by": "adam"}))
    first, second = (await ask(parts.events.list("t"))).items
    assert (first.kind, first.payload, first.run_id) == ("action", {"by": "eve", "list": [1, None]}, "r")
    assert (first.checkpoint_ns, first.checkpoint_id) == ("", "c")
    assert (second.payload, second.run_id, second.checkpoint_ns) == ({"by": "adam"}, None, None)
    for kind, payload in (("a\0b", {}), ("action", {"by": object()}), ("action", "text")):
        with pytest.raises(ConfigurationError):
            await ask(parts.events.add("t", kind, payload))
    assert len((await ask(parts.events.list("t"))).items) == 2
