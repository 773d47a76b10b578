"""This package's tables as the target of an import."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from support.official import assert_same_answers, talk
from support.samples import config_of, id_of, put_values

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.admin.transfer import Record, Stored, _Copy
from langgraph_pgstate.admin.transfer_pgstate import PGStateStore
from langgraph_pgstate.codec.opaque import OpaqueCodec
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ConflictError
from langgraph_pgstate.schema.queries import queries


@pytest.mark.slow
def test_times_and_columns_are_those_of_the_checkpoint(
    old: PostgresSaver, bring: Any, connection: psycopg.Connection, schema: str
) -> None:
    talk(old, "chat", 2)
    bring()
    rows = connection.execute(
        f'SELECT checkpoint_id, created_at, run_id, source, step FROM "{schema}".checkpoints'
    ).fetchall()
    for checkpoint_id, created_at, run_id, source, step in rows:
        found = old.get_tuple(config_of("chat", "", checkpoint_id))
        assert found is not None
        assert found.checkpoint["ts"] == created_at.isoformat()
        assert (run_id, source, step) == tuple(found.metadata[key] for key in ("run_id", "source", "step"))
    thread = connection.execute(f'SELECT user_id, created_at, updated_at FROM "{schema}".threads').fetchone()
    assert thread == ("u1", min(row[1] for row in rows), max(row[1] for row in rows))


@pytest.mark.slow
def test_storage_is_linear(
    old: PostgresSaver, saver: PGStateSaver, bring: Any, connection: psycopg.Connection, schema: str
) -> None:
    def bytes_of(turns: int) -> int:
        talk(old, f"chat{turns}", turns)
        bring(thread_ids=[f"chat{turns}"])
        row = connection.execute(
            f'SELECT sum(octet_length(data)) FROM "{schema}".segments WHERE thread_id = %s', [f"chat{turns}"]
        ).fetchone()
        assert row is not None
        return int(row[0])

    assert bytes_of(40) < 3 * bytes_of(20)


@pytest.mark.slow
def test_a_prune_during_an_import_leaves_no_damage(
    old: PostgresSaver, saver: PGStateSaver, bring: Any, admin: Admin
) -> None:
    talk(old, "chat", 30)
    done = threading.Event()

    def keep_pruning() -> None:
        while not done.is_set():
            saver.prune(["chat"])

    pruner = threading.Thread(target=keep_pruning)
    pruner.start()
    try:
        for _ in range(6):
            bring(verify=False)
            assert admin.check().problems == []
            talk(old, "chat", 1, start=40)
    finally:
        done.set()
        pruner.join()
    bring()
    assert_same_answers(old, saver, "chat")
    assert admin.check(deep=True).problems == []


def test_a_thread_that_is_deleted_while_it_is_compared_is_no_damage(
    old: PostgresSaver, saver: PGStateSaver, bring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted after the target's rows were read and before their segments are."""
    talk(old, "chat", 3)
    compare, pending = PGStateStore.digests, [lambda: saver.delete_thread("chat")]

    async def digests(self: PGStateStore, *args: Any) -> Any:
        if pending:
            pending.pop()()
        return await compare(self, *args)

    monkeypatch.setattr(PGStateStore, "digests", digests)
    bring()
    assert not pending
    assert_same_answers(old, saver, "chat")


