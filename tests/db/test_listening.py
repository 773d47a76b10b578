"""Listening for notifications: hints that arrive, again after an outage, and not after the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support import wait_until

from langgraph_pgstate.db.listening import Listener

CHANNEL = "a channel"


@pytest.fixture
def heard(dsn: str) -> Iterator[threading.Event]:
    """What a listener sets for each notification."""
    event = threading.Event()
    listener = Listener(dsn, CHANNEL, lambda payload: event.set())
    yield event
    listener.close()


def notify(connection: psycopg.Connection) -> None:
    connection.execute("SELECT pg_notify(%s, '')", [CHANNEL])


def arrives(connection: psycopg.Connection, heard: threading.Event) -> bool:
    """Notify until it is heard: a listener needs a moment to connect."""

    def is_heard() -> bool:
        notify(connection)
        return heard.wait(0.05)

    wait_until(is_heard, "a notification")
    heard.clear()
    return True


@pytest.mark.slow
def test_a_notification_is_heard_also_after_the_connection_was_lost(
    connection: psycopg.Connection, heard: threading.Event
) -> None:
    assert arrives(connection, heard)
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN \"a channel\"'"
    assert connection.execute(query).fetchall() == [(True,)]
    assert arrives(connection, heard)


def test_a_server_that_vanished_is_noticed(
    dsn: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent on an idle connection, so that without these it would wait for ever."""
    made: list[psycopg.Connection] = []
    connect = psycopg.connect
    monkeypatch.setattr(
        psycopg, "connect", lambda *given, **options: made.append(connect(*given, **options)) or made[-1]
    )
    event = threading.Event()
    listener = Listener(dsn, CHANNEL, lambda payload: event.set())
    assert arrives(connection, event)
    listener.close()
    found = conninfo_to_dict(made[0].info.dsn)
    assert {"keepalives_idle", "tcp_user_timeout", "connect_timeout"} <= found.keys()


def test_other_channels_are_not_heard(connection: psycopg.Connection, heard: threading.Event) -> None:
    assert arrives(connection, heard)
    connection.execute("SELECT pg_notify('another channel', '')")
    assert not heard.wait(0.2)


@pytest.mark.slow
def test_nothing_is_heard_after_the_end(dsn: str, connection: psycopg.Connection) -> None:
    event = threading.Event()
    listener = Listener(dsn, CHANNEL, lambda payload: event.set())
    assert arrives(connection, event)
    listener.close()
    listener._thread.join(5)
    notify(connection)
    assert not event.wait(0.2)
