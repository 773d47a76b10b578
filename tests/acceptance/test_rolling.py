"""Two versions of this package side by side on one schema, as in a rolling upgrade.

The older one is the last commit of the branch `main` before the working tree. Programs run in processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from support import GUARD_SECONDS

ROOT = Path(__file__).parents[2]
SCHEMA = "langgraph_pgstate/schema/schema.sql"
# What both versions can do. A line of input is a call, and a line of output its result.
PROGRAM = """
import json
import sys
from pathlib import Path

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import langgraph_pgstate
from langgraph_pgstate import PGState, Worker

dsn, schema, place = sys.argv[1:]
assert Path(langgraph_pgstate.__file__).is_relative_to(place), langgraph_pgstate.__file__


def reply(talk: MessagesState):
    said = talk["messages"][-1].text
    if said.endswith("?"):
        said = interrupt(said)
    return {"messages": [AIMessage(f"{note(said)} after {len(talk['messages'])}")]}


with PGState.open(dsn, schema=schema) as state:
    note = state.tools.once(key=lambda args: args["said"], name="note")(lambda said: f"noted {said}")
    builder = StateGraph(MessagesState).add_node(reply).add_edge(START, "reply")
    graph = state.record(builder.compile(checkpointer=state.saver))

    def texts(values):
        return [message.text for message in values["messages"]]

    def config(thread):
        return {"configurable": {"thread_id": thread}}

    def setup():
        return state.setup() and None

    def talk(thread, text):
        return texts(graph.invoke({"messages": [("user", text)]}, config(thread)))

    def read(thread):
        state.flush()
        recorded = [message.content for message in state.messages.conversation(thread)]
        ledger = sorted(execution.status for execution in state.tools.list(thread))
        return {"state": texts(graph.get_state(config(thread)).values), "recorded": recorded, "ledger": ledger}

    def fork(thread, to):
        head = state.saver.get_tuple(config(thread)).config["configurable"]["checkpoint_id"]
        return state.threads.fork(thread, head, to=to)["configurable"]["thread_id"]

    def enqueue(thread, text):
        return state.runs.enqueue("talk", {"messages": [("user", text)]}, thread_id=thread).run_id

    def answer(thread, text):
        return state.interrupts.answer_run(thread, text, by="eve").run_id

    def work(thread, run):
        with Worker(state, {"talk": builder.compile()}):
            values = state.runs.handle(thread, run).wait(timeout=60)
        return [one.value for one in values.get("__interrupt__", ())] or texts(values)

    def status(thread, run):
        return state.runs.handle(thread, run).status()

    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(globals()[name](*arguments)), flush=True)
"""


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the older version."""
    if git("rev-parse", "--verify", "HEAD").returncode:
        pytest.skip("there is no git history")
    revision = "main" if git("rev-parse", "--verify", "main").returncode == 0 else "HEAD"
    same = git("diff", "--quiet", revision, "--", "langgraph_pgstate").returncode == 0
    if same and git("rev-parse", "--verify", f"{revision}^").returncode:
        pytest.skip("the history has no older commit")
    revision += "^" if same else ""
    if git("show", f"{revision}:{SCHEMA}").stdout != (ROOT / SCHEMA).read_bytes():
        # Before the first release it is the only migration, and no other leads from one text to the next.
        pytest.skip(f"{SCHEMA} has changed since {revision}")
    archive = git("archive", revision, "langgraph_pgstate")
    assert archive.returncode == 0, archive.stderr
    directory = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory


class Version:
    """A program of one version."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(json.dumps([name, arguments]), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())

        return call


@contextmanager
def started(directory: Path, dsn: str, schema: str) -> Iterator[Version]:
    """Start a program with the package of a directory."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, dsn, schema, str(directory)],
        env={**os.environ, "PYTHONPATH": str(directory)},
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Version(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(GUARD_SECONDS) == 0
        finally:
            process.kill()


@pytest.fixture
def versions(older: Path, dsn: str, schema: str) -> Iterator[tuple[Version, Version]]:
    with started(older, dsn, schema) as old, started(ROOT, dsn, schema) as new:
        new.setup()
        yield old, new


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("is_reversed", [False, True], ids=["old then new", "new then old"])
def test_each_version_goes_on_with_the_threads_and_runs_of_the_other(
    versions: tuple[Version, Version], is_reversed: bool
) -> None:
    first, second = reversed(versions) if is_reversed else versions
    said = ["a", "noted a after 1", "b", "noted b after 3", "a", "noted a after 5"]
    # States, records and actions: each reads and extends what the other wrote.
    assert first.talk("direct", "a") == said[:2]
    assert second.talk("direct", "b") == said[:4]
    assert first.talk("direct", "a") == said
    for one in (first, second):
        assert one.read("direct") == {"state": said, "recorded": said, "ledger": ["success", "success"]}
    assert second.fork("direct", "forked") == "forked"
    assert first.talk("forked", "c") == [*said, "c", "noted c after 7"]
    # Runs: each works off what the other enqueued, and resumes what the other has interrupted.
    run = first.enqueue("queued", "a")
    assert second.work("queued", run) == said[:2]
    run = second.enqueue("queued", "Really?")
    assert first.work("queued", run) == ["Really?"]
    assert [one.status("queued", run) for one in (first, second)] == ["interrupted"] * 2
    run = second.answer("queued", "yes")
    assert first.work("queued", run)[-1] == "noted yes after 3"
    run = first.enqueue("queued", "Sure?")
    assert first.work("queued", run) == ["Sure?"]
    run = first.answer("queued", "no")
    assert second.work("queued", run)[-1] == "noted no after 5"
    # Only the second has flushed what it recorded last.
    assert second.read("queued") == first.read("queued")
