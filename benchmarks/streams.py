"""Memory of the server per open stream, and what slow readers cost the others.

    python -m benchmarks.streams [--streams 500] [--runs 50] [--dsn ...]

Opens streams of running runs, first of the protocol's first version and then of its second, on a server in a process of
its own, and prints how much larger the process has become. Then it opens streams that nobody reads, and prints the time
from a token to a reader with and without them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.server import create_app

PAYLOAD = "x" * 200
CHANNELS = ["values", "updates", "messages", "tools", "lifecycle", "input", "custom"]


class Steps(TypedDict, total=False):
    """A state."""

    seconds: float
    bytes: int
    pause: float


async def talk(state: Steps) -> Steps:
    """Stream events for some seconds."""
    write = get_stream_writer()
    until = time.monotonic() + state["seconds"]
    text = "x" * state.get("bytes", len(PAYLOAD))
    while time.monotonic() < until:
        write({"at": time.time(), "text": text})
        await asyncio.sleep(state.get("pause", 0.2))
    return {"seconds": 0.0}


def serve(dsn: str, schema: str, port: int) -> None:
    """Serve until the process is ended."""
    graph: Any = StateGraph(Steps).add_node(talk).add_edge(START, "talk").compile()
    app = create_app(lambda: AsyncPGState.open(dsn, schema=schema), {"talk": graph}, worker={"concurrency": 100})
    uvicorn.run(app, port=port, log_level="error", access_log=False, ws="none")


@dataclass
class Reader:
    """A stream, and the times from its events to their arrival."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    opened_at: float = field(default_factory=time.time)
    delays: list[float] = field(default_factory=list)

    @classmethod
    async def open(cls, port: int, method: str, path: str, body: Any = None) -> Reader:
        """Send a request and read the head of its answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        status = await reader.readline()
        assert b" 200 " in status, status
        return cls(reader, writer)

    async def read(self) -> None:
        """Read until the connection ends."""
        while line := await self.reader.readline():
            found = line.find(b'"at":')
            if found >= 0 and line.startswith(b"data: "):
                told_at = float(line[found + 5 : line.index(b",", found)])
                # Those before are told again.
                if told_at > self.opened_at:
                    self.delays.append(time.time() - told_at)


def memory_of(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def process(dsn: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Provide a server in a process of its own, on tables of its own."""
    schema = f"streams_{time.time_ns()}"
    with PGState.open(dsn, schema=schema) as state:
        state.setup()
    command = [sys.executable, "-m", "benchmarks.streams", "--serve", str(port), "--dsn", dsn, "--schema", schema]
    started = await asyncio.create_subprocess_exec(*command)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for _ in range(300):
                try:
                    if (await client.get("/ok")).status_code == 200:
                        break
                except httpx.HTTPError:
                    await asyncio.sleep(0.2)
        yield started
    finally:
        started.kill()
        await started.wait()


async def start_runs(port: int, count: int, **input: Any) -> list[tuple[str, str]]:
    """Start runs on threads of their own."""
    found = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        for _ in range(count):
            thread = (await client.post("/threads", json={})).json()["thread_id"]
            body = {"assistant_id": "talk", "input": input, "stream_mode": ["custom"]}
            run = (await client.post(f"/threads/{thread}/runs", json=body)).json()["run_id"]
            found.append((thread, run))
    return found


async def open_streams(port: int, runs: list[tuple[str, str]], count: int, version: int) -> list[Reader]:
    """Open streams, some at a time."""
    found: list[Reader] = []
    for first in range(0, count, 50):
        targets = [runs[number % len(runs)] for number in range(first, min(count, first + 50))]
        if version == 1:
            opening = [Reader.open(port, "GET", f"/threads/{thread}/runs/{run}/stream") for thread, run in targets]
        else:
            body = {"channels": CHANNELS}
            opening = [Reader.open(port, "POST", f"/threads/{thread}/stream/events", body) for thread, _ in targets]
        found += await asyncio.gather(*opening)
    return found


async def measure_memory(dsn: str, port: int, streams: int, runs: int, version: int, seconds: float) -> None:
    """Print the memory that open streams take."""
    async with process(dsn, port) as server, AsyncExitStack() as stack:
        started = await start_runs(port, runs, seconds=seconds, pause=1.0)
        warm = await open_streams(port, started, 10, version)
        tasks = [asyncio.create_task(one.read()) for one in warm]
        await asyncio.sleep(5)
        before = memory_of(server.pid)
        readers = await open_streams(port, started, streams, version)
        tasks += [asyncio.create_task(one.read()) for one in readers]
        stack.callback(lambda: [task.cancel() for task in tasks])
        for _ in range(3):
            await asyncio.sleep(5)
            per_stream = (memory_of(server.pid) - before) / streams / 1000
            delays = [delay for one in readers for delay in one.delays]
            delay = statistics.median(delays) * 1000 if delays else float("nan")
            print(f"version {version}: {per_stream:.1f} KB per stream, token to reader {delay:.0f} ms", flush=True)


async def measure_slow(dsn: str, port: int, streams: int) -> None:
    """Print the delay of readers beside as many that do not read."""
    async with process(dsn, port) as server:
        started = await start_runs(port, 10, seconds=60.0, bytes=2_000, pause=0.02)
        for slow in (0, streams):
            idle = await open_streams(port, started, slow, 2)
            readers = await open_streams(port, started, 20, 2)
            tasks = [asyncio.create_task(one.read()) for one in readers]
            await asyncio.sleep(12)
            delays = [delay for one in readers for delay in one.delays]
            for task in tasks:
                task.cancel()
            memory = memory_of(server.pid) / 1e6
            print(f"{slow} slow readers: token to others {statistics.median(delays) * 1000:.0f} ms, {memory:.0f} MB")
            for one in (*idle, *readers):
                one.writer.close()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=90.0, help="of each run")
    parser.add_argument("--port", type=int, default=20243)
    parser.add_argument("--dsn", help="a database of yours; by default a new one")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--schema", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.dsn, given.schema, given.serve)
        return
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dsn = given.dsn or stack.enter_context(embedded_server(directory / "data"))
        for version in (1, 2):
            measuring = measure_memory(dsn, given.port, given.streams, given.runs, version, given.seconds)
            asyncio.run(measuring)
        asyncio.run(measure_slow(dsn, given.port, 50))


if __name__ == "__main__":
    main()
