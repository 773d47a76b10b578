"""Throughput of small puts by 1, 16 and 64 callers on a pool of 16, with threads and with asyncio tasks."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import threading
import time
from contextlib import AsyncExitStack, ExitStack

from langgraph.checkpoint.base import CheckpointTuple
from psycopg import Connection

from benchmarks.contestants import Session, open_async_session, open_session
from benchmarks.conversation import Chain, Put, text
from benchmarks.measure import OURS, UPSTREAM, CaseResult, MismatchError, Plan, quiet, timed
from benchmarks.proxy import open_proxy
from benchmarks.server import Server

NAME = "concurrency"
TITLE = "Puts per second of K callers, each on a thread of its own, pool of 16"
CALLERS = (1, 16, 64)
_POOL = 16
_ONE_WAY_SECONDS = 0.0005
_WARM_UP_SECONDS = 0.2
_TEXTS = [text("concurrency", index, 400) for index in range(64)]
_numbers = itertools.count()


class _Caller:
    """Puts small checkpoints to one thread, one after the other."""

    def __init__(self, session: Session) -> None:
        self.number = next(_numbers)
        self.session = session
        self.chain = Chain(f"caller-{self.number}")
        self.puts = 0
        self.value: dict[str, object] = {}

    def next(self) -> Put:
        """The next put; its state tells puts apart."""
        self.puts += 1
        self.value = {"note": _TEXTS[(self.number + self.puts) % len(_TEXTS)], "count": self.puts}
        return self.chain.next("state", self.value)

    def work(self, deadline: float) -> None:
        """Put until the deadline."""
        while time.perf_counter() < deadline:
            self.session.saver.put(*self.next().arguments())

    async def awork(self, deadline: float) -> None:
        """Async twin of `work`."""
        while time.perf_counter() < deadline:
            await self.session.saver.aput(*self.next().arguments())


def run(server: Server, plan: Plan) -> CaseResult:
    """Local: the server's own socket. The other link is a proxy that adds half a millisecond each way."""
    result = CaseResult(NAME, TITLE)
    result.notes.append("local: the server's Unix socket. 1 ms: a TCP proxy that delays each direction by 0.5 ms.")
    with open_proxy(server.address(), _ONE_WAY_SECONDS) as proxy:
        for link, dsn in (("local", server.dsn), ("1 ms", server.dsn_through(proxy.port))):
            seconds = plan.pick(1.5, 0.3)
            result.notes.append(f"{link}: a SELECT 1 takes {_round_trip(dsn) * 1000:.2f} ms.")
            _run_threads(server, plan, result, link, dsn, seconds)
            asyncio.run(_run_tasks(server, plan, result, link, dsn, seconds))
    return result


def _run_threads(server: Server, plan: Plan, result: CaseResult, link: str, dsn: str, seconds: float) -> None:
    with ExitStack() as stack:
        sessions = [stack.enter_context(open_session(name, server, dsn=dsn, pool=_POOL)) for name in (OURS, UPSTREAM)]
        for number in range(plan.rounds + 1):
            for count in CALLERS:
                for session in plan.shuffled(sessions):
                    callers = [_Caller(session) for _ in range(count)]
                    duration = seconds if number else _WARM_UP_SECONDS
                    with quiet():
                        start = time.perf_counter()
                        workers = [threading.Thread(target=caller.work, args=(start + duration,)) for caller in callers]
                        for worker in workers:
                            worker.start()
                        for worker in workers:
                            worker.join()
                        elapsed = time.perf_counter() - start
                    for caller in callers[:3]:
                        _check(caller, session.saver.get_tuple(caller.chain.config))
                    _add(result, link, "threads", number, session, callers, elapsed)


async def _run_tasks(server: Server, plan: Plan, result: CaseResult, link: str, dsn: str, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(open_async_session(name, server, dsn=dsn, pool=_POOL))
            for name in (OURS, UPSTREAM)
        ]
        for number in range(plan.rounds + 1):
            for count in CALLERS:
                for session in plan.shuffled(sessions):
                    callers = [_Caller(session) for _ in range(count)]
                    duration = seconds if number else _WARM_UP_SECONDS
                    with quiet():
                        start = time.perf_counter()
                        await asyncio.gather(*(caller.awork(start + duration) for caller in callers))
                        elapsed = time.perf_counter() - start
                    for caller in callers[:3]:
                        _check(caller, await session.saver.aget_tuple(caller.chain.config))
                    _add(result, link, "tasks", number, session, callers, elapsed)


def _add(
    result: CaseResult,
    link: str,
    kind: str,
    number: int,
    session: Session,
    callers: list[_Caller],
    elapsed: float,
) -> None:
    if number == 0:
        return  # The warm-up: every connection has prepared its statements.
    count = len(callers)
    metric = result.metric(
        f"{link}/{kind}/{count}", f"{count} {kind}, {link}" if count > 1 else f"1 {kind[:-1]}, {link}", "puts/s",
        lower_is_better=False,
    )  # fmt: skip
    metric.add(session.name, sum(caller.puts for caller in callers) / elapsed)


def _check(caller: _Caller, found: CheckpointTuple | None) -> None:
    if found is None or found.checkpoint["channel_values"].get("state") != caller.value:
        raise MismatchError(f"concurrency: {caller.session.name} did not return what was put")


def _round_trip(dsn: str) -> float:
    with Connection.connect(dsn, autocommit=True) as connection:
        return statistics.median(timed(connection.execute, "SELECT 1") for _ in range(100))
