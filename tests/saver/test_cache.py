"""What a process wrote or read last it does not fetch again, and never takes for what it is not."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from support import APIS, open_saver
from support.samples import checkpoint_of, config_of, forget, id_of, messages, put_values, values_of

from langgraph_pgstate import AsyncPGState, PGState, PGStateSaver
from langgraph_pgstate.arguments import Address, address_of
from langgraph_pgstate.checkpoints import planning, sending
from langgraph_pgstate.codec.states import Elements, Manifest, Run, Scalar, Slice
from langgraph_pgstate.codec.values import Fingerprints
from langgraph_pgstate.db.adapters import BlockingConnection
from langgraph_pgstate.errors import ConfigurationError, CorruptStateError
from langgraph_pgstate.saver import cache
from langgraph_pgstate.saver.cache import Cache


def another(saver: PGStateSaver) -> PGStateSaver:
    """Another process."""
    return PGStateSaver.over(saver._database, {"schema": saver.schema})


def forget_contents(saver: PGStateSaver) -> None:
    """Leave a saver with the manifests only, as where contents are too many to be kept."""
    cache = saver._saver_cache.cache
    for namespace in cache._namespaces.values():
        namespace.bytes -= namespace.contents_bytes
        cache._bytes -= namespace.contents_bytes
        namespace.cached, namespace.contents_bytes = None, 0


def large(seed: int) -> dict[str, Any]:
    return {"notes": [f"{seed}-{number}" * 20 for number in range(400)], "blob": bytes([seed % 256]) * 9000}


VALUES = {"messages": messages(0, 120), "document": large(1)}


async def of_colour(api: type, saver: PGStateSaver, dsn: str, config: Any) -> list[Any]:
    """What a saver reads: first, and again without the segments' rows."""
    answers: list[Any] = []

    def lose() -> None:
        with psycopg.connect(dsn, autocommit=True) as other:
            other.execute(f'DELETE FROM "{saver.schema}".segments')

    if api is PGStateSaver:
        answers.append(saver.get_tuple(config))
        lose()
        answers.append(saver.get_tuple(config))
        return answers
    async with api.from_conn_string(dsn, schema=saver.schema) as suspended:
        answers.append(await suspended.aget_tuple(config))
        await asyncio.to_thread(lose)
        answers.append(await suspended.aget_tuple(config))
    return answers


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_what_was_read_is_not_fetched_again(api: type, named: bool, saver: PGStateSaver, dsn: str) -> None:
    first = put_values(saver, config_of(), {"messages": VALUES["messages"][:100], "document": large(1)})
    config = put_values(saver, first, VALUES)
    forget(saver)
    once, again = await of_colour(api, saver, dsn, config if named else config_of())
    assert once.checkpoint["channel_values"] == VALUES
    assert again == once
    # Each time it is built anew, for whoever changes it.
    assert again.checkpoint["channel_values"]["document"] is not once.checkpoint["channel_values"]["document"]
    with pytest.raises(CorruptStateError):
        values_of(another(saver), config)


def test_what_was_written_is_not_fetched_and_goes_on_to_the_next_checkpoint(
    saver: PGStateSaver, connection: psycopg.Connection, schema: str
) -> None:
    config: Any = config_of()
    for count in (3, 90, 91, 120):
        config = put_values(saver, config, {"messages": messages(0, count), "document": large(count)})
    connection.execute(f'DELETE FROM "{schema}".segments')
    assert values_of(saver, config_of()) == {"messages": messages(0, 120), "document": large(120)}
    with pytest.raises(CorruptStateError):
        values_of(another(saver), config)


def test_what_is_missing_is_fetched(saver: PGStateSaver) -> None:
    """A saver that remembers where the parent's values are, but not what they are."""
    first = put_values(saver, config_of(), VALUES)
    forget_contents(saver)
    second = put_values(saver, first, {"messages": messages(0, 121), "document": large(2)})
    known = saver._saver_cache.cache.cached(Address("t", "", None))
    assert known is not None
    assert known.missing
    assert known.contents
    assert values_of(saver, second) == {"messages": messages(0, 121), "document": large(2)}


def test_a_newer_checkpoint_of_another_process_is_read(saver: PGStateSaver) -> None:
    first = put_values(saver, config_of(), VALUES)
    put_values(another(saver), first, {"messages": messages(0, 130), "document": large(2)})
    assert values_of(saver, config_of()) == {"messages": messages(0, 130), "document": large(2)}
    assert values_of(saver, first) == VALUES


