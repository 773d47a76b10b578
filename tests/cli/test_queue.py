"""The commands of the queue: `worker`, `enqueue`, `runs --queued`, `cancel`, `dead-letters` and `resume`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg
import pytest
from support import GUARD_SECONDS, wait_until
from support.cli import Forked
from typer.testing import CliRunner

from langgraph_pgstate import PGState
from langgraph_pgstate.cli import _with_options_first
from langgraph_pgstate.cli.app import app

AGENT = """
import os, time
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

class State(TypedDict, total=False):
    said: str
    heard: str

def answer(state):
    if state["said"] == "fail":
        raise ValueError("no [such] word")
    if state["said"] == "ask":
        return {"heard": interrupt("what?")}
    if state["said"] == "hang":
        open("hangs", "w").close()
        while not os.path.exists("go on"):
            time.sleep(0.01)
    return {"heard": state["said"].upper()}

builder = StateGraph(State)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
graph = builder.compile()
"""


SHOP = """
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph_pgstate.agent_server import tools

@tool
async def buy(what: str) -> str:
    "Buy something."
    return "bought " + what

def plan(state):
    return {"messages": [AIMessage("", tool_calls=[{"name": "buy", "args": {"what": "tea"}, "id": "c1"}])]}

builder = StateGraph(MessagesState)
builder.add_node("plan", plan)
builder.add_node("tools", ToolNode([buy], awrap_tool_call=tools))
builder.add_edge(START, "plan")
builder.add_edge("plan", "tools")
graph = builder.compile()
"""


@pytest.fixture
def run(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What `pgstate` prints, from a directory with an agent."""
    monkeypatch.delenv("PGSTATE_DSN", raising=False)
    monkeypatch.setattr("langgraph_pgstate.cli.output.console._width", 140)
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, *arguments])
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result.output

    return run


def start(dsn: str, schema: str, directory: Path, *arguments: str) -> Forked:
    """A worker as a process."""
    return Forked("--dsn", dsn, "--schema", schema, "worker", *arguments, cwd=directory)


def work(dsn: str, schema: str, directory: Path, *arguments: str) -> str:
    """What a worker logs that stops when nothing is left to do."""
    with start(dsn, schema, directory, *arguments, "--once") as process:
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    return log


@pytest.mark.slow
def test_runs_are_enqueued_listed_run_and_cancelled(run: Any, dsn: str, schema: str, tmp_path: Path) -> None:
    assert "no queued runs" in run("runs", "--queued")
    enqueued = json.loads(run("--json", "enqueue", "agent", '{"said": "hi"}', "--thread", "t"))
    again = json.loads(
        run("--json", "enqueue", "agent", '{"said": "hi"}', "--thread", "t", "--run", enqueued["run_id"])
    )
    assert again == enqueued
    run("enqueue", "agent", '{"said": "you"}', "--thread", "t")
    run("enqueue", "other", '{"said": "you"}', "--thread", "u")
    shown = run("runs", "--queued")
    assert shown.count("no worker accepts it") == 3
    assert "no worker accepts 1 run of graph other in queue default" in run("runs")
    assert "cancelled" in run("cancel", "u")
    log = work(dsn, schema, tmp_path, "agent.py:graph")
    assert "runs agent" in log
    assert [json.loads(line)["status"] for line in run("--json", "runs", "--thread", "t").splitlines()] == [
        "success"
    ] * 2
    assert "no queued runs" in run("runs", "--queued")
    events = [json.loads(line) for line in run("join", "t").splitlines()]
    assert [event["event"] for event in (events[0], events[-1])] == ["metadata", "end"]
    assert [json.loads(line) for line in run("join", "t", "--after", events[-2]["id"]).splitlines()] == events[-1:]


def test_it_is_recorded_who_cancels(run: Any, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "operator")
    for thread_id, options in (("eves", ["--by", "eve"]), ("mine", [])):
        run("enqueue", "other", "{}", "--thread", thread_id)
        run("cancel", thread_id, *options)
    with PGState.open(dsn, schema=schema) as state:
        acts = [state.events.list(thread_id, kind="action").items for thread_id in ("eves", "mine")]
    assert [[(one.payload["action"], one.payload["by"]) for one in each] for each in acts] == [
        [("cancel", "eve")],
        [("cancel", "operator")],
    ]


