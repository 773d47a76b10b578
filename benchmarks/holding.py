"""What the server holds for clients that read nothing, of what it reads, and how long hostile bodies stop its loop.

    python -m benchmarks.holding [--rounds 5] [--only stalls|readers|reading]

prints a table, and writes `benchmarks/results/holding.json`. Memory is the highest resident memory of the server's
process (`VmHWM`), less what it had before. The loop's stall under a body is the longest time that one of many small
requests took meanwhile, the median of the rounds; beside the longest of these is that without hostile bodies, which is
what the machine itself adds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from benchmarks.__main__ import RESULTS, put_between_marks
from benchmarks.server import open_server
from benchmarks.serving import DOCUMENT, OURS, running

RESULT: Final = RESULTS / "holding.json"
BEGINS: Final = "<!-- make bench-server, memory and stalls: begin -->"
ENDS: Final = "<!-- make bench-server, memory and stalls: end -->"
MOST_MEGABYTES: Final = 50
MOST_MILLISECONDS: Final = 100
_NOTHING: Final = "nothing hostile"
MEGABYTE: Final = 1_000_000
READERS: Final = 200
_RUNS_BEFORE: Final = 6
# A run of 20 MB, and a history of 244 MB.
STEPS, STEP_BYTES = 20, MEGABYTE
STATES, STATE_BYTES = 61, 4 * MEGABYTE
_BODY: Final = 16 * 2**20 - 1000
_FEW_BYTES: Final = 4096
_PROBE_SECONDS: Final = 0.005


def hostile_bodies() -> dict[str, bytes]:
    """Return bodies of nearly 16 MiB that cost as much as they can, by name."""

    def filled(item: bytes, most: int) -> bytes:
        return b'{"metadata":{"a":[' + b",".join([item] * min(most, _BODY // (len(item) + 1))) + b"]}}"

    keys = b",".join(b'"%d":1' % number for number in range(490_000))
    return {
        "nested lists": b'{"metadata":' + b"[" * (_BODY // 2) + b"]" * (_BODY // 2) + b"}",
        "objects in objects": b'{"a":' * (_BODY // 6) + b"1" + b"}" * (_BODY // 6),
        "lists, 480,000": filled(b"[]", 480_000),
        "numbers, 8,000,000": filled(b"1", _BODY),
        "numbers, 490,000": filled(b"1", 490_000),
        "numbers of 4,300 digits": filled(b"7" * 4300, _BODY),
        "keys, 490,000": b'{"metadata":{' + keys + b"}}",
        "one string of escapes": b'{"metadata":{"a":"' + b"\\u00e9" * (_BODY // 6) + b'"}}',
        "escapes after 30,000 numbers": b'{"metadata":{"a":['
        + b"1," * 30_000
        + b'"'
        + b"\\n" * (_BODY // 2 - 40_000)
        + b'"]}}',
    }


def accepted_bodies() -> dict[str, tuple[str, str, Any]]:
    """Return requests that are accepted, with as much content as a body may have, by name: method, path and body."""
    items = {"items": ["abc"] * 98_000}
    rows = {"items": [{"a": 1}] * 48_000}
    messages = {"messages": [{"role": "user", "content": "Hello."}] * 24_000}
    return {
        "an update of 98,000 texts": ("POST", "/threads/{thread}/state", {"values": items, "as_node": "take"}),
        "an update of 48,000 objects": ("POST", "/threads/{thread}/state", {"values": rows, "as_node": "take"}),
        "an input of 98,000 texts": ("POST", "/runs/wait", {"assistant_id": "taking", "input": items}),
        "an input of 24,000 messages": ("POST", "/runs/wait", {"assistant_id": "taking", "input": messages}),
        "an item of 98,000 texts": ("PUT", "/store/items", {"namespace": ["a"], "key": "b", "value": items}),
    }


def reset_peak(pid: int) -> int:
    """Forget a process's highest resident memory, and return the present one, in bytes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak(pid)


