"""Deletion from archives: what is deleted is in no object any more, and what is beside it is as it was."""

from __future__ import annotations

import asyncio
import shutil
import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import zstandard
from support import FORK, GUARD_SECONDS, wait_until
from support.keep import age_archives, answer, archive_and_die, config_of, make_rich_thread, rows_of, states_of

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import ArchiveError, ArchiveUnavailableError, NotFoundError, ThreadHeldError
from langgraph_pgstate.keep import archiving, deleting, objects
from langgraph_pgstate.keep.objects import open_objects

NOW = timedelta(0)


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        yield state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def threads_in(folder: Path) -> set[str]:
    """The threads that any frame of any pack names."""
    found = set()
    for path in folder.glob("*.pack"):
        data = path.read_bytes()
        while data:
            reader = zstandard.ZstdDecompressor().decompressobj()
            content = reader.decompress(data)
            data = reader.unused_data
            found |= {name for name in ("t-one", "t-two", "t-three") if name.encode() in content}
    return found


@pytest.mark.slow
def test_it_is_gone_and_the_others_are_as_they_were(state: PGState, dsn: str, schema: str, folder: Path) -> None:
    graph = None
    for name in ("t-one", "t-two", "t-three"):
        graph = make_rich_thread(state, name)
    before, states = rows_of(dsn, schema, "t-two"), states_of(graph, "t-two")
    state.archive.put(["t-one", "t-two", "t-three"], to=f"file://{folder}", idle_for=NOW)
    # A second copy of one, which is in the database again.
    state.archive.restore(["t-three"])
    assert threads_in(folder) == {"t-one", "t-two", "t-three"}
    report = state.archive.delete(["t-one", "t-three"], by="eve")
    assert (report.threads, report.copies, report.archives, report.rewritten) == (1, 2, 1, 1)
    assert threads_in(folder) == {"t-two"}
    assert len([*folder.iterdir()]) == 2
    assert state.threads.get("t-one") is None
    assert answer(graph, "t-three")
    assert state.archive.check().threads == 1
    state.archive.restore(["t-two"])
    assert rows_of(dsn, schema, "t-two") == before
    assert states_of(graph, "t-two") == states
    assert state.archive.delete(["t-two"]).threads == 0
    assert not [*folder.iterdir()]
    assert states_of(graph, "t-two") == states
    assert state.archive.delete(["t-two"]).copies == 0
    with psycopg.connect(dsn) as connection:
        for table in ("archives", "archived_threads"):
            assert connection.execute(f'SELECT count(*) FROM "{schema}".{table}'.encode()).fetchone() == (0,)


@pytest.mark.slow
def test_what_is_held_stays(state: PGState, folder: Path) -> None:
    for name in ("t-one", "t-two"):
        make_rich_thread(state, name)
    state.archive.put(["t-one", "t-two"], to=f"file://{folder}", idle_for=NOW)
    state.threads.hold("t-one", "case", by="eve")
    with pytest.raises(ThreadHeldError, match="held by eve"):
        state.archive.delete(["t-two", "t-one"])
    assert threads_in(folder) == {"t-one", "t-two"}
    assert state.archive.check(["t-one", "t-two"]).threads == 2


