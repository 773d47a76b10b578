"""`python -m fuzz`: reads damaged and forged bytes, restores forged archives, and sends damaged and forged requests."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from langgraph_pgstate.db.embedded import embedded_server

from .reading import say


def main() -> int:
    """Run; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=0, help="how many stored bytes, of all readers together")
    parser.add_argument("--only", default="", help="one reader")
    parser.add_argument("--requests", type=int, default=0, help="how many requests")
    parser.add_argument("--archives", type=int, default=0, help="how many forged archives are restored")
    parser.add_argument("--seed", default="1", help="which ones; 1.12 are the requests from episode 12 of seed 1 on")
    options = parser.parse_args()
    findings = Counter[str]()
    if options.requests:
        findings += _send(options.requests, options.seed)
    if options.archives:
        findings += _restore(options.archives, options.seed)
    if options.inputs:
        # Its limit of memory stays, so it comes last.
        from . import reading

        findings += reading.run(options.inputs, options.seed, options.only)
    say(*(f"{count:9} {what}" for what, count in findings.items()), f"{findings.total():9} findings")
    return 1 if findings else 0


def _send(requests: int, seed: str) -> Counter[str]:
    from . import serving

    with _database() as dsn:
        began = time.monotonic()
        found = serving.run(dsn, "fuzz", seed, requests)
        seconds = time.monotonic() - began
    say(*(f"{count:9} {name}" for name, count in sorted(found.statuses.items())), "")
    say(*(f"{count:9} warnings: {name}" for name, count in found.warned.most_common(20)), "")
    say(*(f"{seconds:9.2f} s: {where}" for seconds, where in found.slowest), "")
    total = found.statuses.total()
    say(f"{total:9} requests in {seconds:.0f} s, {total / seconds:.0f} a second")
    return found.found


def _restore(archives: int, seed: str) -> Counter[str]:
    from . import archives as forged

    with _database() as dsn:
        made = forged.run(dsn, "fuzz", seed, archives)
    say(*(f"{count:9} archives: {name}" for name, count in made.outcomes.most_common()), "")
    return made.found


@contextmanager
def _database() -> Iterator[str]:
    directory = Path(tempfile.mkdtemp(prefix="pgstate-fuzz-"))
    try:
        with embedded_server(directory / "data") as dsn:
            with psycopg.connect(dsn, autocommit=True) as connection:
                for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                    connection.execute(f"ALTER SYSTEM SET {setting} = off")
                connection.execute("SELECT pg_reload_conf()")
            yield dsn
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
