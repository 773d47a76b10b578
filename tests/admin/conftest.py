"""LangGraph's own saver, and an import from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from support.official import official_saver

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.admin.types import TransferReport


@pytest.fixture
def old_schema(schema: str, connection: psycopg.Connection) -> Iterator[str]:
    name = f"{schema}_old"
    yield name
    connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def old(dsn: str, old_schema: str) -> Iterator[PostgresSaver]:
    """The official saver, set up."""
    with official_saver(dsn, old_schema) as saver:
        yield saver


@pytest.fixture
def admin(dsn: str, schema: str, saver: PGStateSaver) -> Iterator[Admin]:
    with Admin.open(dsn, schema=schema) as admin:
        yield admin


@pytest.fixture
def bring(admin: Admin, dsn: str, old_schema: str) -> Any:
    """Import, and expect nothing wrong unless told otherwise."""

    def bring(*, clean: bool = True, **options: Any) -> TransferReport:
        report = admin.import_langgraph(dsn, source_schema=old_schema, **options)
        if clean:
            assert report.differences == []
            assert report.conflicts == []
        return report

    return bring
