"""Chains of events by hashes: they stay whole whoever writes, and name what was removed, changed or inserted."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from support import config_of, examples, wait_until

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.checkpoints import event_chains
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.schema.queries import queries

Ask = Callable[[str], list[Any]]


@pytest.fixture
def ask(connection: psycopg.Connection, schema: str) -> Ask:
    """SQL behind the back of the package."""

    def run(statement: str) -> list[Any]:
        cursor = connection.execute(statement.replace("{}", schema).encode())
        return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        state.setup(audit=True)
        yield state


def add(state: PGState, count: int, thread_id: str = "t") -> None:
    for number in range(count):
        state.events.add(thread_id, "note", {"number": number})


def found(state: PGState, **options: Any) -> list[str]:
    report = state.audit.verify(**options)
    return [f"{one.thread_id}: {one.where.split(' ')[0]} {one.why}" for one in report.problems]


def asking() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("ask", lambda state: {"messages": [("ai", f"told {interrupt('ok?')}")]})
    return builder.add_edge(START, "ask").add_edge("ask", END)


def test_it_is_off_by_default(dsn: str, schema: str, ask: Ask) -> None:
    with PGState.open(dsn, schema=schema) as state:
        add(state, 2)
        with pytest.raises(ConfigurationError, match=r"not chained: call setup\(audit=True\)"):
            state.audit.verify()
    assert ask("SELECT count(*) FROM {}.event_chains") == [(0,)]


def test_all_that_writes_events_keeps_the_chain_whole(state: PGState, ask: Ask) -> None:
    graph = state.record(asking().compile(checkpointer=state.saver))
    graph.invoke({"messages": [("user", "Hi.")]}, config_of("t"))
    state.flush()
    graph.invoke(state.interrupts.answer("t", "yes", by="eve"), config_of("t"))
    state.flush()
    state.threads.hold("t", "case", by="eve")
    state.threads.release("t", "case", by="eve")
    state.threads.fork("t", to="fork")
    state.saver.copy_thread("t", "copy")
    add(state, 1, "copy")
    state.saver.prune(["fork"], strategy="keep_latest")
    kinds = {kind for (kind,) in ask("SELECT kind FROM {}.events")}
    assert {"interrupt", "answer", "resume", "status", "action", "fork", "prune", "note"} <= kinds
    report = state.audit.verify()
    assert (report.problems, report.threads) == ([], 3)
    assert ask("SELECT count(*) FROM {}.event_hashes") == ask("SELECT count(*) FROM {}.events") == [(report.events,)]


def test_runs_of_dead_processes_and_damage_are_chained(state: PGState, ask: Ask) -> None:
    graph = state.record(asking().compile(checkpointer=state.saver))
    graph.invoke({"messages": [("user", "Hi.")]}, config_of("t"))
    state.flush()
    long_ago = "ended_at = NULL, alive_until = now() - interval '1 day'"
    ask(f"UPDATE {{}}.runs SET status = 'running', holder_id = 'x', {long_ago}")
    state.maintain()
    assert ask("SELECT count(*) FROM {}.events WHERE event_id LIKE '%-died-%'") == [(1,)]
    assert found(state) == []


REMOVED = "its event was removed or changed, and no event says why"
MOVED = "it does not follow from the entry before it: one of the two was changed or moved"
INSERTED = "it is in no chain: another program inserted it"
CHANGES = {
    "DELETE FROM {}.events WHERE OF2": "event the event was removed",
    "UPDATE {}.events SET payload = '{\"number\": 7}' WHERE OF2": "event the event was changed",
    "UPDATE {}.events SET created_at = created_at - interval '1 s' WHERE OF2": "event the event was changed",
    "INSERT INTO {}.events (thread_id, event_id, kind) VALUES ('t', '1', 'note')": f"event {INSERTED}",
    "INSERT INTO {}.events (thread_id, event_id, kind) VALUES ('u', '1', 'note')": f"event {INSERTED}",
    "UPDATE {}.event_hashes SET salt = NULL WHERE number = 3": f"entry {REMOVED}",
    "UPDATE {}.event_hashes SET number = CASE number WHEN 2 THEN 13 ELSE 12 END WHERE number IN (2, 3);"
    "UPDATE {}.event_hashes SET number = number - 10 WHERE number > 10": f"event {MOVED}",
    "DELETE FROM {}.events WHERE OF2; DELETE FROM {}.event_hashes WHERE number = 3": "event 1 entries before it",
    "DELETE FROM {}.events WHERE OF4; DELETE FROM {}.event_hashes WHERE number = 5": "the its last 1 entries were",
    "UPDATE {}.event_chains SET hash = ''": "the its head was changed",
    "DELETE FROM {}.event_chains": "the its head was removed",
    "DELETE FROM {}.event_hashes; DELETE FROM {}.events": "the its last 5 entries were removed",
}


@pytest.mark.parametrize(("change", "finding"), CHANGES.items())
def test_what_was_done_by_other_means_is_found(state: PGState, ask: Ask, change: str, finding: str) -> None:
    add(state, 5)
    assert found(state) == []
    for statement in change.split(";"):
        ask(re.sub(r"OF(\d)", r"payload ->> 'number' = '\1'", statement))
    assert f": {finding}" in " ".join(found(state))


def test_what_only_an_export_shows_is_found(state: PGState, ask: Ask) -> None:
    add(state, 5)
    lines = [*state.audit.export()]
    assert [line.count(b'"payload"') for line in lines] == [1] * 5
    assert found(state, exported=lines) == []
    # The last event with all that is known of it.
    ask("DELETE FROM {}.events WHERE payload ->> 'number' = '4'")
    ask("DELETE FROM {}.event_hashes WHERE number = 5")
    ask("UPDATE {}.event_chains SET number = 4, hash = (SELECT hash FROM {}.event_hashes WHERE number = 4)")
    assert found(state) == []
    assert found(state, exported=lines) == ["t: exported it was removed"]
    add(state, 1)
    assert found(state, exported=lines) == ["t: exported its hash differs: the chain was rewritten"]
    for table in ("events", "event_hashes", "event_chains"):
        ask(f"DELETE FROM {{}}.{table}")
    assert found(state) == []
    assert len(found(state, exported=lines)) == 5
    for line in (b"{}", b"[]", b"no", b'{"thread_id":"t","chain_id":"c","number":1,"hash":"x"}'):
        with pytest.raises(ConfigurationError, match="exported must be lines"):
            state.audit.verify(exported=[line])


def test_deleted_runs_and_threads_leave_explained_chains(state: PGState, ask: Ask) -> None:
    graph = state.record(asking().compile(checkpointer=state.saver))
    graph.invoke({"messages": [("user", "Hi.")]}, config_of("t"))
    add(state, 2)
    state.flush()
    lines = [*state.audit.export()]
    ((run_id,),) = ask("SELECT run_id FROM {}.runs")
    gone = ask(f"SELECT count(*) FROM {{}}.events WHERE run_id = '{run_id}'")[0][0]
    state.saver.delete_for_runs([run_id])
    report = state.audit.verify(exported=lines)
    assert (report.problems, report.explained, gone > 0) == ([], gone, True)
    assert ask("SELECT payload ->> 'reason' FROM {}.events WHERE kind = 'audit'") == [("run deleted",)]
    # Nobody can try what they were.
    assert ask("SELECT count(*) FROM {}.event_hashes WHERE salt IS NULL") == [(gone,)]
    state.saver.delete_thread("t", by="eve")
    report = state.audit.verify(exported=lines)
    assert (report.problems, report.ended) == ([], len(lines))
    assert ask("SELECT reason FROM {}.event_chain_ends") == [("deleted",)]
    assert ask("SELECT payload ->> 'action' FROM {}.events") == [("delete",)]
    ask("DELETE FROM {}.event_chain_ends")
    assert len(found(state, exported=lines)) == len(lines)


def test_events_of_before_are_adopted_once_somebody_says_so(dsn: str, schema: str, ask: Ask) -> None:
    with PGState.open(dsn, schema=schema) as state:
        add(state, 2, "old")
        add(state, 2, "older")
        state.setup(audit=True)
    with PGState.open(dsn, schema=schema) as state:
        assert (state.audit.verify().before, found(state)) == (4, [])
        # The first event of a chain brings those of before along.
        add(state, 1, "old")
        assert (state.audit.verify().before, found(state)) == (2, [])
        ask("INSERT INTO {}.events (thread_id, event_id, kind) VALUES ('old', '1', 'note')")
        assert len(found(state)) == 1
        assert state.audit.adopt("eve") == 3
        assert state.audit.adopt("eve") == 0
        assert (state.audit.verify().before, found(state)) == (0, [])
        assert ask("SELECT payload ->> 'by' FROM {}.events WHERE kind = 'action' ORDER BY thread_id") == [("eve",)] * 2


def test_writers_of_one_thread_append_in_turn_and_others_do_not_wait(
    dsn: str, schema: str, state: PGState, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second writer waits from the moment that the first has locked the chain, before it appends anything."""
    add(state, 1)
    add(state, 1, "other")
    chaining, writers = event_chains.chaining, list[Any]()

    def chain_late(*given: Any) -> Iterator[Any]:
        locking, *appending = chaining(*given)
        yield locking
        monkeypatch.undo()
        second = pool.submit(state.events.add, "t", "note", {"writer": 2})
        writers.append(second)
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_until(lambda: second.done() or ask(waiting) != [(0,)], "the second waits")
        add(state, 1, "other")
        assert not second.done()
        yield from appending

    with psycopg.connect(dsn, autocommit=True) as connection, ThreadPoolExecutor(1) as pool:
        mine = PGState(connection, schema=schema)
        with connection.transaction():
            monkeypatch.setattr(event_chains, "chaining", chain_late)
            mine.events.add("t", "note", {"writer": 1})
        writers[0].result()
    report = state.audit.verify()
    assert (report.problems, report.events) == ([], 5)


