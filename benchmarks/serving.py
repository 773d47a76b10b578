"""The server beside `langgraph dev`, with this package's saver and with its own in memory.

    python -m benchmarks.serving [--rounds 5] [--threads 100000] [--streams 500]

makes the same calls by LangGraph's client in interleaved rounds, prints a table, and writes
`benchmarks/results/serving.json`. Figures are medians, and ratios those of medians. The search is among as many threads
as are given for this server, which are inserted by SQL, and among `--their-threads` for the others, which are created
over HTTP. First, this server alone is measured, in processes of their own: the memory of open streams, and the time
after SIGKILL until another process has ended `--runs` runs, whose streams must be whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.schema import StreamPart
from typing_extensions import TypedDict

from benchmarks.__main__ import RESULTS, put_between_marks
from benchmarks.server import open_server
from langgraph_pgstate import PGState

RESULT: Final = RESULTS / "serving.json"
DOCUMENT: Final = RESULTS.parents[1] / "docs" / "server.md"
BEGINS: Final = "<!-- make bench-server: begin -->"
ENDS: Final = "<!-- make bench-server: end -->"
ROOT: Final = Path(__file__).parents[1]
OURS: Final = "pgstate serve"
THEIRS: Final = ("langgraph dev", "langgraph dev, our saver")
MEASURES: Final = {
    "create": "thread, created",
    "state": "state of a thread",
    "history": "history of 100 checkpoints",
    "search": "search of 10 threads",
    "wait": "run of three nodes, wait",
    "first": "run of three nodes, first event",
}
_CALLS: Final = 8
_STEPS: Final = 99
_KILLED_STEPS: Final = 40
_START_SECONDS: Final = 60.0


class Count(TypedDict, total=False):
    """What the graphs know."""

    count: int


class Large(TypedDict, total=False):
    """What the graph of large states knows."""

    count: int
    bytes: int
    pause: float
    text: str


def large() -> Any:
    """A graph whose supersteps write as many bytes as are asked for, each time others."""

    async def step(state: Large) -> Large:
        await asyncio.sleep(state["pause"])
        return {"count": state["count"] - 1, "text": os.urandom(state["bytes"] // 2).hex()}

    builder = StateGraph(Large)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["count"] > 0 else END, ["step", END])
    return builder.compile()


class Taken(MessagesState, total=False):
    """What the graph that takes anything knows."""

    items: list[Any]


def taking() -> Any:
    """A graph that takes lists and messages, and does nothing with them."""

    async def take(state: Taken) -> Taken:
        return {}

    return StateGraph(Taken).add_node("take", take).add_edge(START, "take").add_edge("take", END).compile()


def three() -> Any:
    """A graph of three nodes."""
    builder = StateGraph(Count)
    names = ("one", "two", "three")
    for name in names:
        builder.add_node(name, lambda state: {"count": state.get("count", 0) + 1})
    for before, after in zip((START, *names), (*names, END), strict=True):
        builder.add_edge(before, after)
    return builder.compile()


def many() -> Any:
    """A graph of as many supersteps as are asked for."""

    async def step(state: Count) -> Count:
        return {"count": state["count"] - 1}

    return _loop(step)


def waiting() -> Any:
    """A graph whose supersteps take half a minute."""

    async def step(state: Count) -> Count:
        await asyncio.sleep(30)
        return {"count": state["count"] - 1}

    return _loop(step)


def steady() -> Any:
    """A graph whose supersteps take a fifth of a second."""

    async def step(state: Count) -> Count:
        await asyncio.sleep(0.2)
        return {"count": state["count"] - 1}

    return _loop(step)


def _loop(step: Any) -> Any:
    builder = StateGraph(Count)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["count"] > 0 else END, ["step", END])
    return builder.compile()


@contextmanager
def running(name: str, dsn: str, directory: Path, port: int = 0, *options: str) -> Iterator[tuple[str, int]]:
    """A server as a process, on a free port by default: its address, and the process."""
    directory.mkdir()
    if name != THEIRS[0]:
        with PGState.open(dsn) as state:
            state.setup()
    config: dict[str, Any] = {
        "dependencies": ["."],
        "graphs": {graph: f"{__file__}:{graph}" for graph in ("three", "many", "waiting", "steady", "large", "taking")},
    }
    if name == THEIRS[1]:
        config["checkpointer"] = {"path": "langgraph_pgstate.agent_server:checkpointer"}
    (directory / "langgraph.json").write_text(json.dumps(config))
    port = port or _free_port()
    programs = Path(sys.executable).parent
    if name == OURS:
        command = [str(programs / "pgstate"), "--dsn", dsn, "serve", "--config", "langgraph.json"]
    else:
        command = [str(programs / "langgraph"), "dev", "--no-browser", "--no-reload", "--n-jobs-per-worker", "10"]
    command += ["--port", str(port), *options]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PGSTATE_", "LANG"))},
        "PYTHONPATH": str(ROOT),
        "PGSTATE_DSN": dsn,
        "LANGGRAPH_NO_VERSION_CHECK": "1",
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGSMITH_TRACING": "false",
    }
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=output)
    try:
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + _START_SECONDS
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{name} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ok", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def fill(dsn: str, threads: int) -> None:
    """Insert threads, as many as are to be searched."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO pgstate.threads (thread_id, agent, metadata, created_at, updated_at)"
            " SELECT gen_random_uuid(), 'three', jsonb_build_object('team', n %% 1000, 'graph_id', 'three'), t, t"
            " FROM generate_series(1, %s) AS n, LATERAL (SELECT now() - n * interval '1 second' AS t) AS l",
            [threads],
        )
        connection.execute("ANALYZE pgstate.threads")