def peak(pid: int) -> int:
    """Return a process's highest resident memory since it was forgotten, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc has no VmHWM")


async def _run_large(client: httpx.AsyncClient, steps: int, size: int, seconds: float) -> tuple[str, str]:
    thread = (await client.post("/threads", json={})).json()["thread_id"]
    given = {
        "assistant_id": "large",
        "input": {"count": steps, "bytes": size, "pause": seconds},
        "stream_mode": ["updates"],
        "config": {"recursion_limit": 1000},
    }
    return thread, (await client.post(f"/threads/{thread}/runs", json=given)).raise_for_status().json()["run_id"]


async def memory_of_readers(url: str, pid: int) -> int:
    """Return by how many bytes the server grows when many read nothing of a run of 20 MB."""
    host = urlsplit(url)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=300))
        # What a run takes itself is not counted. Each connection of the pool keeps buffers of the largest message that
        # it has carried (libpq), so the runs before are as many as make them all grow.
        for _ in range(_RUNS_BEFORE):
            before = reset_peak(pid)
            thread, run = await _run_large(client, STEPS, STEP_BYTES, 0.0)
            (await client.get(f"/threads/{thread}/runs/{run}/join")).raise_for_status()
            without = peak(pid) - before
        thread, run = await _run_large(client, STEPS, STEP_BYTES, 1.0)
        before = reset_peak(pid) + without
        for _ in range(READERS):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _FEW_BYTES)
            one.setblocking(False)
            await asyncio.get_running_loop().sock_connect(one, (host.hostname, host.port))
            head = f"GET /threads/{thread}/runs/{run}/stream HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: -1\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(one, head.encode())
        (await client.get(f"/threads/{thread}/runs/{run}/join")).raise_for_status()
        await asyncio.sleep(5)
        return peak(pid) - before


async def _bytes_of(client: httpx.AsyncClient, path: str, body: Any) -> int:
    async with client.stream("POST", path, json=body) as answer:
        answer.raise_for_status()
        return sum([len(chunk) async for chunk in answer.aiter_bytes()])


async def make_histories(url: str) -> str:
    """Make a thread of 61 states of 4 MB and as many threads with one of them; return the former's id."""
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        thread, run = await _run_large(client, STATES, STATE_BYTES, 0.0)
        (await client.get(f"/threads/{thread}/runs/{run}/join")).raise_for_status()
        for _ in range(STATES):
            one, run = await _run_large(client, 1, STATE_BYTES, 0.0)
            (await client.get(f"/threads/{one}/runs/{run}/join")).raise_for_status()
    return thread


async def memory_of_reading(url: str, pid: int, thread: str) -> dict[str, int]:
    """Return by how many bytes the server grows when a history and a search with values are read, and their bytes."""
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        await _bytes_of(client, "/threads/search", {"limit": 1, "select": ["thread_id"]})
        found = {}
        for name, path, body in (
            ("history", f"/threads/{thread}/history", {"limit": 1000}),
            ("search", "/threads/search", {"limit": 1000}),
        ):
            before = reset_peak(pid)
            found[f"{name}_read"] = await _bytes_of(client, path, body)
            found[f"{name}_bytes"] = peak(pid) - before
        return found