@pytest.mark.parametrize(
    ("when", "news"),
    [("before", "checkpoints"), ("meanwhile", "checkpoints"), ("meanwhile", "writes"), ("at the end", "checkpoints")],
)
def test_nothing_is_imported_into_a_thread_that_is_archived(
    when: str,
    news: str,
    old: PostgresSaver,
    saver: PGStateSaver,
    bring: Any,
    dsn: str,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could not be restored afterwards. Other threads are imported."""
    lacking, compare = PGStateStore.missing, _Copy.verify
    talk(old, "chat", 2)
    talk(old, "dialog", 1)
    bring(thread_ids=["chat"])
    if news == "checkpoints":
        talk(old, "chat", 1, start=3)
    else:
        old.put_writes(old.get_tuple(config_of("chat")).config, [("messages", "one more")], "task")  # type: ignore[union-attr]
    with PGState.open(dsn, schema=schema) as state:
        pending = [lambda: state.archive.put(["chat"], to=f"file://{tmp_path}", idle_for=timedelta(0))]

        async def missing(self: PGStateStore, *args: Any) -> Any:
            found = await lacking(self, *args)
            if pending and when == "meanwhile":
                pending.pop()()
            return found

        async def verify(self: _Copy, *args: Any) -> None:
            if pending:
                pending.pop()()
            await compare(self, *args)

        if when == "before":
            pending.pop()()
        monkeypatch.setattr(PGStateStore, "missing", missing)
        monkeypatch.setattr(_Copy, "verify", verify)
        report = bring(clean=False)
        assert not pending
        assert [(one.thread_id, "is archived" in one.why) for one in report.differences] == [("chat", True)]
        assert state.archive.restore(["chat"]).threads == 1
    bring()
    for thread_id in ("chat", "dialog"):
        assert_same_answers(old, saver, thread_id)


def test_an_export_names_the_threads_that_are_archived(
    saver: PGStateSaver, admin: Admin, dsn: str, schema: str, old_schema: str, tmp_path: Path
) -> None:
    """They are not in the target, and must not be taken for exported."""
    talk(saver, "chat", 1)
    talk(saver, "dialog", 1)
    with PGState.open(dsn, schema=schema) as state:
        state.archive.put(["chat"], to=f"file://{tmp_path}", idle_for=timedelta(0))
    report = admin.export_langgraph(dsn, target_schema=old_schema)
    assert [(one.thread_id, "archive restore chat" in one.why) for one in report.differences] == [("chat", True)]
    assert report.verified == 3


def test_a_portion_is_refused_when_its_parent_went(saver: PGStateSaver, dsn: str, schema: str) -> None:
    """The parent is deleted after the store looked at it and before it writes what builds on it."""
    parent = put_values(saver, config_of("t"), {"messages": [HumanMessage("x" * 3000, id="1")]})
    loaded = saver.get_tuple(parent)
    assert loaded is not None
    head = {key: value for key, value in loaded.checkpoint.items() if key != "channel_values"}
    child = Record(
        "1f1", True, id_of(parent), {**head, "id": "1f1"}, {"step": 1}, stored={"messages": Stored("given", 1)}
    )

    async def build_on(db: Connection, meanwhile: Callable[[], None]) -> None:
        store = PGStateStore(db, queries(schema), OpaqueCodec(), "t")
        assert await store.missing("", [child]) == {}
        meanwhile()
        assert await store.write("", [child], {}) == []

    with Database.open(dsn, schema=schema, pool=False) as database:
        with pytest.raises(ConflictError):
            database.run_once(build_on, lambda: saver.delete_thread("t"))
        assert saver.get_tuple(config_of("t")) is None
        put_values(saver, config_of("t"), {"messages": [HumanMessage("y" * 3000, id="1")]}, id=id_of(parent))
        with pytest.raises(AssertionError):
            # Another value under another version: now the store asks for it.
            database.run_once(build_on, lambda: None)


@pytest.mark.slow
def test_what_is_brought_over_moves_the_time_along_at_which_its_thread_expires(
    old: PostgresSaver, saver: PGStateSaver, dsn: str, schema: str, bring: Any
) -> None:
    with PGState.open(dsn, schema=schema) as state:
        talk(old, "t", 1)
        bring()
        first = state.threads.set_ttl("t", timedelta(days=30))
        assert first is not None
        # Nothing new: no earlier, either.
        bring()
        found = state.threads.get("t")
        assert found is not None
        assert found.expires_at == first
        talk(old, "t", 1, start=2)
        bring()
        found = state.threads.get("t")
        assert found is not None
        assert found.expires_at == found.updated_at + timedelta(days=30)
        assert found.expires_at > first
