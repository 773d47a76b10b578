"""Deletion from archives: what is deleted is in no object any more, and what is beside it is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import zstandard
from support.keep import answer, config_of, make_rich_thread, rows_of, states_of

from langgraph_pgstate import PGState
from langgraph_pgstate.errors import ArchiveError, ThreadHeldError
from langgraph_pgstate.keep import deleting
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


def test_what_is_held_stays(state: PGState, folder: Path) -> None:
    for name in ("t-one", "t-two"):
        make_rich_thread(state, name)
    state.archive.put(["t-one", "t-two"], to=f"file://{folder}", idle_for=NOW)
    state.threads.hold("t-one", "case", by="eve")
    with pytest.raises(ThreadHeldError, match="held by eve"):
        state.archive.delete(["t-two", "t-one"])
    assert threads_in(folder) == {"t-one", "t-two"}
    assert state.archive.check(["t-one", "t-two"]).threads == 2


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


@pytest.mark.parametrize("step", ["begin_archive", "store", "move_stubs", "end_archive"])
def test_a_call_that_was_stopped_is_gone_on_with(
    step: str, state: PGState, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = None
    for name in ("t-one", "t-two"):
        graph = make_rich_thread(state, name)
    states = states_of(graph, "t-two")
    state.archive.put(["t-one", "t-two"], to=f"file://{folder}", idle_for=NOW)

    async def stop(*args: object) -> None:
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
