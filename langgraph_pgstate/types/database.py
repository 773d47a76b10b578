"""A database at a glance: its tables, their maintenance, and slow statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langgraph_pgstate.types.schema import AppliedMigration


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """A table with its partitions.

    Attributes:
        name: The table.
        bytes: Bytes on disk, indexes included.
        index_bytes: Bytes of its indexes.
        rows: PostgreSQL's estimate of its rows.
        dead_rows: PostgreSQL's estimate of its dead rows.
        partitions: Number of its partitions; 0 if it has none.
        vacuumed_at: Time it was vacuumed last; `None` for never.
        analyzed_at: Time it was analyzed last; `None` for never.
    """

    name: str
    bytes: int
    index_bytes: int
    rows: int
    dead_rows: int
    partitions: int
    vacuumed_at: datetime | None
    analyzed_at: datetime | None


@dataclass(frozen=True, slots=True)
class MaintenanceNote:
    """The result of one call of `maintain`.

    Attributes:
        maintained_at: Time it ended.
        seconds: How long it took.
        report: A `MaintenanceReport` as a mapping.
        sizes: Bytes of each table, with indexes and partitions.
    """

    maintained_at: datetime
    seconds: float
    report: Mapping[str, Any]
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SlowStatement:
    """A statement, as pg_stat_statements has counted it.

    Attributes:
        text: The first 600 characters of the statement, without its values.
        calls: Number of its calls.
        total_ms: Milliseconds of all calls.
        mean_ms: Milliseconds of a call.
        max_ms: Milliseconds of the longest call.
        rows: Rows returned or changed by all calls.
    """

    text: str
    calls: int
    total_ms: float
    mean_ms: float
    max_ms: float
    rows: int


@dataclass(frozen=True, slots=True)
class DatabaseOverview:
    """An overview of the database.

    Attributes:
        schema: The PostgreSQL schema of the tables.
        server_version: The server's version, like `18.1`.
        is_standby: Whether the server is a standby, which is read-only.
        now: The time of the server.
        size: Bytes of the whole database.
        tables: The tables of the schema, the largest first.
        migrations: The migrations that were applied.
        pending: Names of the migrations still to apply.
        maintenance: What `maintain` did, newest first; 400 calls at most.
        statements: The statements on the schema's tables that took the most time together; `None` if the extension
            pg_stat_statements is not there or not readable.
    """

    schema: str
    server_version: str
    is_standby: bool
    now: datetime
    size: int
    tables: tuple[MeasuredTable, ...]
    migrations: tuple[AppliedMigration, ...]
    pending: tuple[str, ...]
    maintenance: tuple[MaintenanceNote, ...]
    statements: tuple[SlowStatement, ...] | None