def test_join_says_that_no_worker_accepts_the_run_for_which_it_waits(
    run: Any, dsn: str, schema: str, tmp_path: Path
) -> None:
    run("enqueue", "other", '{"said": "you"}', "--thread", "u")
    with Forked("--dsn", dsn, "--schema", schema, "join", "u", cwd=tmp_path) as process:
        wait_until(lambda: "no live worker accepts graph other of queue default" in process.said, "the hint")
        run("cancel", "u")
        output, _ = process.communicate()
    assert [json.loads(line)["event"] for line in output.splitlines()] == ["end"]


@pytest.mark.slow
def test_an_answer_is_taken_up_by_a_worker(run: Any, dsn: str, schema: str, tmp_path: Path) -> None:
    (tmp_path / "langgraph.json").write_text('{"graphs": {"shop": "./agent.py:graph"}}')
    run("enqueue", "shop", '{"said": "ask"}', "--thread", "t")
    work(dsn, schema, tmp_path)
    assert "a worker resumes it with run " in run("answer", "t", "this")
    work(dsn, schema, tmp_path, "--config", "langgraph.json")
    with PGState.open(dsn, schema=schema) as state:
        found = state.saver.get_tuple({"configurable": {"thread_id": "t"}})
    assert found is not None
    assert found.checkpoint["channel_values"]["heard"] == "this"