@pytest.mark.slow
@pytest.mark.parametrize("step", ["claim_archive", "begin_deletion", "delete_objects", "end_archive"])
def test_a_hold_is_placed_before_the_objects_are_deleted_or_refused(
    step: str, state: PGState, dsn: str, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-one", "t-two"):
        make_rich_thread(state, name)
    before = rows_of(dsn, schema, "t-one")
    state.archive.put(["t-one", "t-two"], to=f"file://{folder}", idle_for=NOW)
    waits, errors = getattr(deleting, step), list[str]()

    async def late(*args: Any, **kwargs: Any) -> Any:
        with PGState.open(dsn, schema=schema) as other:
            try:
                other.threads.hold("t-one", "case", by="eve")
            except NotFoundError as error:
                errors.append(str(error))
        return await waits(*args, **kwargs)

    monkeypatch.setattr(deleting, step, late)
    if step in ("claim_archive", "begin_deletion"):
        with pytest.raises(ThreadHeldError, match="held by eve"):
            state.archive.delete(["t-one"])
        state.archive.restore(["t-one"])
        assert {**rows_of(dsn, schema, "t-one"), "events": before["events"]} == before
    else:
        assert state.archive.delete(["t-one"]).threads == 1
        assert (state.threads.get("t-one"), len(errors)) == (None, 1)
        assert "is being deleted from its archive" in errors[0]
    assert state.archive.restore(["t-two"]).threads == 1


def test_a_hold_and_a_deletion_wait_for_each_other(
    state: PGState, dsn: str, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rich_thread(state, "t-one")
    state.archive.put(["t-one"], to=f"file://{folder}", idle_for=NOW)
    check, errors = deleting.check_not_held, list[str]()

    def hold() -> None:
        with PGState.open(dsn, schema=schema) as other:
            try:
                other.threads.hold("t-one", "case", by="eve")
            except NotFoundError as error:
                errors.append(str(error))

    holding = threading.Thread(target=hold)

    async def late(*args: Any) -> None:
        await check(*args)
        calls.append(args)
        if len(calls) == 2:
            holding.start()
            with psycopg.connect(dsn, autocommit=True) as connection:
                waiting = b"SELECT count(*) FROM pg_locks WHERE NOT granted"
                wait_until(
                    lambda: connection.execute(waiting).fetchone() != (0,) or not holding.is_alive(), "the hold waits"
                )

    calls: list[Any] = []
    monkeypatch.setattr(deleting, "check_not_held", late)
    assert state.archive.delete(["t-one"]).threads == 1
    holding.join(GUARD_SECONDS)
    assert (len(calls), len(errors), state.threads.get("t-one")) == (2, 1, None)


@pytest.mark.slow
def test_a_damaged_archive_with_other_threads_stays(state: PGState, folder: Path) -> None:
    for name in ("t-one", "t-two"):
        make_rich_thread(state, name)
    state.archive.put(["t-one", "t-two"], to=f"file://{folder}", idle_for=NOW)
    (path,) = folder.glob("*.pack")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\0")
    with pytest.raises(ArchiveError, match="damaged"):
        state.archive.delete(["t-one"])
    with pytest.raises(ArchiveError, match="damaged"):
        state.archive.check()
    path.write_bytes(data)
    assert state.archive.delete(["t-one"]).threads == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["archive", "*.pack", "*.json"])
def test_what_is_missing_does_not_count_as_deleted(name: str, state: PGState, folder: Path) -> None:
    """A folder may not be mounted. The stubs of the others still name the archive."""
    for thread_id in ("t-one", "t-two", "t-three"):
        graph = make_rich_thread(state, thread_id)
    state.archive.put(["t-one", "t-two", "t-three"], to=f"file://{folder}", idle_for=NOW)
    # Two copies of one thread: in the archive and in the database.
    state.archive.restore(["t-three"])
    (found,) = [folder] if name == "archive" else folder.glob(name)
    away = found.rename(folder.parent / "away")
    for thread_id in ("t-one", "t-three"):
        for _ in range(2):
            with pytest.raises(
                ArchiveError, match=r"is missing, or its manifest: pass missing_ok=True \(--missing-ok\)"
            ):
                state.archive.delete([thread_id])
    assert [one.thread_id for one in state.archive.list().items] == ["t-one", "t-two"]
    if name != "archive":
        (left,) = folder.iterdir()
        for _ in range(2):
            with pytest.raises(ArchiveError, match=f"{left.name} is still there, but "):
                state.archive.delete(["t-one"], missing_ok=True)
        assert [one.thread_id for one in state.archive.list().items] == ["t-one", "t-two"]
        gone_too = left.rename(folder.parent / left.name)
    gone = state.archive.delete(["t-one"], missing_ok=True)
    assert (gone.threads, gone.copies, gone.rewritten) == (1, 1, 0)
    assert [one.thread_id for one in state.archive.list().items] == ["t-two"]
    away.rename(found)
    if name != "archive":
        gone_too.rename(left)
    assert state.archive.restore(["t-two"]).threads == 1
    assert answer(graph, "t-two")
    # Nobody else names it, so that it goes.
    assert state.archive.delete(["t-two", "t-three"]).archives == 1
    assert not [*folder.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["*.pack", "*.json"])
def test_what_is_left_of_an_archive_without_others_is_deleted(name: str, state: PGState, folder: Path) -> None:
    make_rich_thread(state, "t-one")
    state.archive.put(["t-one"], to=f"file://{folder}", idle_for=NOW)
    (found,) = folder.glob(name)
    found.unlink()
    with pytest.raises(ArchiveError, match="is missing"):
        state.archive.delete(["t-one"])
    assert state.archive.delete(["t-one"], missing_ok=True).threads == 1
    assert not [*folder.iterdir()]


@pytest.mark.slow
def test_an_archive_that_is_gone_for_good_is_forgotten(state: PGState, folder: Path, dsn: str, schema: str) -> None:
    make_rich_thread(state, "t-one")
    state.archive.put(["t-one"], to=f"file://{folder}", idle_for=NOW)
    shutil.rmtree(folder)
    with pytest.raises(ArchiveError, match="is missing"):
        state.archive.delete(["t-one"])
    assert state.archive.delete(["t-one"], missing_ok=True).threads == 1
    assert state.threads.get("t-one") is None
    with psycopg.connect(dsn) as connection:
        for table in ("archives", "archived_threads"):
            assert connection.execute(f'SELECT count(*) FROM "{schema}".{table}'.encode()).fetchone() == (0,)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", ["begin_rewriting", "store", "move_stubs", "begin_deletion", "delete_objects", "end_archive"]
)
def test_a_call_that_was_stopped_is_gone_on_with(
    step: str, state: PGState, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = None
    for name in ("t-one", "t-two"):
        graph = make_rich_thread(state, name)
    states = states_of(graph, "t-two")
    state.archive.put(["t-one", "t-two"], to=f"file://{folder}", idle_for=NOW)

    async def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deleting, step, stop)
        with pytest.raises(KeyboardInterrupt):
            state.archive.delete(["t-one"])
    assert state.archive.delete(["t-one"]).threads == 1
    assert threads_in(folder) == {"t-two"}
    assert {name for name in open_objects(f"file://{folder}").list("") if ".part" in name} == set()
    state.archive.restore(["t-two"])
    assert states_of(graph, "t-two") == states
    assert graph.get_state(config_of("t-two")).values["messages"]


