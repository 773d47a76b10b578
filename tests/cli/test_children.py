"""The demo's child processes: what they did, and how they fail."""

from __future__ import annotations

import pytest
from psycopg.conninfo import make_conninfo

from langgraph_pgstate.cli.children import DemoError, ToolRuns, started
from langgraph_pgstate.cli.demo_child import Job


def test_a_tool_is_inside_until_it_ends() -> None:
    runs = ToolRuns()
    runs.begun.update(["search", "book", "book"])
    runs.finished.update(["search", "book"])
    assert runs.inside == {"book": 1}


def test_what_a_child_reports_is_raised_by_name(dsn: str) -> None:
    job = Job("begin", make_conninfo(dsn, dbname="nowhere"), "pgstate", "t", "p1", None)
    with started(job) as child, pytest.raises(DemoError, match=r"process p1 failed: .*nowhere"):
        list(child.events())
