"""Runs, as applications ask for them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from support.record import Parts, Record, ask, at, every_page

pytestmark = pytest.mark.smoke


async def test_runs_are_listed_newest_first_page_by_page(parts: Parts, record: Record) -> None:
    for number in range(5):
        record.run(f"r{number}", started=number // 2, thread_id=f"t{number % 2}", agent="travel" if number else None)
    pages = await every_page(parts.runs.list, limit=2)
    assert [[item.run_id for item in page] for page in pages] == [["r4", "r2"], ["r3", "r0"], ["r1"]]
    pages = await every_page(parts.runs.list, limit=2, thread_id="t0")
    assert [[item.run_id for item in page] for page in pages] == [["r4", "r2"], ["r0"]]
    assert len((await ask(parts.runs.list(agent="travel"))).items) == 4


async def test_a_run_is_found_in_threads_of_the_scope_alone(parts: Parts, record: Record) -> None:
    record.thread(metadata={"owner": "eve"})
    record.run("a", status="error", queue="default")
    record.add("run_requests", thread_id="t", run_id="a", options={}, data=b"")
    for owner, is_found in (("eve", True), ("bob", False)):
        scope = {"owner": owner}
        assert (await ask(parts.runs.get("t", "a", scope=scope)) is not None) is is_found
        assert len((await ask(parts.runs.list(by="duration", scope=scope))).items) == is_found
        assert (await ask(parts.runs.sums(scope=scope))).runs == is_found
        assert len((await ask(parts.runs.dead_letters(scope=scope))).items) == is_found


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"status": "error"}, "b"),
        ({"status": "success"}, "ca"),
        ({"status": "running"}, "ed"),
        ({"since": at(20)}, "edc"),
        ({"until": at(20)}, "ba"),
        ({"since": timedelta(seconds=1)}, ""),
        ({"user_id": "eve"}, "c"),
        ({"tenant_id": "acme"}, "c"),
        ({"min_steps": 10}, "c"),
        ({"thread_id": "t", "status": "error"}, "b"),
    ],
)
async def test_runs_are_filtered(parts: Parts, record: Record, filters: dict[str, Any], found: str) -> None:
    record.run("a", 0)
    record.run("b", 10, status="error", error_type="ValueError")
    record.run("c", 20, user_id="eve", tenant_id="acme", steps=10)
    record.run("d", 30, None, status="running", alive_until=at(31))
    record.run("e", 40, None, status="running", alive_until=datetime.max.replace(tzinfo=at(0).tzinfo))
    assert "".join(item.run_id for item in (await ask(parts.runs.list(**filters))).items) == found
