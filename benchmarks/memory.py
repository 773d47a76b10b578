"""Long-term memory beside LangGraph's `PostgresStore`, on one server.

    python -m benchmarks.memory [--memories 1000000] [--rounds 5] [--only get,search,put,large,mixed]

prints a table; of 1,000,000 memories it also writes the rows that were measured into `docs/performance.md` and
`benchmarks/results/memory.json`. Embeddings have 384 dimensions and are at hand; the two stores take turns in each
round, and a figure is the ratio of the medians. Both have the same items. What searches read is checked by
`tests/memory/test_plans.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final

import psycopg
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.postgres import AsyncPostgresStore, PostgresStore
from psycopg import sql

from benchmarks.__main__ import RESULTS, put_between_marks
from benchmarks.measure import OURS, UPSTREAM
from benchmarks.report import number
from benchmarks.server import open_server
from langgraph_pgstate.memory import AsyncPGMemoryStore, PGMemoryStore

RESULT: Final = RESULTS / "memory.json"
DOCUMENT: Final = RESULTS.parents[1] / "docs" / "performance.md"
BEGINS, ENDS = "<!-- make bench-memory: begin -->", "<!-- make bench-memory: end -->"
MEMORIES: Final = 1_000_000
CASES: Final = (
    *("put of 1,000 items, 50 users", "put of one item", "put of 1,000 items into one of 100,000", "get by key"),
    *("search in a namespace of 50", "the same, hybrid", "16 tasks, mixed"),
)
DIMS: Final = 384
USERS: Final = 50
NAMESPACES: Final = 20_000
LARGE: Final = 100_000
_WORDS: Final = tuple(
    "ann bob likes prefers tea coffee flight hotel window aisle seat meeting monday friday berlin paris invoice refund "  # noqa: SIM905
    "python rust graph deploy release bug fix test vegan allergy peanut sister brother birthday piano guitar".split()
)
Samples = dict[str, dict[str, list[float]]]


@functools.cache
def _base() -> list[list[float]]:
    """Return embeddings that are the same in each process."""
    made = random.Random(7)
    return [[made.gauss(0, 1) for _ in range(DIMS)] for _ in range(1000)]


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Return embeddings that are at hand."""
    return [_base()[hash(text) % len(_base())] for text in texts]


def text(number: int) -> str:
    """Return the text of a memory."""
    chosen = random.Random(number)
    return f"{number} " + " ".join(chosen.choices(_WORDS, k=12))


INDEX: Final[Any] = {"dims": DIMS, "embed": embed, "fields": ["text"]}


def fill(dsn: str, memories: int) -> None:
    """Store memories in 20,000 namespaces of both stores, and vacuum."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        make_given(connection, memories, NAMESPACES)
        fill_ours(connection, "pgstate")
        # Building its index over so many items takes hours; its searches do not use it.
        connection.execute("DROP INDEX IF EXISTS store_vectors_embedding_idx")
        connection.execute(
            """
            INSERT INTO store (prefix, key, value)
            SELECT array_to_string(namespace, '.'), key, value FROM given ORDER BY namespace, key
            """
        )
        connection.execute(
            """
            INSERT INTO store_vectors (prefix, key, field_name, embedding)
            SELECT array_to_string(g.namespace, '.'), g.key, 'text', b.embedding
            FROM given g JOIN base b ON b.number = g.base ORDER BY g.namespace, g.key
            """
        )
        connection.execute("DROP TABLE given")
        connection.execute("VACUUM ANALYZE")


def make_given(connection: psycopg.Connection[Any], memories: int, namespaces: int, dims: int = DIMS) -> None:
    """Make tables with what stores are given: `base` has embeddings, and `given` items."""
    connection.execute(f"CREATE TABLE base (number int PRIMARY KEY, embedding vector({dims}))")
    rows = [(place, str(vector[:dims])) for place, vector in enumerate(_base())]
    connection.cursor().executemany("INSERT INTO base VALUES (%s, %s::text::vector)", rows)
    connection.execute(
        """
        CREATE TABLE given AS
        SELECT ARRAY['users', (i %% %(namespaces)s)::text] AS namespace, i::text AS key,
            jsonb_build_object('text', i || ' ' || (
                SELECT string_agg((%(words)s::text[])[1 + (hashint4(i * 31 + w) & 31)], ' ')
                FROM generate_series(1, 12) w
            ), 'n', i) AS value, (i::bigint * 7919) %% 1000 AS base
        FROM generate_series(1, %(memories)s) i
        """,
        {"memories": memories, "namespaces": namespaces, "words": [*_WORDS]},
    )


def fill_ours(connection: psycopg.Connection[Any], schema: str) -> None:
    """Store what is given in this package's tables."""
    tables = sql.Identifier(schema)
    connection.execute(
        sql.SQL(
            """
            INSERT INTO {}.memories (
                namespace, key, version, value, created_at, updated_at, words, is_large, is_waiting, is_unindexed,
                valid_from
            )
            SELECT namespace, key, 1, value, now(), now(), to_tsvector('simple', value ->> 'text'), false, false,
                false, now()
            FROM given ORDER BY namespace, key
            """
        ).format(tables)
    )
    connection.execute(
        sql.SQL(
            """
            INSERT INTO {}.memory_vectors_1 (namespace, key, field, version, is_large, embedding)
            SELECT g.namespace, g.key, 'text', 1, false, b.embedding FROM given g JOIN base b ON b.number = g.base
            ORDER BY g.namespace, g.key
            """
        ).format(tables)
    )


