"""The PostgreSQL under test: its settings, fresh schemas, write-ahead log positions and sizes."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from langgraph_pgstate.db.embedded import embedded_server

# fsync, full_page_writes and synchronous_commit keep their defaults, on: figures without durability mean nothing.
_QUIET_SETTINGS = {
    "autovacuum": "off",
    # No checkpoint but the forced ones: full-page images appear where a case wants them, equally for everybody.
    "checkpoint_timeout": "1d",
    "max_wal_size": "32GB",
}
_REPORTED_SETTINGS = (
    "autovacuum",
    "checkpoint_timeout",
    "max_wal_size",
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "wal_level",
    "wal_compression",
    "data_checksums",
    "shared_buffers",
    "max_connections",
    "default_toast_compression",
    "jit",
)


@dataclass(slots=True)
class Server:
    """A server and a connection for looking at it, outside of everything timed.

    Attributes:
        dsn: For the contestants.
        is_embedded: Whether this run started it.
    """

    dsn: str
    is_embedded: bool
    _admin: psycopg.Connection[Any]
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @contextmanager
    def schema(self, prefix: str) -> Iterator[str]:
        """An empty schema, dropped at the end."""
        name = f"bench_{prefix}_{next(self._numbers)}"
        self._admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        self._admin.execute(f"CREATE SCHEMA {name}")
        try:
            yield name
        finally:
            self._admin.execute(f"DROP SCHEMA {name} CASCADE")

    @contextmanager
    def database(self, prefix: str) -> Iterator[str]:
        """The URL of an empty database, dropped at the end."""
        name = f"bench_{prefix}_{next(self._numbers)}_{os.getpid()}"
        self._admin.execute(f"CREATE DATABASE {name}")
        try:
            info = self._admin.info
            account = quote(info.user) + (f":{quote(info.password)}" if info.password else "")
            yield f"postgresql://{account}@/{name}?host={quote(info.host, safe='')}&port={info.port}"
        finally:
            self._admin.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def empty(self, schema: str) -> None:
        """Forget what a warm-up stored; migration records stay."""
        rows = self._admin.execute(
            "SELECT format('%%I.%%I', schemaname, tablename) FROM pg_tables "
            "WHERE schemaname = %s AND tablename NOT LIKE '%%migrations'",
            [schema],
        ).fetchall()
        self._admin.execute(f"TRUNCATE {', '.join(name for (name,) in rows)}")

    def checkpoint(self) -> None:
        """Flush everything: the next change of any page logs a full image of it."""
        self._admin.execute("CHECKPOINT")

    def wal_position(self) -> int:
        """Bytes of write-ahead log inserted since the cluster was made. Cluster-wide."""
        row = self._admin.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        return int(row[0])

    def size(self, schema: str) -> int:
        """Bytes on disk of a schema's tables, with their indexes and TOAST."""
        row = self._admin.execute(
            "SELECT sum(pg_total_relation_size(format('%%I.%%I', schemaname, tablename)::regclass))::bigint "
            "FROM pg_tables WHERE schemaname = %s",
            [schema],
        ).fetchone()
        assert row is not None
        return int(row[0] or 0)

    def version(self) -> str:
        """The server's version, without its build."""
        row = self._admin.execute("SHOW server_version").fetchone()
        assert row is not None
        return str(row[0]).split(" ", maxsplit=1)[0]

    def settings(self) -> dict[str, str]:
        """The settings that matter for the figures."""
        rows = self._admin.execute(
            "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)", [list(_REPORTED_SETTINGS)]
        ).fetchall()
        found = dict(rows)
        return {name: found[name] for name in _REPORTED_SETTINGS if name in found}

    def dsn_through(self, port: int) -> str:
        """The DSN by way of a proxy on this port of 127.0.0.1."""
        return make_conninfo(
            self.dsn, host="127.0.0.1", hostaddr="", port=port, sslmode="disable", gssencmode="disable"
        )

    def address(self) -> tuple[str, int]:
        """Where the server listens, for a proxy: a socket directory or a host, and a port."""
        info = self._admin.info
        return info.host, info.port


@contextmanager
def open_server(dsn: str | None) -> Iterator[Server]:
    """An embedded server of its own in a temporary directory, or the one a DSN names.

    A server named by a DSN is measured with the settings it has.
    """
    if dsn is not None:
        with psycopg.connect(dsn, autocommit=True) as admin:
            yield Server(dsn, False, admin)
        return
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        embedded_server(directory) as embedded,
        psycopg.connect(embedded, autocommit=True) as admin,
    ):
        for name, value in _QUIET_SETTINGS.items():
            admin.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        admin.execute("SELECT pg_reload_conf()")
        yield Server(embedded, True, admin)


def with_search_path(dsn: str, schema: str) -> str:
    """A DSN whose sessions look for tables in `schema` first: how LangGraph's own saver is given a schema."""
    options = conninfo_to_dict(dsn).get("options") or ""
    return make_conninfo(dsn, options=f"{options} -c search_path={schema}".strip())
