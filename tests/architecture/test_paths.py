"""The paths of the calls that users wait for most: no function, and no file to read, joins them unnoticed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.base.id import uuid6

import langgraph_pgstate
from langgraph_pgstate import PGState

_PACKAGE = Path(inspect.getfile(langgraph_pgstate)).parent
_THREAD = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
# Functions and files at most. A change that needs more says why in its commit.
MOST = {
    "put": (61, 15),
    "get_tuple": (73, 18),
    "threads.list": (47, 14),
    "runs.list": (45, 13),
}


def path_of(call: Callable[[], object]) -> set[tuple[str, str]]:
    """File and name of the package's functions that a call runs, without comprehensions and lambdas."""
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{_PACKAGE}/") and not code.co_name.startswith("<"):
            found.add((str(Path(code.co_filename).relative_to(_PACKAGE)), code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def checkpoint_of(count: int) -> Checkpoint:
    """A checkpoint of a list of short strings."""
    version = f"{count:032}.0.5"
    return {
        "v": 4,
        "id": str(uuid6()),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"texts": [f"text {number}" for number in range(count)]},
        "channel_versions": {"texts": version},
        "versions_seen": {},
        "updated_channels": ["texts"],
    }


def calls(state: PGState) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each call, after enough calls of its kind that its statements are prepared and its thread is cached."""
    config: Any = _THREAD
    for count in range(1, 25):
        config = put(state, config, count)
    yield "put", lambda: put(state, config, 25)
    reads: dict[str, Callable[[], object]] = {
        "get_tuple": lambda: state.saver.get_tuple(_THREAD),  # type: ignore[arg-type]
        "threads.list": lambda: state.threads.list(limit=10),
        "runs.list": lambda: state.runs.list(limit=10),
    }
    for name, read in reads.items():
        for _ in range(8):
            read()
        yield name, read


def put(state: PGState, config: Any, count: int) -> Any:
    checkpoint = checkpoint_of(count)
    return state.saver.put(
        config, checkpoint, {"source": "loop", "step": count, "parents": {}}, checkpoint["channel_versions"]
    )


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with ExitStack() as stack:
        state = stack.enter_context(PGState.open(dsn, schema=schema))
        state.setup()
        # The plain saver, which records nothing.
        state.saver._hook = None
        yield state


def test_the_paths_of_calls_do_not_grow(state: PGState) -> None:
    for name, call in calls(state):
        # Once a second, a read looks after the journal. A put is repeated with the same id.
        path = min((path_of(call) for _ in range(3)), key=len)
        files = {file for file, _ in path}
        assert len(path) <= MOST[name][0], (name, sorted(path))
        assert len(files) <= MOST[name][1], (name, sorted(files))
