"""Lists of tool executions: of all threads, in pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.ledger import LEDGERS, Bench, open_bench
from support.record import Record, at

pytestmark = pytest.mark.smoke


async def test_effects_of_all_threads_are_paged_and_those_in_doubt_apart(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    record = Record(connection, schema)
    record.thread("t", metadata={"owner": "a"})
    record.thread("other", metadata={"owner": "c"})
    states = ["success", "unknown", "timeout", "error", "running", "running", "unknown"]
    for number, status in enumerate(states):
        alive = {"alive_until": at(0) if number == 4 else datetime.now(UTC) + timedelta(hours=1)}
        record.execution(f"k{number}", number, status=status, thread_id="t" if number % 2 else "other", **alive)
    record.execution("other tool", 20, tool="mail", status="unknown")
    for api in LEDGERS:
        async with open_bench(api, dsn, schema) as bench:

            async def keys(bench: Bench = bench, **filters: Any) -> list[str]:
                found: list[str] = []
                cursor = None
                while True:
                    page = await bench.do(bench.ledger.recent, limit=2, cursor=cursor, **filters)
                    found += [one.idempotency_key for one in page.items]
                    cursor = page.next
                    if cursor is None:
                        return found

            assert await keys(tool="pay") == [f"k{number}" for number in range(6, -1, -1)]
            assert await keys(unknown=True) == ["other tool", "k6", "k4", "k2", "k1"]
            assert await keys(unknown=True, tool="pay") == ["k6", "k4", "k2", "k1"]
            assert await keys(unknown=True, scope={"owner": "a"}) == ["other tool", "k1"]
            assert await keys(scope={"owner": "a"}) == ["other tool", "k5", "k3", "k1"]
            assert await keys(scope={"owner": "b"}) == []
            own = await bench.do(bench.ledger.list, "other", unknown=True)
            assert [one.idempotency_key for one in own] == ["k6", "k4", "k2"]
