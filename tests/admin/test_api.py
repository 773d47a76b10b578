"""`Admin`: the schema moved up and down, and its script."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.errors import ConfigurationError


@pytest.mark.slow
@pytest.mark.bare
def test_the_schema_is_set_up_moved_and_described(dsn: str, schema: str) -> None:
    with Admin.open(dsn, schema=schema) as admin:
        before = admin.status()
        assert (admin.schema, before.schema, before.version) == (schema, schema, 0)
        assert before.pending == tuple(admin.setup())
        assert admin.setup() == []
        assert (admin.status().version, admin.status().pending) == (before.expected, ())
        assert admin.migrate(0)[0].startswith("down ")
        assert admin.status().version == 0
        assert len(admin.migrate()) == before.expected
        assert admin.migrate() == []
        with pytest.raises(ConfigurationError):
            admin.migrate(before.expected + 1)


@pytest.mark.bare
def test_the_script_does_what_setup_does(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with Admin.open(dsn, schema=schema) as admin:
        connection.execute(Admin.setup_script(schema).encode())
        assert admin.setup() == []


def test_a_schema_is_a_plain_name(dsn: str) -> None:
    with pytest.raises(ConfigurationError), Admin.open(dsn, schema='a"; --'):
        pass


@pytest.mark.slow
def test_on_the_embedded_server(tmp_path: Path) -> None:
    with Admin.embedded(tmp_path / "data") as admin:
        admin.setup()
        assert admin.check().problems == []
