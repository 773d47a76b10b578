"""Workers in processes of their own, which tell when jobs begin."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

from benchmarks.queue.contestants import CONTESTANTS

SPAWN = get_context("spawn")
# Seconds without a sign of life after which a worker is given up.
PATIENCE = 120.0


class Bell:
    """Sends the time at which the first job begins, and each `every`-th.

    Times are of the monotonic clock, which all processes of a machine share.
    """

    def __init__(self, times: Connection, every: int) -> None:
        self._times, self._every = times, every
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Note that a job begins."""
        number = next(self._numbers)
        if number == 1 or number % self._every == 0:
            with self._lock:
                self._times.send(time.monotonic())


@contextmanager
def worker_process(
    name: str, dsn: str, concurrency: int | None, every: int = 1, *, graph: bool = False
) -> Iterator[Connection]:
    """A worker of a contestant in a process; the times at which its first job and each `every`-th begin.

    It is killed at the end of the block.
    """
    times, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_work, args=(name, dsn, concurrency, every, graph, sender), daemon=True)
    process.start()
    sender.close()
    try:
        yield times
    finally:
        process.kill()
        process.join()
        times.close()


def next_time(times: Connection, patience: float = PATIENCE) -> float:
    """The next time that a worker tells.

    Raises:
        TimeoutError: If it tells none.
    """
    if not times.poll(patience):
        raise TimeoutError("the worker begins no job")
    return float(times.recv())


def _work(name: str, dsn: str, concurrency: int | None, every: int, graph: bool, times: Connection) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.INFO)
    CONTESTANTS[name](dsn).work(concurrency, Bell(times, every), graph=graph)
