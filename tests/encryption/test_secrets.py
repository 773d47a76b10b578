"""A whole life with secrets in every kind of field: they are read back, and are in no table, index, file or dump."""

from __future__ import annotations

import operator
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import orjson
import psycopg
import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from psycopg import sql
from support import Restartable

from langgraph_pgstate import Encryption, LocalMasterKey, PGState
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.encryption.keys import use_keys
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.keep.packing import load_manifest, unpack
from langgraph_pgstate.record import journal
from langgraph_pgstate.schema.queries import queries

MASTER = LocalMasterKey(bytes(range(32)))
_PLACES = (
    *("human", "model", "scalar", "list", "error", "metadata", "title", "answer", "asked", "feedback", "event"),
    *("thread", "projected", "later", "item", "memory", "noted", "goal"),
)
WORDS = {name: f"planted-{number}-{name}-secret" for number, name in enumerate(_PLACES)}


class LifeState(TypedDict):
    """State of the graph of these tests."""

    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    scalar: str
    projected: str


def graph_of(state: PGState) -> Any:
    """A graph that says, asks and fails with secrets."""

    def say(given: LifeState) -> dict[str, Any]:
        model = FakeListChatModel(responses=[WORDS["model"]])
        return {
            "messages": [model.invoke(given["messages"])],
            "notes": [WORDS["list"]],
            "scalar": WORDS["scalar"],
            "projected": WORDS["projected"],
        }

    def ask(given: LifeState) -> dict[str, Any]:
        return {"notes": [str(interrupt({"question": WORDS["asked"]}))]}

    def fail(given: LifeState) -> dict[str, Any]:
        if len(given["notes"]) < 4:
            raise RuntimeError(WORDS["error"])
        return {}

    builder = StateGraph(LifeState)
    for name, node in (("say", say), ("ask", ask), ("fail", fail)):
        builder.add_node(name, node)
    builder.add_edge(START, "say")
    builder.add_edge("say", "ask")
    builder.add_edge("ask", "fail")
    builder.add_edge("fail", END)
    return state.record(builder.compile(checkpointer=state.saver))


def live(state: PGState) -> None:
    """Run the graph to its interrupt, answer it, let it fail, go on, fork, and note things about it."""
    graph = graph_of(state)
    config: Any = {"configurable": {"thread_id": "t", "user_id": "anna", "api_key": WORDS["metadata"]}}
    graph.invoke({"messages": [HumanMessage(WORDS["human"])]}, config)
    with pytest.raises(RuntimeError):
        graph.invoke(Command(resume=WORDS["answer"]), config)
    graph.update_state(config, {"notes": [WORDS["later"]]})
    state.threads.update_metadata("t", {"note": WORDS["thread"]})
    state.threads.set_title("t", WORDS["title"])
    state.events.add("t", "note", {"text": WORDS["event"]})
    run = state.runs.list(thread_id="t").items[-1]
    state.runs.feedback.add("t", run.run_id, name="score", comment=WORDS["feedback"])
    state.threads.fork("t", to="fork")
    for number in range(2):
        state.memory.put(("users", "anna"), "key", {"text": WORDS["item"], "n": number})
    state.memory.remember(WORDS["memory"], user_id="anna", metadata={"why": WORDS["noted"]}, message_id="m")
    state.memory.notes("task", user_id="anna").save(goal=WORDS["goal"])


def check_read(state: PGState) -> None:
    """Everything is read back, by the thread and by its fork."""
    graph = graph_of(state)
    for thread_id in ("t", "fork"):
        found = graph.get_state({"configurable": {"thread_id": thread_id}}).values
        texts = [message.content for message in found["messages"]]
        assert texts == [WORDS["human"], WORDS["model"]]
        assert found["scalar"] == WORDS["scalar"]
        thread = state.threads.get(thread_id)
        assert (thread.title, thread.metadata["note"]) == (WORDS["title"], WORDS["thread"])
        said = state.messages.conversation(thread_id)
        assert [message.content for message in said] == texts
    runs = state.runs.list(thread_id="t").items
    assert any(WORDS["error"] in str(run.error_message) for run in runs)
    assert any(WORDS["human"] in str(run.input) for run in runs)
    spans = state.spans.list("t").items
    assert any(WORDS["model"] in str(span.output) for span in spans)
    events = state.events.list("t").items
    assert any(event.payload.get("text") == WORDS["event"] for event in events)
    assert state.runs.feedback.list(thread_id="t").items[0].comment == WORDS["feedback"]
    assert state.threads.get("t").state == {"projected": WORDS["projected"]}
    assert [one.value["n"] for one in state.memory.history(("users", "anna"), "key")] == [1, 0]
    (memory,) = state.memory.recall(user_id="anna", kinds=["fact"])
    assert (memory.content, memory.metadata) == (WORDS["memory"], {"why": WORDS["noted"]})
    assert state.memory.notes("task", user_id="anna").goal == WORDS["goal"]


def check_export_and_redaction(state: PGState) -> None:
    """An export of the user has what was said, and a message that is erased is nowhere."""
    exported = b"\n".join(state.privacy.export(user_id="anna"))
    assert planted_in(exported) >= {"human", "model", "error", "title", "event", "feedback", "projected", "thread"}
    assert planted_in(exported) >= {"item", "memory", "noted", "goal"}
    message = state.messages.conversation("t")[0]
    state.privacy.erase(thread_id="t", message_id=message.message_id, key=bytes(32))
    assert planted_in(b"\n".join(state.privacy.export(user_id="anna"))).isdisjoint({"human"})


