"""LangGraph's own server and ours answer the same calls alike, but for what is listed here with a reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from langgraph_sdk import get_client
from support.comparison import MISSING, differences, play
from support.http import sdk, serving
from support.server import AgentServer

pytest.importorskip("langgraph_api")
pytestmark = [pytest.mark.long, pytest.mark.once]

GRAPHS: Final = Path(__file__).parents[1] / "support/http.py"

# Calls that are answered otherwise on purpose.
OTHERWISE: Final = {
    "assistants.count of none": "there are none, which is no error",
    "assistants.get by name": "a name is as good as an id",
    "assistants.get unknown": "what is unknown is 404",
    "runs.create of nothing": "what is unknown is 404",
    "threads.copy unknown": "what is unknown is 404",
    "runs.join unknown": "what is unknown is 404",
    "join_stream unknown": "what is unknown is 404",
    "runs.cancel ended": "a run that has ended is cancelled as often as one likes",
    "runs.cancel": "an empty answer",
    "second run, reject: cancel": "an empty answer",
    "threads.search limit": "`updated_at` is the time of a put, which a change of metadata is not",
    "threads.search nested": "metadata are compared as by PostgreSQL",
    "threads.get_history before": "it works",
    "threads.get_history before id": "it works",
    "threads.get_state selected": "the names are those that are selected",
    "threads.copy of none": "a copy shows its values",
    "threads.copy": "a copy shows its values",
    "own.set_latest": "the context is that of the version",
    "stream checkpoints": "stateless runs have checkpoints, too",
    "stream debug": "stateless runs have checkpoints, too",
}
# Parts of answers that are otherwise on purpose.
PARTS: Final = {
    r"\.metadata\.(langgraph_\w+|created_by|user_id|thread_id|mark|graph_id|checkpoint_\w+|run_attempt)$": "labels",
    r"\.(langgraph_\w+|created_by|user_id|thread_id|checkpoint_ns|mark)$": "labels of a stream's metadata",
    r"\.(kwargs|langsmith_session_name)$": "not kept",
    r"\.config\.configurable$": "threads have no config",
    r"\.response_schema$": "left out if there is none",
    r"\.data\.id$": "the class of a node",
    r"\.state_schema\.": "made of the type itself",
    r"subgraphs.*\.graph_id$": "the graph of a subgraph",
    r"of none\.checkpoint$": "RemoteGraph reads its thread",
    r"^threads.get_state at id\.checkpoint\.checkpoint_ns$": "the whole name",
    r"^interrupt: runs\[0\]\.status$": "a run that waits for an answer is interrupted",
    r"^runs.create(_batch\[\d\]| stateless)?\.status$": "it may have begun",
    r"config\.configurable\.(__\w+|assistant_id|graph_id)$": "labels, and keys of that server",
    r"^crons.*\.timezone$": "UTC has a name",
    r"^crons.*\.next_run_date$": "a cron that is not enabled has no next run",
    r"^crons.*\.payload\.(enabled|multitask_strategy|on_run_completed|timezone)$": "they are the cron's",
    r"^crons.*\.payload\.metadata": "all that its runs get",
    r"^second run, reject: thread\.(values\.count|error)": "how far it came; a run that was cancelled has no error",
}
# Fields that only we have.
MORE: Final = {r"\.(error|interrupts|values)$": "always there, empty or null"}


async def test_answers_are_alike(dsn: str, schema: str, tmp_path: Path) -> None:
    directory = tmp_path / "theirs"
    directory.mkdir()
    names = ("chat", "asking", "slow", "failing")
    config = {"dependencies": ["."], "graphs": {name: f"{GRAPHS}:{name}" for name in names}}
    (directory / "langgraph.json").write_text(json.dumps(config))
    theirs = AgentServer(directory, {})
    theirs.start()
    try:
        async with get_client(url=theirs.url, api_key=None) as client:
            expected = await play(client)
    finally:
        theirs.stop()
    async with serving(dsn, schema) as server, sdk(server) as client:
        found = await play(client)
    assert found.keys() == expected.keys()
    assert len(found) > 100
    assert unexplained(expected, found) == []
    assert [name for name in OTHERWISE if not [*differences(expected[name], found[name])]] == []


def unexplained(theirs: dict[str, Any], ours: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the differences that are not listed above."""
    return [
        (place, one, other)
        for name in theirs
        if name not in OTHERWISE
        for place, one, other in differences(theirs[name], ours.get(name, MISSING), name)
        if not any(re.search(pattern, place) for pattern in (*PARTS, *(MORE if one == MISSING else ())))
    ]