class Contestant:
    """A server under test, with the threads that it is asked about.

    Args:
        name: Its name.
        client: A client of it.
    """

    def __init__(self, name: str, client: LangGraphClient) -> None:
        self.name, self.client = name, client
        self.times: dict[str, list[float]] = {measure: [] for measure in MEASURES}
        self._thread = self._long = ""

    async def prepare(self, threads: int) -> None:
        """Create the threads."""
        client = self.client
        limit = asyncio.Semaphore(16)

        async def one(number: int) -> None:
            async with limit:
                await client.threads.create(metadata={"team": number % 1000}, graph_id="three")

        await asyncio.gather(*map(one, range(threads)))
        self._thread = (await client.threads.create())["thread_id"]
        await client.runs.wait(self._thread, "three", input={"count": 0})
        self._long = (await client.threads.create())["thread_id"]
        config: Any = {"recursion_limit": 1000}
        await client.runs.wait(self._long, "many", input={"count": _STEPS}, config=config)
        found = await client.threads.get_history(self._long, limit=100)
        assert len(found) == 100, (self.name, len(found))

    async def measure(self, name: str) -> None:
        """Call an operation a few times, and note how long each took."""
        call: Callable[[], Any] = getattr(self, f"_{name}")
        for _ in range(_CALLS):
            began = time.perf_counter()
            ended = await call()
            self.times[name].append((ended or time.perf_counter()) - began)

    async def _create(self) -> None:
        await self.client.threads.create(metadata={"team": 1})

    async def _state(self) -> None:
        assert (await self.client.threads.get_state(self._thread))["values"]

    async def _history(self) -> None:
        assert len(await self.client.threads.get_history(self._long, limit=100)) == 100

    async def _search(self) -> None:
        assert await self.client.threads.search(metadata={"team": 7}, limit=10)

    async def _wait(self) -> None:
        assert await self.client.runs.wait(self._thread, "three", input={"count": 0})

    async def _first(self) -> float | None:
        first = None
        async for part in self.client.runs.stream(self._thread, "three", input={"count": 0}, stream_mode="updates"):
            if first is None and part.event == "updates":
                first = time.perf_counter()
        assert first is not None
        return first


@asynccontextmanager
async def contestants(dsns: dict[str, str], directory: Path) -> AsyncIterator[list[Contestant]]:
    """All servers, started."""
    async with AsyncExitStack() as stack:
        with ExitStack() as processes:
            found = []
            for number, (name, dsn) in enumerate(dsns.items()):
                url, _ = processes.enter_context(running(name, dsn, directory / str(number)))
                client = await stack.enter_async_context(get_client(url=url, api_key=None))
                found.append(Contestant(name, client))
            yield found


async def memory_of_streams(dsn: str, directory: Path, number: int) -> float:
    """Return the bytes of a new server's memory that an open stream takes, of many on one run."""
    limits = httpx.Limits(max_connections=None)
    async with AsyncExitStack() as stack:
        url, pid = stack.enter_context(running(OURS, dsn, directory))
        client = await stack.enter_async_context(get_client(url=url, api_key=None))
        plain = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60, limits=limits))
        thread = (await client.threads.create())["thread_id"]
        run = await client.runs.create(thread, "waiting", input={"count": 20}, stream_mode="updates")
        path = f"/threads/{thread}/runs/{run['run_id']}/stream"
        # Kept: one that is forgotten closes its stream.
        opened: list[AsyncIterator[bytes]] = []

        async def open_one() -> None:
            answer = await stack.enter_async_context(plain.stream("GET", path))
            assert answer.status_code == 200
            opened.append(answer.aiter_bytes())
            await anext(opened[-1])

        # What the first ones take once is not counted.
        for _ in range(10):
            await open_one()
        before = _resident(pid)
        for _ in range(number):
            await open_one()
        grown = _resident(pid) - before
        await client.runs.cancel(thread, run["run_id"], wait=True)
    return grown / number