def test_an_event_is_stored_with_its_entry_or_not_at_all(
    state: PGState, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(state, 1)

    def fail(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(event_chains, "chaining", fail)
    with pytest.raises(KeyboardInterrupt):
        add(state, 1)
    monkeypatch.undo()
    assert ask("SELECT count(*) FROM {}.events") == [(1,)]
    add(state, 1)
    assert found(state) == []


async def test_cancelled_writes_are_in_the_chain_or_not_there(dsn: str, schema: str, state: PGState, ask: Ask) -> None:
    async with AsyncPGState.open(dsn, schema=schema) as mine:
        for number in range(examples(20)):
            task = asyncio.create_task(mine.events.add("t", "note", {"number": number}))
            await asyncio.sleep(0.0004 * (number % 10))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        report = await mine.audit.verify()
        lines = [line async for line in mine.audit.export("t")]
    assert report.problems == []
    assert len(lines) == report.events == ask("SELECT count(*) FROM {}.events")[0][0]


def test_each_statement_that_inserts_events_returns_them(schema: str) -> None:
    """So that the caller can chain them; entries of the journal have the ids."""
    texts = {name: query.text for name, query in queries(schema).all.items()}
    inserts = {name for name, text in texts.items() if re.search(rb"INSERT INTO \S+\.events ", text)}
    of_journal = {"put_events", "put_forks"}
    returned = {name for name in inserts if b"event_id" in texts[name].split(b"RETURNING")[-1]} - of_journal
    assert inserts - returned == of_journal
    assert returned == {"add_event", "note_damage", "note_fork", "note_prune", "put_answer", "settle_runs"}
