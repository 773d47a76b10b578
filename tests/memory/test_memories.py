"""Memories: merged when they are told again, superseded, forgotten, restored, and read as they were."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore
from psycopg import sql
from support import GUARD_SECONDS

from langgraph_pgstate import PGState
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, StaleMemoryError
from langgraph_pgstate.memory import AsyncPGMemoryStore, PGMemoryStore

ANN = ("memories", "user", "ann")


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Embeddings of words: texts that share words are near each other."""
    found = []
    for text in texts:
        vector = [0.01] * 16
        for word in text.lower().split():
            vector[int(hashlib.sha256(word.encode()).hexdigest(), 16) % 16] += 1
        found.append(vector)
    return found


@pytest.fixture
def store(dsn: str, schema: str) -> Iterator[PGMemoryStore]:
    with PGMemoryStore.from_conn_string(dsn, schema=schema) as store:
        yield store


@pytest.fixture
def indexed(dsn: str, schema: str) -> Iterator[PGMemoryStore]:
    """A store with an index of embeddings; its tests are marked `bare`, as it makes a table."""
    with psycopg.connect(dsn) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
    index: Any = {"dims": 16, "embed": embed}
    with PGMemoryStore.from_conn_string(dsn, schema=schema, index=index, merge_similarity=0.9) as store:
        store.setup()
        yield store


def rows(connection: psycopg.Connection, schema: str, query: str, *parameters: Any) -> list[Any]:
    connection.execute(sql.SQL("SET search_path = {}, public").format(sql.Identifier(schema)))
    return connection.execute(query.encode(), parameters).fetchall()


def now(connection: psycopg.Connection) -> datetime:
    ((at,),) = connection.execute("SELECT clock_timestamp()").fetchall()
    found: datetime = at
    return found


@pytest.mark.slow
def test_what_is_told_808_times_is_one_memory_with_a_count(store: PGMemoryStore) -> None:
    """By eight writers at once, in other words of the same."""
    texts = ["Prefers window seats.", "prefers  window seats", "Prefers WINDOW seats!"]
    with ThreadPoolExecutor(8) as threads:
        told = [*threads.map(lambda n: store.remember(texts[n % 3], "preference", user_id="ann"), range(101))]
    assert len({one.key for one in told}) == 1
    (found,) = store.recall(user_id="ann")
    assert (found.duplicates, found.version, found.kind) == (100, 1, "preference")
    store.remember(texts[0], "fact", user_id="ann")
    store.remember(texts[0], "preference", user_id="bob")
    assert len(store.recall(user_id="ann")) == 2
    assert len(store.recall(user_id="bob")) == 1


@pytest.mark.parametrize(
    ("one", "other"), [("It is -5 degrees", "It is 5 degrees"), ("Likes C++", "Likes C"), ("Room 12.5", "Room 125")]
)
def test_what_differs_in_a_sign_is_another_memory(store: PGMemoryStore, one: str, other: str) -> None:
    assert store.remember(one).key != store.remember(other).key


def test_a_memory_is_not_merged_with_one_of_another_key_unless_it_has_none(store: PGMemoryStore) -> None:
    store.remember("Eats no meat", key="diet", user_id="ann")
    assert store.remember("eats no meat.", user_id="ann").key == "diet"
    assert store.remember("Eats no meat", key="food", user_id="ann").key == "food"
    assert len(store.recall(user_id="ann")) == 2


def test_a_memory_told_again_keeps_the_greater_importance_and_the_later_end(store: PGMemoryStore) -> None:
    end = datetime.now(UTC) + timedelta(days=1)
    store.remember("a", importance=0.9, expires_at=end)
    assert store.remember("a", importance=0.1, expires_at=end - timedelta(hours=1)).expires_at == end
    found = store.remember("a")
    assert found.importance == pytest.approx(0.9)
    assert (found.expires_at, found.duplicates) == (None, 2)


@pytest.mark.parametrize("key", [None, "home"])
def test_a_memory_that_is_told_again_while_another_forgets_it_is_stored(
    store: PGMemoryStore, schema: str, connection: psycopg.Connection, key: str | None
) -> None:
    store.remember("Lives in Rome", key=key)
    with ThreadPoolExecutor(1) as thread:
        with connection.transaction():
            rows(connection, schema, "DELETE FROM memories RETURNING 1")
            telling = thread.submit(store.remember, "lives in Rome", key=key)
            for _ in range(2000):
                if rows(connection, schema, "SELECT 1 FROM pg_locks WHERE NOT granted"):
                    break
                time.sleep(0.01)
        assert telling.result(GUARD_SECONDS).content == "lives in Rome"
    assert [one.content for one in store.recall()] == ["lives in Rome"]