@asynccontextmanager
async def probing(url: str) -> AsyncIterator[list[float]]:
    """Ask small things all the time, and provide how many seconds each took."""
    host = urlsplit(url)
    reader, writer = await asyncio.open_connection(host.hostname, host.port)
    found: list[float] = []

    async def ask() -> None:
        while True:
            began = time.perf_counter()
            writer.write(b"GET /ok HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            found.append(time.perf_counter() - began)
            await asyncio.sleep(_PROBE_SECONDS)

    asking = asyncio.create_task(ask())
    try:
        yield found
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        writer.close()


async def _send(url: str, body: bytes, method: str = "POST", path: str = "/threads") -> int:
    # In a thread of its own: the probe must not wait for what it measures.
    def post() -> int:
        host = urlsplit(url)
        with socket.create_connection((host.hostname, host.port), timeout=300) as one:
            head = (
                f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            with suppress(OSError):
                one.sendall(head.encode() + body)
            answer = one.makefile("rb")
            status = answer.readline().split()
            # To the end: a run goes on after the head of its answer.
            answer.read()
            return int(status[1]) if len(status) > 1 else 0

    return await asyncio.to_thread(post)


async def stalls(url: str) -> dict[str, tuple[float, int]]:
    """Return the longest time of a small request, in milliseconds, and the answer, for each hostile body."""
    found: dict[str, tuple[float, int]] = {}

    async def during(name: str, do: Callable[[], Any]) -> None:
        async with probing(url) as times:
            await asyncio.sleep(0.5)
            times.clear()
            status = await do()
            # What is freed and collected afterwards counts.
            await asyncio.sleep(0.5)
            found[name] = (1000 * max(times), status or 0)

    async def unfinished() -> None:
        host, kept = urlsplit(url), []
        for number in range(200):
            _, writer = await asyncio.open_connection(host.hostname, host.port)
            head = b"POST /threads HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(head + (b"Content-Length: 9999\r\n\r\n{" if number % 2 else b"X-A: b"))
            kept.append(writer)
        await asyncio.sleep(2)
        for writer in kept:
            writer.close()

    await during(_NOTHING, lambda: asyncio.sleep(5))
    for name, body in hostile_bodies().items():
        await during(name, lambda body=body: _send(url, body))  # type: ignore[misc]
    await during("unfinished heads and bodies, 200", unfinished)
    async with httpx.AsyncClient(base_url=url, timeout=300) as client:
        for name, (method, path, content) in accepted_bodies().items():
            made = (await client.post("/threads", json={"metadata": {"graph_id": "taking"}})).json()["thread_id"]
            body, target = json.dumps(content).encode(), path.format(thread=made)
            await during(name, lambda body=body, method=method, path=target: _send(url, body, method, path))  # type: ignore[misc]
            if not 200 <= found[name][1] < 300:
                raise RuntimeError(f"{name} was answered by {found[name][1]}")
    return found


def measure(
    start: Callable[[str], AbstractContextManager[tuple[str, int]]], rounds: int, only: str | None = None
) -> dict[str, Any]:
    """Measure all or one, each on a process of its own: memory that malloc keeps would hide what the next one takes.

    Args:
        start: Starts a server, in a directory of this name.
        rounds: How often stalls are measured.
        only: Which one.
    """
    result: dict[str, Any] = {}
    if only in (None, "readers"):
        with start("readers") as (url, pid):
            result["readers_bytes"] = asyncio.run(memory_of_readers(url, pid))
    if only in (None, "reading"):
        with start("making") as (url, _):
            thread = asyncio.run(make_histories(url))
        with start("reading") as (url, pid):
            result |= asyncio.run(memory_of_reading(url, pid, thread))
    # Last: a search would find the states that these bodies make.
    if only in (None, "stalls"):
        with start("stalls") as (url, _):
            found = [asyncio.run(stalls(url)) for _ in range(rounds)]
        result["rounds"] = rounds
        result["stalls_ms"] = {name: statistics.median(one[name][0] for one in found) for name in found[0]}
        result["statuses"] = {name: found[0][name][1] for name in found[0]}
    return {**result, "cpus": os.cpu_count(), "load": os.getloadavg()[0]}


def table(result: dict[str, Any]) -> str:
    """Return the result as a table in Markdown."""
    accepted, stalls = accepted_bodies(), result["stalls_ms"]
    hostile = {name: took for name, took in stalls.items() if name != _NOTHING and name not in accepted}
    worst = max(hostile, key=lambda name: hostile[name])
    longest = max(accepted, key=lambda name: stalls[name])
    run, must = f"a run of {STEPS * STEP_BYTES // MEGABYTE} MB", f"{MOST_MEGABYTES} MB"
    rows = [
        (f"memory for {READERS} readers that read nothing of {run}", f"{_megabytes(result, 'readers_bytes')} MB", must),
        (
            f"memory for a history of {_megabytes(result, 'history_read')} MB",
            f"{_megabytes(result, 'history_bytes')} MB",
            must,
        ),
        (
            f"memory for a search with values of {_megabytes(result, 'search_read')} MB",
            f"{_megabytes(result, 'search_bytes')} MB",
            must,
        ),
        (f"longest stall under hostile bodies ({worst})", f"{hostile[worst]:.0f} ms", f"{MOST_MILLISECONDS} ms"),
        (f"longest stall under accepted bodies ({longest})", f"{stalls[longest]:.0f} ms", f"{MOST_MILLISECONDS} ms"),
        ("longest stall without such bodies", f"{result['stalls_ms'][_NOTHING]:.0f} ms", ""),
    ]
    lines = ["| | measured | at most |", "|---|---:|---:|", *(f"| {' | '.join(row)} |" for row in rows)]
    lines += ["", f"Stalls are medians of {result['rounds']} rounds; {result['cpus']} CPUs, load {result['load']:.1f}."]
    return "\n".join(lines).replace("|  |", "| |") + "\n"


def _megabytes(result: dict[str, Any], name: str) -> int:
    return round(result[name] / MEGABYTE)


def main() -> None:
    """Measure, print the figures, and write them, also into the document if they are whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dsn", default=None, help="a server of yours; else an embedded one")
    parser.add_argument("--only", choices=("stalls", "readers", "reading"))
    arguments = parser.parse_args()
    with (
        open_server(arguments.dsn) as server,
        tempfile.TemporaryDirectory() as directory,
        server.database("holding") as dsn,
    ):
        result = measure(lambda name: running(OURS, dsn, Path(directory) / name), arguments.rounds, arguments.only)
    if arguments.only is not None:
        print(json.dumps(result, indent=2))
        return
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(table(result))
    if vars(arguments) == vars(parser.parse_args([])):
        put_between_marks(DOCUMENT, BEGINS, ENDS, table(result))


if __name__ == "__main__":
    main()