def timed(samples: Samples, case: str, work: dict[str, Callable[[], Any]], rounds: int) -> None:
    """Run the work of both stores in turns, after a warm-up, and add the milliseconds each took."""
    for call in work.values():
        call()
    for round in range(rounds):
        for contestant in sorted(work, reverse=bool(round % 2)):
            begun = time.perf_counter()
            work[contestant]()
            elapsed = (time.perf_counter() - begun) * 1000
            samples.setdefault(case, {}).setdefault(contestant, []).append(elapsed)


def puts(namespace_of: Callable[[int], tuple[str, ...]], first: int, count: int = 1000) -> list[PutOp]:
    """Return new items."""
    return [PutOp(namespace_of(n), f"put{n}", {"text": text(n), "n": n}) for n in range(first, first + count)]


def measure_puts(samples: Samples, stores: dict[str, BaseStore], rounds: int) -> None:
    """Put 1,000 items of 50 users, and single ones."""
    turns = {name: iter(range(10_000_000, 10**9, 1000)) for name in stores}

    def put(name: str) -> None:
        stores[name].batch(puts(lambda n: ("putters", str(n % USERS)), next(turns[name])))

    timed(samples, "put of 1,000 items, 50 users", {name: lambda name=name: put(name) for name in stores}, rounds)
    singles = {name: iter(range(2_000_000_000, 3_000_000_000)) for name in stores}

    def put_one(name: str) -> None:
        n = next(singles[name])
        stores[name].put(("putters", str(n % USERS)), f"one{n}", {"text": text(n), "n": n})

    timed(samples, "put of one item", {name: lambda name=name: put_one(name) for name in stores}, rounds * 40)


def measure_gets(samples: Samples, stores: dict[str, BaseStore], memories: int, rounds: int) -> None:
    """Get items by key."""
    keys = random.Random(3)

    def get(name: str) -> None:
        number = keys.randint(1, memories)
        found = stores[name].get(("users", str(number % NAMESPACES)), str(number))
        assert found is not None

    timed(samples, "get by key", {name: lambda name=name: get(name) for name in stores}, rounds * 200)


def measure_searches(samples: Samples, stores: dict[str, Any], memories: int, rounds: int) -> None:
    """Search in namespaces of 50."""
    chosen = random.Random(5)

    def search(name: str, **options: Any) -> None:
        number = chosen.randrange(NAMESPACES)
        query = " ".join(chosen.choices(_WORDS, k=5))
        assert len(stores[name].search(("users", str(number)), query=query, limit=10, **options)) == min(
            10, memories // NAMESPACES
        )

    vector: dict[str, Any] = {UPSTREAM: {}, OURS: {"mode": "vector"}}
    work = {name: lambda name=name: search(name, **vector[name]) for name in stores}
    timed(samples, "search in a namespace of 50", work, rounds * 100)
    hybrid = {name: lambda name=name: search(name) for name in stores}
    timed(samples, "the same, hybrid", hybrid, rounds * 100)