@pytest.mark.parametrize("how", ["replaced", "deleted before", "rolled back before"])
def test_a_checkpoint_that_was_written_again_elsewhere_is_read_anew(
    how: str, saver: PGStateSaver, monkeypatch: pytest.MonkeyPatch, dsn: str
) -> None:
    """Even if it has the same id, and its segments have the same ids.

    Guard: what is kept belongs to the row's revision, and both the query and the reader compare that.
    """
    ids = iter([7, 8, 9, 7, 8, 9, 17, 18, 19])
    monkeypatch.setattr(planning, "new_segment_id", lambda *_: next(ids))
    mine, theirs = {"document": large(1)}, {"document": large(2)}
    if how == "rolled back before":
        with psycopg.connect(dsn) as own:
            saver = PGStateSaver(own, schema=saver.schema)
            own.execute("SELECT 1")
            config = put_values(saver, config_of(), mine)
            own.rollback()
            other = PGStateSaver(own, schema=saver.schema)
            put_values(other, config_of(), theirs, id=id_of(config))
            assert values_of(saver, config) == theirs
        return
    config = put_values(saver, config_of(), mine)
    other = another(saver)
    if how == "deleted before":
        other.delete_thread("t")
        ids = iter([7, 8, 9])
    put_values(other, config_of(), theirs, id=id_of(config))
    assert values_of(saver, config) == theirs
    assert values_of(saver, config_of()) == theirs


