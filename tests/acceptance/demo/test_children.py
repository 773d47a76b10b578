"""The demo's child processes: what they did, and how they fail."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from psycopg.conninfo import make_conninfo

from examples.demo.child import Job
from examples.demo.children import Child, DemoError, ToolRuns, started


def test_a_tool_is_inside_until_it_ends() -> None:
    runs = ToolRuns()
    runs.begun.update(["search", "book", "book"])
    runs.finished.update(["search", "book"])
    assert runs.inside == {"book": 1}


def test_what_a_child_reports_is_raised_by_name() -> None:
    program = f"print({json.dumps({'what': 'error', 'message': 'no such database'})!r})"
    command = [sys.executable, "-S", "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    with process, pytest.raises(DemoError, match=r"process p1 failed: no such database"):
        list(Child(process, "p1").events())


@pytest.mark.slow
def test_a_child_reports_that_it_cannot_connect(dsn: str) -> None:
    job = Job("begin", make_conninfo(dsn, dbname="nowhere"), "pgstate", "t", "p1", None)
    with started(job) as child, pytest.raises(DemoError, match=r"process p1 failed: .*nowhere"):
        list(child.events())
