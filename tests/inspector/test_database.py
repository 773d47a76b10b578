"""The page of the database."""

from __future__ import annotations

from datetime import timedelta

import psycopg
from support.pages import inspected, state_of, statements
from support.record import at

from langgraph_pgstate.admin.types import MaintenanceNote
from langgraph_pgstate.inspector.database import done, note_before


async def test_the_database_shows_sizes_growth_and_maintenance(dsn: str, schema: str) -> None:
    async with inspected(dsn, schema) as (server, visitor):
        first = await visitor.page("/database")
        assert "Nothing is known of maintenance" in first
        # PostgreSQL has no estimate of the rows of a table that was never analyzed.
        assert "not known yet" in first
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            for table in (await visitor.data("/database"))["overview"]["tables"]:
                await connection.execute(f"ANALYZE {schema}.{table['name']}".encode())
        assert "not known yet" not in await visitor.page("/database")
        for _ in range(2):
            await state_of(server).maintain()
        with statements() as sent:
            html = await visitor.page("/database")
        assert len(sent) <= 5, sent
        for text in ("Growth since", "checkpoints", "create", "pg_stat_statements is not there"):
            assert text in html
        data = await visitor.data("/database")
        assert data["overview"]["schema"] == schema
        assert len(data["notes"]) == 2


def test_growth_is_counted_from_a_week_ago_or_from_the_oldest_note() -> None:
    notes = [MaintenanceNote(at(0) - timedelta(days=days), 1.0, {}, {}) for days in (0, 3, 8, 20)]
    week = at(0) - timedelta(days=7)
    assert note_before(notes, week) is notes[2]
    assert note_before(notes[:2], week) is notes[1]
    assert note_before(notes[:1], week) is None


def test_what_maintenance_did_is_said_in_words() -> None:
    report = {"months_made": ["2026_01"], "runs_settled": 2, "orphan_writes": 0}
    report["policies"] = {"deleted": 3, "archived": 0, "checkpoints": 0, "failed": 1}
    assert done(MaintenanceNote(at(0), 1.0, report, {})) == [
        "1 partitions made",
        "2 runs of dead processes ended",
        "3 threads deleted by policies",
        "1 policies with an error",
    ]
    assert done(MaintenanceNote(at(0), 1.0, {}, {})) == []