async def seconds_after_kill(dsn: str, directory: Path, runs: int, steps: int = _KILLED_STEPS) -> float:
    """Kill a server amid runs that clients stream, start another one, and return the seconds until all have ended.

    Raises:
        AssertionError: If a run has not succeeded, or a stream is not whole.
    """
    port, options = _free_port(), ("--concurrency", str(runs))
    streams: list[list[StreamPart]] = [[] for _ in range(runs)]

    async def follow(client: LangGraphClient, found: list[StreamPart]) -> None:
        thread = (await client.threads.create())["thread_id"]
        given: Any = {"input": {"count": steps}, "stream_mode": "values"}
        async for part in client.runs.stream(thread, "steady", **given):
            found.append(part)
        [run] = await client.runs.list(thread)
        assert run["status"] == "success", run

    async with AsyncExitStack() as stack:
        url, pid = stack.enter_context(running(OURS, dsn, directory / "killed", port, *options))
        client = await stack.enter_async_context(get_client(url=url, api_key=None))
        following = asyncio.gather(*(follow(client, found) for found in streams))
        while not all(len(found) > 3 for found in streams):
            assert not following.done(), following.exception()
            await asyncio.sleep(0.05)
        counts = [found[-1].data["count"] for found in streams if found[-1].event == "values"]
        assert 0 not in counts, "a run has ended before the server was killed"
        os.kill(pid, signal.SIGKILL)
        killed_at = time.perf_counter()
        await asyncio.to_thread(stack.enter_context, running(OURS, dsn, directory / "next", port, *options))
        await following
        seconds = time.perf_counter() - killed_at
    for found in streams:
        numbers = [int((part.id or "").partition(".")[0]) for part in found]
        assert numbers == [*range(1, len(found) + 1)], numbers
        assert {part.data["count"] for part in found if part.event == "values"} == {*range(steps + 1)}
    return seconds


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def table(result: dict[str, Any]) -> str:
    """Return the result as a table in Markdown."""
    medians, ours = result["medians_ms"], result["medians_ms"][OURS]
    lines = [
        f"| median of {result['calls']} calls | {OURS} | " + " | ".join(f"{name} | ratio" for name in THEIRS) + " |",
        "|---|---:" + "|---:|---:" * len(THEIRS) + "|",
    ]
    for measure, title in MEASURES.items():
        cells = [f"{ours[measure]:.2f} ms"]
        for name in THEIRS:
            cells += [f"{medians[name][measure]:.2f} ms", f"{ours[measure] / medians[name][measure]:.2f}"]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    few, number = result["search_among_few_ms"], result["threads"]
    lines += [
        "",
        f"The search is among {number[OURS]:,} threads of `pgstate serve` and {number[THEIRS[0]]:,} of "
        f"`langgraph dev`. Among {number['few']:,} threads, `pgstate serve` takes {few:.2f} ms. "
        f"Memory for each of {result['streams']} open streams: {result['bytes_per_stream'] / 1024:.1f} KB. "
        f"After SIGKILL amid {result['runs']} runs, all had ended after {result['seconds_after_kill']:.1f} s.",
        f"PostgreSQL {result['postgresql']}, langgraph-api {result['langgraph_api']}, {result['cpus']} CPUs.",
    ]
    return "\n".join(lines) + "\n"


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all, and return the result."""
    with open_server(arguments.dsn) as server, tempfile.TemporaryDirectory() as directory, ExitStack() as databases:
        names = (OURS, *THEIRS)
        dsns = {name: databases.enter_context(server.database("serving")) for name in names}
        few = arguments.their_threads
        alone = {
            "bytes_per_stream": await memory_of_streams(dsns[OURS], Path(directory) / "streams", arguments.streams),
            "seconds_after_kill": await seconds_after_kill(dsns[OURS], Path(directory), arguments.runs),
        }
        fill(dsns[OURS], few)
        async with contestants(dsns, Path(directory)) as found:
            for contestant in found:
                await contestant.prepare(0 if contestant.name == OURS else few)
            ours = found[0]
            await ours.measure("search")
            ours.times["search"].clear()
            await ours.measure("search")
            among_few = 1000 * statistics.median(ours.times["search"])
            ours.times["search"].clear()
            fill(dsns[OURS], arguments.threads - few)
            for name in MEASURES:
                for contestant in found:
                    await contestant.measure(name)
                    contestant.times[name].clear()
                for number in range(arguments.rounds):
                    # Each of them is the first in turn.
                    for place in range(len(found)):
                        await found[(place + number) % len(found)].measure(name)
            return {
                "rounds": arguments.rounds,
                "calls": arguments.rounds * _CALLS,
                "medians_ms": {
                    contestant.name: {name: 1000 * statistics.median(times) for name, times in contestant.times.items()}
                    for contestant in found
                },
                "threads": {OURS: arguments.threads, THEIRS[0]: few, "few": few},
                "search_among_few_ms": among_few,
                "streams": arguments.streams,
                "runs": arguments.runs,
                **alone,
                "postgresql": server.version(),
                "langgraph_api": version("langgraph-api"),
                "cpus": os.cpu_count(),
                "load": os.getloadavg()[0],
            }


def main() -> None:
    """Measure, print the table, and write the result, also into the document if it is a whole one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=100_000)
    parser.add_argument("--their-threads", type=int, default=2_000)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--dsn", default=None, help="a server of yours; else an embedded one")
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments))
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(table(result))
    if vars(arguments) == vars(parser.parse_args([])):
        put_between_marks(DOCUMENT, BEGINS, ENDS, table(result))


if __name__ == "__main__":
    main()
