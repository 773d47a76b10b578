"""Policies: what comes of age goes, in small batches, and nothing else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import wait_until
from support.keep import age_archives, agent, config_of, make_rich_thread, rows_of, states_of
from support.tenants import open_walled

from langgraph_pgstate import PGState, Worker
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, StalePolicyError, TenantError
from langgraph_pgstate.keep import archiving, retention
from langgraph_pgstate.keep.thread import Pace

DAY = timedelta(days=1)


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        yield state


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/archive"


def ask(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def age(dsn: str, schema: str, days: int, *thread_ids: str) -> None:
    """Let threads, and all that is in them, be so many days older."""
    listed = ", ".join(f"'{one}'" for one in thread_ids)
    for table, columns in {
        "threads": ("created_at", "updated_at"),
        "checkpoints": ("created_at",),
        "messages": ("created_at",),
        "spans": ("started_at",),
        "runs": ("started_at", "ended_at"),
    }.items():
        changes = ", ".join(f"{one} = {one} - interval '{days} days'" for one in columns)
        ask(dsn, f'UPDATE "{schema}".{table} SET {changes} WHERE thread_id IN ({listed})')


def test_they_are_rows(state: PGState) -> None:
    made = state.retention.put("support", agent="helper", metadata={"kind": "chat"}, delete_after=30 * DAY)
    assert (made.name, made.agent, made.metadata, made.delete_after) == (
        "support",
        "helper",
        {"kind": "chat"},
        30 * DAY,
    )
    state.retention.put("content", content_after=7 * DAY)
    changed = state.retention.put("support", delete_after=60 * DAY)
    assert (changed.agent, changed.delete_after, changed.created_at) == (None, 60 * DAY, made.created_at)
    assert [one.name for one in state.retention.policies()] == ["content", "support"]
    assert state.retention.delete("content")
    assert not state.retention.delete("content")
    for fields in (
        {},
        {"agent": "a"},
        {"delete_after": timedelta(0)},
        {"delete_after": 30},
        {"archive_after": DAY},
        {"archive_to": "file:///x", "delete_after": DAY},
        {"archive_after": DAY, "archive_to": "nowhere"},
        {"archive_after": DAY, "archive_to": "memory://ends-with-the-process"},
        {"archive_after": 2 * DAY, "archive_to": "file:///x", "delete_after": DAY},
        {"delete_after": DAY, "status": "asleep"},
        {"prune_after": DAY, "keep_last": 0},
        {"delete_later": DAY},
    ):
        with pytest.raises((ConfigurationError, TypeError)):
            state.retention.put("wrong", **fields)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError, match="support"):
        state.retention.apply("content")


@pytest.mark.slow
def test_threads_are_archived_and_later_deleted(state: PGState, dsn: str, schema: str, url: str) -> None:
    for name in ("new", "old", "other", "held"):
        make_rich_thread(state, name)
    ask(dsn, f"UPDATE \"{schema}\".threads SET agent = CASE thread_id WHEN 'other' THEN 'b' ELSE 'a' END")
    state.threads.hold("held", "case", by="eve")
    age(dsn, schema, 40, "old", "other", "held")
    state.retention.put("p", agent="a", archive_after=30 * DAY, archive_to=url, delete_after=90 * DAY)
    before = {name: rows_of(dsn, schema, name) for name in ("new", "other", "held")}
    (told,) = state.retention.apply(dry_run=True)
    assert (told.archived, told.deleted, told.held, told.dry_run) == (1, 0, ("held",), True)
    assert told.bytes > 1000
    assert state.archive.list().items == ()
    (done,) = state.retention.apply()
    assert (done.archived, done.deleted, done.held) == (1, 0, ("held",))
    assert [one.thread_id for one in state.archive.list().items] == ["old"]
    assert {name: rows_of(dsn, schema, name) for name in before} == before
    assert state.retention.apply()[0].archived == 0
    ask(dsn, f"UPDATE \"{schema}\".threads SET updated_at = updated_at - interval '60 days' WHERE thread_id <> 'new'")
    (told,) = state.retention.apply(dry_run=True)
    assert told.deleted == 1
    (done,) = state.retention.apply()
    assert (done.deleted, done.held) == (1, ("held",))
    assert state.threads.get("old") is None
    assert ask(dsn, f'SELECT count(*) FROM "{schema}".archives') == [(0,)]
    assert state.threads.get("held") is not None


def test_a_thread_that_is_used_again_stays(state: PGState, dsn: str, schema: str) -> None:
    graph = make_rich_thread(state, "t")
    make_rich_thread(state, "queued")
    age(dsn, schema, 40, "t", "queued")
    state.runs.enqueue("agent", {"messages": []}, thread_id="queued", run_after=DAY)
    graph.invoke({"messages": [("user", "Again.")]}, config_of("t"))
    state.retention.put("p", delete_after=30 * DAY)
    assert state.retention.apply(dry_run=True)[0].deleted == state.retention.apply()[0].deleted == 0
    assert state.threads.get("queued") is not None
    assert graph.get_state(config_of("t")).values["messages"]


@pytest.mark.slow
def test_contents_go_before_states(state: PGState, dsn: str, schema: str) -> None:
    graph = make_rich_thread(state, "t")
    make_rich_thread(state, "new")
    make_rich_thread(state, "held")
    age(dsn, schema, 10, "t", "held")
    state.threads.hold("held", "case", by="eve")
    states, kept = states_of(graph, "t"), {name: rows_of(dsn, schema, name) for name in ("new", "held")}
    state.retention.put("p", content_after=7 * DAY)
    before = rows_of(dsn, schema, "t")
    (told,) = state.retention.apply(dry_run=True)
    assert rows_of(dsn, schema, "t") == before
    (done,) = state.retention.apply()
    assert told.contents == done.contents > 5
    assert told.bytes == done.bytes > 100
    assert told.held == done.held == ("held",)
    assert states_of(graph, "t") == states
    assert {name: rows_of(dsn, schema, name) for name in kept} == kept
    for table, columns in {
        "spans": ("input", "output"),
        "messages": ("content", "tool_calls"),
        "runs": ("input",),
    }.items():
        for column in columns:
            found = ask(dsn, f"SELECT count({column}) FROM \"{schema}\".{table} WHERE thread_id = 't'")
            assert found == [(0,)], (table, column)
    assert "Astoria" not in str({**rows_of(dsn, schema, "t"), "tool_executions": [], "writes": [], "checkpoints": []})
    assert state.retention.apply()[0].contents == 0


@pytest.mark.slow
def test_checkpoints_within_a_thread_that_goes_on(state: PGState, dsn: str, schema: str) -> None:
    graph = make_rich_thread(state, "t")
    age(dsn, schema, 40, "t")
    for _ in range(2):
        graph.invoke({"messages": [("user", "Again.")]}, config_of("t"))
    before = len(states_of(graph, "t"))
    state.retention.put("p", prune_after=30 * DAY, keep_last=2)
    (told,) = state.retention.apply(dry_run=True)
    (done,) = state.retention.apply()
    assert 0 < done.checkpoints == told.checkpoints < before
    assert len(states_of(graph, "t")) < before
    assert graph.get_state(config_of("t")).next == ("ask",)
    assert state.retention.apply()[0].checkpoints == 0


@pytest.mark.slow
def test_it_goes_on_where_it_was_stopped(
    state: PGState, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PAGE", 2)
    graph = agent(state)
    names = [f"t{number}" for number in range(7)]
    for name in names:
        graph.invoke({"messages": [("user", "Hi.")]}, config_of(name))
    state.flush()
    age(dsn, schema, 10, *names)
    state.retention.put("p", content_after=7 * DAY)
    done, find = [], retention.age_thread

    async def counted(db: Any, queries: Any, policy: Any, thread_id: str, **options: Any) -> Any:
        if len(done) == 3 and thread_id not in done:
            done.append("stopped")
            raise KeyboardInterrupt
        done.append(thread_id)
        return await find(db, queries, policy, thread_id, **options)

    monkeypatch.setattr(retention, "age_thread", counted)
    with pytest.raises(KeyboardInterrupt):
        state.retention.apply()
    state.retention.apply()
    # Of the page in which it was stopped one is done again.
    assert done == ["t0", "t1", "t2", "stopped", "t2", "t3", "t4", "t5", "t6"]
    done.clear()
    state.retention.apply()
    assert done == []
    graph.invoke({"messages": [("user", "Hi.")]}, config_of("t3"))
    state.retention.apply()
    assert done == ["t3"]


def contents_of(dsn: str, schema: str) -> dict[str, int]:
    """The number of messages with content, by thread."""
    rows = ask(dsn, f'SELECT m.thread_id, count(m.content) FROM "{schema}".messages m GROUP BY 1')
    return {thread_id: count for thread_id, count in rows if count}


def visited(state: PGState, monkeypatch: pytest.MonkeyPatch, pause: timedelta = timedelta(0)) -> list[str]:
    """Apply the policies, and return the threads that were visited."""
    done, find = [], retention.age_thread

    async def counted(db: Any, queries: Any, policy: Any, thread_id: str, **more: Any) -> Any:
        done.append(thread_id)
        return await find(db, queries, policy, thread_id, **more)

    with monkeypatch.context() as patch:
        patch.setattr(retention, "age_thread", counted)
        run_blocking(retention.apply_policies(state.retention._runner, state.retention._queries, pause=pause))
    return done


@pytest.mark.slow
def test_a_thread_is_visited_once_its_hold_ends_or_it_is_restored(
    state: PGState, dsn: str, schema: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("archived", "held", "plain", "twice")
    for name in names:
        make_rich_thread(state, name)
    age(dsn, schema, 40, *names)
    state.archive.put(["archived"], to=url, idle_for=timedelta(0))
    for name, reason in (("held", "case"), ("twice", "case"), ("twice", "audit")):
        state.threads.hold(name, reason, by="eve")
    state.retention.put("p", content_after=30 * DAY, prune_after=30 * DAY)
    assert visited(state, monkeypatch) == ["plain"]
    # A hold that lasts does not let all threads be visited each time.
    assert visited(state, monkeypatch) == []
    state.threads.release("held", "case", by="eve")
    state.threads.release("twice", "case", by="eve")
    (done,) = state.retention.apply()
    assert (done.contents > 5, done.checkpoints > 0, done.held) == (True, True, ("twice",))
    assert contents_of(dsn, schema).keys() == {"twice"}
    assert visited(state, monkeypatch) == []
    state.archive.restore(["archived"])
    assert contents_of(dsn, schema).keys() == {"archived", "twice"}
    assert state.retention.apply()[0].contents > 5
    assert contents_of(dsn, schema).keys() == {"twice"}
    assert visited(state, monkeypatch) == []


@pytest.mark.slow
def test_a_hold_that_ends_during_a_visit_lets_the_next_visit_be_of_all(
    state: PGState, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The visit goes on where it is: others that end do not let it begin again and again."""
    monkeypatch.setattr(retention, "_PAGE", 1)
    for name in ("a", "b", "c"):
        make_rich_thread(state, name)
    age(dsn, schema, 40, "a", "b", "c")
    state.threads.hold("a", "case", by="eve")
    state.retention.put("p", content_after=30 * DAY)
    done, find = [], retention.age_thread

    async def releasing(db: Any, queries: Any, policy: Any, thread_id: str, **options: Any) -> Any:
        done.append(thread_id)
        if thread_id == "b":
            state.threads.release("a", "case", by="eve")
        return await find(db, queries, policy, thread_id, **options)

    with monkeypatch.context() as patch:
        patch.setattr(retention, "age_thread", releasing)
        state.retention.apply()
    assert done == ["b", "c"]
    assert visited(state, monkeypatch) == ["a", "b", "c"]
    assert visited(state, monkeypatch) == []


