"""Restoring: verified before anything is written, and exact."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support import put_arguments
from support.keep import agent, answer, config_of, make_rich_thread, rows_of, states_of
from support.tenants import APP, OWNER, Walled, open_walled

from langgraph_pgstate import AsyncPGState, Encryption, LocalMasterKey, PGState
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.encryption.columns import CONTENTS
from langgraph_pgstate.errors import (
    AlreadyDoneError,
    ArchiveError,
    ConfigurationError,
    ConflictError,
    DataKeyDestroyedError,
    DataKeyError,
    NotFoundError,
    SchemaOutdatedError,
    TenantError,
    ThreadDeletedError,
    ThreadExistsError,
)
from langgraph_pgstate.keep import erasing, packing, restoring
from langgraph_pgstate.keep.objects import open_objects
from langgraph_pgstate.keep.packing import load_manifest, unpack

MASTER = LocalMasterKey(bytes(range(32)))
NOW = timedelta(0)


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        yield state


@pytest.fixture
def other(dsn: str, schemas: Any) -> Iterator[PGState]:
    """A state of another schema."""
    name = schemas.take()
    with PGState.open(dsn, schema=name) as state:
        yield state
    schemas.give_back(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def ask(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.slow
def test_into_another_schema(state: PGState, other: PGState, dsn: str, schema: str, folder: Path) -> None:
    graph = make_rich_thread(state, "t")
    state.saver.copy_thread("t", "u")
    before, states = rows_of(dsn, schema, "t"), states_of(graph, "t")
    copy = rows_of(dsn, schema, "u")
    assert "origin_thread_ids" in copy["threads"][0]
    state.archive.put(["t", "u"], to=f"file://{folder}", idle_for=NOW)
    checked = other.archive.restore(["t"], source=f"file://{folder}", dry_run=True)
    assert checked.threads == 1
    assert other.threads.get("t") is None
    assert other.archive.restore(["t"], source=f"file://{folder}").threads == 1
    assert rows_of(dsn, other.schema, "t") == before
    assert states_of(agent(other), "t") == states
    assert other.threads.get("u") is None
    # Again, and all.
    report = other.archive.restore(source=f"file://{folder}")
    assert (report.threads, report.unchanged) == (1, 1)
    assert rows_of(dsn, other.schema, "u") == copy
    # The stub of the first schema is as it was.
    stub = state.threads.get("t")
    assert stub is not None
    assert stub.archived_at is not None
    with pytest.raises(NotFoundError, match="in no archive"):
        other.archive.restore(["v"], source=f"file://{folder}")
    with pytest.raises(NotFoundError, match="not archived"):
        other.archive.restore(["t"])
    with pytest.raises(ConfigurationError, match="must be given"):
        other.archive.restore()


@pytest.mark.slow
def test_into_a_schema_of_a_later_version(
    state: PGState, dsn: str, schema: str, folder: Path, connection: psycopg.Connection
) -> None:
    """Which has columns more, in any place; an archive of one with columns more is refused."""
    make_rich_thread(state, "t")
    before = rows_of(dsn, schema, "t")
    state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
    connection.execute(f"ALTER TABLE \"{schema}\".checkpoints ADD COLUMN later text NOT NULL DEFAULT 'x'".encode())
    connection.execute(f'ALTER TABLE "{schema}".events ADD COLUMN later integer'.encode())
    state.archive.restore(["t"])
    after = rows_of(dsn, schema, "t")
    for table in ("checkpoints", "events"):
        assert {json.loads(row).pop("later") for row in after[table]} <= {"x", None}
        plain = [{k: v for k, v in json.loads(row).items() if k != "later"} for row in after[table]]
        assert sorted(map(repr, plain)) == sorted(repr(json.loads(row)) for row in before[table])
    assert {key: rows for key, rows in after.items() if key not in ("checkpoints", "events")} == {
        key: rows for key, rows in before.items() if key not in ("checkpoints", "events")
    }
    state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
    connection.execute(f'ALTER TABLE "{schema}".checkpoints DROP COLUMN later'.encode())
    connection.execute(f'ALTER TABLE "{schema}".events DROP COLUMN later'.encode())
    with pytest.raises(SchemaOutdatedError):
        state.archive.restore(["t"])


@pytest.mark.slow
def test_a_flipped_byte_is_found_before_anything_is_written(
    state: PGState, dsn: str, schema: str, folder: Path
) -> None:
    make_rich_thread(state, "t")
    state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
    before = rows_of(dsn, schema, "t")
    for path in folder.iterdir():
        data = path.read_bytes()
        for position in range(0, len(data), len(data) // 5):
            path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
            with pytest.raises(ArchiveError, match="damaged"):
                state.archive.restore(["t"])
        path.write_bytes(data[:-1])
        with pytest.raises(ArchiveError, match="damaged"):
            state.archive.restore(["t"])
        path.unlink()
        with pytest.raises(ArchiveError, match="does not exist"):
            state.archive.restore(["t"])
        path.write_bytes(data)
    assert rows_of(dsn, schema, "t") == before
    assert state.archive.restore(["t"]).threads == 1


def test_another_archive_in_its_place_is_found(state: PGState, folder: Path) -> None:
    """Each is whole by itself; the stub names the one that it was."""
    make_rich_thread(state, "t")
    first = state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW).archives[0]
    state.archive.restore(["t"])
    second = state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW).archives[0]
    for ending in (".pack", ".json"):
        (folder / f"{second}{ending}").write_bytes((folder / f"{first}{ending}").read_bytes())
    with pytest.raises(ArchiveError, match="is not the manifest"):
        state.archive.restore(["t"])


def test_a_forged_archive_is_refused_where_its_row_is_known(
    state: PGState, other: PGState, dsn: str, schema: str, folder: Path
) -> None:
    """All digests of its manifest are right, so another database accepts it."""
    state.threads.create("t", metadata={"paid": False})
    (id,) = state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW).archives
    path = folder / f"{id}.json"
    forged = replace(load_manifest(path.read_bytes(), ""), schema_version=2**40)
    path.write_bytes(forged.dump())
    for ids in (["t"], None):
        with pytest.raises(ArchiveError, match="is not the manifest that the database names"):
            state.archive.restore(ids, source=f"file://{folder}")
    assert state.threads.get("t").archived_at is not None  # type: ignore[union-attr]
    assert other.archive.restore(source=f"file://{folder}").threads == 1
    (folder / "\udcff.json").write_bytes(path.read_bytes())  # a name that is no UTF-8
    with pytest.raises(ArchiveError, match="was renamed or replaced"):
        other.archive.restore(source=f"file://{folder}")


@pytest.mark.parametrize("huge", [2**40, 2**62, 2**63 - 1, 2**63])
@pytest.mark.parametrize("field", ["offset", "bytes"])
def test_a_forged_size_is_damage(state: PGState, other: PGState, folder: Path, field: str, huge: int) -> None:
    state.threads.create("t")
    (id,) = state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW).archives
    path = folder / f"{id}.json"
    manifest = load_manifest(path.read_bytes(), "")
    frames = {"t": manifest.frames["t"]._replace(**{field: huge})}
    path.write_bytes(replace(manifest, frames=frames).dump())
    with pytest.raises(ArchiveError, match="is damaged"):
        other.archive.restore(source=f"file://{folder}")
    assert other.threads.get("t") is None


@pytest.mark.slow
def test_what_is_there_is_not_overwritten(state: PGState, other: PGState, dsn: str, schema: str, folder: Path) -> None:
    graph = make_rich_thread(state, "t")
    state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
    foreign = make_rich_thread(other, "t")
    states = states_of(foreign, "t")
    with pytest.raises(ThreadExistsError):
        other.archive.restore(["t"], source=f"file://{folder}")
    assert states_of(foreign, "t") == states
    state.archive.restore(["t"])
    answer(graph, "t")
    state.flush()
    with pytest.raises(ThreadExistsError):
        state.archive.restore(["t"], source=f"file://{folder}")
    # An older copy is not put in place of a newer one.
    state.archive.put(["t"], to=f"file://{folder}/newer", idle_for=NOW)
    with pytest.raises(ConflictError, match="newer"):
        state.archive.restore(["t"], source=f"file://{folder}")
    state.archive.restore(["t"])
    assert states_of(graph, "t")
    with PGState.open(dsn, schema=schema, tombstones_for=timedelta(days=1)) as careful:
        careful.saver.delete_thread("t")
    with pytest.raises(ThreadDeletedError):
        state.archive.restore(["t"], source=f"file://{folder}/newer")


@pytest.mark.slow
@pytest.mark.parametrize("overtaking", ["erase", "delete", "erase twice"])
def test_what_is_erased_meanwhile_does_not_come_back(
    overtaking: str, state: PGState, dsn: str, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stub was there before the archive was read; then the thread and its copy are erased."""
    for name in ("t", "u"):
        make_rich_thread(state, name)
    state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
    read = restoring.read_rows

    async def overtaken(*given: Any) -> Any:
        found = await read(*given)
        monkeypatch.setattr(restoring, "read_rows", read)
        monkeypatch.setattr(erasing, "restore_source", restoring.restore_source)
        with PGState.open(dsn, schema=schema) as faster:
            if overtaking == "delete":
                assert faster.archive.delete(["t"]).threads == 1
            else:
                assert faster.privacy.erase(thread_id="t").is_complete
        return found

    async def restore(*given: Any) -> None:
        await restoring.restore_source(*given)
        pytest.fail("the thread was stored, and would stay if this process died now")

    monkeypatch.setattr(restoring, "read_rows", overtaken)
    if overtaking == "erase twice":
        monkeypatch.setattr(erasing, "restore_source", restore)
        assert state.privacy.erase(thread_id="t").is_complete
    else:
        with pytest.raises(NotFoundError, match="thread 't' is not archived"):
            state.archive.restore(["t"], by="Eve")
    assert not {*rows_of(dsn, schema, "t")} - {"events"}
    assert state.threads.get("t") is None
    assert state.threads.get("u") is not None


