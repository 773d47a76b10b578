"""Versions, expiry and supersession against a model in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from support import examples

from langgraph_pgstate.memory import PGMemoryStore

WHERE = ("memories",)
KEYS, TEXTS = ("home", "diet"), ("Rome", "Oslo", "Bern")


class Version(NamedTuple):
    text: str
    since: datetime
    until: datetime | None
    is_deleted: bool


class Model:
    """What the store should know: per key the versions, and whether the last one is there, or has expired."""

    def __init__(self) -> None:
        self.versions: dict[str, list[Version]] = {key: [] for key in KEYS}
        self.expired: set[str] = set()

    def current(self, key: str) -> Version | None:
        kept = self.versions[key]
        return kept[-1] if kept and kept[-1].until is None and key not in self.expired else None

    def remember(self, key: str, text: str, at: datetime) -> None:
        self._drop(key)
        current = self.current(key)
        if current is not None and current.text == text:
            return
        self._end(key, at, is_deleted=False)
        self.versions[key].append(Version(text, at, None, False))

    def forget(self, key: str, at: datetime) -> None:
        if key not in self.expired:
            self._end(key, at, is_deleted=True)

    def _end(self, key: str, at: datetime, *, is_deleted: bool) -> None:
        if (current := self.current(key)) is not None:
            self.versions[key][-1] = current._replace(until=at, is_deleted=is_deleted)

    def _drop(self, key: str) -> None:
        if key in self.expired:
            self.versions[key].clear()
            self.expired.discard(key)

    def sweep(self) -> None:
        for key in KEYS:
            self._drop(key)

    def valid(self, at: datetime) -> dict[str, str]:
        return {
            key: one.text
            for key in KEYS
            if key not in self.expired
            for one in self.versions[key]
            if one.since <= at and (one.until is None or at < one.until)
        }

    def history(self, key: str) -> list[tuple[str, bool]]:
        return [] if key in self.expired else [(one.text, one.is_deleted) for one in reversed(self.versions[key])]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["remember", "remember", "forget", "restore", "expire", "sweep", "purge"]),
        st.sampled_from(KEYS),
        st.sampled_from(TEXTS),
        st.integers(0, 5),
    ),
    max_size=14,
)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_versions_are_those_of_the_model(
    dsn: str, schema: str, connection: psycopg.Connection, schemas: Any, steps: list[tuple[str, str, str, int]]
) -> None:
    schemas.empty(schema)
    connection.autocommit = True
    expire = sql.SQL("UPDATE {} SET expires_at = now() WHERE key = %s").format(sql.Identifier(schema, "memories"))
    model, times = Model(), [_now(connection)]
    store = PGMemoryStore(connection, schema=schema, history=None)
    actions: dict[str, Callable[..., Any]] = {
        "remember": lambda key, text: store.remember(text, key=key),
        "forget": lambda key, text: store.forget(key, namespace=WHERE),
        "expire": lambda key, text: connection.execute(expire, [key]),
        "sweep": lambda key, text: store.sweep_ttl(),
        "purge": lambda key, text: store.forget(key, namespace=WHERE, purge=True),
    }
    for action, key, text, number in steps:
        if action == "restore":
            kept = store.history(WHERE, key)
            if not kept:
                continue
            chosen = kept[number % len(kept)]
            store.restore(WHERE, key, chosen.version)
            model.remember(key, chosen.value["content"], _now(connection))
        else:
            actions[action](key, text)
            if action == "remember":
                model.remember(key, text, _now(connection))
            elif action == "forget":
                model.forget(key, _now(connection))
            elif action == "expire" and model.current(key) is not None:
                model.expired.add(key)
            elif action == "sweep":
                model.sweep()
            elif action == "purge":
                model.versions[key].clear()
                model.expired.discard(key)
        times.append(_now(connection))
        assert {one.key: one.content for one in store.recall()} == model.valid(times[-1])
        for one in KEYS:
            assert [(each.value["content"], each.is_deleted) for each in store.history(WHERE, one)] == model.history(
                one
            )
    for at in times:
        assert {one.key: one.content for one in store.recall(as_of=at)} == model.valid(at)


def _now(connection: psycopg.Connection) -> datetime:
    ((at,),) = connection.execute("SELECT clock_timestamp()").fetchall()
    found: datetime = at
    return found
