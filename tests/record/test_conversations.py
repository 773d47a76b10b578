"""What was written without a recorder is recorded afterwards, from the states; and a check tells where they differ."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from psycopg.conninfo import make_conninfo
from support import GUARD_SECONDS, config_of
from support.official import fill, official_saver
from typer.testing import CliRunner

from langgraph_pgstate import AsyncPGState, PGState, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.record import conversations
from langgraph_pgstate.threads.types import Progress
from tests.admin.test_transfer import Rot
from tests.record.test_delta_messages import build, delta, gone, said
from tests.record.test_record_states import IDLE, assert_equal, human, put, said_in, viewed


@pytest.fixture
def plain(dsn: str, schema: str) -> Any:
    """A state whose saver records nothing."""
    with PGState.open(dsn, schema=schema, recording=IDLE) as state:
        state.saver._hook = None
        yield state


@pytest.fixture
def state(dsn: str, schema: str, plain: PGState) -> Any:
    with PGState.open(dsn, schema=schema, recording=IDLE) as state:
        yield state


def chain(state: PGState, thread_id: str, *lists: str) -> list[Any]:
    """Checkpoints with some messages each, one made from the other."""
    configs = [config_of(thread_id)]
    for ids in lists:
        configs.append(put(state, configs[-1], human(*ids)))
    return configs[1:]


def asking(saver: PGStateSaver, question: Callable[[], Any]) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("ask", lambda state: {"messages": [AIMessage(str(question()), id="answer")]})
    return builder.add_edge(START, "ask").compile(checkpointer=saver)


def rows(connection: psycopg.Connection, schema: str) -> list[tuple[Any, ...]]:
    return connection.execute(f"SELECT * FROM {schema}.messages ORDER BY 1, 2, 3, 4, 5".encode()).fetchall()


def statuses(state: PGState) -> dict[str, str]:
    return {thread.thread_id: thread.status for thread in state.threads.list().items}


def test_all_that_a_thread_says_is_recorded(
    plain: PGState, state: PGState, connection: psycopg.Connection, schema: str
) -> None:
    configs = chain(plain, "t", "a", "ab", "abc", "acb", "xacb", "acby")
    fork = put(plain, configs[2], human(*"abcz"))
    put(plain, fork, [HumanMessage("edited", id="a"), *human("z")])
    chain(plain, "u", "12345")
    assert viewed(connection, schema, "t") == []
    seen: list[Progress] = []
    report = state.backfill(progress=seen.append)
    assert [(one.thread_id, one.threads, one.total) for one in seen] == [("t", 1, 2), ("u", 2, 2)]
    assert (report.checkpoints, report.filled, report.problems) == (9, 9, [])
    assert_equal(state, connection, "t", "u")
    before = rows(connection, schema)
    again = state.backfill(["u", "t", "nobody"])
    assert (again.filled, again.messages, again.statuses) == (0, 0, 0)
    assert rows(connection, schema) == before
    # It is as if it had been recorded from the beginning.
    put(state, fork, human(*"abczw"))
    assert_equal(state, connection, "t")


def test_one_that_was_stopped_goes_on_where_it_was(
    plain: PGState, state: PGState, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "_PAGE", 3)
    monkeypatch.setattr(conversations, "_REMEMBERED", 2)
    configs = chain(plain, "t", *("abcdefghijkl"[:length] for length in range(1, 13)))
    put(plain, configs[1], human("a", "far"))
    fill, calls = conversations._Comparison._fill, []

    async def stop(self: Any, difference: Any) -> Any:
        calls.append(difference)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return await fill(self, difference)

    with monkeypatch.context() as stopped:
        stopped.setattr(conversations._Comparison, "_fill", stop)
        with pytest.raises(KeyboardInterrupt):
            state.backfill()
    # Two pages are there.
    assert state.backfill().filled == 13 - 6
    assert_equal(state, connection, "t")


def test_it_is_safe_beside_a_running_thread_and_a_prune(
    dsn: str, plain: PGState, state: PGState, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversations, "_PAGE", 3)
    config = chain(plain, "t", *("abcdefghijkl"[:length] for length in range(1, 13)))[-1]
    done = threading.Event()

    def keep_filling() -> None:
        with PGState.open(dsn, schema=state.schema, recording=IDLE) as other:
            while not done.is_set():
                other.backfill()

    filler = threading.Thread(target=keep_filling)
    filler.start()
    try:
        for number in range(30):
            ids = [*"bcdefghijkl", *(f"new {one}" for one in range(number + 1))]
            config = put(state, config, human(*ids))
            if number % 5 == 4:
                state.saver.prune(["t"], keep_last=2)
    finally:
        done.set()
        filler.join(GUARD_SECONDS)
    state.flush()
    assert_equal(state, connection, "t")


def test_a_thread_stands_as_its_newest_checkpoint_leaves_it(plain: PGState, state: PGState) -> None:
    def fail() -> None:
        raise LookupError("mine")

    asking(plain.saver, lambda: interrupt("well?")).invoke({"messages": human("a")}, config_of("waits"))
    asking(plain.saver, lambda: "yes").invoke({"messages": human("a")}, config_of("done"))
    with pytest.raises(LookupError):
        asking(plain.saver, fail).invoke({"messages": human("a")}, config_of("failed"))
    assert set(statuses(state).values()) == {"idle"}
    assert state.backfill().statuses == 2
    assert statuses(state) == {"waits": "interrupted", "done": "idle", "failed": "error"}
    # A thread with runs stands as those leave it.
    state.record(asking(state.saver, lambda: "yes")).invoke({"messages": human("b")}, config_of("failed"))
    state.flush()
    assert state.backfill().statuses == 0
    assert statuses(state)["failed"] == "idle"


@pytest.mark.parametrize("frequency", [3, 1000])
def test_what_was_written_to_a_delta_channel_is_recorded(frequency: int, plain: PGState, state: PGState) -> None:
    script = [([*said(f"h{step}")], [*said(f"a{step}")]) for step in range(8)]
    script[5] = (gone("a2"), said("h1", text="edited"))
    graph = build(delta("add", frequency), script).compile(checkpointer=plain.saver)
    graph.invoke({"messages": said("first")}, {**config_of("t"), "recursion_limit": 100})
    state.backfill()
    for snapshot in graph.get_state_history(config_of("t")):
        checkpoint_id = snapshot.config["configurable"]["checkpoint_id"]
        found = state.messages.conversation("t", checkpoint_id=checkpoint_id)
        assert [message.content for message in found] == [one.content for one in snapshot.values.get("messages", [])]
    assert state.backfill().filled == 0
    assert Admin(state._database).check().problems == []


async def test_both_apis_record_the_same(dsn: str, plain: PGState, connection: psycopg.Connection) -> None:
    chain(plain, "t", "a", "ba", "b")
    async with AsyncPGState.open(dsn, schema=plain.schema) as other:
        report = await other.backfill()
        assert (report.threads, report.checkpoints, report.filled, report.messages) == (1, 3, 3, 2)
        assert (await other.backfill(["t"])).filled == 0
    assert_equal(plain, connection, "t")


def test_what_a_serializer_encrypts_is_not_recorded_in_clear_text(
    dsn: str, plain: PGState, connection: psycopg.Connection, schema: str
) -> None:
    with PGState.open(dsn, schema=schema, serde=EncryptedSerializer(Rot())) as secret:
        chain(secret, "t", "a", "ab")
        assert (secret.backfill().messages, plain.backfill().messages) == (0, 0)
    assert rows(connection, schema) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("DELETE FROM {}.messages WHERE message_id = 'c'", "2 messages are recorded, the state has 3"),
        ("UPDATE {}.messages SET content = 'x' WHERE message_id = 'b'", "differ from number 2 on"),
        ("UPDATE {}.messages SET position = 7 WHERE message_id = 'a'", "differ from number 1 on"),
    ],
)
def test_a_check_names_the_checkpoints_whose_record_differs(
    change: str, why: str, state: PGState, connection: psycopg.Connection, schema: str
) -> None:
    chain(state, "t", *["abc"] * 14)
    chain(state, "u", "abc")
    admin = Admin(state._database)
    # What is in the journal is not missing.
    assert admin.check().problems == []
    state.flush()
    connection.execute(change.format(schema).encode() + b" AND thread_id = 't'")
    problems = admin.check().problems
    assert {problem.thread_id for problem in problems} == {"t"}
    assert len(problems) == 11
    assert why in problems[0].why
    assert "4 more places" in problems[-1].where
    # One row was wrong, for all checkpoints that follow.
    assert state.backfill().filled == 1
    assert admin.check().problems == []
    assert_equal(state, connection, "t", "u")


def test_what_a_policy_has_removed_is_no_damage_and_is_not_recorded_again(
    plain: PGState, state: PGState, connection: psycopg.Connection, schema: str
) -> None:
    last = chain(state, "t", "a", "ab")[-1]
    state.flush()
    for table in ("threads", "messages"):
        connection.execute(f"UPDATE {schema}.{table} SET created_at = created_at - interval '2 days'".encode())
    state.retention.put("texts", content_after=timedelta(days=1))
    (report,) = state.retention.apply()
    assert report.contents > 0
    admin = Admin(state._database)
    assert admin.check().problems == []
    assert state.backfill().filled == 0
    # A message that was not recorded is added, and nothing else.
    put(plain, last, human("a", "b", "c"))
    assert len(admin.check().problems) == 1
    assert state.backfill().messages == 1
    assert admin.check().problems == []
    texts = connection.execute(f"SELECT content FROM {schema}.messages ORDER BY message_id".encode()).fetchall()
    assert texts == [(None,), (None,), ("text of c",)]


def test_a_checkpoint_that_cannot_be_read_is_named_and_does_not_stop_the_others(
    plain: PGState, state: PGState, connection: psycopg.Connection, schema: str
) -> None:
    configs = chain(plain, "t", "a", "ab", "abc")
    broken = configs[1]["configurable"]["checkpoint_id"]
    connection.execute(f"UPDATE {schema}.checkpoints SET state = 'x' WHERE checkpoint_id = %s".encode(), [broken])
    chain(plain, "u", "a")
    report = state.backfill()
    assert [problem.thread_id for problem in report.problems] == ["t"]
    assert broken in report.problems[0].where
    assert viewed(connection, schema, "u") == said_in(human("a"))


@pytest.mark.slow
def test_an_import_fills_the_record(dsn: str, schema: str, connection: psycopg.Connection, state: PGState) -> None:
    old_schema = f"{schema}_old"
    try:
        with official_saver(dsn, old_schema) as old, Admin.open(dsn, schema=schema) as admin:
            fill(old)
            admin.import_langgraph(dsn, source_schema=old_schema)
            assert_imported(old, state, connection)
            assert statuses(state)["asking"] == "interrupted"
            assert statuses(state)["chat"] == "idle"
            before = rows(connection, schema)
            admin.import_langgraph(dsn, source_schema=old_schema)
            assert rows(connection, schema) == before
            assert admin.check(deep=True).problems == []
    finally:
        connection.execute(f'DROP SCHEMA IF EXISTS "{old_schema}" CASCADE')


def assert_imported(old: PostgresSaver, state: PGState, connection: psycopg.Connection) -> None:
    """The chat is recorded, under the times the old application has written it."""
    checkpoints = list(old.list(config_of("chat")))
    for one in checkpoints:
        checkpoint_id = one.config["configurable"]["checkpoint_id"]
        found = state.messages.conversation("chat", checkpoint_id=checkpoint_id, channel="messages")
        expected = one.checkpoint["channel_values"].get("messages", [])
        assert [message.content for message in found] == [message.content for message in expected]
    thread = state.threads.get("chat")
    assert thread is not None
    assert thread.created_at.isoformat() == checkpoints[-1].checkpoint["ts"]
    assert thread.updated_at.isoformat() == checkpoints[0].checkpoint["ts"]
    newest = state.messages.conversation("chat")[-1]
    assert thread.created_at < newest.created_at <= thread.updated_at
    assert newest.run_id == checkpoints[0].metadata.get("run_id")


def test_on_the_command_line(dsn: str, plain: PGState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_pgstate.cli.output.console.made._width", 140)
    chain(plain, "t", "a", "ab")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["--dsn", dsn, "--schema", plain.schema, "backfill", *arguments])

    assert "recorded 2 messages at 2 checkpoints" in run().output
    assert "recorded 0 messages at 0 checkpoints" in run("--thread", "t").output
    result = run("--thread", "nobody")
    assert (result.exit_code, "there is no thread 'nobody'" in result.output) == (1, True)


@pytest.mark.parametrize("place", [-1, 0])
def test_checkpoints_that_are_their_own_ancestors_have_an_end(
    state: PGState, dsn: str, schema: str, connection: psycopg.Connection, place: int
) -> None:
    """Guard: the recorder would read such a thread for ever, and record nothing else."""
    configs = chain(state, "t", "a", "b", "c")
    ids = [config["configurable"]["checkpoint_id"] for config in configs]
    damage = f"UPDATE {schema}.checkpoints SET parent_checkpoint_id = %s WHERE checkpoint_id = %s"
    connection.execute(damage.encode(), [ids[place], ids[0]])
    with PGState.open(make_conninfo(dsn, options="-c statement_timeout=5s"), schema=schema, recording=IDLE) as other:
        put(other, configs[-1], human("a", "b", "x"))
        other.flush()
        assert "x" in [message.message_id for message in other.messages.conversation("t")]
        assert other.runs.provenance(config_of("t")) is not None
        assert other.tools.compensate("t", to_checkpoint=ids[0]).compensated == ()
        assert other.saver.prune(["t"]).checkpoints > 0
    connection.execute("SET statement_timeout = '5s'")
    assert connection.execute(f"SELECT count(*) FROM {schema}.conversations".encode()).fetchone() != (0,)