@pytest.mark.slow
def test_a_thread_that_failed_is_visited_until_it_succeeds(
    state: PGState, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PAGE", 1)
    for name in ("a", "b"):
        make_rich_thread(state, name)
    age(dsn, schema, 40, "a", "b")
    ask(
        dsn,
        f'CREATE FUNCTION "{schema}".refuse() RETURNS trigger LANGUAGE plpgsql AS'
        " $$ BEGIN RAISE 'no' USING errcode = '22000'; END $$;"
        f'CREATE TRIGGER refuse BEFORE UPDATE ON "{schema}".messages FOR EACH ROW'
        f" WHEN (old.thread_id = 'a') EXECUTE FUNCTION \"{schema}\".refuse()",
    )
    state.retention.put("p", content_after=30 * DAY)
    for _ in range(3):
        (report,) = state.retention.apply()
        assert report.problems == (state.retention.policies()[0].last_error,) != (None,)
    ask(dsn, f'DROP TRIGGER refuse ON "{schema}".messages')
    (report,) = state.retention.apply()
    assert (report.contents > 0, report.problems, state.retention.policies()[0].last_error) == (True, (), None)
    assert contents_of(dsn, schema) == {}
    assert visited(state, monkeypatch) == []


def test_a_pause_does_not_let_all_threads_be_visited(
    state: PGState, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rich_thread(state, "t")
    age(dsn, schema, 40, "t")
    state.retention.put("p", content_after=30 * DAY)
    assert visited(state, monkeypatch, DAY) == ["t"]
    assert visited(state, monkeypatch, DAY) == []
    assert visited(state, monkeypatch) == []


@pytest.mark.parametrize("pause", [timedelta(0), DAY])
def test_a_clock_that_is_set_back_leaves_out_no_thread(
    state: PGState, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, pause: timedelta
) -> None:
    make_rich_thread(state, "t")
    age(dsn, schema, 40, "t")
    state.retention.put("p", content_after=30 * DAY)
    ask(dsn, f"UPDATE \"{schema}\".retention_policies SET last_began_at = now() + interval '1 year'")
    assert visited(state, monkeypatch, pause) == ["t"]
    assert visited(state, monkeypatch, pause) == []


def test_maintain_applies_them(state: PGState, dsn: str, schema: str) -> None:
    make_rich_thread(state, "t")
    age(dsn, schema, 40, "t")
    state.retention.put("p", delete_after=30 * DAY)
    (done,) = state.maintain().policies
    assert (done.name, done.deleted) == ("p", 1)
    assert state.threads.get("t") is None


@pytest.mark.slow
@pytest.mark.parametrize("is_missing", [False, True], ids=["unreachable", "no extra"])
def test_an_archive_that_fails_is_told_and_others_go_on(
    state: PGState, dsn: str, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_missing: bool
) -> None:
    for name in ("a-1", "b-1"):
        make_rich_thread(state, name)
    ask(dsn, f'UPDATE "{schema}".threads SET agent = left(thread_id, 1)')
    age(dsn, schema, 40, "a-1", "b-1")
    place = tmp_path / "archive"
    url = "s3://bucket/of" if is_missing else f"file://{place}"
    if is_missing:
        monkeypatch.setitem(sys.modules, "obstore", None)
    place.write_text("no folder")
    state.retention.put("a", agent="a", archive_after=30 * DAY, archive_to=url)
    state.retention.put("b", agent="b", delete_after=30 * DAY)
    report = state.maintain()
    failed, other = report.policies
    assert (failed.archived, failed.is_whole, len(failed.problems)) == (0, False, 1)
    assert "cannot archive" in failed.problems[0]
    assert (other.deleted, other.problems) == (1, ())
    kept, done = state.retention.policies()
    assert kept.last_error == failed.problems[0]
    assert (kept.applied_at, done.last_error) == (None, None)
    (note,) = state.overview().maintenance
    assert (note.report["policies"]["failed"], note.report["policies"]["deleted"]) == (1, 1)
    # No row is left that a later erasure would have to reach.
    assert ask(dsn, f'SELECT a.url FROM "{schema}".archives a') == []
    monkeypatch.undo()
    place.unlink()
    if not is_missing:
        state.retention.apply("a")
        (mended, _) = state.retention.policies()
        assert mended.last_error is None
        assert mended.applied_at is not None


def test_an_archived_thread_that_cannot_be_deleted_is_told(
    state: PGState, dsn: str, schema: str, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        make_rich_thread(state, name)
    state.archive.put(["one", "other"], to=f"file://{tmp_path}/archive", idle_for=timedelta(0))
    age(dsn, schema, 40, "one")
    for pack in (tmp_path / "archive").glob("*.pack"):
        pack.write_bytes(b"damaged")
    state.retention.put("p", delete_after=30 * DAY)
    (report,) = state.retention.apply()
    assert report.deleted == 0
    assert "cannot delete archived threads" in report.problems[0]
    (policy,) = state.retention.policies()
    assert policy.last_error == report.problems[0]


@pytest.mark.slow
@pytest.mark.parametrize("is_restored", [True, False], ids=["restored", "half archived"])
@pytest.mark.parametrize("is_ttl", [False, True], ids=["policy", "ttl"])
def test_a_thread_is_deleted_with_its_copies(
    state: PGState,
    dsn: str,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_ttl: bool,
    is_restored: bool,
) -> None:
    folder = tmp_path / "archive"
    for name in ("gone", "held", "other", "plain"):
        make_rich_thread(state, name)
    with monkeypatch.context() as patch:
        if not is_restored:
            patch.setattr(archiving, "delete_archived", killed)
        with nullcontext() if is_restored else pytest.raises(KeyboardInterrupt):
            state.archive.put(["gone", "held", "other"], to=f"file://{folder}", idle_for=timedelta(0))
    if is_restored:
        state.archive.restore(["gone", "held", "other"])
    age_archives(dsn, schema, by=timedelta(hours=1))
    state.threads.hold("held", "case", by="eve")
    names = ("gone", "held", "plain")
    age(dsn, schema, 40, *names)
    if is_ttl:
        for name in names:
            state.threads.set_ttl(name, DAY)
        ask(dsn, f"UPDATE \"{schema}\".threads SET expires_at = expires_at - interval '2 days'")
    else:
        state.retention.put("p", delete_after=30 * DAY)
    (told,) = state.retention.apply(dry_run=True)
    assert (told.deleted, told.held) == (2, ("held",))
    # The folder is not mounted.
    away = folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    for _ in range(2):
        (failed,) = state.retention.apply()
        assert "cannot delete" in failed.problems[0]
        assert {one.thread_id for one in state.threads.list().items} == {"gone", "held", "other"}
        assert state.threads.sweep().threads == state.threads.sweep(dry_run=True).threads == 0
    folder.unlink()
    away.rename(folder)
    (done,) = state.retention.apply()
    assert (done.deleted, done.problems, done.held) == (1, (), ("held",))
    assert {one.thread_id for one in state.threads.list().items} == {"held", "other"}
    rows = ask(dsn, f'SELECT c.thread_id FROM "{schema}".archived_threads c ORDER BY 1')
    assert rows == [("held",), ("other",)]
    (manifest,) = folder.glob("*.json")
    assert ('"other"' in manifest.read_text(), '"gone"' in manifest.read_text()) == (True, False)


def killed(*arguments: Any) -> Any:
    """Stop as a process that is killed before it deletes the threads that it has archived."""
    raise KeyboardInterrupt


def test_maintenance_stores_no_names_of_threads(state: PGState, dsn: str, schema: str) -> None:
    """All tenants read its table, and an erasure leaves it as it is."""
    make_rich_thread(state, "evelyn-7")
    ask(dsn, f"UPDATE \"{schema}\".threads SET user_id = 'evelyn'")
    state.threads.hold("evelyn-7", "case", by="ada")
    age(dsn, schema, 40, "evelyn-7")
    state.retention.put("of evelyn", user_id="evelyn", delete_after=30 * DAY)
    assert state.maintain().policies[0].held == ("evelyn-7",)
    state.threads.release("evelyn-7", "case", by="ada")
    state.privacy.erase(user_id="evelyn")
    assert "evelyn" not in str(ask(dsn, f'SELECT m.report FROM "{schema}".maintenance m'))
    assert state.overview().maintenance[0].report["policies"]["held"] == 1


@pytest.mark.slow
def test_who_sees_all_tenants_applies_no_policy_of_one_to_all(dsn: str) -> None:
    with open_walled(dsn) as walled:
        with walled.open() as state:
            for name in ("acme", "other"):
                state.for_tenant(name).threads.create(f"of {name}")
            state.for_tenant("acme").retention.put("p", delete_after=DAY)
        walled.rows("UPDATE {}.threads SET updated_at = now() - interval '2 days'")
        # An operator and a superuser see the rows of all tenants.
        for who in (walled.operator, walled.server):
            with PGState.open(who, schema=walled.schema) as state:
                for calling in (
                    lambda state=state: state.retention.apply(),
                    lambda state=state: state.retention.put("q", delete_after=DAY),
                    lambda state=state: state.archive.put(["of acme"], to="memory://all", idle_for=timedelta(0)),
                ):
                    with pytest.raises(TenantError, match="must be given"):
                        calling()
        assert walled.rows("SELECT count(*) FROM {}.threads") == [(2,)]


@pytest.mark.slow
def test_a_worker_applies_them(state: PGState, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_pgstate.keep.thread.PERIOD_SECONDS", 0.05)
    graph = make_rich_thread(state, "t")
    age(dsn, schema, 40, "t")
    state.retention.put("p", delete_after=30 * DAY)
    with Worker(state, {"agent": graph.copy({"checkpointer": None})}):
        wait_until(lambda: state.threads.get("t") is None, "the thread is deleted")


def test_of_two_persons_the_second_is_refused(state: PGState) -> None:
    made = state.retention.put("chats", by="Eve", expected_version=0, delete_after=30 * DAY)
    assert (made.version, made.applied_at) == (1, None)
    # The same call again, after a lost connection.
    assert state.retention.put("chats", by="Eve", expected_version=0, delete_after=30 * DAY) == made
    with pytest.raises(StalePolicyError, match="is at version 1, but the caller expected no policy"):
        state.retention.put("chats", by="Adam", expected_version=0, delete_after=20 * DAY)
    changed = state.retention.put("chats", by="Adam", expected_version=1, metadata={"kind": "chat"}, delete_after=DAY)
    assert (changed.version, changed.delete_after) == (2, DAY)
    with pytest.raises(StalePolicyError, match="is at version 2"):
        state.retention.put("chats", by="Eve", expected_version=1, delete_after=DAY)
    with pytest.raises(StalePolicyError):
        state.retention.delete("chats", by="Eve", expected_version=1)
    assert state.retention.policies() == (changed,)
    assert state.retention.delete("chats", by="Eve", expected_version=2)
    with pytest.raises(StalePolicyError, match="does not exist"):
        state.retention.put("chats", expected_version=2, delete_after=DAY)
    done = [(one.payload["action"], one.payload["by"]) for one in state.events.list("policy:chats").items]
    assert done == [("policy", "Eve"), ("policy", "Adam"), ("delete", "Eve")]


def test_two_put_a_new_policy_at_once(state: PGState, dsn: str, schema: str) -> None:
    """The second has seen that there is none, and waits for the first."""
    insert = f'INSERT INTO "{schema}".retention_policies (name, delete_after) VALUES (%s, %s)'
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(dsn) as first:
        first.execute(insert.encode(), ["p", DAY])
        second = pool.submit(lambda: state.retention.put("p", by="Eve", expected_version=0, delete_after=2 * DAY))
        wait_until(lambda: bool(ask(dsn, waiting)), "the second to wait")
        assert not second.done()
        first.commit()
        with pytest.raises(StalePolicyError, match="is at version 1"):
            second.result()
    assert [(one.version, one.delete_after) for one in state.retention.policies()] == [(1, DAY)]
    assert state.events.list("policy:p").items == ()


def test_it_is_known_when_it_was_last_applied_to_all_threads(
    state: PGState, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def applied_at() -> Any:
        return {one.name: one.applied_at for one in state.retention.policies()}

    for id in ("a", "b", "c"):
        state.threads.create(id)
    state.retention.put("content", content_after=DAY)
    state.retention.put("old", delete_after=DAY)
    state.retention.put("cold", archive_after=DAY, archive_to=url)
    told = state.retention.apply(dry_run=True)
    assert [one.is_whole for one in told] == [True] * 3
    assert applied_at() == {"cold": None, "content": None, "old": None}
    # No time for any batch.
    done = state.retention.apply(within=timedelta(microseconds=1))
    assert [one.is_whole for one in done] == [False] * 3
    assert applied_at() == {"cold": None, "content": None, "old": None}
    state.retention.apply("content")
    assert [name for name, at in applied_at().items() if at is not None] == ["content"]
    # Changed while it is applied: that was another policy.
    real = retention.list_idle

    async def changing(*arguments: Any, **options: Any) -> Any:
        state.retention.put("old", delete_after=2 * DAY)
        return await real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(retention, "list_idle", changing)
        state.retention.apply("old")
    assert applied_at()["old"] is None
    state.retention.apply()
    assert None not in applied_at().values()
    state.retention.put("content", content_after=2 * DAY)
    assert applied_at()["content"] is None


@pytest.mark.slow
def test_a_time_to_live_is_a_policy(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, thread_ttl=DAY, project=()) as state:
        assert state.retention.policies() == ()
        assert state.retention.apply() == ()
        for name in ("gone", "held", "pruned", "young"):
            make_rich_thread(state, name)
        state.threads.set_ttl("pruned", DAY, strategy="keep_latest")
        state.threads.hold("held", "case", by="eve")
        age(dsn, schema, 2, "gone", "held", "pruned")
        ask(
            dsn,
            f"UPDATE \"{schema}\".threads SET expires_at = expires_at - interval '2 days' WHERE thread_id <> 'young'",
        )
        state.retention.put("zeal", user_id="nobody", delete_after=DAY)
        assert [one.name for one in state.retention.policies()] == ["ttl", "zeal"]
        told, _ = state.retention.apply(dry_run=True)
        assert (told.name, told.deleted, told.held, told.dry_run) == ("ttl", 1, ("held",), True)
        assert told.checkpoints > 0
        assert told.bytes > 1000
        before = {name: rows_of(dsn, schema, name) for name in ("held", "young")}
        assert {one.name: one.deleted for one in state.maintain().policies} == {"ttl": 1, "zeal": 0}
        assert {name: rows_of(dsn, schema, name) for name in before} == before
        assert state.threads.get("gone") is None
        assert len([*state.saver.list(config_of("pruned"))]) < len([*state.saver.list(config_of("young"))])
        (again,) = state.retention.apply("ttl")
        assert (again.deleted, again.checkpoints, again.held) == (0, 0, ("held",))
        with pytest.raises(ConfigurationError, match="time to live"):
            state.retention.put("ttl", delete_after=DAY)
        assert not state.retention.delete("ttl")


def test_a_worker_pauses_between_batches() -> None:
    waited: list[float] = []

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            return self.is_set()

    stopped = Stopped()
    pace = Pace(stopped)
    time.sleep(0.02)
    assert pace.goes_on()
    assert waited[0] >= 0.02 * 39
    stopped.set()
    assert not pace.goes_on()


def test_a_thread_that_changes_after_it_was_found_is_not_deleted(
    state: PGState, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("active", "archived", "copied", "held", "plain")
    for name in names:
        state.threads.create(name)
    age(dsn, schema, 2, *names)
    state.retention.put("p", delete_after=DAY)
    found = retention.list_idle

    async def list_and_happen(*arguments: Any, **options: Any) -> Any:
        page = await found(*arguments, **options)
        state.threads.hold("held", "case 7", by="counsel")
        ask(dsn, f"UPDATE {schema}.threads SET updated_at = now() WHERE thread_id = 'active'")
        ask(dsn, f"UPDATE {schema}.threads SET archived_at = now(), archive_id = 'a' WHERE thread_id = 'archived'")
        ask(dsn, f"INSERT INTO {schema}.archived_threads (thread_id, archive_id) VALUES ('copied', 'a')")
        return page

    monkeypatch.setattr(retention, "list_idle", list_and_happen)
    assert [one.problems for one in state.maintain().policies if one.name == "p"] == [()]
    assert ask(dsn, f"SELECT thread_id FROM {schema}.threads ORDER BY 1") == [(name,) for name in names[:-1]]


def test_archived_threads_are_not_visited(state: PGState, dsn: str, schema: str) -> None:
    for name in ("archived", "plain"):
        state.threads.create(name)
    age(dsn, schema, 2, "archived", "plain")
    ask(dsn, f"UPDATE {schema}.threads SET archived_at = now(), archive_id = 'a' WHERE thread_id = 'archived'")
    policy = state.retention.put("p", prune_after=DAY)
    assert state._database.run(retention.list_aging, state.retention._queries, policy, "", None) == [("plain", False)]


def test_a_policy_selects_by_each_of_its_conditions(state: PGState, dsn: str, schema: str) -> None:
    fields: dict[str, Any] = {"agent": "a", "tenant_id": "t", "user_id": "u", "metadata": {"m": 1}}
    for other in (None, *fields):
        state.threads.create(f"other {other}", **{name: value for name, value in fields.items() if name != other})
    state.threads.create("other status", **fields)
    ask(dsn, f"UPDATE {schema}.threads SET status = 'error' WHERE thread_id = 'other status'")
    age(dsn, schema, 2, *(f"other {other}" for other in (None, "status", *fields)))
    state.retention.put("p", status="idle", delete_after=DAY, **fields)
    state.maintain()
    kept = [(f"other {other}",) for other in sorted(("status", *fields))]
    assert ask(dsn, f"SELECT thread_id FROM {schema}.threads ORDER BY 1") == kept