def test_a_read_ends_no_memory_sooner_than_it_was_told(dsn: str, schema: str, store: PGMemoryStore) -> None:
    """Also one that was first told with a time to live, and later with another end, or for ever."""
    end = datetime.now(UTC) + timedelta(days=1)
    with PGMemoryStore.from_conn_string(dsn, schema=schema, ttl={"default_ttl": 60}) as short:
        for text in ("a", "b"):
            short.remember(text)
        short.remember("a", expires_at=end)
        store.remember("b")
        short.recall()
        short.flush()
        assert {one.content: one.expires_at for one in short.recall()} == {"a": end, "b": None}


@pytest.mark.slow
@pytest.mark.bare
def test_a_similar_memory_replaces_what_stays_as_a_version(indexed: PGMemoryStore) -> None:
    first = indexed.remember("ann lives in the old town of rome near the river", user_id="ann")
    second = indexed.remember("ann lives in the old town of rome near the river now", user_id="ann")
    assert (second.key, second.version, second.duplicates) == (first.key, 2, 1)
    assert [one.value["content"] for one in indexed.history(ANN, first.key)] == [second.content, first.content]
    for other in ("room 12 is booked for ann in the hotel", "room 13 is booked for ann in the hotel"):
        indexed.remember(other, user_id="ann")
    assert len(indexed.recall("ann", user_id="ann")) == 3
    with ThreadPoolExecutor(8) as threads:
        texts = [f"bob plays the violin in the city orchestra on sundays{' well' * (n % 3)}" for n in range(24)]
        [*threads.map(lambda text: indexed.remember(text, user_id="bob"), texts)]
    assert [one.duplicates for one in indexed.recall(user_id="bob")] == [23]


def test_a_newer_fact_supersedes_and_the_older_is_read_as_of_its_time(
    store: PGMemoryStore, connection: psycopg.Connection
) -> None:
    start = now(connection)
    store.remember("Lives in Rome", key="home", user_id="ann", by="importer")
    between = now(connection)
    store.remember("Lives in Oslo", key="home", user_id="ann", by="ann")
    later = now(connection)
    assert store.forget("home", user_id="ann", by="support") == 1
    assert store.recall("Rome", user_id="ann", as_of=start) == []
    (old,) = store.recall("Rome", user_id="ann", as_of=between)
    assert (old.content, old.version) == ("Lives in Rome", 1)
    assert old.valid_to is not None
    assert [one.content for one in store.recall(user_id="ann", as_of=later)] == ["Lives in Oslo"]
    assert store.recall(user_id="ann") == store.recall(user_id="ann", as_of=now(connection)) == []
    second, first = store.history(ANN, "home")
    assert (first.changed_by, second.changed_by, second.deleted_by) == ("importer", "ann", "support")
    assert first.valid_to == second.valid_from
    assert second.is_deleted
    back = store.restore(ANN, "home", 1, by="ann")
    assert (back.version, back.value["content"], back.changed_by) == (3, "Lives in Rome", "ann")
    (found,) = store.recall("Rome", user_id="ann")
    assert (found.user_id, found.duplicates) == ("ann", 0)
    assert store.remember("lives in rome", user_id="ann").key == "home"
    with pytest.raises(NotFoundError):
        store.restore(ANN, "home", 9)


def test_forget_deletes_what_it_names_and_purge_leaves_no_version(
    store: PGMemoryStore, schema: str, connection: psycopg.Connection
) -> None:
    store.put(ANN, "item", {"n": 1})
    for content in ("a", "b"):
        store.remember(content, key=content, user_id="ann", agent="travel")
        store.remember(content, "summary", key=f"s{content}", user_id="ann")
        store.remember(content, key=content, user_id="ann.b@x.org")
    with pytest.raises(ConfigurationError, match="must be given"):
        store.forget()
    assert store.forget("a", user_id="ann") == 0
    assert store.forget("a", user_id="ann", agent="travel") == 1
    assert store.forget(user_id="ann", kinds=["summary"]) == 2
    assert store.forget(user_id="an") == 0
    assert len(store.history(ANN, "sa")) == 1
    assert store.forget(user_id="ann", purge=True) == 1
    assert rows(connection, schema, "SELECT count(*) FROM memory_versions") == [(0,)]
    assert store.get(ANN, "item") is not None
    assert len(store.recall(user_id="ann.b@x.org")) == 2