@pytest.mark.slow
def test_a_worker_runs_graphs_that_have_the_ledger_of_the_server(
    run: Any, dsn: str, schema: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    run("enqueue", "shop", '{"messages": []}', "--thread", "t")
    work(dsn, schema, tmp_path, "shop=shop.py:graph")
    with PGState.open(dsn, schema=schema) as state:
        assert [one.status for one in state.tools.list("t")] == ["success"]


@pytest.mark.slow
@pytest.mark.bare
def test_a_worker_gives_its_graphs_the_long_term_memory(run: Any, dsn: str, schema: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
    (tmp_path / "keeper.py").write_text(
        "from langgraph.config import get_store\n"
        "from langgraph.graph import START, MessagesState, StateGraph\n"
        "def keep(state):\n"
        "    get_store().put(('kept',), 'k', {'text': 'tea'})\n"
        "    return {}\n"
        "graph = StateGraph(MessagesState).add_node('keep', keep).add_edge(START, 'keep').compile()\n"
        "def embed(texts):\n"
        "    return [[1.0, 0.0] for _ in texts]\n"
    )
    config: dict[str, Any] = {"graphs": {"keeper": "./keeper.py:graph"}}
    config["store"] = {"index": {"dims": 2, "embed": "./keeper.py:embed", "fields": ["text"]}}
    (tmp_path / "langgraph.json").write_text(json.dumps(config))
    run("setup")
    run("enqueue", "keeper", '{"messages": []}', "--thread", "t")
    work(dsn, schema, tmp_path)
    with PGState.open(dsn, schema=schema) as state:
        (item,) = state.memory.search(("kept",))
        assert state.memory.list_indexes() == {"default": True}
    assert (item.key, item.value) == ("k", {"text": "tea"})


@pytest.mark.slow
def test_dead_letters_are_listed_retried_and_discarded(run: Any, dsn: str, schema: str, tmp_path: Path) -> None:
    assert "no dead letters" in run("dead-letters")
    run("enqueue", "agent", '{"said": "fail"}', "--thread", "t")
    log = work(dsn, schema, tmp_path, "agent.py:graph")
    assert "of thread t failed\nTraceback" in log
    assert "ValueError: no [such] word" in log
    shown = run("dead-letters")
    for word in ("t", "agent", "error", "ValueError: no [such] word"):
        assert word in shown
    with PGState.open(dsn, schema=schema) as state:
        (letter,) = state.runs.dead_letters().items
        assert letter == state.runs.get("t", letter.run_id)
    assert run("dead-letters", "retry", "t", "--by", "eve") == "enqueued again\n"
    assert "it is no dead letter" in run("dead-letters", "retry", "t", code=1)
    work(dsn, schema, tmp_path, "agent.py:graph")
    assert run("dead-letters", "discard", "t", "--by", "bob") == "discarded\n"
    with PGState.open(dsn, schema=schema) as state:
        acts = state.events.list("t", kind="action").items
    assert {(one.payload["action"], one.payload["by"]) for one in acts} == {("retry", "eve"), ("discard", "bob")}
    assert "it was discarded" in run("dead-letters", "retry", "t", code=1)
    assert "no dead letters" in run("dead-letters")


@pytest.mark.slow
def test_a_worker_drains_and_is_forced_by_signals(run: Any, dsn: str, schema: str, tmp_path: Path) -> None:
    run("enqueue", "agent", '{"said": "hang"}', "--thread", "t")
    with start(dsn, schema, tmp_path, "agent.py:graph") as process:
        wait_until((tmp_path / "hangs").exists, "the node")
        process.send_signal(signal.SIGTERM)
        # Two signals that are pending at once are one.
        wait_until(lambda: "drains; runs to stop: 1" in process.said, "the first signal")
        process.send_signal(signal.SIGTERM)
        # The node blocks for ever, and still the process ends.
        assert process.wait(GUARD_SECONDS) == 143
    assert "pending" in run("runs", "--queued")
    (tmp_path / "go on").touch()
    work(dsn, schema, tmp_path, "agent.py:graph")
    assert "success" in run("runs", "--thread", "t")


@pytest.mark.slow
def test_a_worker_serves_metrics(run: Any, dsn: str, schema: str, tmp_path: Path) -> None:
    run("enqueue", "agent", '{"said": "hang"}', "--thread", "t")
    with start(dsn, schema, tmp_path, "agent.py:graph", "--metrics-port", "0") as process:
        wait_until((tmp_path / "hangs").exists, "the node")
        address = re.search(r"metrics at (\S+)", process.said)
        assert address is not None
        with urlopen(address[1], timeout=30) as answer:
            text = answer.read().decode()
        (tmp_path / "go on").touch()
        process.send_signal(signal.SIGTERM)
        assert process.wait(GUARD_SECONDS) == 0
    assert 'pgstate_queue_runs{queue="default",status="running"} 1.0' in text
    assert 'pgstate_operation_duration_seconds_count{operation="put"}' in text
    assert "process_cpu_seconds_total" in text
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with start(dsn, schema, tmp_path, "agent.py:graph", "--metrics-port", port) as process:
            assert process.wait(GUARD_SECONDS) == 1
            assert f"cannot listen on 127.0.0.1:{port}" in process.said


def test_a_worker_that_cannot_start_says_why(run: Any, dsn: str, schema: str) -> None:
    assert "there is no ./langgraph.json" in run("worker", code=1)
    assert "has no 'agent'; its graphs are builder, graph" in run("worker", "agent.py:agent", code=1)
    Path("hooks.json").write_text('{"graphs": {"shop": "./agent.py:graph"}, "webhooks": {"secret": "x"}}')
    assert "webhooks.secret of langgraph.json is not supported" in run("worker", "--config", "hooks.json", code=1)
    assert "the input must be JSON" in run("enqueue", "agent", "{", code=1)
    assert "--all or --graph" in run("resume", code=1)
    assert "0 crashed runs enqueued" in run("resume", "--all")
    assert os.environ.get("PGSTATE_DSN") is None
    missing = CliRunner().invoke(app, ["--dsn", dsn, "--schema", "no_such", "worker", "agent.py:graph"])
    assert missing.exit_code == 1


@pytest.fixture
def asked(run: Any, dsn: str, schema: str, tmp_path: Path) -> Any:
    """A thread of a plain `graph.invoke` that waits for an answer, and its graph."""
    scope: dict[str, Any] = {}
    exec(AGENT, scope)
    with PGState.open(dsn, schema=schema) as state:
        graph = state.record(scope["builder"].compile(checkpointer=state.saver, name="agent"))
        graph.invoke({"said": "ask"}, {"configurable": {"thread_id": "my thread", "user_id": "eve"}})
        yield graph


@pytest.mark.slow
def test_printed_commands_can_be_pasted_for_any_id(run: Any, asked: Any, dsn: str, schema: str) -> None:
    """Also for forks and copies: a shell splits them as they are meant, and an id with a dash is no option."""
    with PGState.open(dsn, schema=schema) as state:
        state.threads.fork("my thread", to="-fork of it's")
        state.saver.copy_thread("my thread", '--json "$HOME" `id`')
    others = ["-x", "--", "--json", "[red]a[/]\nb", "*"]
    for thread in others:
        asked.invoke({"said": "ask"}, {"configurable": {"thread_id": thread}})
    for thread in ["-fork of it's", '--json "$HOME" `id`', *others]:
        told = run("answer", "--", thread, "tea")
        shown = run("show", "--", thread)
        place = f" --dsn ... --schema {schema} "
        printed = [text.partition(place)[2].rstrip("\n") for text in (told, shown)]
        assert printed[0] == printed[1]
        # The shell that it is pasted into.
        split = subprocess.run(["sh", "-c", f"printf '%s\\0' {printed[0]}"], check=True, capture_output=True, text=True)
        more = ["--graph", "my agent", "--queue", "my queue"] if thread == "*" else []
        arguments = _with_options_first(split.stdout.split("\0")[:-1])
        enqueued = run(*arguments[:1], *more, *arguments[1:])
        name, queue = ("'my agent=FILE.py:NAME'", " --queue 'my queue'") if more else ("agent=FILE.py:NAME", "")
        assert f"{place}worker {name}{queue}" in " ".join(enqueued.split())
        with PGState.open(dsn, schema=schema) as state:
            assert state.runs.queued(thread_id=thread).items, printed[0]


@pytest.mark.slow
def test_an_answered_thread_goes_on_by_the_command_that_show_prints(
    run: Any, asked: Any, dsn: str, schema: str, tmp_path: Path
) -> None:
    assert "must be answered first" in run("resume", "my thread", "--graph", "agent", code=1)
    told = run("answer", "my thread", "tea", "--by", "ada")
    shown = " ".join(run("show", "my thread").split())
    assert "interrupted, before answer: it was answered, and has not gone on yet" in shown
    assert "by ada" in shown
    found = json.loads(run("--json", "show", "my thread"))
    assert (found["stop"], found["answers"][0]["value"]) == ("answered", "tea")
    commands = [re.findall(r"resume 'my thread' --checkpoint \w+", text) for text in (told, shown)]
    assert commands[0] == commands[1]
    arguments = shlex.split(commands[0][0])
    (tmp_path / "langgraph.json").write_text('{"graphs": {"one": "./agent.py:graph", "two": "./agent.py:graph"}}')
    refused = run(*arguments, code=1)
    assert "was not enqueued: name its graph with --graph NAME; the workers have the graphs one, two" in refused
    (tmp_path / "langgraph.json").unlink()
    enqueued = run(*arguments)
    assert "of graph agent" in enqueued
    assert "it waits: no live worker accepts graph agent of queue default" in enqueued
    assert "is busy with run" in run(*arguments, code=1)
    assert "a run of it is in the queue" in run("show", "my thread")
    work(dsn, schema, tmp_path, "agent.py:graph")
    state = asked.get_state({"configurable": {"thread_id": "my thread"}})
    assert (state.values["heard"], state.next) == ("tea", ()), "the answer was taken, and nothing asked again"
    assert json.loads(run("--json", "runs", "--thread", "my thread").splitlines()[0])["user_id"] == "eve"
    assert "has advanced from checkpoint" in run(*arguments, code=1) + run(*arguments, "--graph", "agent", code=1)
    assert "is not interrupted: its status is idle" in run("resume", "my thread", code=1)


@pytest.mark.slow
def test_an_answer_whose_run_was_cancelled_goes_on(run: Any, dsn: str, schema: str, tmp_path: Path) -> None:
    run("enqueue", "agent", '{"said": "ask"}', "--thread", "t")
    work(dsn, schema, tmp_path, "agent.py:graph")
    assert "a worker resumes it with run" in run("answer", "t", "tea")
    run("cancel", "t")
    assert "it was answered, and has not gone on yet" in " ".join(run("show", "t").split())
    enqueued = json.loads(run("--json", "resume", "t"))
    work(dsn, schema, tmp_path, "agent.py:graph")
    assert json.loads(run("--json", "show", "t"))["values"]["heard"] == "tea"
    assert json.loads(run("--json", "runs", "--thread", "t").splitlines()[0])["run_id"] == enqueued["run_id"]


@pytest.mark.slow
def test_whoever_waits_is_told_that_no_worker_is_there(run: Any, dsn: str, schema: str, tmp_path: Path) -> None:
    options = ("--dsn", dsn, "--schema", schema)
    with Forked(*options, "enqueue", "agent", '{"said": "hi"}', "--thread", "t", "--wait", cwd=tmp_path) as process:
        wait_until(lambda: "no live worker accepts graph agent of queue default" in process.said, "the hint")
        process.send_signal(signal.SIGINT)
        output, log = process.communicate()
        assert (process.returncode, output) == (130, "")
    (run_id,) = {run["run_id"] for run in map(json.loads, run("--json", "runs", "--queued").splitlines())}
    assert f"run {run_id} of thread t is enqueued" in log
    assert f"join t {run_id}" in log
    with Forked(*options, "enqueue", "agent", '{"said": "you"}', "--thread", "t", "--wait", cwd=tmp_path) as process:
        wait_until(lambda: "after another run of its thread" in process.said or "no live worker" in process.said, "why")
        log = work(dsn, schema, tmp_path, "agent.py:graph")
        output, _ = process.communicate()
        assert json.loads(output)["heard"] == "YOU"
    assert re.search(rf"^\d+-\d+-\d+ [0-9:]+ \S+ INFO worker {socket.gethostname()}:\d+ runs agent", log, re.MULTILINE)
