"""Commands in this process and in one of their own, and what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from support_record import EPOCH

from langgraph_pgstate.cli.agent import FIRST_WISH, build_agent, follow_up, offline_model

Run = Any
# Times in a record are seconds after its epoch; this one is of the last hour.
NOW = (datetime.now(UTC) - EPOCH).total_seconds() - 1800
PRAGUE, FAILED = "0198f0aa-7ee7-7284-ab5f-cc8e3a352424", "0198f0aa-7ee8-7284-ab5f-2d3e8a711907"


def words(result: Any) -> str:
    """What was printed, whatever the line breaks."""
    return " ".join(result.output.split())


def lines(shown: str, *words: str) -> list[str]:
    """The lines that hold some words, with single blanks."""
    found = [" ".join(line.split()) for line in shown.splitlines()]
    return [line for line in found if all(word in line for word in words)]


def converse(saver: Any, thread_id: str, turns: int) -> None:
    graph = build_agent(offline_model(), saver, lambda *_: None, hotel_seconds=0)
    config: Any = {"configurable": {"thread_id": thread_id}}
    graph.invoke({"messages": [HumanMessage(FIRST_WISH)]}, config)
    for turn in range(2, turns + 1):
        graph.invoke({"messages": [HumanMessage(follow_up(turn))]}, config)


def pgstate(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PGSTATE_DSN"}
    return subprocess.run(
        [sys.executable, "-m", "langgraph_pgstate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
    )
