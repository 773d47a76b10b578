"""Options that every command takes, before its name and after."""

from __future__ import annotations

import json

import pytest
from support.cli import pgstate

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("schema_option", [["--schema", "no_such"], ["--schema=no_such"]])
def test_dsn_and_schema_are_taken_after_the_command_too(dsn: str, schema_option: list[str]) -> None:
    result = pgstate("check", "--dsn", dsn, "--thread", "t", *schema_option)
    assert result.returncode == 1
    assert "no_such" in result.stdout + result.stderr


@pytest.mark.slow
def test_json_is_taken_after_the_command_too(dsn: str, schema: str) -> None:
    result = pgstate("status", "--dsn", dsn, f"--schema={schema}", "--json")
    assert json.loads(result.stdout)["schema"] == schema
