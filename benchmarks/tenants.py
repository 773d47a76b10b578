"""Compare puts and reads where tenants are kept apart with those where they are not: `python -m benchmarks.tenants`.

The two take turns, step by step, and the fastest eighth of each counts: other work of the machine falls on both.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.db.embedded import embedded_server

ROLE: Final = "pgstate_benchmark"
THREADS: Final = 15
STEPS: Final = 150


def arguments(thread: int, step: int) -> tuple[Any, Any, Any]:
    """Return what LangGraph puts for a step of a graph with one small channel."""
    checkpoint = {
        "v": 4,
        "id": f"1f0a{thread:04x}-0000-6000-8000-{step:012x}",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"a": step},
        "channel_versions": {"a": step},
        "versions_seen": {},
        "updated_channels": None,
    }
    return checkpoint, {"source": "loop", "step": step, "parents": {}}, {"a": step}


def timed(call: Callable[[], Any], times: list[float]) -> Any:
    """Note how long a call takes, and return its result."""
    began = time.perf_counter()
    found = call()
    times.append(time.perf_counter() - began)
    return found


def main() -> None:
    """Print the time of each operation, without and with tenants, and their ratio."""
    with tempfile.TemporaryDirectory() as directory, embedded_server(Path(directory) / "data") as server:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN".encode())
            connection.execute(f"GRANT CREATE ON DATABASE {connection.info.dbname} TO {ROLE}".encode())
        dsn = make_conninfo(server, user=ROLE)
        with (
            PGStateSaver.from_conn_string(dsn, schema="plain") as plain,
            PGStateSaver.from_conn_string(dsn, schema="walled", tenant="acme") as walled,
        ):
            plain.setup()
            walled.setup(tenancy="rls")
            measure({"plain": plain, "tenants": walled})


def measure(savers: dict[str, PGStateSaver]) -> None:
    """Let the savers take turns."""
    times: dict[str, dict[str, list[float]]] = {
        operation: {name: [] for name in savers} for operation in ("put", "get", "put_writes")
    }
    for thread in range(THREADS):
        configs: dict[str, Any] = {
            name: {"configurable": {"thread_id": f"t{thread}", "checkpoint_ns": ""}} for name in savers
        }
        for step in range(STEPS):
            for name, saver in savers.items():
                put = partial(saver.put, configs[name], *arguments(thread, step))
                configs[name] = timed(put, times["put"][name])
        for step in range(STEPS):
            for name, saver in savers.items():
                timed(partial(saver.get_tuple, configs[name]), times["get"][name])
                put_writes = partial(saver.put_writes, configs[name], [("a", step)], f"task{step}")
                timed(put_writes, times["put_writes"][name])
    for operation, by_name in times.items():
        fast = {name: sorted(found)[len(found) // 8] * 1000 for name, found in by_name.items()}
        shown = ", ".join(f"{name} {value:.3f} ms" for name, value in fast.items())
        print(f"{operation}: {shown}, ratio {fast['tenants'] / fast['plain']:.2f}")


if __name__ == "__main__":
    main()
