"""The hazards of sharing segments between checkpoints. Each docstring names the guard that keeps the test green."""

from __future__ import annotations

import copy
import operator
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from support import GUARD_SECONDS, spread
from support.samples import (
    checkpoint_of,
    config_of,
    forget,
    id_of,
    message,
    messages,
    new_checkpoint_id,
    put_values,
    values_of,
)
from typing_extensions import TypedDict

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.checkpoints import planning
from langgraph_pgstate.errors import DatabaseError
from langgraph_pgstate.record.message_hook import MessageHook


@contextmanager
def other_saver(dsn: str, schema: str) -> Iterator[PGStateSaver]:
    """A saver of another process, as far as the database can tell."""
    with PGStateSaver.from_conn_string(dsn, schema=schema, pool=False) as saver:
        yield saver


class Elsewhere:
    """A call on a thread and a connection of its own."""

    def __init__(self, dsn: str, schema: str, call: Callable[[PGStateSaver], Any]) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._pid = self._connection.info.backend_pid
        self._saver = PGStateSaver(self._connection, schema=schema)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._call, args=(call,))
        self._thread.start()

    def _call(self, call: Callable[[PGStateSaver], Any]) -> None:
        try:
            call(self._saver)
        except BaseException as error:
            self._error = error

    def settle(self, watcher: psycopg.Connection) -> None:
        """Return when the call has ended or waits for another transaction."""
        deadline = time.monotonic() + 20
        while self._thread.is_alive():
            row = watcher.execute(
                "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", (self._pid,)
            ).fetchone()
            if row == ("Lock",):
                return
            assert time.monotonic() < deadline, "the call neither ends nor waits for a lock"
            time.sleep(0.01)

    def join(self) -> None:
        self._thread.join(GUARD_SECONDS)
        assert not self._thread.is_alive()
        self._connection.close()
        if self._error is not None:
            raise self._error


def assert_all_references_lead_somewhere(connection: psycopg.Connection, schema: str) -> None:
    dangling = connection.execute(
        f"""SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, r.id
        FROM "{schema}".checkpoints c CROSS JOIN LATERAL unnest(c.segment_ids) AS r (id)
        LEFT JOIN "{schema}".segments s ON s.thread_id = c.thread_id AND s.segment_id = r.id
        WHERE s.segment_id IS NULL"""
    ).fetchall()
    assert not dangling


def segment_ids(connection: psycopg.Connection, schema: str, config: RunnableConfig) -> set[int]:
    row = connection.execute(
        f'SELECT segment_ids FROM "{schema}".checkpoints WHERE checkpoint_id = %s', (id_of(config),)
    ).fetchone()
    assert row is not None
    return set(row[0])


def noise(seed: int) -> str:
    """Text that does not compress."""
    return random.Random(seed).randbytes(3000).hex()


def count(connection: psycopg.Connection, schema: str, table: str) -> int:
    row = connection.execute(f'SELECT count(*) FROM "{schema}".{table}').fetchone()
    assert row is not None
    return int(row[0])


# Hazard 1: what a put is about to refer to goes away.


