"""Files of a deep agent: `PGFiles` beside deepagents' `StoreBackend` on LangGraph's `PostgresStore`.

    python -m benchmarks.files [--files 10000] [--rounds 15] [--dsn DSN]

makes the same calls on the same server in interleaved rounds, checks that both find the same, and prints a table. With
as many files as by default, it also writes it into `docs/performance.md` and `benchmarks/results/files.json`. Figures
are medians, and ratios those of medians. Both have as many files of 5 KB, in directories of a hundred.

On a server that has pg_trgm, which the embedded one has not, the searches are measured again with the index of trigrams
of `pgstate setup --file-index`. A server that is named by a DSN must be empty; it gets a table of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any, Final

import psycopg
from deepagents.backends import StoreBackend
from langgraph.store.postgres import PostgresStore

from benchmarks.__main__ import RESULTS, put_between_marks
from benchmarks.report import number, times
from benchmarks.server import open_server
from langgraph_pgstate import PGState
from langgraph_pgstate.admin import Admin
from langgraph_pgstate.files import PGFiles

RESULT: Final = RESULTS / "files.json"
DOCUMENT: Final = RESULTS.parents[1] / "docs" / "performance.md"
FILES: Final = 10_000
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
_EXPRESSION: Final = "`grep` of a regular expression (`StoreBackend`: of its text)"
# What an index of trigrams makes faster or slower.
_INDEXED: Final = (*(name for name in CALLS if name.startswith(("`grep", *_WRITING))), _EXPRESSION)


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


def measure(files: int, rounds: int, dsn: str | None) -> dict[str, Any]:
    """Return the seconds of each call, by backend, and with an index of trigrams if the server can have one."""
    with ExitStack() as stack:
        server = stack.enter_context(open_server(dsn))
        connection = stack.enter_context(psycopg.connect(server.dsn, autocommit=True))
        # Otherwise writes measure the disk.
        connection.execute("ALTER SYSTEM SET synchronous_commit = off")
        connection.execute("SELECT pg_reload_conf()")
        store = stack.enter_context(PostgresStore.from_conn_string(server.dsn))
        store.setup()
        state = stack.enter_context(PGState.open(server.dsn))
        state.setup()
        backends = {
            OURS: PGFiles(state, namespace=NAMESPACE),
            THEIRS: StoreBackend(store=store, namespace=lambda runtime: NAMESPACE),
        }
        filled = {name: fill(backend, files) for name, backend in backends.items()}
        stored = {name: (connection.execute(query).fetchone() or (0,))[0] for name, query in _SIZES.items()}
        connection.execute("VACUUM ANALYZE")
        medians = compare(state, backends, rounds, [*CALLS, _EXPRESSION])
        indexed = {}
        if connection.execute("SELECT FROM pg_available_extensions WHERE name = 'pg_trgm'").fetchall():
            with Admin.open(server.dsn) as admin:
                admin.setup(file_index=True)
            connection.execute("VACUUM ANALYZE")
            # The files that were written before are others.
            indexed = compare(state, backends, rounds, _INDEXED, first=rounds + 1)
        return {
            "files": files,
            "rounds": rounds,
            "postgresql": server.version(),
            "versions": {name: version(name) for name in ("deepagents", "langgraph-checkpoint-postgres")},
            "filled": filled,
            "stored": stored,
            "medians": medians,
            "indexed": indexed,
        }


def compare(
    state: PGState, backends: dict[str, Any], rounds: int, names: Collection[str], *, first: int = 0
) -> dict[str, dict[str, float]]:
    """Return the median seconds of calls, by backend, after a round that warms the caches."""
    seconds: dict[str, dict[str, list[float]]] = {name: {OURS: [], THEIRS: []} for name in names}
    for turn in range(first, first + rounds + 1):
        for name in names:
            call, results = CALLS.get(name), {}
            for which in (OURS, THEIRS) if turn % 2 else (THEIRS, OURS):
                began = time.perf_counter()
                if call is not None:
                    results[which] = call(backends[which], turn)
                elif which == OURS:
                    state.files.grep(NAMESPACE, "needle_[a-z]", regex=True)
                else:
                    backends[which].grep("needle_x")
                if turn > first:
                    seconds[name][which].append(time.perf_counter() - began)
            is_search = call is not None and not name.startswith(_WRITING)
            if is_search and found(results[OURS]) != found(results[THEIRS]):
                raise AssertionError(f"{name}: the backends find different files")
    return {name: {which: statistics.median(one) for which, one in both.items()} for name, both in seconds.items()}


def table(result: dict[str, Any]) -> str:
    """Return the table of a result."""
    indexed = result["indexed"]
    lines = [
        f"| {result['files']:,} files of 5 KB | `StoreBackend` | `PGFiles` | ratio |"
        + (" with `--file-index` | ratio |" if indexed else ""),
        "|---|---:|---:|---:|" + ("---:|---:|" if indexed else ""),
    ]
    # Where there is an index, what it has no part in is in the other table.
    for name in indexed or result["medians"]:
        ours, theirs = (result["medians"][name][which] * 1e3 for which in (OURS, THEIRS))
        line = f"| {name} | {number(theirs, 'ms')} | {number(ours, 'ms')} | {times(theirs / ours)} |"
        if indexed:
            ours, theirs = (indexed[name][which] * 1e3 for which in (OURS, THEIRS))
            line += f" {number(ours, 'ms')} | {times(theirs / ours)} |"
        lines.append(line)
    megabytes = {name: size / 1e6 for name, size in result["stored"].items()}
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    size = f"on disk, `StoreBackend` takes {megabytes[THEIRS]:.0f} MB, `PGFiles` {megabytes[OURS]:.0f} MB"
    rounds = f"medians of {result['rounds']} interleaved rounds with `synchronous_commit = off`"
    return "\n".join([*lines, "", f"PostgreSQL {result['postgresql']}, {versions}; {rounds}; {size}.", ""])


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files")
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dsn", help="an empty server; default: an embedded one, which has no pg_trgm")
    options = parser.parse_args()
    result = measure(options.files, options.rounds, options.dsn)
    print(table(result))
    if options.files == FILES:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
        write(result)


def write(result: dict[str, Any]) -> None:
    """Write the tables of a result; the second one, of an index, if there was one."""
    for name, shown in (("all", {**result, "indexed": {}}), ("indexed", result)):
        if name == "all" or result["indexed"]:
            mark = f"<!-- benchmarks.files, {name}: %s -->"
            put_between_marks(DOCUMENT, mark % "begin", mark % "end", table(shown))


if __name__ == "__main__":
    main()
