"""Files of a deep agent: `PGFiles` beside deepagents' `StoreBackend` on LangGraph's `PostgresStore`.

    python -m benchmarks.bench_files [--files 10000] [--rounds 15]

makes the same calls on the same embedded server in interleaved rounds, checks that both find the same, prints a table,
and writes `benchmarks/results/files.json`. Figures are medians, and ratios those of medians. Both have as many files of
5 KB, in directories of a hundred.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psycopg
from deepagents.backends import StoreBackend
from langgraph.store.postgres import PostgresStore

from benchmarks.__main__ import RESULTS
from langgraph_pgstate import PGState
from langgraph_pgstate.db.embedded import embedded_server
from langgraph_pgstate.files import PGFiles

RESULT: Final = RESULTS / "files.json"
OURS, THEIRS = "PGFiles", "StoreBackend"
NAMESPACE: Final = ("user", "ada")
_BYTES: Final = 5_200
_WORDS: Final = [
    *("agent", "memory", "checkpoint", "thread", "invoice", "customer", "refund"),
    *("hotel", "river", "view", "python", "postgres", "plan", "note"),
]

Call = Callable[[Any, int], Any]


def text(number: int) -> str:
    """Return the text of a file; that of each hundredth has a line with a rare word."""
    source = random.Random(number)
    lines = []
    size = 0
    while size < _BYTES:
        lines.append(" ".join(f"{source.choice(_WORDS)}{source.randrange(1000)}" for _ in range(9)))
        size += len(lines[-1]) + 1
    if number % 100 == 0:
        lines[len(lines) // 2] += " needle_x"
    return "\n".join(lines)


def path(number: int) -> str:
    """Return the path of a file."""
    return f"/dir{number // 100:03}/part{number % 7}/file{number:05}.{'md' if number % 3 else 'py'}"


# By the words of the table.
CALLS: Final[dict[str, Call]] = {
    "`ls` of the root, 100 directories": lambda backend, turn: backend.ls("/"),
    "`ls` of 15 files": lambda backend, turn: backend.ls("/dir042/part3"),
    "`glob` of a name, 67 files": lambda backend, turn: backend.glob("*77.md"),
    "`glob` below a directory, 33 files": lambda backend, turn: backend.glob("dir042/**/*.py"),
    "`glob` of all files": lambda backend, turn: backend.glob("**"),
    "`grep` of a text, 100 lines": lambda backend, turn: backend.grep("needle_x"),
    "`grep` of a text in a directory": lambda backend, turn: backend.grep("needle_x", "/dir042"),
    "`grep` of a text in Python files": lambda backend, turn: backend.grep("needle_x", glob="*.py"),
    "`read`": lambda backend, turn: backend.read(path(turn)),
    "`write` of a new file": lambda backend, turn: backend.write(f"/new/{turn}.md", text(turn)),
    "`write` of a file": lambda backend, turn: backend.write(path(turn), f"{turn} {text(turn)}"),
    "`edit`": lambda backend, turn: backend.edit(path(1000 + turn), "\n", f"\n{turn}\n", replace_all=True),
}
_SIZES: Final = {
    OURS: "SELECT sum(pg_total_relation_size(t::regclass))::bigint"
    " FROM unnest('{pgstate.files,pgstate.file_texts,pgstate.file_versions}'::text[]) AS u (t)",
    THEIRS: "SELECT pg_total_relation_size('store')",
}
_WRITING: Final = ("`write", "`edit")
_EXPRESSION: Final = "`grep` of a regular expression; of its text there"


def fill(backend: Any, files: int) -> float:
    """Write the files, and return how many seconds that took."""
    began = time.perf_counter()
    for first in range(0, files, 100):
        backend.upload_files([(path(number), text(number).encode()) for number in range(first, first + 100)])
    return time.perf_counter() - began


def found(result: Any) -> list[Any]:
    """Return what a search has found, without times and in one order."""
    items = next((value for value in (getattr(result, name, None) for name in ("entries", "matches")) if value), [])
    return sorted((item["path"], item.get("line", 0)) for item in items)


def measure(files: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of each call, by backend."""
    with ExitStack() as stack:
        dsn = stack.enter_context(embedded_server(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "data"))
        with psycopg.connect(dsn, autocommit=True) as connection:
            # Otherwise writes measure the disk.
            connection.execute("ALTER SYSTEM SET synchronous_commit = off")
            connection.execute("SELECT pg_reload_conf()")
        store = stack.enter_context(PostgresStore.from_conn_string(dsn))
        store.setup()
        state = stack.enter_context(PGState.open(dsn))
        state.setup()
        state.files.purge(NAMESPACE)
        backends = {
            OURS: PGFiles(state, namespace=NAMESPACE),
            THEIRS: StoreBackend(store=store, namespace=lambda runtime: NAMESPACE),
        }
        filled = {name: fill(backend, files) for name, backend in backends.items()}
        with psycopg.connect(dsn, autocommit=True) as connection:
            stored = {name: (connection.execute(query).fetchone() or (0,))[0] for name, query in _SIZES.items()}
            connection.execute("ANALYZE")
        seconds: dict[str, dict[str, list[float]]] = {name: {OURS: [], THEIRS: []} for name in (*CALLS, _EXPRESSION)}
        for turn in range(rounds + 1):
            for name, call in [*CALLS.items(), (_EXPRESSION, None)]:
                results = {}
                for which in (OURS, THEIRS) if turn % 2 else (THEIRS, OURS):
                    began = time.perf_counter()
                    if call is not None:
                        results[which] = call(backends[which], turn)
                    elif which == OURS:
                        state.files.grep(NAMESPACE, "needle_[a-z]", regex=True)
                    else:
                        backends[which].grep("needle_x")
                    # The first round warms the caches.
                    if turn:
                        seconds[name][which].append(time.perf_counter() - began)
                if (
                    call is not None
                    and not name.startswith(_WRITING)
                    and found(results[OURS]) != found(results[THEIRS])
                ):
                    raise AssertionError(f"{name}: the backends find different files")
    medians = {name: {which: statistics.median(one) for which, one in both.items()} for name, both in seconds.items()}
    return {
        "files": files,
        "rounds": rounds,
        "versions": {name: version(name) for name in ("deepagents", "langgraph-checkpoint-postgres")},
        "filled": filled,
        "stored": stored,
        "medians": medians,
    }


def table(result: dict[str, Any]) -> str:
    """Return the table of a result."""
    versions = " ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [
        f"{result['files']:,} files of 5 KB, embedded PostgreSQL, {versions};",
        f"medians of {result['rounds']} rounds, without waiting for the disk.",
        "",
        f"| | `{OURS}`, ms | `{THEIRS}` on `PostgresStore`, ms | ratio |",
        "|---|---|---|---|",
    ]
    for name, medians in result["medians"].items():
        ours, theirs = medians[OURS] * 1e3, medians[THEIRS] * 1e3
        lines.append(f"| {name} | {ours:.3g} | {theirs:.3g} | {theirs / ours:.2g} |")
    stored = result["stored"]
    megabytes = {name: stored[name] / 1e6 for name in stored}
    lines += ["", f"On disk, when they were written once: {megabytes[OURS]:.0f} MB and {megabytes[THEIRS]:.0f} MB."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--print", action="store_true", help="print only")
    options = parser.parse_args()
    result = measure(options.files, options.rounds)
    print(table(result))
    if not options.print:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