@pytest.mark.parametrize(
    "remove",
    [
        pytest.param(lambda saver: saver.prune(["t"]), id="prune"),
        pytest.param(lambda saver: saver.prune(["t"], strategy="delete"), id="prune-delete"),
        pytest.param(lambda saver: saver.delete_thread("t"), id="delete-thread"),
        pytest.param(lambda saver: saver.delete_for_runs(["r"]), id="delete-for-runs"),
    ],
)
def test_what_an_uncommitted_put_refers_to_is_not_removed(
    remove: Callable[[PGStateSaver], Any], saver: PGStateSaver, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A put locks its parent's row until it is committed; a removal that meets the lock waits, then sees the child.

    Guard: `FOR KEY SHARE` in `put_checkpoint`, and that removals look for references after their deletions.
    """
    parent = put_values(saver, config_of(), {"messages": messages(0, 20)}, run_id="r")
    put_values(saver, config_of(), {"messages": messages(50, 60)})
    with psycopg.connect(dsn) as open_connection:
        writer = PGStateSaver(open_connection, schema=schema)
        open_connection.execute("SELECT 1")
        writer.get_tuple(parent)
        child = put_values(writer, parent, {"messages": messages(0, 21)}, run_id="s")
        removal = Elsewhere(dsn, schema, remove)
        removal.settle(connection)
        open_connection.commit()
        removal.join()
    assert_all_references_lead_somewhere(connection, schema)
    found = saver.get_tuple(child)
    assert found is None or found.checkpoint["channel_values"]["messages"] == messages(0, 21)


@pytest.mark.parametrize(
    "remove",
    [
        pytest.param(lambda saver: saver.prune(["t"]), id="prune"),
        pytest.param(lambda saver: saver.delete_thread("t"), id="delete-thread"),
        pytest.param(lambda saver: saver.delete_for_runs(["r"]), id="delete-for-runs"),
    ],
)
def test_a_put_that_meets_an_uncommitted_removal_waits_and_plans_again(
    remove: Callable[[PGStateSaver], Any], saver: PGStateSaver, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A put that finds its parent being removed waits for the verdict, and writes the list in full if it is gone.

    Guard: `FOR KEY SHARE` in `put_checkpoint`: a plain read would still see the row.
    """
    parent = put_values(saver, config_of(), {"messages": messages(0, 20)}, run_id="r")
    put_values(saver, config_of(), {"messages": messages(50, 60)})
    children: list[RunnableConfig] = []

    def put_child(other: PGStateSaver) -> None:
        children.append(put_values(other, parent, {"messages": messages(0, 21)}))

    with psycopg.connect(dsn) as open_connection:
        open_connection.execute("SELECT 1")
        warm = put_values(saver, config_of("warm"), {"messages": []})
        assert warm
        remover = PGStateSaver(open_connection, schema=schema)

        def warmed(other: PGStateSaver) -> None:
            other.get_tuple(parent)
            started.set()
            removed.wait(GUARD_SECONDS)
            put_child(other)

        started, removed = threading.Event(), threading.Event()
        put = Elsewhere(dsn, schema, warmed)
        assert started.wait(GUARD_SECONDS)
        remove(remover)
        removed.set()
        put.settle(connection)
        open_connection.commit()
        put.join()
    assert_all_references_lead_somewhere(connection, schema)
    assert values_of(saver, children[0])["messages"] == messages(0, 21)


# Hazard 3: what was never committed.


def test_a_child_of_a_rolled_back_checkpoint_is_whole(
    dsn: str, saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """A put in the caller's transaction is forgotten by the database on rollback; its child does not refer to it.

    Guard: `held` in `put_checkpoint`: here the cache does hold what was never committed.
    """
    with psycopg.connect(dsn) as lent:
        writer = PGStateSaver(lent, schema=schema)
        lent.execute("SELECT 1")
        parent = put_values(writer, config_of(), {"messages": messages(0, 20), "topic": {"a": "b" * 200}})
        lent.rollback()
        child = put_values(writer, parent, {"messages": messages(0, 21), "topic": {"a": "b" * 200}})
        lent.commit()
    assert saver.get_tuple(parent) is None
    assert values_of(saver, child) == {"messages": messages(0, 21), "topic": {"a": "b" * 200}}
    assert_all_references_lead_somewhere(connection, schema)


def test_an_unchanged_channel_survives_the_rollback_of_its_checkpoint(
    dsn: str, saver: PGStateSaver, schema: str
) -> None:
    """A channel that LangGraph does not name as new is written all the same when the checkpoint with it is gone.

    Guard: what is still unresolved after asking the database is taken from the checkpoint itself (`plan_put`).
    """
    with psycopg.connect(dsn) as lent:
        writer = PGStateSaver(lent, schema=schema)
        lent.execute("SELECT 1")
        values = {"messages": messages(0, 20), "topic": {"a": "b" * 200}}
        parent = put_values(writer, config_of(), values)
        versions = {channel: writer.get_next_version(None, None) for channel in values}
        found = writer.get_tuple(parent)
        assert found is not None
        versions = dict(found.checkpoint["channel_versions"])
        lent.rollback()
        checkpoint = {**found.checkpoint, "id": new_checkpoint_id(), "channel_versions": versions}
        child = writer.put(parent, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {})  # type: ignore[arg-type]
        lent.commit()
    assert values_of(saver, child) == values


def test_a_refused_put_is_not_remembered(saver: PGStateSaver, schema: str, connection: psycopg.Connection) -> None:
    """Nothing of a put that the database refused is in the cache.

    Guard: `_note_put` runs after the operation, not before.
    """
    start = put_values(saver, config_of(), {"messages": messages(0, 20)})
    cache = saver._saver_cache.cache
    known = copy.deepcopy(cache._namespaces)
    connection.execute(f'ALTER TABLE "{schema}".checkpoints ADD CONSTRAINT no_more CHECK (step < 5)')
    with pytest.raises(DatabaseError):
        put_values(saver, start, {"messages": messages(0, 21)}, step=9)
    assert cache._namespaces == known


# Hazard 4: garbage collection.


def test_segments_live_while_a_fork_refers_to_them(saver: PGStateSaver) -> None:
    """Removing one branch leaves the other whole, down to the segments both inherited from a removed ancestor.

    Guard: `delete_unreferenced_segments` looks at all checkpoints of the thread.
    """
    root = put_values(saver, config_of(), {"messages": messages(0, 20)}, run_id="r0")
    left = put_values(saver, root, {"messages": [*messages(0, 20), message(100)]}, run_id="left")
    right = put_values(saver, root, {"messages": [*messages(0, 20), message(200)]}, run_id="right")
    saver.delete_for_runs(["r0"])
    forget(saver)
    assert saver.get_tuple(root) is None
    assert values_of(saver, left)["messages"] == [*messages(0, 20), message(100)]
    assert values_of(saver, right)["messages"] == [*messages(0, 20), message(200)]
    saver.delete_for_runs(["right"])
    forget(saver)
    assert saver.get_tuple(right) is None
    assert values_of(saver, left)["messages"] == [*messages(0, 20), message(100)]


def test_segments_live_while_another_namespace_refers_to_them(saver: PGStateSaver) -> None:
    """Pruning keeps the latest of every namespace readable.

    Guard: `delete_unreferenced_segments` has no namespace in its condition.
    """
    newest = {}
    for namespace in ("", "agent", "agent|helper"):
        cursor = config_of(checkpoint_ns=namespace)
        for number in range(1, 6):
            cursor = put_values(saver, cursor, {"messages": messages(0, 10 * number)}, step=number)
        newest[namespace] = cursor
    saver.prune(["t"])
    for config in newest.values():
        assert values_of(saver, config)["messages"] == messages(0, 50)


def test_segments_of_other_threads_are_left_alone(saver: PGStateSaver) -> None:
    """A copy shares segment ids with its source, not segments.

    Guard: the thread in the condition of `delete_unreferenced_segments` and `delete_thread`.
    """
    root = put_values(saver, config_of(), {"messages": messages(0, 20)})
    head = put_values(saver, root, {"messages": messages(0, 25)})
    saver.copy_thread("t", "copy")
    saver.prune(["t"])
    saver.delete_thread("t")
    assert values_of(saver, config_of("copy", "", id_of(root)))["messages"] == messages(0, 20)
    assert values_of(saver, config_of("copy", "", id_of(head)))["messages"] == messages(0, 25)


def test_no_segment_outlives_its_last_reference(
    saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """What only removed checkpoints referred to is gone from the table.

    Guard: `delete_unreferenced_segments` runs with every removal.
    """
    root = put_values(saver, config_of(), {"messages": messages(0, 20)}, run_id="a")
    kept = put_values(saver, root, {"messages": messages(100, 120)}, run_id="b")
    saver.delete_for_runs(["a"])
    assert count(connection, schema, "segments") == len(segment_ids(connection, schema, kept))


# Hazard 5: merges.


@pytest.mark.slow
def test_every_version_of_a_growing_list_stays_readable_through_merges(saver: PGStateSaver) -> None:
    """Merging small segments into one leaves the versions before the merge as they were.

    Guard: a merge writes a new segment and removes none; `_merge` covers exactly the pieces it replaces.
    """
    cursor = config_of()
    history = []
    for length in range(1, 90):
        cursor = put_values(saver, cursor, {"messages": messages(0, length)})
        history.append(cursor)
    forget(saver)
    for length, config in enumerate(history, 1):
        assert values_of(saver, config)["messages"] == messages(0, length)


def test_a_merge_writes_no_segment_that_nothing_refers_to(
    saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """Every segment in the table is referred to: a merge takes in the new elements instead of writing them first.

    Guard: `diff_runs` decides about merges before anything is encoded.
    """
    cursor = config_of()
    for length in range(1, 90):
        cursor = put_values(saver, cursor, {"messages": messages(0, length)})
    unreferenced = connection.execute(
        f"""SELECT s.segment_id FROM "{schema}".segments s WHERE NOT EXISTS (
            SELECT 1 FROM "{schema}".checkpoints c WHERE s.segment_id = ANY(c.segment_ids))"""
    ).fetchall()
    assert not unreferenced


def test_merged_duplicates_keep_their_places(saver: PGStateSaver) -> None:
    """An element that occurs several times, in one list and in two channels, is read at each of its places.

    Guard: runs refer to segments by id and position; a segment shared by two channels is dropped for neither.
    """
    cursor = config_of()
    left: list[Any] = []
    for number in range(40):
        left = [*left, message(number % 5), message(0)]
        right = [*reversed(left)]
        cursor = put_values(saver, cursor, {"messages": left, "reversed": right})
    forget(saver)
    assert values_of(saver, cursor) == {"messages": left, "reversed": right}


# Hazard 6: DeltaChannels.


def _extend(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class DeltaState(TypedDict):
    log: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=4)]
    total: Annotated[int, operator.add]


@pytest.mark.parametrize("turns", spread(range(1, 10)))
def test_keep_latest_keeps_a_delta_channel_readable(turns: int, saver: PGStateSaver) -> None:
    """After a prune a DeltaChannel is rebuilt as before, wherever its last snapshot is, and the run goes on.

    Guard: `_delta_ancestors` keeps the ancestors from the last snapshot on.
    """
    builder = StateGraph(DeltaState)
    builder.add_node("work", lambda state: {"log": [f"did {len(state['log'])}"], "total": 1})
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=saver)
    config = config_of()
    for turn in range(turns):
        graph.invoke({"log": [f"asked {turn}"], "total": 0}, config)
    before = graph.get_state(config).values
    assert len(before["log"]) == 2 * turns
    saver.prune(["t"])
    assert graph.get_state(config).values == before
    after = graph.invoke({"log": ["last"], "total": 0}, config)
    assert after["log"] == [*before["log"], "last", f"did {2 * turns + 1}"]


# Neighbours of the hazards.


def test_a_stale_cache_does_not_bring_back_a_recreated_threads_past(dsn: str, schema: str, saver: PGStateSaver) -> None:
    """A thread deleted and made again elsewhere under the same ids is read and continued as it is now.

    Guard: `held` compares the revision of the parent's row, new with every put.
    """
    id = new_checkpoint_id()
    parent = put_values(saver, config_of(), {"messages": messages(0, 20)}, id=id)
    with other_saver(dsn, schema) as other:
        other.delete_thread("t")
        put_values(other, config_of(), {"messages": messages(500, 530)}, id=id)
    child = put_values(saver, parent, {"messages": messages(0, 21)})
    assert values_of(saver, parent)["messages"] == messages(500, 530)
    assert values_of(saver, child)["messages"] == messages(0, 21)


def test_a_seeded_random_generator_does_not_make_segment_ids_repeat(saver: PGStateSaver) -> None:
    """A node that seeds Python's generator in each superstep does not make every put collide with the last.

    Guard: segment ids come from the operating system's randomness.
    """
    config = config_of()
    for length in range(1, 15):
        random.seed(1)
        config = put_values(saver, config, {"messages": messages(0, length)})
    assert values_of(saver, config)["messages"] == messages(0, 14)


def test_a_seeded_random_generator_does_not_make_revisions_repeat(dsn: str, schema: str, saver: PGStateSaver) -> None:
    """Nodes may seed Python's generator; a checkpoint that was replaced meanwhile is recognised all the same.

    Guard: revisions come from the operating system's randomness.
    """
    id = new_checkpoint_id()
    random.seed(1)
    parent = put_values(saver, config_of(), {"messages": messages(0, 20)}, id=id)
    with other_saver(dsn, schema) as other:
        other.delete_thread("t")
        random.seed(1)
        put_values(other, config_of(), {"messages": messages(500, 530)}, id=id)
    child = put_values(saver, parent, {"messages": messages(0, 21)})
    assert values_of(saver, child)["messages"] == messages(0, 21)


@pytest.mark.parametrize(
    "wrap",
    [lambda text: {"word": text[:20]}, lambda text: {"word": text}, lambda text: [text]],
    ids=["inline", "slice", "list"],
)
def test_a_stale_cache_does_not_lend_a_recreated_threads_values(
    wrap: Callable[[str], Any], dsn: str, schema: str, saver: PGStateSaver
) -> None:
    """A channel inherited from a checkpoint that was made again elsewhere, versions and all, has the new value.

    Guard: `held`, whose refusal makes the put look the value up where it is now.
    """
    id = new_checkpoint_id()
    old, new = {"topic": wrap(noise(1))}, {"topic": wrap(noise(2))}
    versions = {"topic": f"{1:032}.{5:016}"}
    metadata: Any = {"source": "loop", "step": 0, "parents": {}}

    def put(target: PGStateSaver, config: RunnableConfig, id: str, values: Any, new_versions: Any) -> RunnableConfig:
        checkpoint: Any = {
            "v": 4,
            "id": id,
            "ts": "2026-01-02T03:04:05+00:00",
            "channel_values": values,
            "channel_versions": versions,
            "versions_seen": {},
            "updated_channels": None,
        }
        return target.put(config, checkpoint, metadata, new_versions)

    parent = put(saver, config_of(), id, old, versions)
    with other_saver(dsn, schema) as other:
        other.delete_thread("t")
        put(other, config_of(), id, new, versions)
    child = put(saver, parent, new_checkpoint_id(), new, {})
    assert values_of(saver, child) == new


def test_a_checkpoint_stored_again_has_the_later_list(saver: PGStateSaver) -> None:
    """Storing a checkpoint under an id that is taken replaces it, and its old children keep what they inherited.

    Guard: the replaced row keeps naming its old segments (`excluded.segment_ids || stored.segment_ids`), and the
    cache is overwritten.
    """
    id = new_checkpoint_id()
    first = put_values(saver, config_of(), {"messages": messages(0, 20)}, id=id)
    child = put_values(saver, first, {"messages": messages(0, 22)})
    again = put_values(saver, config_of(), {"messages": messages(300, 310)}, id=id)
    grandchild = put_values(saver, again, {"messages": messages(300, 312)})
    saver.prune(["t"], keep_last=10)
    forget(saver)
    assert values_of(saver, again)["messages"] == messages(300, 310)
    assert values_of(saver, child)["messages"] == messages(0, 22)
    assert values_of(saver, grandchild)["messages"] == messages(300, 312)


def test_a_replaced_checkpoint_can_be_inherited_from_by_who_read_it_before(
    dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    """A process that read a checkpoint before another replaced it still stores a whole child.

    Guard: the replaced row keeps naming its old segments, and removals go by what rows name.
    """
    id = new_checkpoint_id()
    first = put_values(saver, config_of(), {"messages": messages(0, 20)}, id=id)
    with other_saver(dsn, schema) as other:
        put_values(other, config_of(), {"messages": messages(300, 310)}, id=id)
        other.prune(["t"])
        child = put_values(saver, first, {"messages": messages(0, 21)})
        other.prune(["t"])
    assert values_of(saver, child)["messages"] == messages(0, 21)
    assert_all_references_lead_somewhere(connection, schema)


def test_a_put_in_flight_keeps_what_its_parent_held_before_it_was_replaced(
    dsn: str, schema: str, saver: PGStateSaver
) -> None:
    """Replacing a checkpoint does not wait for puts that inherit from it, so its segments stay referred to.

    Guard: `excluded.segment_ids || stored.segment_ids` in `put_checkpoint`.
    """
    old = put_values(saver, config_of(), {"messages": messages(900, 930)})
    parent = put_values(saver, old, {"messages": messages(0, 20)})
    with psycopg.connect(dsn) as open_connection:
        writer = PGStateSaver(open_connection, schema=schema)
        open_connection.execute("SELECT 1")
        writer.get_tuple(parent)
        child = put_values(writer, parent, {"messages": messages(0, 21)})
        put_values(saver, old, {"messages": messages(300, 310)}, id=id_of(parent))
        assert saver.prune(["t"]).checkpoints == 1
        open_connection.commit()
    assert values_of(saver, child)["messages"] == messages(0, 21)
    assert values_of(saver, parent)["messages"] == messages(300, 310)


def test_a_segment_id_that_is_taken_is_replaced_by_another(
    saver: PGStateSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that agree on a segment's id do not mix their segments: the second put is tried again.

    Guard: segments are inserted without `ON CONFLICT`, and a plan sent before gets new ids.
    """
    ids = iter([7, 7, 8, 9])
    monkeypatch.setattr(planning, "new_segment_id", lambda *_: next(ids))
    first = put_values(saver, config_of(), {"messages": messages(0, 20)})
    second = put_values(saver, config_of(), {"messages": messages(100, 120)})
    assert values_of(saver, first)["messages"] == messages(0, 20)
    assert values_of(saver, second)["messages"] == messages(100, 120)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_revisions_of_one_parent_are_not_mixed(saver: PGStateSaver, dsn: str, order: str) -> None:
    """A parent was written again and that was rolled back: of one channel it is remembered so, of another it is read.

    Guard: a plan that rests on two revisions of a checkpoint is refused, and made anew from the database.
    """
    values: Any = {"a": {"x": "x" * 9000}, "b": {"y": "1" * 200}}
    versions = dict.fromkeys(order, f"{1:032}.0")
    rewritten = {**versions, "b": f"{2:032}.0"}
    metadata: Any = {"source": "loop", "step": 0, "parents": {}}
    with psycopg.connect(dsn) as own:
        writer = PGStateSaver(own, schema=saver.schema)
        parent = writer.put(config_of(), checkpoint_of(values, versions), metadata, versions)  # type: ignore[arg-type]
        own.commit()
        own.execute("SELECT 1")
        again: Any = checkpoint_of({**values, "b": {"y": "2"}}, rewritten, id_of(parent))
        writer.put(config_of(), again, metadata, rewritten)
        own.rollback()
        child = writer.put(parent, checkpoint_of(values, versions), metadata, {})  # type: ignore[arg-type]
        own.commit()
    assert values_of(saver, child) == values


@pytest.mark.parametrize("count", [20, 200])
def test_a_message_mutated_in_place_is_stored_again(saver: PGStateSaver, count: int) -> None:
    """An old message object changed in the live list is part of the new version and not of the old one.

    Guard: fingerprints are taken from the live content on every put; of long lists, block by block.
    """
    live = messages(0, count)
    first = put_values(saver, config_of(), {"messages": live})
    live[3].content = "changed in place"
    second = put_values(saver, first, {"messages": live})
    live[70 % count].additional_kwargs["changed"] = True
    third = put_values(saver, second, {"messages": live})
    forget(saver)
    assert values_of(saver, first)["messages"] == messages(0, count)
    assert values_of(saver, second)["messages"][3].content == "changed in place"
    assert values_of(saver, second)["messages"][70 % count] == message(70 % count)
    assert values_of(saver, third)["messages"] == live


@pytest.mark.parametrize("word", ["short", "long " * 10_000])
def test_a_thread_deleted_elsewhere_has_its_row_again_after_the_next_put(
    saver: PGStateSaver, dsn: str, schema: str, connection: psycopg.Connection, word: str
) -> None:
    """Guard: `put_checkpoint` looks for the thread's row, or its base, touched here a moment ago."""
    first = put_values(saver, config_of("t"), {"topic": {"word": "before"}})
    with other_saver(dsn, schema) as other:
        other.delete_thread("t")
    second = put_values(saver, first, {"topic": {"word": word}}, step=1)
    assert count(connection, schema, "threads") == 1
    assert values_of(saver, second) == {"topic": {"word": word}}


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("word", ["short", "long " * 10_000])
def test_a_checkpoint_put_again_is_replaced_without_harm_to_a_transaction(
    dsn: str,
    schema: str,
    saver: PGStateSaver,
    connection: psycopg.Connection,
    word: str,
    in_transaction: bool,
    is_recorded: bool,
) -> None:
    """Guard: the statement that fails where a checkpoint is already is sent in no transaction of a caller, and once."""
    first = put_values(saver, config_of("t"), {"topic": "first"})
    second = put_values(saver, first, {"topic": "second"}, step=1)
    with psycopg.connect(dsn, autocommit=not in_transaction) as own:
        own.execute("SELECT 1")
        hook = MessageHook() if is_recorded else None
        writer = PGStateSaver(own, schema=schema, hook=hook)
        writer._saver_cache.touch_due["t"] = time.monotonic() + 5
        values = {"topic": {"word": word}, "messages": messages(0, 1)}
        put_values(writer, first, values, step=1, id=id_of(second))
        assert not own.closed
    assert values_of(saver, second) == values
    assert count(connection, schema, "checkpoints") == 2
    assert count(connection, schema, "journal") == is_recorded
