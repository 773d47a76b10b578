"""The examples, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.http import sdk

from langgraph_pgstate import AsyncPGState
from langgraph_pgstate.worker.graphs import load_value

pytestmark = pytest.mark.once


ROOT = Path(__file__).parents[2]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("PGSTATE_DSN", "COLUMNS")}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The server of a root user runs as another one, who has to be let in.
    path = tmp_path_factory.mktemp("a demo, in a path with spaces")
    for parent in (path, *path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    return path


def run_twice(directory: Path, example: str) -> list[subprocess.CompletedProcess[str]]:
    command = [sys.executable, str(ROOT / "examples" / example)]
    return [
        subprocess.run(command, capture_output=True, text=True, cwd=directory, check=False, env=ENVIRONMENT)
        for _ in range(2)
    ]


@pytest.mark.slow
def test_the_example_is_killed_and_resumes(directory: Path) -> None:
    runs = run_twice(directory, "kill_and_resume.py")
    assert [run.returncode for run in runs] == [-signal.SIGKILL, 0]
    assert runs[0].stdout.split("\n") == ["booking the flight", "booking the hotel", ""]
    assert runs[1].stdout.split("\n") == ["booking the hotel", "{'booked': ['flight', 'hotel']}", ""]
    assert runs[1].stderr == ""


@pytest.mark.slow
def test_the_example_charges_once_and_is_recorded(directory: Path) -> None:
    runs = run_twice(directory, "record_and_ledger.py")
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr + runs[1].stderr
    assert ["the card is charged" in run.stdout for run in runs] == [True, False]
    assert ["    tool charge: success" in run.stdout for run in runs] == [True, False]
    for run in runs:
        assert "tool: 90 euros charged for order 17\nai: Order 17 is paid." in run.stdout
        assert "graph LangGraph: success\n  node agent: success" in run.stdout
        assert run.stdout.endswith("charge: success, attempt 1, 90 euros charged for order 17\n")


@pytest.mark.slow
async def test_the_application_serves_each_user_its_own_threads(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load_value("app.py:app", ROOT / "examples" / "fastapi")
    monkeypatch.setenv("PGSTATE_DSN", dsn)
    async with AsyncPGState.open(dsn) as state:
        await state.setup()
    async with example.router.lifespan_context(example), AsyncExitStack() as stack:
        eve, bob = [
            await stack.enter_async_context(sdk(example, {"authorization": f"Bearer {name}"}, "/agents"))
            for name in ("eve", "bob")
        ]
        thread = (await eve.threads.create())["thread_id"]
        values: Any = await eve.runs.wait(thread, "agent", input={"messages": [{"role": "user", "content": "Hello."}]})
        assert values["messages"][-1]["content"] == "Hello from PostgreSQL."
        assert [one["thread_id"] for one in await eve.threads.search()] == [thread]
        assert await bob.threads.search() == []
        await eve.threads.delete(thread)
