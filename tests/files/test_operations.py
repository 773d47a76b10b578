"""Writes of files under lost connections, and the plans of their searches."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from langgraph_pgstate import PGState
from langgraph_pgstate.db import database
from langgraph_pgstate.db.adapters import BlockingConnection
from langgraph_pgstate.files import Files

ADA = ("ada",)


class Losing(BlockingConnection):
    """A connection that is lost after the server has done what some statements say, once each."""

    names: set[str] = set()

    async def fetch(self, query: Any, parameters: Any) -> Any:
        found = await super().fetch(query, parameters)
        if query.name in Losing.names:
            Losing.names.discard(query.name)
            self.connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return found


@pytest.fixture
def losing(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Files whose next call loses its connection after a statement."""
    monkeypatch.setattr(database, "BlockingConnection", Losing)
    with PGState.open(dsn, schema=schema) as state:
        yield state.files
    assert Losing.names == set()


def history(files: Files, path: str = "/a") -> list[tuple[int, str]]:
    return [(one.version, one.operation) for one in files.history(ADA, path).items]


def test_a_write_that_is_repeated_makes_one_version(losing: Files) -> None:
    Losing.names = {"put_file_first"}
    assert losing.write(ADA, "/a", "one", expected_version=0).version == 1
    Losing.names = {"put_file"}
    assert losing.write(ADA, "/a", "two", expected_version=1).version == 2
    Losing.names = {"put_file"}
    assert losing.restore(ADA, "/a", 1).version == 3
    assert history(losing) == [(3, "restore"), (2, "write"), (1, "write")]


def test_a_deletion_that_is_repeated_says_what_it_has_deleted(losing: Files) -> None:
    for path in ("/d/a", "/d/b"):
        losing.write(ADA, path, "one")
    Losing.names = {"delete_files"}
    assert losing.delete(ADA, "/d") == ("/d/a", "/d/b")
    assert history(losing, "/d/a") == [(2, "delete"), (1, "write")]
    assert losing.delete(ADA, "/d") == ()