def test_what_is_inherited_from_one_that_was_written_again_elsewhere_is_read_anew(
    saver: PGStateSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: contents go on only from the revision that the put's base has."""
    ids = iter([7, 7, 8, 9])
    monkeypatch.setattr(planning, "new_segment_id", lambda *_: next(ids))
    config = put_values(saver, config_of(), {"document": large(1)})
    other = another(saver)
    other.delete_thread("t")
    put_values(other, config_of(), {"document": large(2)}, id=id_of(config))
    parent = other.get_tuple(config)
    assert parent is not None
    versions = {**parent.checkpoint["channel_versions"], "count": f"{9:032}.0"}
    child = checkpoint_of({"document": large(2), "count": [1, 2]}, versions)
    stored = saver.put(config, child, {"source": "loop", "step": 1, "parents": {}}, {"count": versions["count"]})
    assert values_of(saver, stored) == {"document": large(2), "count": [1, 2]}


def test_what_a_fork_inherits_is_its_own_parents(saver: PGStateSaver) -> None:
    first = put_values(saver, config_of(), {"messages": messages(0, 100)})
    put_values(saver, first, {"messages": messages(0, 120)})
    fork = put_values(saver, first, {"messages": [*messages(0, 100), *messages(500, 503)]})
    assert values_of(saver, fork)["messages"] == [*messages(0, 100), *messages(500, 503)]
    assert values_of(saver, config_of())["messages"] == [*messages(0, 100), *messages(500, 503)]


def test_threads_that_are_deleted_are_forgotten(saver: PGStateSaver) -> None:
    put_values(saver, config_of(), VALUES)
    put_values(saver, config_of("t", "agent"), VALUES)
    saver.delete_thread("t")
    known = saver._saver_cache.cache
    assert (known._bytes, dict(known._namespaces), dict(known._by_thread)) == (0, {}, {})
    assert saver.get_tuple(config_of()) is None


def test_what_is_fetched_again_does_not_make_forgotten_what_was_learned(saver: PGStateSaver) -> None:
    """A run begins with reading what the one before has written: its put needs to know what tells blocks apart."""
    chat = messages(0, 150)
    config = put_values(saver, config_of(), {"messages": chat, "document": large(1), "text": bytes(range(256)) * 300})
    written = saver._saver_cache.cache.manifest(address_of(config))
    for _ in range(2):
        assert values_of(saver, config_of())["messages"] == chat
        known = saver._saver_cache.cache.manifest(address_of(config))
        assert known is not written
        for found in (written, known):
            assert found is not None
            assert len(found.entries["messages"].fingerprints.blocks) == 2  # type: ignore[union-attr]
    # Of a row that was written again nothing is known.
    put_values(another(saver), config_of(), {"messages": chat, "text": b"changed" * 20_000}, id=id_of(config))
    assert values_of(saver, config)["text"] == b"changed" * 20_000
    known = saver._saver_cache.cache.manifest(address_of(config))
    assert known is not None
    assert known.entries["messages"].fingerprints.blocks == ()  # type: ignore[union-attr]


def test_what_is_built_anew_is_what_tells_a_list_apart(saver: PGStateSaver) -> None:
    """Guard: an element that is stored otherwise than what was read of it would be written again by every run."""
    first = Manifest({}, {"list": Elements((Run(1, 0, 1),), Fingerprints(b"a" * 16, (b"key",)))}, revision=5)
    same, other, elsewhere = (
        Manifest({}, {"list": Elements((Run(1, 0, 1),), Fingerprints(digest * 16, ()))}, revision)
        for digest, revision in ((b"a", 5), (b"b", 5), (b"a", 6))
    )
    for read in (same, other, elsewhere):
        read.reuse_cached(first)
        read.reuse_cached(None)
    fingerprints = [read.entries["list"].fingerprints for read in (same, other, elsewhere)]  # type: ignore[union-attr]
    assert fingerprints == [
        Fingerprints(b"a" * 16, (b"key",)),
        Fingerprints(b"b" * 16, ()),
        Fingerprints(b"a" * 16, ()),
    ]


def test_a_list_that_repeats_what_it_had_is_read_elsewhere_as_it_is(saver: PGStateSaver) -> None:
    """Its runs are whole segments, but not in the order of the segments, and one comes twice; or a segment's end."""
    first, second = messages(0, 2)
    config: Any = config_of()
    for chat in (
        [first],
        [first, second],
        [second, first, second],
        [second, second],
        messages(5, 8),
        [*messages(6, 8), first],
    ):
        config = put_values(saver, config, {"messages": chat})
        assert values_of(another(saver), config) == {"messages": chat}


def test_what_is_kept_is_counted(saver: PGStateSaver) -> None:
    """However a head comes about, it says of each segment where it is, and its size is that of what is in memory."""
    config: Any = config_of()
    for step, values in enumerate(
        (
            {"messages": messages(0, 90), "document": large(1)},
            {"messages": messages(0, 95), "document": large(2)},
            {"messages": messages(0, 96)},
            {"messages": messages(0, 97)},
            {"messages": messages(0, 98), "blob": b"x" * 5_000},
            {"messages": messages(0, 99)},
            {"messages": messages(0, 100)},
            {"messages": messages(0, 10), "document": large(3)},
        )
    ):
        if step == 3:
            # From here on it is known from reading.
            forget(saver)
            values_of(saver, config)
        if step == 5:
            forget_contents(saver)
        config = put_values(saver, config, values)
        [namespace] = saver._saver_cache.cache._namespaces.values()
        manifest, known = saver._saver_cache.cache.manifest(address_of(config)), namespace.cached
        assert manifest is not None
        assert known is not None
        assert sorted([*known.contents, *known.missing]) == sorted(manifest.segment_ids())
        assert bool(known.missing) == (step >= 5)
        contents = sum(len(content) + cache._CONTENT_BYTES for content in known.contents.values())
        assert contents == namespace.contents_bytes
        manifests = sum(size for _, size in namespace.manifests.values())
        assert len(namespace.manifests) == (step + 1 if step < 3 else step - 1)
        assert saver._saver_cache.cache._bytes == namespace.bytes == cache._NAMESPACE_BYTES + manifests + contents


def test_of_a_namespace_the_last_checkpoints_are_known(saver: PGStateSaver) -> None:
    """One that was noted again counts as new; what is put on a forgotten one is found out from the database."""
    configs: Any = [config_of()]
    for count in range(cache._CHECKPOINTS + 3):
        configs.append(put_values(saver, configs[-1], {"messages": messages(0, 30 + count)}))
        if count == cache._CHECKPOINTS:
            assert values_of(saver, configs[3])["messages"] == messages(0, 32)
    known = saver._saver_cache.cache
    [namespace] = known._namespaces.values()
    expected = [configs[3], *configs[5:]]
    assert sorted(namespace.manifests) == sorted(map(id_of, expected))  # type: ignore[type-var]
    assert known._bytes == namespace.bytes
    for old in (configs[1], configs[3]):
        child = put_values(saver, old, {"messages": [*messages(0, 30), *messages(500, 502)]})
        assert values_of(another(saver), child)["messages"] == [*messages(0, 30), *messages(500, 502)]


def test_no_more_is_kept_than_is_allowed() -> None:
    """What was noted longest ago goes first; what alone would take a quarter of all is not kept."""
    known = Cache(max_bytes=100_000)

    def store(thread: int, size: int) -> None:
        manifest = Manifest({}, {"c": Slice("bytes", 5, 0, size)}, revision=thread)
        known.note_put(Address(f"t{thread}", "", "c"), manifest, {5: bytes(size)}, {})

    def kept() -> list[int]:
        return [thread for thread in range(30) if known.cached(Address(f"t{thread}", "", "c"))]

    for thread in range(20):
        store(thread, 10_000)
        assert known._bytes <= 100_000
    assert kept() == list(range(12, 20))
    store(25, 30_000)
    assert kept() == list(range(12, 20))
    store(15, 30_000)
    assert kept() == [12, 13, 14, 16, 17, 18, 19]
    store(12, 9_999)
    store(26, 20_000)
    assert kept() == [12, 14, 16, 17, 18, 19, 26]
    for thread in [*range(30)]:
        known.discard_thread(f"t{thread}")
    assert known._bytes == 0


@pytest.mark.parametrize("cache_bytes", [0, 30_000])
@pytest.mark.parametrize("api", APIS)
async def test_a_saver_may_be_told_to_keep_little_or_nothing(
    api: type, cache_bytes: int, dsn: str, schema: str
) -> None:
    """What it does not know it asks for."""
    async with open_saver(api, dsn, schema, cache_bytes=cache_bytes) as modest:
        config: Any = config_of()
        for count in (90, 91, 120):
            values = {"messages": messages(0, count), "document": large(count)}
            config = await asyncio.to_thread(put_values, modest, config, values)
            assert await asyncio.to_thread(values_of, modest, config) == values
            assert modest._saver_cache.cache._bytes <= cache_bytes


async def test_the_whole_state_may_be_told_so_too(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, cache_bytes=7) as state:
        assert state.saver._saver_cache.cache._max_bytes == 7
    async with AsyncPGState.open(dsn, schema=schema, cache_bytes=8) as suspending:
        assert suspending.saver._saver_cache.cache._max_bytes == 8


@pytest.mark.parametrize("cache_bytes", [-1, 1.5, True, None, "1 GB"])
def test_what_is_no_number_of_bytes_is_refused(cache_bytes: Any, connection: psycopg.Connection) -> None:
    with pytest.raises(ConfigurationError, match="cache_bytes"):
        PGStateSaver(connection, cache_bytes=cache_bytes)


def test_one_namespace_does_not_drive_out_all_others() -> None:
    """Its older manifests go before its newest, and before those of others."""
    known = Cache(max_bytes=1 << 20)
    others = [Address(f"t{number}", "", "c") for number in range(50)]
    for other in others:
        known.note_put(other, Manifest({}, {"c": Slice("bytes", 5, 0, 9)}, revision=1), {5: bytes(9)}, {})
    for step in range(30):
        address = Address("large", "", f"c{step}")
        fingerprints = Fingerprints(bytes(100_000), ())
        manifest = Manifest(
            {}, {"list": Elements((Run(5, 0, 6_250),), fingerprints), "text": Scalar("x" * 20_000)}, step
        )
        known.note_put(address, manifest, {}, {f"c{step - 1}": step - 1})
        assert known.manifest(address) is manifest
        assert known._bytes == sum(namespace.bytes for namespace in known._namespaces.values()) < 1 << 20
    assert all(map(known.manifest, others))
    assert len(known._namespaces["large", ""].manifests) == 4


def test_who_is_forked_from_again_and_again_stays_known(saver: PGStateSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    root = put_values(saver, config_of(), {"messages": messages(0, 50)})
    asked = []
    plan = sending.plan_from_database
    monkeypatch.setattr(sending, "plan_from_database", lambda *args: asked.append(args) or plan(*args))
    forks = [
        put_values(saver, root, {"messages": [*messages(0, 50), *messages(100 + number, 102)]})
        for number in range(cache._CHECKPOINTS * 2)
    ]
    assert not asked
    assert values_of(saver, forks[0])["messages"] == [*messages(0, 50), *messages(100, 102)]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_copy_takes_its_siblings_values_where_they_are(
    is_known: bool,
    saver: PGStateSaver,
    connection: psycopg.Connection,
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of them is encoded again: not even what could not be."""
    root = put_values(saver, config_of(), {"count": [1, 2]})
    versions = {"document": f"{2:032}.0", "messages": f"{2:032}.0"}
    metadata: Any = {"source": "fork", "step": 1, "parents": {}}
    saver.put(root, checkpoint_of(VALUES, versions), metadata, versions)
    writer = saver if is_known else another(saver)
    count = f'SELECT count(*) FROM "{schema}".segments'
    before = connection.execute(count).fetchone()
    unlike = {"document": {**VALUES["document"], "lock": threading.Lock()}, "messages": VALUES["messages"]}
    copied = writer.put(root, checkpoint_of(unlike, versions), metadata, {})
    assert connection.execute(count).fetchone() == before
    assert values_of(another(saver), copied) == VALUES
    # Nor is what is new, before it is known where the rest is.
    encoded = []
    store = planning._SegmentWriter.store
    monkeypatch.setattr(
        planning._SegmentWriter, "store", lambda self, *args: encoded.append(args[0]) or store(self, *args)
    )
    new = {"count": f"{3:032}.0"}
    added = writer.put(root, checkpoint_of({"count": [3, 4], **VALUES}, {**new, **versions}), metadata, new)
    assert encoded == ["count"]
    assert values_of(another(saver), added) == {"count": [3, 4], **VALUES}


def test_a_saver_that_knows_nothing_writes_only_what_is_new(
    saver: PGStateSaver, connection: psycopg.Connection, schema: str
) -> None:
    config = put_values(saver, config_of(), {"messages": messages(0, 200)})
    size = f'SELECT sum(octet_length(data)) FROM "{schema}".segments'
    before = connection.execute(size).fetchone()
    put_values(another(saver), config, {"messages": messages(0, 201)})
    after = connection.execute(size).fetchone()
    assert before is not None
    assert after is not None
    assert after[0] - before[0] < before[0] / 4


def test_what_is_sent_again_is_another_revision(
    saver: PGStateSaver, monkeypatch: pytest.MonkeyPatch, dsn: str, schema: str
) -> None:
    """The first time may have been committed and read: what was sent the second time has segments of its own."""
    config = put_values(saver, config_of(), VALUES)
    reader = another(saver)
    execute, sent = BlockingConnection.execute, []

    async def lose_the_answer(db: BlockingConnection, query: Any, parameters: Any) -> int:
        touched = await execute(db, query, parameters)
        if query.name.startswith(("put_checkpoint", "replace_checkpoint")):
            sent.append(parameters["checkpoint_id"])
            if len(sent) == 1:
                values_of(reader, config_of())
                raise psycopg.OperationalError("the answer is lost")
        return touched

    monkeypatch.setattr(BlockingConnection, "execute", lose_the_answer)
    put_values(saver, config, {"messages": messages(0, 140), "document": large(2)})
    assert len(sent) >= 2
    assert values_of(reader, config_of()) == {"messages": messages(0, 140), "document": large(2)}


def test_tenants_share_the_size_and_not_the_threads() -> None:
    whole, address = Cache(10_000), Address("t", "", "c")
    first, second = (whole.of_tenant(tenant) for tenant in ("a", "b"))
    manifests = [Manifest({}, {"c": Slice("bytes", 5, 0, 9)}, revision=number) for number in (1, 2)]
    first.note_read(address, manifests[0], {5: bytes(9)})
    assert second.manifest(address) is None
    assert second.cached(address) is None
    assert whole.manifest(address) is None
    second.note_put(address, manifests[1], {5: bytes(9)}, {})
    assert [part.manifest(address) for part in (first, second)] == manifests
    first.discard_thread("t")
    assert [part.manifest(address) for part in (first, second)] == [None, manifests[1]]
    second.of_tenant("a").note_put(address, manifests[0], {5: bytes(9)}, {})
    second.clear()
    assert [part.manifest(address) for part in (first, second)] == [manifests[0], None]
    second.note_read(address, Manifest({}, {"c": Slice("bytes", 5, 0, 9_500)}, revision=3), {5: bytes(2_000)})
    for number in range(20):
        second.note_read(Address(f"t{number}", "", "c"), manifests[1], {5: bytes(2_000)})
    assert first.manifest(address) is None
