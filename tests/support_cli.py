"""Commands in this process and in one of their own, and what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage

from langgraph_pgstate.cli.agent import FIRST_WISH, build_agent, follow_up, offline_model

Run = Any


def words(result: Any) -> str:
    """What was printed, whatever the line breaks."""
    return " ".join(result.output.split())


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