def planted_in(text: bytes) -> set[str]:
    """The names of the secrets that are in some bytes, as they are or as PostgreSQL shows bytes."""
    return {name for name, word in WORDS.items() if word.encode() in text or word.encode().hex().encode() in text}


def all_rows(connection: psycopg.Connection, schema: str) -> bytes:
    """The text of all rows of all tables."""
    names = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'p')", [schema]
    ).fetchall()
    found = []
    for (name,) in names:
        rows = connection.execute(sql.SQL("SELECT t.*::text FROM {} t").format(sql.Identifier(schema, name))).fetchall()
        found += [str(row) for row in rows]
    return "\n".join(found).encode()


@pytest.fixture
def lived(server: Restartable) -> Iterator[Any]:
    """Lives a life in a schema of the server, and returns its files."""
    schemas: list[str] = []

    def run(schema: str, **options: Any) -> Path:
        schemas.append(schema)
        with PGState.open(server.dsn, schema=schema, project=("projected",), **options) as state:
            state.setup()
            live(state)
            state.maintain()
            check_read(state)
            check_export_and_redaction(state)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
        return server.directory

    yield run
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for schema in schemas:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


@pytest.mark.slow
def test_no_table_index_log_or_dump_has_a_secret(lived: Any, server: Restartable) -> None:
    """WAL, tables and indexes are searched as files; of the dump what pg_dump writes."""
    directory = lived("hidden", encryption=Encryption(MASTER, scope="user", search="words"))
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        assert planted_in(all_rows(connection, "hidden")) == set()
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert any(path.parent.name == "pg_wal" for path in files)
    assert {str(path): found for path in files if (found := planted_in(path.read_bytes()))} == {}
    program = shutil.which("pg_dump")
    if program is not None:
        dump = subprocess.run([program, "-n", "hidden", server.dsn], capture_output=True, check=False)
        assert planted_in(dump.stdout) == set()


@pytest.mark.slow
@pytest.mark.parametrize("was_plain", [False, True])
def test_a_record_is_encrypted_again(was_plain: bool, dsn: str, schema: str) -> None:
    """Under new data keys, and what was stored in plain text: everything is read as before."""
    options: Any = {"schema": schema, "project": ("projected",)}
    encryption = Encryption(MASTER, scope="user", accept_plain=was_plain, cache_for=timedelta(seconds=1))
    with PGState.open(dsn, **options, **({} if was_plain else {"encryption": encryption})) as state:
        live(state)
        check_read(state)
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        report = admin.encrypt() if was_plain else admin.rotate_keys()
        assert list(report.problems) == []
        assert list(admin.check(deep=True).problems) == []
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert planted_in(all_rows(connection, schema)) == set()
    with PGState.open(dsn, **options, encryption=Encryption(MASTER, scope="user")) as state:
        check_read(state)


@pytest.mark.slow
def test_the_search_finds_what_is_not_encrypted(lived: Any, server: Restartable) -> None:
    """The test above rests on it: in plain text, nearly all of them are found in the tables."""
    lived("shown")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        assert planted_in(all_rows(connection, "shown")) >= WORDS.keys() - {"list", "asked", "later", "answer", "human"}


def test_searches_of_what_is_encrypted_are_refused(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, encryption=Encryption(MASTER)) as state:
        with pytest.raises(ConfigurationError, match=r"messages\.content cannot be searched"):
            state.messages.search("word")
        with pytest.raises(ConfigurationError, match="cannot be searched for the encrypted key 'city'"):
            state.threads.search(metadata={"city": "secret"})


def test_records_stay_in_the_journal_until_a_process_with_keys_moves_them(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: a process without keys would take them for damaged, and remove them."""
    event = {"thread_id": "t", "event_id": "1", "created_at": 1.0, "kind": "note", "payload": {"text": WORDS["event"]}}
    with PGState.open(dsn, schema=schema, encryption=Encryption(MASTER)) as state:
        state.threads.create("t")
        entry = journal.entry_of(("t", "run"), "1", JournalEntry(events=[orjson.dumps(event)]))
        with Database.open(dsn, schema=schema, pool=False) as database:
            use_keys(database, Encryption(MASTER), queries(schema))
            database.run(journal.put_entry, queries(schema), entry, lambda: 60.0)
    with PGState.open(dsn, schema=schema) as other:
        other.maintain()
        assert connection.execute(f'SELECT count(*) FROM "{schema}".journal').fetchone() == (1,)
    with PGState.open(dsn, schema=schema, encryption=Encryption(MASTER)) as state:
        state.maintain()
        assert [event.payload for event in state.events.list("t").items] == [{"text": WORDS["event"]}]
    assert connection.execute(f'SELECT count(*) FROM "{schema}".journal').fetchone() == (0,)


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_no_archive_has_a_secret(is_encrypted: bool, dsn: str, schema: str, tmp_path: Path) -> None:
    encryption = Encryption(MASTER) if is_encrypted else None
    with PGState.open(dsn, schema=schema, encryption=encryption, project=("projected",)) as state:
        live(state)
        state.flush()
        report = state.archive.put(["t", "fork"], to=f"file://{tmp_path}", idle_for=timedelta(0))
        assert report.threads == 2, report.left
        found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        for path in tmp_path.glob("*.json"):
            manifest, pack = load_manifest(path.read_bytes(), "it"), path.with_suffix(".pack").read_bytes()
            for frame in manifest.frames.values():
                tables = unpack(frame, pack[frame.offset : frame.offset + frame.bytes], "it")
                found += b"".join(row for rows in tables.values() for row in rows)
        # Without encryption, the search finds them.
        assert (planted_in(found) == set()) is is_encrypted
        state.archive.restore(["t", "fork"])
        check_read(state)
