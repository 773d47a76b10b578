"""Events, as applications ask for them."""

from __future__ import annotations

import pytest
from support_record import Parts, Record, ask, every_page

pytestmark = pytest.mark.smoke


async def test_events_are_listed_oldest_first_page_by_page(parts: Parts, record: Record) -> None:
    for number, kind in enumerate(["status", "interrupt", "resume", "fork", "status"]):
        record.event(f"e{number}", kind, payload={"number": number}, run_id="r" if number else None)
    pages = await every_page(parts.events.list, "t", limit=2)
    assert [[item.payload["number"] for item in page] for page in pages] == [[0, 1], [2, 3], [4]]
    assert [item.event_id for item in (await ask(parts.events.list("t", kind="status"))).items] == ["e0", "e4"]
    assert [item.event_id for item in (await ask(parts.events.list("t", kind="status", run_id="r"))).items] == ["e4"]
