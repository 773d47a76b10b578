"""The queue, streams, schedules, assistants and webhooks: what they hold is encrypted, and works as before."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Interrupt, interrupt
from support import config_of, put_arguments, wait_until
from support.tenants import open_walled

from langgraph_pgstate import (
    CallableMasterKey,
    DefaultAnswer,
    Encryption,
    LocalMasterKey,
    PGState,
    WebhookSettings,
)
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.errors import (
    ConfigurationError,
    DatabaseError,
    DecryptionError,
    KeyUnavailableError,
    NotEncryptedError,
)
from langgraph_pgstate.interrupts import answers
from langgraph_pgstate.runs import RunHandle, claiming, ending, streams
from langgraph_pgstate.runs.cursors import Cursor
from langgraph_pgstate.runs.types import Wanted
from langgraph_pgstate.schedules import firing
from langgraph_pgstate.schema.queries import queries
from langgraph_pgstate.worker import Worker
from langgraph_pgstate.worker.settings import WorkerSettings
from langgraph_pgstate.worker.sweeps import Sweeps
from tests.encryption.test_secrets import all_rows
from tests.runs.test_webhooks import HERE, SECRET, Receiver, receiving

MASTER = LocalMasterKey(bytes(range(32)))
_PLACES = (
    *("input", "config", "context", "run metadata", "stream", "raised", "schedule", "schedule metadata"),
    *("assistant", "assistant context", "assistant metadata", "description"),
)
WORDS = {name: f"planted-{number}-{name.replace(' ', '-')}-queue" for number, name in enumerate(_PLACES)}


class Context(TypedDict):
    """Context of the graph of these tests."""

    note: str


class Given(TypedDict):
    """State of the graph of these tests."""

    text: Annotated[str, lambda old, new: new]


def graph_of(seen: list[Any]) -> Any:
    """A graph that notes what it is given, streams a secret, and fails if it is told so."""

    def say(given: Given, config: RunnableConfig) -> dict[str, Any]:
        seen.append((given["text"], config["configurable"].get("note"), config["metadata"].get("note")))
        get_stream_writer()({"said": WORDS["stream"]})
        if given["text"] == "fail":
            raise ValueError(WORDS["raised"])
        return {"text": given["text"]}

    builder = StateGraph(Given, context_schema=Context)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_edge("say", END)
    return builder.compile()


def planted(connection: psycopg.Connection, schema: str) -> set[str]:
    """The names of the secrets that are in some row."""
    text = all_rows(connection, schema)
    return {name for name, word in WORDS.items() if word.encode() in text or word.encode().hex().encode() in text}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def opened(dsn: str, schema: str) -> Callable[..., Any]:
    def open(**options: Any) -> Any:
        settings = WebhookSettings(secret=SECRET, allowed_networks=HERE)
        return PGState.open(dsn, schema=schema, webhooks=settings, **options)

    return open


def live(state: PGState, url: str) -> tuple[RunHandle, RunHandle]:
    """Enqueue two runs, and store a schedule and an assistant: with secrets in each field."""
    given = {
        "config": {"configurable": {"note": WORDS["config"], "user_id": "anna"}},
        "context": {"note": WORDS["context"]},
        "metadata": {"note": WORDS["run metadata"]},
        "stream_mode": ["custom", "values"],
    }
    done = state.runs.enqueue("agent", {"text": WORDS["input"]}, thread_id="t", run_id="done", webhook=url, **given)
    failed = state.runs.enqueue("agent", {"text": "fail"}, thread_id="f", run_id="failed", webhook=url, **given)
    state.schedules.put(
        "daily",
        "agent",
        {"text": WORDS["schedule"]},
        cron="0 9 * * *",
        metadata={"note": WORDS["schedule metadata"], "owner": "anna"},
    )
    state.assistants.create(
        "helper",
        graph="agent",
        name="Helper",
        description=WORDS["description"],
        config={"configurable": {"note": WORDS["assistant"]}},
        context={"note": WORDS["assistant context"]},
        metadata={"note": WORDS["assistant metadata"], "owner": "anna"},
    )
    state.assistants.update("helper", name="Helper 2")
    return done, failed


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["all", "user", "thread"])
def test_a_life_of_runs(
    opened: Any, dsn: str, schema: str, connection: psycopg.Connection, receiver: Receiver, scope: str
) -> None:
    """Guard: each column of these tables is encrypted, and read by whoever needs it."""
    encryption, seen = Encryption(MASTER, scope=scope), list[Any]()
    with opened(encryption=encryption) as state:
        done, failed = live(state, receiver.url)
        assert planted(connection, schema) == set()
        # Claims of a process that has no key in memory.
        state._database.keys.expire()
        Worker(state, {"agent": graph_of(seen)}, poll=0.05).run_until_idle()
        assert (WORDS["input"], WORDS["config"], WORDS["run metadata"]) in seen
        state._database.keys.expire()
        events = [event.data for event in done.join() if event.event == "custom"]
        assert events == [{"said": WORDS["stream"]}]
        assert WORDS["raised"] in str([*failed.join()])
        state._database.keys.expire()
        wait_until(lambda: state.webhooks.deliver() or len(receiver.got) == 2, "webhooks")
        told = {body["run_id"]: body for body in (json.loads(text) for _, text in receiver.got)}
        assert told["done"]["metadata"]["note"] == WORDS["run metadata"]
        assert told["failed"]["error"]["message"] == WORDS["raised"]
        found = state.schedules.get("daily")
        assert found.metadata == {"note": WORDS["schedule metadata"], "owner": "anna"}
        state.schedules.trigger("daily")
        Worker(state, {"agent": graph_of(seen)}, poll=0.05).run_until_idle()
        assert (WORDS["schedule"], None, WORDS["schedule metadata"]) in seen
        helper = state.assistants.get("helper")
        assert (helper.description, helper.metadata["note"]) == (WORDS["description"], WORDS["assistant metadata"])
        assert helper.config["configurable"]["note"] == WORDS["assistant"]
        assert helper.context["note"] == WORDS["assistant context"]
        assert [one.version for one in state.assistants.versions("helper")] == [2, 1]
        assert state.assistants.count(metadata={"owner": "anna"}) == 1
        with pytest.raises(ConfigurationError, match="cannot be searched for the encrypted key 'note'"):
            state.assistants.count(metadata={"note": "x"})
        exported = b"\n".join(state.privacy.export(user_id="anna")).decode()
        assert WORDS["run metadata"] in exported
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        assert [*admin.check(deep=True).problems] == []
    assert planted(connection, schema) == set()


@pytest.mark.slow
def test_what_is_plain_or_under_old_keys_is_encrypted_again(
    opened: Any, dsn: str, schema: str, connection: psycopg.Connection, receiver: Receiver
) -> None:
    encryption = Encryption(MASTER, scope="user", accept_plain=True, cache_for=timedelta(seconds=1))
    with opened() as state:
        done, _ = live(state, receiver.url)
        Worker(state, {"agent": graph_of([])}, poll=0.05).run_until_idle()
        live_again = state.runs.enqueue("agent", {"text": WORDS["input"]}, thread_id="t", run_id="waits")
    assert planted(connection, schema) >= WORDS.keys() - {"config", "context", "assistant", "assistant context"}
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        assert [*admin.encrypt().problems] == []
        # What a webhook is to say is read in plain text until it was delivered.
        connection.execute(f'DELETE FROM "{schema}".webhooks')
        assert planted(connection, schema) == set()
        report = admin.rotate_keys()
        assert [*report.problems] == []
        assert report.retired > 0
    seen: list[Any] = []
    with opened(encryption=Encryption(MASTER, scope="user")) as state:
        Worker(state, {"agent": graph_of(seen)}, poll=0.05).run_until_idle()
        assert seen == [(WORDS["input"], None, None)]
        assert live_again.run_id == "waits"
        assert [event.data for event in state.runs.join(done) if event.event == "custom"] == [{"said": WORDS["stream"]}]
        assert state.assistants.get("helper").description == WORDS["description"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("UPDATE {}.run_requests SET data = (SELECT data FROM {}.run_requests WHERE run_id = 'b')", DecryptionError),
        ("UPDATE {}.run_requests SET data = '\\x00'::bytea", NotEncryptedError),
        ("UPDATE {}.run_requests SET data = substr(data, 1, octet_length(data) - 1)", DecryptionError),
    ],
)
def test_a_request_that_was_changed_fails_its_run_alone(
    opened: Any, schema: str, connection: psycopg.Connection, change: str, error: type
) -> None:
    """Guard: a value is bound to its row, and one that does not decrypt keeps no other run from being claimed."""
    seen: list[Any] = []
    with opened(encryption=Encryption(MASTER)) as state:
        for name in ("a", "b"):
            state.runs.enqueue("agent", {"text": name}, thread_id=name, run_id=name)
        connection.execute(f"{change} WHERE run_id = 'a'".replace("{}", f'"{schema}"').encode())
        Worker(state, {"agent": graph_of(seen)}, poll=0.05).run_until_idle()
        run = state.runs.get("a", "a")
        assert (run.status, run.error_type.rpartition(".")[2]) == ("error", error.__name__)
        assert [text for text, *_ in seen] == ["b"]


def test_a_batch_of_events_that_was_moved_is_refused(opened: Any, schema: str, connection: psycopg.Connection) -> None:
    with opened(encryption=Encryption(MASTER)) as state:
        handles = [state.runs.enqueue("agent", {"text": name}, thread_id=name, stream_mode="custom") for name in "ab"]
        Worker(state, {"agent": graph_of([])}, poll=0.05).run_until_idle()
        name = f'"{schema}".stream_batches'
        connection.execute(
            f"UPDATE {name} SET data = (SELECT data FROM {name} WHERE thread_id = 'b' LIMIT 1) WHERE thread_id = 'a'"
        )
        with pytest.raises(DecryptionError, match=r"stream_batches\.data"):
            [*handles[0].join()]


def test_what_does_not_decrypt_fails_no_reader_of_another_run(
    opened: Any, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: one statement reads for all readers of a process."""
    with opened(encryption=Encryption(MASTER)) as state:
        for name in ("moved", "fail", "good"):
            state.runs.enqueue("agent", {"text": name}, thread_id=name, run_id=name, stream_mode="custom")
        Worker(state, {"agent": graph_of([])}, poll=0.05).run_until_idle()
        other = "SELECT data FROM {}.stream_batches WHERE run_id = 'good' LIMIT 1"
        for change in (
            f"UPDATE {{}}.stream_batches SET data = ({other}) WHERE run_id = 'moved'",
            "UPDATE {}.runs SET error_message = left(error_message, 30) WHERE run_id = 'fail'",
        ):
            connection.execute(change.replace("{}", f'"{schema}"').encode())
        wanted = [Wanted(name, name, 0) for name in ("moved", "fail", "good")]
        moved, failed, good = state._database.run(streams.read, queries(schema), wanted, 9)
        codec = state._codec
        read = [event.event for event in Cursor(codec, "good", "good", None).take(good)]
        assert read == ["metadata", "custom", "end"]
        *_, error, end = Cursor(codec, "fail", "fail", None).take(failed)
        assert (error.data["message"], end.data) == (None, {"status": "error"})
        with pytest.raises(DecryptionError, match=r"stream_batches\.data"):
            [*Cursor(codec, "moved", "moved", None).take(moved)]


