"""Puts with and without encryption, in pairs and in one process: the time of each, and growth with a thread's length.

python -m benchmarks.encryption [--rounds 20]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

from langgraph_pgstate import Encryption, LocalMasterKey, PGStateSaver
from langgraph_pgstate.db.embedded import embedded_server

_TEXT = "The quick brown fox jumps over the lazy dog, and finds that the dog does not mind. " * 7


class Thread:
    """A thread that grows by one message of about 600 bytes with each put."""

    def __init__(self, saver: PGStateSaver, thread_id: str) -> None:
        self._saver = saver
        self.config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        self.messages: list[Any] = []

    def put(self) -> float:
        """Append a message, and return the seconds that its put takes."""
        step = len(self.messages)
        self.messages.append(HumanMessage(f"{step} {_TEXT}", id=str(step)))
        versions = {"messages": f"{step + 1:032}.{0:016}"}
        values = {"messages": [*self.messages]}
        checkpoint = {**empty_checkpoint(), "v": 4, "channel_values": values, "channel_versions": versions}
        began = time.perf_counter()
        self.config = self._saver.put(
            self.config,
            checkpoint,  # type: ignore[arg-type]
            {"source": "loop", "step": step, "parents": {}},
            versions,
        )
        return time.perf_counter() - began

    def get(self) -> float:
        """Read the newest state as another process would, and return the seconds that it takes."""
        self._saver._saver_cache.cache.clear()
        began = time.perf_counter()
        self._saver.get_tuple({"configurable": {"thread_id": self.config["configurable"]["thread_id"]}})
        return time.perf_counter() - began


def compare(plain: Callable[[], float], encrypted: Callable[[], float], rounds: int) -> tuple[float, float, float]:
    """Return the median seconds of both, and the median of the pairs' ratios; who begins changes."""
    pairs = []
    for number in range(rounds):
        first, second = (plain, encrypted) if number % 2 else (encrypted, plain)
        one, other = first(), second()
        pairs.append((one, other) if number % 2 else (other, one))
    ratios = [other / one for one, other in pairs]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs), statistics.median(ratios)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory() as directory,
        embedded_server(Path(directory) / "data") as dsn,
        PGStateSaver.from_conn_string(dsn, schema="plain") as plain,
        PGStateSaver.from_conn_string(
            dsn, schema="encrypted", encryption=Encryption(LocalMasterKey(bytes(32)))
        ) as encrypted,
    ):
        sizes: dict[str, list[int]] = {"plain": [], "encrypted": []}
        for saver in (plain, encrypted):
            saver.setup()
        threads = Thread(plain, "t"), Thread(encrypted, "t")
        for thread in threads:
            thread.put()
        print("| messages | put, plain | encrypted | times | bytes, plain | encrypted |")
        print("|---|---|---|---|---|---|")
        while len(threads[0].messages) < 4 * rounds:
            one, other, ratio = compare(threads[0].put, threads[1].put, rounds)
            for schema, found in sizes.items():
                found.append(_bytes(plain, schema))
            print(
                f"| {len(threads[0].messages)} | {one * 1000:.2f} ms | {other * 1000:.2f} ms | {ratio:.2f} "
                f"| {sizes['plain'][-1]:,} | {sizes['encrypted'][-1]:,} |"
            )
        one, other, ratio = compare(threads[0].get, threads[1].get, rounds // 4)
        print(f"\nget of {len(threads[0].messages)}: {one * 1000:.2f} and {other * 1000:.2f} ms, {ratio:.2f} times")


def _bytes(saver: PGStateSaver, schema: str) -> int:
    with saver._database.lend() as (connection, _):
        row = connection.execute(
            f"SELECT (SELECT sum(octet_length(state)) FROM {schema}.checkpoints) "
            f"+ (SELECT sum(octet_length(data)) FROM {schema}.segments)"
        ).fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    main()