@pytest.mark.slow
@pytest.mark.parametrize("newer_by", ["a clock set back", "a rewritten archive"])
def test_the_newest_copy_is_the_newest_by_the_clock_of_the_database(
    newer_by: str, state: PGState, other: PGState, dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of archives sort by the clock of the machine, and by the time at which an archive was written again."""
    url = f"file://{folder}"
    graph = make_rich_thread(state, "t")
    make_rich_thread(state, "u")
    state.archive.put(["t", "u"], to=url, idle_for=NOW)
    state.archive.restore(["t"])
    answer(graph, "t")
    state.flush()
    states = states_of(graph, "t")
    # The time zone of a session does not matter.
    with PGState.open(make_conninfo(dsn, options="-c TimeZone=America/Los_Angeles"), schema=state.schema) as west:
        if newer_by == "a clock set back":
            clock = time.time_ns
            monkeypatch.setattr(time, "time_ns", lambda: clock() - 3600 * 10**9)
        west.archive.put(["t"], to=url, idle_for=NOW)
    if newer_by == "a rewritten archive":
        state.archive.delete(["u"])
    assert other.archive.restore(source=url).threads == 2 - (newer_by == "a rewritten archive")
    assert states_of(agent(other), "t") == states


@pytest.mark.slow
def test_rows_that_came_after_all_stay(state: PGState, dsn: str, schema: str, folder: Path) -> None:
    """Writes of a task that went on while its thread was archived."""
    graph = make_rich_thread(state, "t")
    head = state.saver.get_tuple(config_of("t"))
    assert head is not None
    before = rows_of(dsn, schema, "t")
    state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
    state.saver.put_writes(head.config, [("messages", [("user", "late")])], "late-task")
    state.archive.restore(["t"])
    after = rows_of(dsn, schema, "t")
    assert {*after["writes"]} > {*before["writes"]}
    assert {**after, "writes": before["writes"]} == before
    assert graph.get_state(config_of("t")).values["messages"]


@pytest.mark.slow
def test_a_time_to_live_begins_anew(state: PGState, dsn: str, schema: str, folder: Path) -> None:
    for name in ("ttl", "date"):
        make_rich_thread(state, name)
    state.threads.set_ttl("ttl", timedelta(days=30))
    state.threads.expire("date", after=timedelta(0))
    ask(dsn, f"UPDATE \"{schema}\".threads SET expires_at = '2025-01-01Z' WHERE ttl IS NOT NULL")
    state.archive.put(["ttl", "date"], to=f"file://{folder}", idle_for=NOW)
    assert ask(dsn, f'SELECT count(expires_at) FROM "{schema}".threads') == [(0,)]
    state.archive.restore(["ttl", "date"])
    found = ask(dsn, f'SELECT thread_id, expires_at > now() FROM "{schema}".threads ORDER BY 1')
    assert found == [("date", None), ("ttl", True)]
    assert state.threads.sweep().threads == 0


@pytest.mark.slow
def test_memories_keep_their_origin(state: PGState, dsn: str, schema: str, folder: Path) -> None:
    make_rich_thread(state, "t")
    state.memory.put(("m",), "k", {"fact": "She books the Astoria."})
    ask(dsn, f"UPDATE \"{schema}\".memories SET thread_id = 't', message_id = 'call'")
    query = f'SELECT thread_id, message_id, content FROM "{schema}".memory_messages'
    known = ask(dsn, query)
    assert known
    state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
    assert ask(dsn, f'SELECT thread_id FROM "{schema}".memories') == [("t",)]
    state.archive.restore(["t"])
    assert ask(dsn, query) == known


@pytest.mark.slow
def test_chained_events_are_proven_by_their_chain(state: PGState, dsn: str, schema: str, folder: Path) -> None:
    """It stays, goes on while the thread is archived, and fits the events that come back."""
    state.setup(audit=True)
    make_rich_thread(state, "t")
    state.threads.hold("t", "first", by="eve")
    state.threads.release("t", "first", by="eve")
    assert not state.audit.verify("t").problems
    state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
    assert not state.audit.verify("t").problems
    state.threads.hold("t", "second", by="eve")
    assert not state.audit.verify("t").problems
    state.archive.restore(["t"])
    assert not state.audit.verify("t").problems
    ask(dsn, f"DELETE FROM \"{schema}\".events WHERE thread_id = 't' AND payload ->> 'reason' = 'first'")
    assert state.audit.verify("t").problems


@pytest.mark.slow
def test_each_tenant_has_its_own_archive(dsn: str, folder: Path) -> None:
    url = f"file://{folder}"
    with open_walled(dsn) as walled, walled.open(tenant="acme") as acme, walled.open(tenant="bolt") as bolt:
        for one in (acme, bolt):
            make_rich_thread(one, "t")
        states = states_of(agent(acme), "t")
        assert acme.archive.put(["t"], to=url, idle_for=NOW).threads == 1
        assert not bolt.archive.list().items
        assert bolt.threads.get("t").archived_at is None  # type: ignore[union-attr]
        (archive,) = folder.glob("*.json")
        for ids in (["t"], None):
            with pytest.raises(TenantError, match="has no archive of tenant 'bolt'") as raised:
                bolt.archive.restore(ids, source=url)
            assert archive.stem not in str(raised.value)
        bolt.saver.delete_thread("t")
        with pytest.raises(TenantError):
            bolt.archive.restore(source=url)
        assert bolt.threads.get("t") is None
        assert acme.archive.restore(["t"]).threads == 1
        assert states_of(agent(acme), "t") == states
        assert walled.rows('SELECT DISTINCT pgstate_tenant FROM "{}".checkpoints') == [("acme",)]
        # Each restores her own from a place with archives of both.
        make_rich_thread(bolt, "t")
        own = states_of(agent(bolt), "t")
        make_rich_thread(bolt, "u")
        assert bolt.archive.put(["t", "u"], to=url, idle_for=NOW).threads == 2
        acme.archive.put(["t"], to=url, idle_for=NOW)
        assert acme.archive.restore(source=url).threads == 1
        assert states_of(agent(acme), "t") == states
        with pytest.raises(NotFoundError, match="thread 'u' is in no archive") as missing:
            acme.archive.restore(["u"], source=url)
        assert not any(one.stem in str(missing.value) for one in folder.iterdir())
        assert bolt.archive.restore(["t"], source=url).threads == 1
        assert states_of(agent(bolt), "t") == own


@pytest.fixture
def moved(dsn: str, folder: Path) -> Iterator[tuple[Walled, list[Any]]]:
    """A schema with the archived threads `t`, `u`, `v` and `w`, moved to the tenant `acme` afterwards."""
    with open_walled(dsn) as walled:
        plain = replace(walled, schema=f"{walled.schema}_plain")
        plain.rows(f"CREATE SCHEMA {{}} AUTHORIZATION {OWNER}")
        with PGState.open(plain.owner, schema=plain.schema) as state:
            state.setup()
            for name in ("t", "u", "v", "w"):
                graph = make_rich_thread(state, name)
            states = states_of(graph, "w")
            state.archive.put(["t", "u", "v", "w"], to=f"file://{folder}", idle_for=NOW)
            state.move_to_tenants("acme", workers=[APP])
        plain.rows(f"GRANT USAGE ON SCHEMA {{}} TO {APP}")
        plain.rows(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {{}} TO {APP}")
        yield plain, states
        plain.rows("DROP SCHEMA {} CASCADE")


@pytest.mark.slow
def test_archives_of_before_tenants_belong_to_the_tenant_of_their_rows(
    moved: tuple[Walled, list[Any]], folder: Path
) -> None:
    plain, states = moved
    url = f"file://{folder}"
    with plain.open(tenant="acme") as acme, plain.open(tenant="bolt") as bolt:
        assert acme.archive.check().threads == 4
        assert acme.archive.restore(source=url, dry_run=True).threads == 4
        with pytest.raises(TenantError):
            bolt.archive.restore(source=url)
        assert acme.archive.delete(["t"]).rewritten == 1
        assert acme.privacy.erase(thread_id="u").is_complete
        acme.retention.put("old", delete_after=timedelta(days=1))
        plain.rows("UPDATE {}.threads SET updated_at = now() - interval '2 days' WHERE thread_id = 'v'")
        (applied,) = acme.retention.apply("old")
        assert (applied.deleted, applied.problems) == (1, ())
        assert [one.thread_id for one in acme.archive.list().items] == ["w"]
        assert acme.archive.restore(source=url, dry_run=True).threads == 1
        assert acme.archive.restore(["w"]).threads == 1
        assert states_of(agent(acme), "w") == states
        # A manifest of another tenant is refused even if the row names it.
        acme.archive.put(["w"], to=url, idle_for=NOW)
        plain.rows("DELETE FROM {}.archived_threads")
        plain.rows("UPDATE {}.archives SET pgstate_tenant = 'bolt'")
        plain.rows("UPDATE {}.threads SET pgstate_tenant = 'bolt'")
        with pytest.raises(TenantError, match="not an archive of tenant 'bolt'"):
            bolt.archive.restore(["w"])


@pytest.mark.slow
async def test_on_an_event_loop(dsn: str, schema: str, folder: Path, state: PGState) -> None:
    graph = make_rich_thread(state, "t")
    before, states = rows_of(dsn, schema, "t"), states_of(graph, "t")
    async with AsyncPGState.open(dsn, schema=schema) as suspending:
        report = await suspending.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
        assert report.threads == 1
        assert len((await suspending.archive.list()).items) == 1
        assert (await suspending.archive.restore(["t"])).threads == 1
    assert rows_of(dsn, schema, "t") == before
    assert states_of(graph, "t") == states


@pytest.mark.slow
def test_a_person_restores_it_once(state: PGState, folder: Path) -> None:
    make_rich_thread(state, "t")
    state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
    (archived,) = state.archive.list(thread_ids=["t", "none"]).items
    assert archived.url == f"file://{folder}"
    assert state.archive.list(thread_ids=["none"]).items == ()
    given: Any = {"source": f"file://{folder}"}
    assert state.archive.restore(["t"], by="Eve", dry_run=True, **given).threads == 1
    assert state.archive.restore(["t"], by="Eve", **given).threads == 1
    # The same call again, after a lost connection; then another person's.
    assert state.archive.restore(["t"], by="Eve", **given).unchanged == 1
    with pytest.raises(AlreadyDoneError) as raised:
        state.archive.restore(["t"], by="Adam", **given)
    assert (raised.value.action, raised.value.done_by) == ("restore", "Eve")
    with pytest.raises(ThreadExistsError):
        state.archive.restore(["t"], **given)
    actions = [one.payload for one in state.events.list("t", kind="action").items if one.payload["action"] == "restore"]
    assert actions == [{"action": "restore", "by": "Eve"}]


@pytest.mark.slow
def test_an_interrupted_restore_is_finished_by_a_repetition(
    state: PGState, dsn: str, schema: str, folder: Path
) -> None:
    """Each thread has an archive of its own, and the server is lost when one is restored."""
    names = ["t", "u", "v"]
    for name in names:
        make_rich_thread(state, name)
        state.archive.put([name], to=f"file://{folder}", idle_for=NOW)
    assert state.archive.restore(["t"]).threads == 1
    report = state.archive.restore(["t", "u"])
    assert (report.threads, report.unchanged) == (1, 1)
    # A thread that was used meanwhile stays as it is, and the others come back first.
    ask(dsn, f"UPDATE {schema}.messages SET role = 'other' WHERE thread_id = 't'")
    with pytest.raises(ThreadExistsError, match="'t'"):
        state.archive.restore(names)
    assert state.archive.restore(["u", "v"]).unchanged == 2
    assert state.archive.list().items == ()
    state.archive.delete(names)
    with pytest.raises(NotFoundError, match="'u' is not archived"):
        state.archive.restore(["u"])


@pytest.mark.slow
def test_an_archive_names_the_keys_of_all_that_is_encrypted(dsn: str, schema: str, folder: Path) -> None:
    encryption = Encryption(MASTER, scope="thread")
    with PGState.open(dsn, schema=schema, encryption=encryption, project=("messages",)) as state:
        for name in ("t", "u"):
            make_rich_thread(state, name)
            state.threads.set_title(name, "a title")
        rows = rows_of(dsn, schema, "t")
        state.archive.put(["t", "u"], to=f"file://{folder}", idle_for=NOW)
        keys = dict(ask(dsn, f'SELECT scope, key_id FROM "{schema}".data_keys'))
        (path,) = folder.glob("*.json")
        manifest = load_manifest(path.read_bytes(), "it")
        assert {one.thread_id: one.key_ids for one in manifest.frames.values()} == {
            name: (keys[f"thread:{name}"],) for name in ("t", "u")
        }
        (told,) = ask(dsn, f'SELECT key_ids FROM "{schema}".archives')
        assert sorted(told[0]) == [*manifest.key_ids] == sorted(keys[f"thread:{name}"] for name in ("t", "u"))
        frame = manifest.frames["t"]
        data = path.with_suffix(".pack").read_bytes()[frame.offset : frame.offset + frame.bytes]
        sealed = {table for table, found in rows.items() if "pgs1:" in str(found) or "03706773" in str(found)}
        assert {name.partition(".")[0] for name in CONTENTS} & rows.keys() == sealed
        for table, found in unpack(frame, data, "it").items():
            assert packing._key_ids(table, manifest.columns[table], found) == (
                {keys["thread:t"]} if table in sealed else set()
            ), table
        # Without one of them, the rest is written anew.
        state.archive.delete(["t"])
        (path,) = folder.glob("*.json")
        assert load_manifest(path.read_bytes(), "it").key_ids == (keys["thread:u"],)


@pytest.mark.slow
def test_keys_may_be_rotated_or_destroyed_before_a_restore(dsn: str, schema: str, folder: Path) -> None:
    encryption = Encryption(MASTER, scope="user", cache_for=timedelta(seconds=1))
    with PGState.open(dsn, schema=schema, encryption=encryption) as state:
        graphs = {name: make_rich_thread(state, name) for name in ("t", "u")}
        before, states = rows_of(dsn, schema, "t"), states_of(graphs["t"], "t")
        state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
        with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
            admin.rotate_keys()
            retired = [
                one for (one,) in ask(dsn, f'SELECT key_id FROM "{schema}".data_keys WHERE retired_at IS NOT NULL')
            ]
            ask(
                dsn,
                f'INSERT INTO "{schema}".data_keys (key_id, scope, master_id, is_current, replaced_at, retired_at)'
                " VALUES ('other', 'user:other', 'm', false, now(), now())",
            )
            state.archive.restore(["t"])
            # Only the keys of the restored rows are to be retired again.
            assert ask(dsn, f'SELECT key_id FROM "{schema}".data_keys WHERE retired_at IS NOT NULL') == [("other",)]
            # The stub is encrypted under the newer key.
            assert {**rows_of(dsn, schema, "t"), "threads": 0} == {**before, "threads": 0}
            assert states_of(graphs["t"], "t") == states
            # The next rotation finds what is under the retired key.
            admin.rotate_keys()
            assert retired
            assert not any(ask(dsn, _under(schema, key_id)) for key_id in retired)
            assert states_of(graphs["t"], "t") == states
        state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
        ask(dsn, f'UPDATE "{schema}".data_keys SET wrapped = NULL, is_current = false, destroyed_at = now()')
        # As if it had never been archived.
        assert state.archive.restore(["t"]).threads == 1
        time.sleep(1.1)
        with pytest.raises(DataKeyDestroyedError):
            state.saver.get_tuple(config_of("t"))
        assert state.privacy.erase(thread_id="t").kept == []


def _under(schema: str, key_id: str) -> str:
    return f"SELECT thread_id FROM \"{schema}\".checkpoints WHERE substr(state, 5, 8) = '\\x{key_id}'"


@pytest.mark.slow
def test_another_database_needs_the_keys_first(dsn: str, schema: str, other: PGState, folder: Path) -> None:
    with PGState.open(dsn, schema=schema, encryption=Encryption(MASTER, scope="user")) as state:
        graph = make_rich_thread(state, "t")
        states = states_of(graph, "t")
        state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW)
    with PGState.open(dsn, schema=other.schema, encryption=Encryption(MASTER, scope="user")) as there:
        for dry_run in (True, False):
            with pytest.raises(DataKeyError, match="key is not in data_keys: copy the rows from the database"):
                there.archive.restore(source=f"file://{folder}", dry_run=dry_run)
        assert there.threads.get("t") is None
        ask(
            dsn,
            f'INSERT INTO "{other.schema}".data_keys (key_id, scope, master_id, wrapped, is_current, replaced_at)'
            f' SELECT key_id, scope, master_id, wrapped, false, now() FROM "{schema}".data_keys RETURNING 1',
        )
        assert there.archive.restore(source=f"file://{folder}").threads == 1
        assert states_of(agent(there), "t") == states
        there.saver.put(*put_arguments(config_of("t"), 9))


@pytest.mark.parametrize("place", [0, 1])
def test_rows_of_another_thread_are_refused(place: int, state: PGState, other: PGState) -> None:
    """Guard: a forger's digests are right, and those of a thread with rows of its own are not compared."""
    make_rich_thread(state, "t")
    state.threads.create("victim")
    state.archive.put(["t"], to=f"memory://honest-{place}", idle_for=NOW)
    honest = open_objects(f"memory://honest-{place}")
    (name,) = honest.list(packing.MANIFEST)
    manifest = load_manifest(honest.get(name), "honest")
    rows = unpack(manifest.frames["t"], honest.get(manifest.archive_id + packing.PACK), "honest")
    columns = {table: [*found] for table, found in manifest.columns.items()}
    if place:
        columns["events"][0], columns["events"][1] = columns["events"][1], columns["events"][0]
        rows["events"] = [_swapped(row) for row in rows["events"]]
    rows["events"] = [row.replace(b"\0\0\0\x19\0\0\0\x01t", b"\0\0\0\x19\0\0\0\x06victim", 1) for row in rows["events"]]
    data, forged = packing.pack(
        {"t": rows}, columns, archive_id="a", created_at="2026-01-01", schema_version=1, tenant=None
    )
    objects = open_objects(f"memory://forged-{place}")
    objects.put("a.pack", data)
    objects.put("a.json", forged.dump())
    with psycopg.connect(other._database.dsn, autocommit=True) as connection:
        labels = f'INSERT INTO "{other.schema}".labels (thread_id, checkpoint_ns, checkpoint_id, label) VALUES '
        connection.execute((labels + "('t', '', 'c', 'a rest')").encode())
    with pytest.raises(ArchiveError, match="rows of another thread in events"):
        other.archive.restore(source=f"memory://forged-{place}")
    assert other.events.list(thread_id="victim").items == ()
    assert other.threads.get("t") is None


def _swapped(row: bytes) -> bytes:
    """Return a row with its first two columns exchanged."""
    first, second, *rest = [struct.pack("!I", type_) + value for type_, value in packing._fields(row)]
    return row[:4] + second + first + b"".join(rest)


def test_a_thread_without_any_rows_is_archived_restored_and_erased(dsn: str, schema: str, folder: Path) -> None:
    with PGState.open(dsn, schema=schema) as state:
        folder.parent.mkdir(exist_ok=True)
        state.threads.create("t", metadata={"a": 1})
        for _ in range(2):
            assert state.archive.put(["t"], to=f"file://{folder}", idle_for=NOW).threads == 1
            assert state.archive.restore(["t"]).threads == 1
            thread = state.threads.get("t")
            assert thread is not None
            assert thread.metadata == {"a": 1}
        state.privacy.erase(thread_id="t")
        assert state.threads.get("t") is None
        assert not [*folder.glob("*")]