def test_importance_and_age_rank_without_a_query_too(
    store: PGMemoryStore, schema: str, connection: psycopg.Connection
) -> None:
    store.remember("Is allergic to nuts", importance=1.0)
    store.remember("Asked for the news of yesterday", "interaction", importance=0.1)
    rows(connection, schema, "UPDATE memories SET updated_at = updated_at - interval '90 days' RETURNING 1")
    store.remember("Asked for the news of today", "interaction", importance=0.1)
    ages = {"interaction": timedelta(days=30)}
    found = [one.content[-9:] for one in store.recall(half_lives=ages, importance_weight=1.0)]
    assert found == ["c to nuts", " of today", "yesterday"]
    assert store.recall(limit=1)[0].content.endswith("today")
    (news,) = store.recall("news", kinds=["interaction"], half_lives=ages, limit=1)
    assert news.content.endswith("today")
    assert news.rank_score is not None
    assert store.recall(kinds=["other"]) == []


def test_a_memory_that_has_expired_leaves_nothing_to_those_after_it(
    store: PGMemoryStore, schema: str, connection: psycopg.Connection
) -> None:
    """Whether or not it was swept before it is told again."""
    for key in ("kept", "swept"):
        for content in ("a", "b"):
            store.remember(content, key=key, importance=1)
    then = now(connection)
    rows(connection, schema, "UPDATE memories SET expires_at = now() RETURNING 1")
    assert store.recall() == store.recall(as_of=then) == []
    assert store.history(("memories",), "kept") == []
    with pytest.raises(NotFoundError):
        store.restore(("memories",), "kept", 1)
    rows(connection, schema, "UPDATE memories SET expires_at = 'infinity' WHERE key = 'kept' RETURNING 1")
    assert store.sweep_ttl() == 1
    rows(connection, schema, "UPDATE memories SET expires_at = now() RETURNING 1")
    for key, content in (("kept", "b"), ("swept", "c")):
        again = store.remember(content, key=key)
        assert (again.duplicates, again.importance) == (0, None)
        assert len(store.history(("memories",), key)) == 1
    assert store.recall(as_of=then) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"content": ""},
        {"content": None},
        {"content": "\0"},
        {"kind": "notes"},
        {"kind": "*"},
        {"importance": 2},
        {"importance": True},
        {"metadata": []},
        {"metadata": {"a": object()}},
        {"expires_at": datetime.now()},
        {"expires_at": datetime.now(UTC) - timedelta(days=1)},
        {"user_id": ""},
        {"key": ""},
        {"namespace": "memories"},
        {"message_id": "\0"},
    ],
)
def test_a_memory_that_cannot_be_stored_is_refused(store: PGMemoryStore, arguments: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        store.remember(**{"content": "a", **arguments})
    assert store.recall() == []


async def test_the_async_store_remembers_too(dsn: str, schema: str) -> None:
    async with AsyncPGMemoryStore.from_conn_string(dsn, schema=schema) as store:
        await store.remember("Likes tea", user_id="ann")
        assert [one.content for one in await store.recall("tea", user_id="ann")] == ["Likes tea"]
        notes = await store.notes("t")
        await notes.save(goal="g")
        assert (await store.notes("t")).goal == "g"
        assert await store.forget(user_id="ann") == 1


def test_of_two_who_save_progress_notes_one_is_refused(store: PGMemoryStore) -> None:
    """Also of those who save the first version."""
    for round in range(3):
        both = [store.notes("move", user_id="ann") for _ in range(2)]
        both[0].save(goal=f"g{round}", by="first")
        with pytest.raises(StaleMemoryError, match="first changed it at") as raised:
            both[1].save(goal="other", by="second")
        assert (raised.value.expected, raised.value.found) == (round, round + 1)
        assert raised.value.changed_by == "first"

    def save(n: int) -> bool:
        try:
            store.notes("race").save(goal=str(n), expected_version=0)
        except StaleMemoryError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(save, range(16))) == 1