async def measure_mixed(samples: Samples, stores: dict[str, Any], memories: int, rounds: int) -> None:
    """Let 16 tasks put, get and search."""

    async def task(store: Any, seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(20):
            number = chosen.randint(1, memories)
            namespace = ("users", str(number % NAMESPACES))
            await store.aput(("mixed", str(seed)), str(chosen.randrange(10**9)), {"text": text(number)})
            await store.aget(namespace, str(number))
            await store.asearch(namespace, query="ann likes tea", limit=5)

    for round in range(rounds):
        for name in sorted(stores, reverse=bool(round % 2)):
            begun = time.perf_counter()
            await asyncio.gather(*(task(stores[name], round * 100 + number) for number in range(16)))
            elapsed = (time.perf_counter() - begun) * 1000
            samples.setdefault("16 tasks, mixed", {}).setdefault(name, []).append(elapsed)


def measure_large(samples: Samples, dsn: str, stores: dict[str, BaseStore], rounds: int) -> None:
    """Put 1,000 items into one namespace of 100,000 that both search approximately."""
    large = ("large",)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name, store in stores.items():
            print(f"filling one namespace of {LARGE:,} of {name}", flush=True)
            for first in range(0, LARGE, 5000):
                store.batch(puts(lambda n: large, 5_000_000_000 + first, 5000))
        connection.execute("DROP INDEX IF EXISTS store_vectors_embedding_idx")
        connection.execute(
            "CREATE INDEX store_vectors_embedding_idx ON store_vectors"
            " USING hnsw (embedding vector_cosine_ops) WHERE prefix = 'large'"
        )
        stores[OURS].move_large_namespaces()
    turns = {name: iter(range(6_000_000_000, 10**10, 1000)) for name in stores}
    work = {name: lambda name=name: stores[name].batch(puts(lambda n: large, next(turns[name]))) for name in stores}
    timed(samples, "put of 1,000 items into one of 100,000", work, rounds)
    begun = time.perf_counter()
    moved = stores[OURS].move_large_namespaces()
    print(f"moving {moved:,} of them into the approximate index takes {(time.perf_counter() - begun) * 1000:.0f} ms")


async def run(arguments: argparse.Namespace) -> Samples:
    """Measure everything that was asked for."""
    samples: Samples = {}
    only, rounds, memories = arguments.only, arguments.rounds, arguments.memories
    with open_server(None) as server:
        dsn = server.dsn
        with ExitStack() as stack:
            theirs = stack.enter_context(PostgresStore.from_conn_string(dsn, index=INDEX))
            ours = stack.enter_context(PGMemoryStore.from_conn_string(dsn, pool=False, index=INDEX))
            theirs.setup()
            ours.setup()
            print(f"filling both stores with {memories:,} memories", flush=True)
            fill(dsn, memories)
            stores: dict[str, Any] = {UPSTREAM: theirs, OURS: ours}
            if "get" in only:
                measure_gets(samples, stores, memories, rounds)
            if "search" in only:
                measure_searches(samples, stores, memories, rounds)
            if "put" in only:
                with psycopg.connect(dsn, autocommit=True) as connection:
                    connection.execute(
                        "CREATE INDEX store_vectors_embedding_idx ON store_vectors"
                        " USING hnsw (embedding vector_cosine_ops) WHERE prefix LIKE 'putters%'"
                    )
                measure_puts(samples, stores, rounds)
            if "large" in only:
                measure_large(samples, dsn, stores, rounds)
        if "mixed" in only:
            async with AsyncExitStack() as tasks:
                theirs = await tasks.enter_async_context(
                    AsyncPostgresStore.from_conn_string(dsn, pool_config={"min_size": 1, "max_size": 10}, index=INDEX)
                )
                ours = await tasks.enter_async_context(AsyncPGMemoryStore.from_conn_string(dsn, index=INDEX))
                await measure_mixed(samples, {UPSTREAM: theirs, OURS: ours}, memories, rounds)
    return samples


def figures_of(samples: Samples) -> dict[str, dict[str, float]]:
    """Return the median of each store, our 95th percentile, and how many times faster ours is, by case."""
    found = {}
    for case, times in samples.items():
        theirs, ours = (statistics.median(times[name]) for name in (UPSTREAM, OURS))
        found[case] = {UPSTREAM: theirs, OURS: ours, "ratio": theirs / ours}
        if len(times[OURS]) >= 100:
            found[case]["p95"] = sorted(times[OURS])[int(len(times[OURS]) * 0.95) - 1]
    return found


def table(figures: dict[str, dict[str, float]]) -> str:
    """Return the table of figures."""
    lines = ["| measure | PostgresStore | this package | its 95th percentile | ratio |", "|---|---:|---:|---:|---:|"]
    for case in CASES:
        if (found := figures.get(case)) is not None:
            cells = [number(found.get(name), "ms") for name in (UPSTREAM, OURS, "p95")]
            lines.append(f"| {case} | {' | '.join(cells)} | {found['ratio']:.2g}× |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--memories", type=int, default=MEMORIES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="get,search,put,large,mixed", type=lambda given: given.split(","))
    arguments = parser.parse_args()
    figures = figures_of(asyncio.run(run(arguments)))
    print(table(figures))
    if arguments.memories == MEMORIES:
        before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        figures = {**before.get("cases", {}), **figures}
        RESULT.write_text(json.dumps({"memories": MEMORIES, "cases": figures}, indent=2) + "\n")
        put_between_marks(DOCUMENT, BEGINS, ENDS, table(figures))


if __name__ == "__main__":
    main()
