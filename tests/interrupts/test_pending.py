"""Interrupted threads: found page by page, by an index."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from langgraph.types import Command, Interrupt

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.interrupts import pending as interrupts
from tests.interrupts.test_api import asking, config_of, ids


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
        yield state


def test_a_page_ends_where_enough_was_read(state: PGState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many answered questions do not make one call read them all; nothing is lost or seen twice on the way."""
    monkeypatch.setattr(interrupts, "_SCAN_PAGE", 2)
    monkeypatch.setattr(interrupts, "_SCAN_PAGES", 2)
    graph = asking(state.saver, "go on?")
    for number in range(13):
        graph.invoke({"said": []}, config_of(f"t{number}"))
        if number not in (0, 5, 6):
            graph.invoke(Command(resume="yes"), config_of(f"t{number}"))
    seen: list[str] = []
    pages = 0
    cursor = None
    while pages == 0 or cursor is not None:
        page = state.interrupts.threads(cursor=cursor)
        seen += [item.thread_id for item in page.items]
        cursor, pages = page.next, pages + 1
    assert seen == ["t6", "t5", "t0"]
    assert pages >= 3


def test_late_writes_of_a_run_that_was_rolled_back_ask_nobody(saver: PGStateSaver, state: PGState) -> None:
    """Writes may stand without their checkpoint."""
    config = config_of("gone", checkpoint_ns="", checkpoint_id="1f000000-0000-6000-8000-000000000000")
    saver.put_writes(config, [("__interrupt__", (Interrupt("why?", id="0" * 32),))], "task")
    assert ids(state) == []


@pytest.mark.slow
def test_the_inbox_is_found_by_its_index(state: PGState, connection: psycopg.Connection) -> None:
    """Among many writes that are no questions, and many questions that are answered."""
    table = f'"{state.schema}".'
    connection.execute(
        f"""
        INSERT INTO {table}writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, data)
        SELECT 't' || n, '', 'c' || n, 'task', CASE WHEN n % 10 = 0 THEN -3 ELSE 0 END, '', ''
        FROM generate_series(1, 20000) AS n
        """
    )
    connection.execute(f"ANALYZE {table}writes")
    ids = ",".join(f"t{number}" for number in range(10, 2010, 10))
    literals = {
        **{"cursor_at": "'infinity'", "cursor_thread": "''", "cursor_task": "''", "page_size": "200"},
        **{"thread_ids": f"'{{{ids}}}'", "checkpoint_ids": f"'{{{ids.replace('t', 'c')}}}'"},
    }

    def plan(name: str) -> str:
        query = getattr(state.threads._queries, name)
        text = query.text.decode()
        for number, parameter in reversed([*enumerate(query.parameters, 1)]):
            text = text.replace(f"${number}", literals.get(parameter, "NULL"))
        rows = connection.execute("EXPLAIN (ANALYZE, COSTS OFF) " + text).fetchall()
        return "\n".join(row[0] for row in rows)

    scanned = plan("scan_interrupts")
    assert "writes_interrupts_idx" in scanned
    assert "Sort" not in scanned
    connection.execute(
        f"INSERT INTO {table}checkpoints (thread_id, checkpoint_ns, checkpoint_id, segment_ids, metadata, state) "
        "SELECT 't' || n, '', 'c' || n, '{}', '{}', '' FROM generate_series(1, 20000) AS n"
    )
    connection.execute(f"ANALYZE {table}checkpoints")
    assert "Seq Scan on writes" not in plan("get_interrupts")