def test_every_version_of_progress_notes_is_kept_and_compared(dsn: str, schema: str) -> None:
    with PGMemoryStore.from_conn_string(dsn, schema=schema, history=0) as store:
        notes = store.notes("move")
        assert notes.render() == "# Progress: move\n"
        notes.save(goal="Move", next_action="pack")
        for n in range(30):
            notes.save(completed=[*notes.completed, f"step {n}"], expected_version=notes.version)
        notes.save(blockers=["no van"], next_action="call")
        again = store.notes("move")
        assert again.render() == notes.render()
        assert "## Blockers\n\n- no van" in again.render()
        assert "- [x] step 29" in again.render()
        assert [one.version for one in again.history()] == [*range(32, 0, -1)]
        assert [one.version for one in again.history(limit=2, before=5)] == [4, 3]
        changes = again.diff(31)
        assert "-pack" in changes
        assert "+call" in changes
        with pytest.raises(NotFoundError):
            again.diff(99)
        store.restore(("notes",), "move", 1)
        assert store.notes("move").completed == []
        assert len(again.history()) == 33


def test_what_loses_its_newest_version_to_an_erasure_is_stored_again(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        memory = state.memory

        def take_notes(_: MessagesState) -> dict[str, Any]:
            memory.notes("move").save(goal="secret")
            memory.put(ANN, "k", {"n": 2})
            return {}

        memory.notes("move").save(goal="Move")
        memory.put(ANN, "k", {"n": 1})
        builder = StateGraph(MessagesState).add_node(take_notes).add_edge(START, "take_notes")
        graph = builder.compile(checkpointer=state.saver)
        graph.invoke({"messages": []}, {"configurable": {"thread_id": "t"}})
        state.privacy.erase(thread_id="t")
        notes = memory.notes("move")
        assert (notes.version, notes.goal) == (0, "")
        notes.save(goal="Move by June")
        assert [one.value["goal"] for one in notes.history()] == ["Move by June", "Move"]
        with pytest.raises(StaleMemoryError, match="is at version 0, not 1"):
            memory.edit(ANN, "k", {"n": 3}, expected_version=1)
        assert memory.restore(ANN, "k", 1, expected_version=0).version == 2


def test_a_memory_leads_to_its_message_and_back_also_in_a_fork(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    def remember(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        assert isinstance(store, PGMemoryStore)
        said = state["messages"][-1]
        store.remember(str(said.content), user_id="ann", message_id=said.id)
        return {"messages": [AIMessage("noted")]}

    config: Any = {"configurable": {"thread_id": "first", "user_id": "ann"}}
    builder = StateGraph(MessagesState).add_node("remember", remember).add_edge(START, "remember")
    with PGState.open(dsn, schema=schema) as state:
        graph = state.record(builder.compile(checkpointer=state.saver, store=state.memory))
        for number in range(2):
            graph.invoke({"messages": [HumanMessage(f"I like tea {number}", id=f"m{number}")]}, config)
        fork = state.threads.fork("first")["configurable"]["thread_id"]
        other = state.threads.fork(fork)["configurable"]["thread_id"]
        in_fork: Any = {"configurable": {"thread_id": other, "user_id": "ann"}}
        graph.invoke({"messages": [HumanMessage("I like cake", id="m2")]}, in_fork)
        state.flush()
        state.saver.delete_thread("first")
        threads = {"first": "first", fork: "fork", other: "other"}
    query = "SELECT origin_thread_id, thread_id, message_id, content FROM memory_messages WHERE "
    found = rows(connection, schema, f"{query} user_id = 'ann' ORDER BY said_at")
    assert {(threads[one], threads[two], id) for one, two, id, _ in found} == {
        *(("first", thread, id) for thread in ("fork", "other") for id in ("m0", "m1")),
        ("other", "other", "m2"),
    }
    back = f"{query} thread_id = %s AND message_id = %s"
    assert rows(connection, schema, back, fork, "m1") == [("first", fork, "m1", "I like tea 1")]
    ((version,),) = rows(
        connection,
        schema,
        "SELECT run_id IS NOT NULL AND checkpoint_id IS NOT NULL AND changed_by = 'ann' FROM memories"
        " WHERE message_id = %s",
        "m2",
    )
    assert version


@pytest.mark.parametrize("message_ids", [None, ["m"]], ids=["in a thread", "by messages"])
def test_what_a_run_and_messages_have_caused_is_found_newest_first(
    message_ids: list[str] | None, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    memory = PGMemoryStore(connection, schema=schema)
    place: Any = {"key": "home", "user_id": "ann", "thread_id": "t", "message_id": "m"}
    with connection.transaction():
        for content, run_id in (("Lives in Rome.", "a"), ("Lives in Oslo.", "a"), ("Lives in Bern.", "b")):
            memory.remember(content, run_id=run_id, **place)
    memory.remember("Likes tea.", **{**place, "key": "tea", "run_id": "a", "message_id": "other"})
    found = memory.caused_by("t", run_id="a", message_ids=message_ids)
    assert [one.version for one in found if one.key == "home"] == [2, 1]
    assert [one.version for one in found if one.key == "tea"] == ([1] if message_ids is None else [])
    assert [one.version for one in memory.caused_by("t", message_ids=["m"])] == [3, 2, 1]
    assert memory.caused_by("t", run_id="none", message_ids=message_ids) == ()


def test_a_repeated_purge_finds_nothing_left(dsn: str, schema: str) -> None:
    where = ("memories", "user", "ann")
    with PGMemoryStore.from_conn_string(dsn, schema=schema) as memory:
        for by in ("Eve", "Adam"):
            memory.remember("Lives in Rome.", key="home", user_id="ann")
            memory.edit(where, "home", {"content": "Lives in Oslo."}, expected_version=1)
            for _ in range(2):
                memory.remove(where, "home", expected_version=2, by=by, purge=True)
            assert memory.history(where, "home") == []
        with pytest.raises(StaleMemoryError):
            memory.remove(where, "home", expected_version=2)


def test_a_change_and_a_deletion_for_an_older_version_are_refused_with_who_was_first(dsn: str, schema: str) -> None:
    where = ("memories", "user", "ann")
    with PGMemoryStore.from_conn_string(dsn, schema=schema) as memory:
        memory.remember("Lives in Rome.", key="home", user_id="ann")
        memory.edit(where, "home", {"content": "Lives in Oslo."}, expected_version=1, by="Eve")
        with pytest.raises(StaleMemoryError, match="Eve changed it at") as refused:
            memory.edit(where, "home", {"content": "Lives in Bern."}, expected_version=1, by="Adam")
        assert (refused.value.changed_by, refused.value.found) == ("Eve", 2)
        with pytest.raises(StaleMemoryError, match="Eve changed it at"):
            memory.remove(where, "home", expected_version=1, by="Adam", purge=True)
        assert [one.version for one in memory.history(where, "home")] == [2, 1]
        with pytest.raises(ConfigurationError, match="a text as its content"):
            memory.edit(where, "home", {}, expected_version=2)
        memory.remove(where, "home", expected_version=2, by="Eve")
        # As a repeated call after a lost connection.
        memory.remove(where, "home", expected_version=2, by="Eve")
        for change in (
            lambda: memory.edit(where, "home", {"content": "x"}, expected_version=2, by="Adam"),
            lambda: memory.restore(where, "home", 1, expected_version=2, by="Adam"),
            lambda: memory.remove(where, "home", expected_version=2, by="Adam"),
        ):
            with pytest.raises(StaleMemoryError, match="Eve deleted it at"):
                change()
        with pytest.raises(StaleMemoryError, match="Eve deleted it at"):
            # It would leave the versions.
            memory.remove(where, "home", expected_version=2, by="Eve", purge=True)
        assert memory.restore(where, "home", 1, expected_version=0).version == 3
        found = memory.inspect(where, "home")
        assert found is not None
        assert (found.value["content"], found.kind, found.user_id) == ("Lives in Rome.", "fact", "ann")
        assert [one.key for one in memory.browse(user_id="ann", text="ROME").items] == ["home"]
        memory.remember('She said "yes" to\nC:\\Rome', key="said", user_id="ann")
        for text in (' "YES" to\nc:\\', "to\n", ":\\"):
            assert [one.key for one in memory.browse(user_id="ann", text=text).items] == ["said"]
        # It has expired since the caller read it.
        with psycopg.connect(dsn) as connection:
            connection.execute(f"UPDATE {schema}.memories SET expires_at = now() WHERE key = 'said'".encode())
        with pytest.raises(StaleMemoryError):
            memory.remove(where, "said", expected_version=1, by="Eve")