@pytest.mark.slow
def test_a_call_that_was_stopped_is_ended_by_a_deletion_of_another_thread(
    state: PGState, dsn: str, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-one", "t-two", "t-three"):
        make_rich_thread(state, name)
    state.archive.put(["t-one", "t-two", "t-three"], to=f"file://{folder}", idle_for=NOW)

    async def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deleting, "end_archive", stop)
        with pytest.raises(KeyboardInterrupt):
            state.archive.delete(["t-one"])
    assert state.archive.delete(["t-two"]).threads == 2
    assert [one.thread_id for one in state.threads.list().items] == ["t-three"]
    assert threads_in(folder) == {"t-three"}
    assert state.archive.check().threads == 1
    assert state.archive.delete(["t-one"]).threads == 0


@pytest.mark.slow
@pytest.mark.parametrize("deleted", ["t-one", "t-two"])
def test_an_archive_that_is_deleted_before_its_threads_are_keeps_them(
    deleted: str, state: PGState, dsn: str, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-one", "t-two"):
        make_rich_thread(state, name)
    before = {name: rows_of(dsn, schema, name) for name in ("t-one", "t-two")}
    store = archiving.store

    async def store_and_delete(*args: Any) -> None:
        await store(*args)
        monkeypatch.setattr(archiving, "store", store)
        with PGState.open(dsn, schema=schema) as other:
            with pytest.raises(ArchiveUnavailableError, match="is an unfinished archive, begun at"):
                other.archive.delete([deleted])
            age_archives(dsn, schema, by=timedelta(hours=1))
            other.archive.delete([deleted])

    monkeypatch.setattr(archiving, "store", store_and_delete)
    report = state.archive.put(["t-one", "t-two"], to=f"file://{folder}", idle_for=NOW)
    assert {one.thread_id for one in report.left} == {"t-one", "t-two"}
    assert {name: rows_of(dsn, schema, name) for name in before} == before
    assert deleted not in threads_in(folder)
    assert report.threads == 0


@pytest.mark.slow
def test_of_two_calls_on_one_archive_both_delete_their_thread(
    state: PGState, dsn: str, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-one", "t-two"):
        make_rich_thread(state, name)
    graph = make_rich_thread(state, "t-three")
    states = states_of(graph, "t-three")
    state.archive.put(["t-one", "t-two", "t-three"], to=f"file://{folder}", idle_for=NOW)
    store = archiving.store

    async def store_late(*args: Any) -> None:
        monkeypatch.setattr(deleting, "store", store)
        age_archives(dsn, schema, by=timedelta(hours=1))
        with PGState.open(dsn, schema=schema) as other:
            other.archive.delete(["t-two"])
        await store(*args)

    monkeypatch.setattr(deleting, "store", store_late)
    with pytest.raises(ArchiveUnavailableError, match="by another call"):
        state.archive.delete(["t-one"])
    assert threads_in(folder) == {"t-one", "t-three"}
    assert state.archive.delete(["t-one"]).threads == 1
    assert threads_in(folder) == {"t-three"}
    assert [one.thread_id for one in state.archive.list().items] == ["t-three"]
    state.archive.restore(["t-three"])
    assert states_of(graph, "t-three") == states


@pytest.mark.slow
def test_an_archive_that_is_written_again_has_nothing_that_was_deleted_meanwhile(
    state: PGState, dsn: str, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-one", "t-two", "t-three"):
        make_rich_thread(state, name)
    state.archive.put(["t-one", "t-two", "t-three"], to=f"file://{folder}", idle_for=NOW)
    begin = deleting.begin_rewriting

    async def begin_late(*args: Any) -> None:
        monkeypatch.setattr(deleting, "begin_rewriting", begin)
        with PGState.open(dsn, schema=schema) as other:
            other.archive.delete(["t-two"])
        await begin(*args)

    async def killed(*args: Any) -> None:
        """Leave the archive as a process does that is killed."""

    monkeypatch.setattr(deleting, "begin_rewriting", begin_late)
    monkeypatch.setattr(deleting, "discard", killed)
    with pytest.raises(ArchiveUnavailableError, match="by another call"):
        state.archive.delete(["t-one"])
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(f'SELECT thread_id FROM "{schema}".archived_threads ORDER BY 1'.encode()).fetchall()
    assert rows == [("t-one",), ("t-three",)]


async def test_a_cancelled_archive_leaves_no_object(
    dsn: str, schema: str, state: PGState, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that uploads goes on, while another call deletes what there is."""
    make_rich_thread(state, "t-one")
    before = rows_of(dsn, schema, "t-one")
    began, ends, put = threading.Event(), threading.Event(), objects._Folder.put

    def put_late(self: Any, name: str, data: bytes) -> None:
        began.set()
        assert ends.wait(GUARD_SECONDS)
        put(self, name, data)

    monkeypatch.setattr(objects._Folder, "put", put_late)
    async with AsyncPGState.open(dsn, schema=schema) as mine:
        task = asyncio.create_task(mine.archive.put(["t-one"], to=f"file://{folder}", idle_for=NOW))
        assert await asyncio.to_thread(began.wait, GUARD_SECONDS)
        task.cancel()
        age_archives(dsn, schema, by=timedelta(hours=1))
        await asyncio.to_thread(state.archive.delete, ["t-one"])
        task.cancel()
        ends.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not [*folder.iterdir()]
        assert rows_of(dsn, schema, "t-one") == before


@pytest.mark.slow
def test_what_a_killed_process_left_of_an_archive_is_swept(
    state: PGState, dsn: str, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-one", "t-two", "t-three"):
        make_rich_thread(state, name)
    before = rows_of(dsn, schema, "t-one")
    state.archive.put(["t-two"], to=f"file://{folder}", idle_for=NOW)
    state.archive.put(["t-three"], to=f"file://{folder}", idle_for=NOW)

    async def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deleting, "delete_objects", stop)
        with pytest.raises(KeyboardInterrupt):
            state.archive.delete(["t-three"])
    began, ends = FORK.Event(), FORK.Event()
    process = FORK.Process(target=archive_and_die, args=(dsn, schema, f"file://{folder}", "t-one", began, ends))
    process.start()
    ends.set()
    process.join(GUARD_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    everything = {"t-one", "t-two", "t-three"}
    state.retention.apply()
    assert threads_in(folder) == everything
    age_archives(dsn, schema, by=timedelta(days=2))
    state.retention.apply(dry_run=True)
    assert threads_in(folder) == everything
    # The folder is not mounted.
    away = folder.rename(folder.parent / "away")
    folder.write_text("no folder")
    state.retention.apply()
    folder.unlink()
    away.rename(folder)
    assert threads_in(folder) == everything
    state.retention.apply()
    # A deletion that was begun goes on when it is called again.
    assert threads_in(folder) == {"t-two", "t-three"}
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(f'SELECT thread_id FROM "{schema}".archived_threads ORDER BY 1'.encode()).fetchall()
    assert rows == [("t-three",), ("t-two",)]
    assert rows_of(dsn, schema, "t-one") == before
    assert state.archive.delete(["t-three"]).threads == 1
    assert state.archive.restore(["t-two"]).threads == 1


@pytest.mark.slow
@pytest.mark.parametrize("step", ["store", "delete_archived", "move_stubs"])
def test_a_slow_process_and_a_sweep_lose_no_thread(
    step: str, state: PGState, dsn: str, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t-one", "t-two"):
        make_rich_thread(state, name)
    if step == "move_stubs":
        state.archive.put(["t-one", "t-two"], to=f"file://{folder}", idle_for=NOW)
    module = deleting if step == "move_stubs" else archiving
    waits = getattr(module, step)

    async def late(*args: Any) -> Any:
        monkeypatch.setattr(module, step, waits)
        age_archives(dsn, schema, by=timedelta(days=2))
        with PGState.open(dsn, schema=schema) as other:
            other.retention.apply()
        return await waits(*args)

    monkeypatch.setattr(module, step, late)
    if step == "move_stubs":
        with pytest.raises(ArchiveUnavailableError, match="repeat this call"):
            state.archive.delete(["t-one"])
    else:
        state.archive.put(["t-one", "t-two"], to=f"file://{folder}", idle_for=NOW)
    age_archives(dsn, schema, by=timedelta(days=2))
    state.retention.apply()
    found = [state.threads.get(name) for name in ("t-one", "t-two")]
    away = [one.thread_id for one in found if one is not None and one.archived_at is not None]
    assert len([*folder.glob("*.pack")]) == bool(away)
    assert (len(found), state.archive.restore(away).threads) == (2, len(away))


@pytest.mark.slow
@pytest.mark.parametrize("claims", ["claim_unfinished", "claim_archive"])
def test_an_archive_that_is_finished_before_it_is_claimed_stays(
    claims: str, state: PGState, dsn: str, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rich_thread(state, "t-one")
    before, store, claim = rows_of(dsn, schema, "t-one"), archiving.store, getattr(deleting, claims)
    began, ends = threading.Event(), threading.Event()

    async def store_late(*args: Any) -> None:
        await store(*args)
        began.set()
        assert ends.wait(GUARD_SECONDS)

    def put() -> None:
        with PGState.open(dsn, schema=schema) as other:
            other.archive.put(["t-one"], to=f"file://{folder}", idle_for=NOW)

    making = threading.Thread(target=put)

    async def claim_late(*args: Any) -> bool:
        ends.set()
        making.join(GUARD_SECONDS)
        return await claim(*args)

    monkeypatch.setattr(archiving, "store", store_late)
    monkeypatch.setattr(deleting, claims, claim_late)
    making.start()
    assert began.wait(GUARD_SECONDS)
    age_archives(dsn, schema, by=timedelta(days=2))
    if claims == "claim_unfinished":
        state.retention.apply()
    else:
        with pytest.raises(ArchiveUnavailableError, match="was finished meanwhile"):
            state.archive.delete(["t-one"])
    assert not making.is_alive()
    assert state.archive.restore(["t-one"]).threads == 1
    assert rows_of(dsn, schema, "t-one") == before


def test_what_a_killed_process_left_of_an_object_is_deleted_with_it(folder: Path) -> None:
    place = open_objects(f"file://{folder}")
    place.put("one.pack", b"")
    for name in (".one.pack.abc.part", ".two.pack.abc.part"):
        (folder / name).write_bytes(b"t-one")
    place.delete("one.pack")
    assert [path.name for path in folder.iterdir()] == [".two.pack.abc.part"]
