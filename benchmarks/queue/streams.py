"""Streams: 50 runs of 100 tokens a second each, followed by another process, and what streaming costs the saver."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any, TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph

from langgraph_pgstate import AsyncPGState, AsyncWorker
from langgraph_pgstate.db.embedded import embedded_server

RUNS, TOKENS_PER_SECOND, SECONDS = 50, 100, 10
SUPERSTEPS, GRAPHS = 20, 40
ROUNDS = 5
SCHEMA = "bench_streams"


class Text(TypedDict):
    count: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured.

    Attributes:
        tokens_per_second: Tokens of all runs that the graphs have streamed.
        commits_per_second: Transactions of the worker that stored events.
        latency_p50: Seconds from a token to its reader.
        latency_p95: The same, of the slowest twentieth.
        supersteps_off: Supersteps per second of the worker without streaming; median of the rounds.
        supersteps_on: The same with it.
        ratio: The median of their ratios by round.
    """

    tokens_per_second: float
    commits_per_second: float
    latency_p50: float
    latency_p95: float
    supersteps_off: float
    supersteps_on: float
    ratio: float


async def speak(state: Text) -> Text:
    """Stream tokens, each with its time."""
    writer, begun = get_stream_writer(), time.monotonic()
    for number in range(TOKENS_PER_SECOND * SECONDS):
        await asyncio.sleep(max(0.0, begun + number / TOKENS_PER_SECOND - time.monotonic()))
        writer({"token": "word ", "at": time.time()})
    return {"count": 1}


async def step(state: Text) -> Text:
    """Count."""
    return {"count": state["count"] + 1}


def speaker() -> Any:
    """A graph that streams tokens."""
    builder = StateGraph(Text)
    builder.add_node("speak", speak)
    builder.add_edge(START, "speak")
    return builder.compile()


def stepper() -> Any:
    """A graph of quick supersteps."""
    builder = StateGraph(Text)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if state["count"] < SUPERSTEPS else END)
    return builder.compile()


def work(dsn: str) -> None:
    """Run a worker in this process, until SIGTERM."""

    async def main() -> None:
        async with AsyncPGState.open(dsn, schema=SCHEMA, pool=20) as state:
            graphs = {"speak": speaker(), "step": stepper()}
            await AsyncWorker(state, graphs, concurrency=RUNS).run_forever()

    asyncio.run(main())


async def measure(dsn: str, rounds: int = ROUNDS) -> Figures:
    """Measure on a server, with a worker in a process of its own.

    Args:
        dsn: The server.
        rounds: Rounds of the saver's throughput, with and without streaming in turn.
    """
    async with AsyncPGState.open(dsn, schema=SCHEMA) as state:
        async with state._database.lend() as (connection, _):
            await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE".encode())
        await state.setup()
        worker = multiprocessing.get_context("spawn").Process(target=work, args=(dsn,), daemon=True)
        worker.start()
        try:
            await (await state.runs.enqueue("step", {"count": 0})).wait(60)
            began = time.monotonic()
            latencies = await follow(state)
            took = time.monotonic() - began
            async with state._database.lend() as (connection, _):
                # The writer's are of several runs; others are of a checkpoint or an end, which commits anyway.
                several = (
                    f"SELECT count(*) FROM (SELECT FROM {SCHEMA}.stream_batches GROUP BY created_at"
                    " HAVING count(DISTINCT thread_id) > 1) AS writes"
                )
                found = await connection.execute(several.encode())
                ((commits,),) = await found.fetchall()
            speeds: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(rounds):
                for streams in (False, True):
                    speeds[streams].append(await throughput(state, streams))
        finally:
            worker.terminate()
            worker.join(30)
    ratios = [on / off for off, on in zip(speeds[False], speeds[True], strict=True)]
    return Figures(
        len(latencies) / took,
        commits / took,
        statistics.median(latencies),
        statistics.quantiles(latencies, n=20)[-1],
        statistics.median(speeds[False]),
        statistics.median(speeds[True]),
        statistics.median(ratios),
    )


async def follow(state: AsyncPGState) -> list[float]:
    """Return the seconds from each token to its reader."""
    runs = [await state.runs.enqueue("speak", {"count": 0}, stream_mode="custom") for _ in range(RUNS)]

    async def read(run: Any) -> list[float]:
        return [time.time() - event.data["at"] async for event in run.join() if event.event == "custom"]

    return [one for several in await asyncio.gather(*map(read, runs)) for one in several]


async def throughput(state: AsyncPGState, streams: bool) -> float:
    """Return the supersteps per second of the worker."""
    mode = "updates" if streams else []
    batch: Any = [{"graph": "step", "input": {"count": 0}, "stream_mode": mode} for _ in range(GRAPHS)]
    began = time.perf_counter()
    for run in await state.runs.enqueue_batch(batch):
        await run.wait(120)
    return GRAPHS * SUPERSTEPS / (time.perf_counter() - began)


def main() -> int:
    """Print the figures, on the embedded server or on one that is named."""
    if len(sys.argv) > 1:
        figures = asyncio.run(measure(sys.argv[1]))
    else:
        with embedded_server(".pgstate/bench-streams") as dsn:
            figures = asyncio.run(measure(dsn))
    print(f"tokens/s                 {figures.tokens_per_second:10.0f}")
    print(f"commits/s of the worker  {figures.commits_per_second:10.1f}  (at most 20)")
    print(f"token to reader, p50     {figures.latency_p50 * 1000:10.0f} ms")
    print(f"token to reader, p95     {figures.latency_p95 * 1000:10.0f} ms  (at most 150)")
    print(f"supersteps/s, no stream  {figures.supersteps_off:10.0f}")
    print(f"supersteps/s, streamed   {figures.supersteps_on:10.0f}  ({figures.ratio:.2f} times; at least 0.90)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