@pytest.mark.slow
def test_a_webhook_that_does_not_decrypt_keeps_no_other_from_being_delivered(
    opened: Any, schema: str, connection: psycopg.Connection, receiver: Receiver
) -> None:
    names = ("metadata", "error_message", "good")
    receiver.answers = [500] * len(names)
    with opened(encryption=Encryption(MASTER)) as state:
        for name in names:
            options: Any = {"metadata": {"note": name}, "webhook": receiver.url}
            state.runs.enqueue("agent", {"text": "fail"}, thread_id=name, run_id=name, **options)
        Worker(state, {"agent": graph_of([])}, poll=0.05).run_until_idle()
        state.webhooks.deliver()
        wait_until(lambda: len(receiver.got) == len(names), "the first attempts")
        for name in names[:2]:
            connection.execute(
                f"""UPDATE "{schema}".webhooks SET run = run || jsonb_build_object('{name}', (
                    SELECT o.run -> '{name}' FROM "{schema}".webhooks o WHERE o.run_id = 'good'
                )) WHERE run_id = '{name}'""".encode()
            )
        connection.execute(f'UPDATE "{schema}".webhooks SET deliver_after = now()'.encode())
        assert state.webhooks.deliver() == 1
        assert json.loads(receiver.got[-1][1])["run_id"] == "good"
    left = f'SELECT run_id, last_error FROM "{schema}".webhooks ORDER BY run_id'
    found = [(run_id, error.partition(":")[0]) for run_id, error in connection.execute(left.encode()).fetchall()]
    assert found == [("error_message", "DecryptionError"), ("metadata", "DecryptionError")]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (
            "UPDATE {0}.schedules SET data = (SELECT o.data FROM {0}.schedules o WHERE o.name = 'good')"
            " WHERE name = 'bad'",
            "does not decrypt",
        ),
        ("UPDATE {0}.data_keys SET master_id = 'gone' WHERE NOT is_current", "cannot be used"),
    ],
)
def test_a_schedule_that_does_not_decrypt_keeps_no_other_from_being_fired(
    damage: str, why: str, opened: Any, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an application without a worker, and although it is due for longer and fills a page."""
    monkeypatch.setattr(firing.find_due, "__defaults__", (1,))
    for name in ("bad", "good"):
        with opened(encryption=Encryption(MASTER)) as state:
            connection.execute(f'UPDATE "{schema}".data_keys SET is_current = false'.encode())
            state.schedules.put(name, "agent", {"text": name}, cron="0 0 1 1 *", thread_id=name)
    due = "UPDATE {0}.schedules SET next_at = now() - CASE name WHEN 'bad' THEN interval '2 s' ELSE interval '1 s' END"
    for change in (due, damage):
        connection.execute(change.format(f'"{schema}"').encode())
    with opened(encryption=Encryption(MASTER)) as state:
        assert not state.schedules.fire()
        assert [run.thread_id for run in state.schedules.fire()] == ["good"]
    (error,) = connection.execute(f"SELECT last_error FROM \"{schema}\".schedules WHERE name = 'bad'").fetchone() or ()
    assert why in error


@pytest.mark.parametrize("is_denied", [False, True])
def test_a_default_answer_is_an_event_and_one_that_does_not_decrypt_is_tried_again_later(
    is_denied: bool, opened: Any, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not fill the page of a sweep, although it is due for longer."""
    monkeypatch.setattr("langgraph_pgstate.worker.sweeps._BACKLOG", 1)
    known = queries(schema)

    def unwrap(wrapped: bytes, context: Any) -> bytes:
        if is_denied and context["scope"] == "thread:bad":
            raise KeyUnavailableError("own", "access is denied", retryable=False)
        return MASTER.unwrap(wrapped, context)

    master = CallableMasterKey("own", MASTER.wrap, unwrap)
    with opened(encryption=Encryption(CallableMasterKey("own", MASTER.wrap, MASTER.unwrap), scope="thread")) as state:
        saver = state.saver
        for name in ("bad", "good"):
            default = DefaultAnswer("yes", after=timedelta(milliseconds=1))
            state.runs.enqueue("agent", {"text": name}, thread_id=name, run_id=name, default_answer=default)
            config = saver.put(*put_arguments(config_of(name), 0))
            saver.put_writes(config, [("__interrupt__", [Interrupt("Book it?", id=name)])], "task")
        connection.execute(f'UPDATE "{schema}".writes SET run_id = thread_id'.encode())
        claimed = state._database.run(claiming.claim, known, "w", "default", ["agent"], 5, 10.0)
        for run in claimed.runs:
            assert state._database.run(ending.finish, known, run.key, "interrupted")
    if not is_denied:
        name = f'"{schema}".run_requests'
        connection.execute(
            f"UPDATE {name} SET data = (SELECT data FROM {name} WHERE run_id = 'good') WHERE run_id = 'bad'".encode()
        )
    due = f"""UPDATE "{schema}".run_requests SET answer_at = now() - interval '1 hour' WHERE run_id = 'bad'"""
    connection.execute(due.encode())
    with opened(encryption=Encryption(master, scope="thread")) as state:
        sweeps = Sweeps(state._database, known, state._codec, ["agent"], WorkerSettings(), 60.0, adopts=False)
        for _ in range(2):
            sweeps._answer_by_default()
        (given,) = state.interrupts.answers("good")
        assert given.is_default
        assert [event.payload["is_default"] for event in state.events.list("good", kind="answer").items] == [True]
    later = f"""SELECT answer_at > now() + interval '50 minutes' FROM "{schema}".run_requests WHERE run_id = 'bad'"""
    assert connection.execute(later.encode()).fetchall() == [(True,)]


def test_a_process_without_the_keys_of_a_user_fires_schedules_and_gives_default_answers(
    opened: Any, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: the ticks would be skipped, and the answers given an hour later."""
    config: Any = {"configurable": {"user_id": "ann"}}
    builder = StateGraph(Given)
    builder.add_node("ask", lambda _: {"text": interrupt("Book it?")})
    graph: Any = builder.add_edge(START, "ask").compile()
    with opened(encryption=Encryption(MASTER)) as state:
        state.schedules.put("daily", "agent", {"text": "said"}, cron="0 0 1 1 *", config=config)
        default = DefaultAnswer("yes", after=timedelta(milliseconds=1))
        run = state.runs.enqueue("ask", {}, thread_id="t", config=config, default_answer=default)
        Worker(state, {"ask": graph}).run_until_idle()
        assert run.status() == "interrupted"
    due = f"""UPDATE "{schema}".schedules SET next_at = date_trunc('second', now())"""
    connection.execute(due.encode())
    with opened(encryption=Encryption(MASTER)) as state:
        (fired,) = state.schedules.fire()
        assert (state.schedules.get("daily").last_run_id, state.schedules.get("daily").last_error) == (
            fired.run_id,
            None,
        )
    with opened(encryption=Encryption(MASTER)) as state:
        known = queries(schema)
        (given,) = state._database.run(answers.answer_by_default, known, state._codec, "t", run.run_id)
        assert (given.value, given.is_default) == ("yes", True)


def test_all_adopted_runs_are_returned_although_keys_of_their_users_are_loaded_between(
    opened: Any, schema: str, connection: psycopg.Connection
) -> None:
    with opened(encryption=Encryption(MASTER, scope="user")) as state:
        graph = state.record(graph_of([]).copy({"checkpointer": state.saver, "name": "agent"}))
        for name in ("ann", "bob", "eve"):
            graph.invoke({"text": "said"}, {"configurable": {"thread_id": name, "user_id": name}}, durability="sync")
    lost = "status = 'running', ended_at = NULL, alive_until = now() - interval '1 day', holder_id = NULL"
    connection.execute(f'UPDATE "{schema}".runs SET {lost}'.encode())
    with opened(encryption=Encryption(MASTER, scope="user")) as state:
        assert [run.thread_id for run in state.runs.adopt()] == ["ann", "bob", "eve"]
        assert state.runs.adopt() == []


def test_a_claim_is_undone_while_the_master_key_does_not_answer(
    opened: Any, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: a run that was claimed without its key would count as crashed, and webhooks would wait."""
    is_down = threading.Event()

    def unwrap(key: bytes, context: Any) -> bytes:
        if is_down.is_set():
            raise TimeoutError("no answer")
        return MASTER.unwrap(key, context)

    def opening() -> Any:
        return opened(encryption=Encryption(CallableMasterKey("own", MASTER.wrap, unwrap)))

    with opening() as state:
        state.runs.enqueue("agent", {"text": "a"}, thread_id="t", run_id="a")
    is_down.set()
    rows = f'SELECT status, attempt, crashes FROM "{schema}".queue'.encode()
    with opening() as state:
        claimed = partial(claiming.claim, queries=queries(schema), worker_id="w", queue="default", graphs=["agent"])
        with pytest.raises(KeyUnavailableError):
            state._database.run(lambda db: claimed(db, limit=5, ttl=10.0))
        assert connection.execute(rows).fetchall() == [("pending", 0, 0)]
        is_down.clear()
        found = state._database.run(lambda db: claimed(db, limit=5, ttl=10.0))
        assert [run.run_id for run in found.runs] == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_claim_that_is_undone_leaves_no_transaction_open(
    dsn: str, schema: str, connection: psycopg.Connection, tenant: str | None
) -> None:
    """For a missing key as for an error of the server; the connection is used again, not replaced."""
    master, claimed = LocalMasterKey(bytes(range(32))), partial(claiming.claim, worker_id="w", queue="default")
    with ExitStack() as stack:
        walled = None if tenant is None else stack.enter_context(open_walled(dsn))
        place, name = (dsn, schema) if walled is None else (walled.app, walled.schema)
        own: dict[str, Any] = {"schema": name, "tenant": tenant, "pool": False}
        state = stack.enter_context(PGState.open(place, encryption=Encryption(master), **own))
        runs = [state.runs.enqueue("agent", {"text": "a"}, thread_id=f"t{number}").run_id for number in range(4)]
        database = state._database

        def claim(**given: Any) -> list[str]:
            options = {"queries": queries(name), "graphs": ["agent"], "limit": 1, "ttl": 10.0, **given}
            return [run.run_id for run in database.run(lambda db: claimed(db, **options)).runs]

        def backend() -> int:
            """The connection, which must be idle."""
            found: int = database.run(_backend)
            return found

        found, first = claim(), backend()
        database.keys.expire()
        found += claim()
        with pytest.raises(DatabaseError):
            claim(ttl=float("nan"))
        assert backend() == first
        found += claim() + claim()
        assert (found, backend()) == (runs, first)


async def _backend(db: Any) -> int:
    assert not db.is_in_transaction
    found: int = db.connection.info.backend_pid
    return found


def test_who_enqueues_the_first_run_of_a_thread_owns_its_data_key(
    opened: Any, schema: str, connection: psycopg.Connection
) -> None:
    """Guard: the thread has no row yet, so that its owner could be taken for none."""
    with opened(encryption=Encryption(MASTER, scope="user")) as state:
        state.runs.enqueue(
            "agent", {"text": "a"}, thread_id="t", config={"configurable": {"user_id": "anna"}}, metadata={"note": "x"}
        )
    rows = connection.execute(f'SELECT scope FROM "{schema}".data_keys').fetchall()
    assert rows == [("user:anna",)]


@pytest.mark.parametrize("gone", ["DELETE FROM {}.data_keys", "UPDATE {}.data_keys SET master_id = 'another'"])
def test_a_run_whose_data_key_is_gone_keeps_no_other_from_being_claimed(
    opened: Any, schema: str, connection: psycopg.Connection, gone: str
) -> None:
    seen: list[Any] = []
    with opened(encryption=Encryption(MASTER, scope="thread")) as state:
        for name in ("a", "b"):
            state.runs.enqueue("agent", {"text": name}, thread_id=name, run_id=name)
    connection.execute(f"{gone} WHERE scope = 'thread:a'".replace("{}", f'"{schema}"').encode())
    with opened(encryption=Encryption(MASTER, scope="thread")) as state:
        Worker(state, {"agent": graph_of(seen)}, poll=0.05).run_until_idle()
        assert [text for text, *_ in seen] == ["b"]


def test_a_worker_logs_no_message_of_an_exception(opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    with opened(encryption=Encryption(MASTER)) as state:
        state.runs.enqueue("agent", {"text": "fail"}, thread_id="t", run_id="r")
        Worker(state, {"agent": graph_of([])}, poll=0.05).run_until_idle()
    assert "run r of thread t failed: ValueError" in caplog.text
    assert WORDS["raised"] not in caplog.text
