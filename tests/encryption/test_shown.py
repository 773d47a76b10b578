"""What is shown besides rows: logs, the server's log, errors, metrics, exported spans and receipts have no secret."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from support import Restartable
from support.otlp import collecting

from langgraph_pgstate import Encryption, PGState
from langgraph_pgstate.encryption.cipher import MAGIC, to_text
from langgraph_pgstate.encryption.columns import SEALED_KEY
from langgraph_pgstate.errors import EncryptedError, PGStateError
from langgraph_pgstate.metrics import Metrics
from langgraph_pgstate.otlp.exporter import SpanExporter
from langgraph_pgstate.worker import Worker
from tests.encryption import test_queue
from tests.encryption.test_secrets import MASTER, WORDS, graph_of, live

ALL = WORDS | {f"queue {name}": word for name, word in test_queue.WORDS.items()}

# In plain text, these are compressed.
COMPRESSED = {"queue config", "queue context", "queue assistant", "queue assistant context", "queue stream"}


class Unstorable:
    """A value that no serializer takes, and that shows a secret."""

    def __repr__(self) -> str:
        return WORDS["scalar"]

    def __reduce__(self) -> Any:
        raise TypeError("it cannot be pickled")


@contextmanager
def logging_all(dsn: str) -> Iterator[None]:
    """Have the server log each statement with its parameters."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for setting in ("log_statement = 'all'", "log_parameter_max_length = -1", "log_error_verbosity = verbose"):
            connection.execute(f"ALTER SYSTEM SET {setting}".encode())
        connection.execute("SELECT pg_reload_conf()")
        yield
        connection.execute("ALTER SYSTEM RESET ALL")
        connection.execute("SELECT pg_reload_conf()")


def provoke(state: PGState, connection: psycopg.Connection, schema: str, is_encrypted: bool) -> Iterator[str]:
    """Yield what errors of this package say, with their causes."""

    def swap() -> Any:
        connection.execute(f"""UPDATE "{schema}".threads SET title = 'pgs1:' || title WHERE thread_id = 't'""".encode())
        return state.threads.get("t").title if is_encrypted else 1 / 0

    def spoil() -> Any:
        change = "UPDATE {}.checkpoints SET state = substr(state, 1, octet_length(state) - 3) WHERE thread_id = 'fork'"
        connection.execute(change.replace("{}", f'"{schema}"').encode())
        keys = Encryption(MASTER) if is_encrypted else None
        return PGState(connection, schema=schema, encryption=keys).saver.get({"configurable": {"thread_id": "fork"}})

    def clash() -> Any:
        check = f'ALTER TABLE "{schema}".threads ADD CHECK (title IS NULL OR length(title) < 1) NOT VALID'
        connection.execute(check.encode())

    graph = graph_of(state)
    calls = {
        "a value that cannot be stored": lambda: state.runs.enqueue("agent", {"text": Unstorable()}),
        "a run that is too large": lambda: state.runs.enqueue("agent", {"text": WORDS["human"]}, size_limit=10),
        "NUL": lambda: state.threads.update_metadata("t", {"note": WORDS["thread"] + "\0"}),
        "a filter": lambda: state.threads.search(metadata={"note": WORDS["thread"]}),
        "a constraint": clash,
        "a title": lambda: state.threads.set_title("fork", WORDS["title"] + " again"),
        "an unknown thread": lambda: graph.update_state({"configurable": {}}, {"scalar": WORDS["scalar"]}),
        "a state that is cut off": spoil,
        "a title that was changed": swap,
    }
    for name, call in calls.items():
        try:
            call()
        except (PGStateError, psycopg.Error) as error:
            yield f"{name}: {''.join(traceback.format_exception(error))} {error!r}"
        except Exception as error:
            yield f"{name}: {type(error).__name__}"


@pytest.mark.slow
@pytest.mark.parametrize("is_encrypted", [True, False])
def test_nothing_that_is_shown_has_a_secret(
    is_encrypted: bool, server: Restartable, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    """In plain text the server's log has nearly all of them: the search finds what there is."""
    schema = "shown_encrypted" if is_encrypted else "shown_plain"
    options: dict[str, Any] = {"encryption": Encryption(MASTER, scope="user")} if is_encrypted else {}
    caplog.set_level(logging.DEBUG)
    shown: dict[str, bytes] = {}
    log = server.directory / "log"
    before = log.stat().st_size
    with logging_all(server.dsn), PGState.open(server.dsn, schema=schema, project=("projected",), **options) as state:
        state.setup()
        live(state)
        test_queue.live(state, "http://127.0.0.1:1/done")
        with PGState.open(server.dsn, schema=schema, **options) as other:
            Worker(other, {"agent": test_queue.graph_of([])}, poll=0.05).run_until_idle()
        registry = CollectorRegistry()
        registry.register(Metrics(state))
        state.flush()
        shown["metrics"] = generate_latest(registry)
        with collecting() as collector:
            exporter = SpanExporter(server.dsn, collector.endpoint, schema=schema, since=timedelta(hours=1), **options)
            assert exporter.export() > 0
            exporter.close()
            shown["spans"] = b"".join(request.SerializeToString() for request in collector.requests)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            shown["errors"] = "\n".join(provoke(state, connection, schema, is_encrypted)).encode()
        done = state.privacy.erase(user_id="anna", key=bytes(32))
        shown["receipt"] = str(done.receipt).encode()
    # What a program logs of its own nodes is its own.
    shown["log"] = "\n".join(
        f"{one.getMessage()} {one.exc_text or ''}" for one in caplog.records if one.name.startswith("langgraph_pgstate")
    ).encode()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{schema}" CASCADE'.encode())
    shown["server"] = log.read_bytes()[before:]
    found = {where: {name for name, word in ALL.items() if holds(text, word)} for where, text in shown.items()}
    if is_encrypted:
        assert {where: names for where, names in found.items() if names} == {}
    else:
        assert found["server"] >= ALL.keys() - {"list", "asked", "later", "answer", "human"} - COMPRESSED
        assert found["metrics"] | found["spans"] | found["receipt"] == set()


def holds(text: bytes, word: str) -> bool:
    """Whether some bytes have a word, as it is or as PostgreSQL shows bytes."""
    return word.encode() in text or word.encode().hex().encode() in text


def test_what_only_looks_encrypted_hides_nothing(dsn: str, schema: str) -> None:
    """Guard: the words of one person would keep the lists of all from a program without keys."""
    words = to_text(MAGIC + bytes(60))
    with PGState.open(dsn, schema=schema) as state:
        state.threads.create("t", title=words, metadata={SEALED_KEY: words, "a": 1})
        state.threads.create("u", title="pgs1:", metadata={SEALED_KEY: {"a": [SEALED_KEY]}})
        state.memory.put(("n",), "k", {SEALED_KEY: words})
        assert {(one.title, one.metadata[SEALED_KEY] == words) for one in state.threads.list().items} == {
            (words, True),
            ("pgs1:", False),
        }
        found = state.memory.get(("n",), "k")
        assert found is not None
        assert found.value == {SEALED_KEY: words}
    with PGState.open(dsn, schema=schema, encryption=Encryption(MASTER)) as state:
        state.threads.create("v", title="secret")
        state.threads.create("w", metadata={"secret": 1})
    with PGState.open(dsn, schema=schema) as state:
        for thread_id in ("v", "w"):
            with pytest.raises(EncryptedError):
                state.threads.get(thread_id)
        with pytest.raises(EncryptedError):
            state.threads.list()
        assert state.threads.get("t") is not None
