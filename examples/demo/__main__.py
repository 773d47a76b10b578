"""Run the demo on the embedded PostgreSQL, or on another one: `python -m examples.demo --help`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType

from examples.demo.agent import provider_model
from examples.demo.demo import Demo
from langgraph_pgstate.cli.drawing import errors
from langgraph_pgstate.cli.output import INTERRUPTED, fail
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.options import DEFAULT_SCHEMA, DSN_VARIABLE


def main() -> int:
    """Run the demo, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make demo", description="Kill an agent in a superstep, resume it, fork it.")
    parser.add_argument("--dsn", default=os.environ.get(DSN_VARIABLE) or None, help="the database; else the embedded")
    parser.add_argument("--schema", default=DEFAULT_SCHEMA, help="schema of the tables")
    parser.add_argument("--model", help="a real chat model, provider:name; needs its key; else an offline one")
    parser.add_argument("--turns", type=int, help="turns of the conversation after the resume")
    given = parser.parse_args()
    target = Target(given.dsn, given.schema)
    try:
        if given.model:
            provider_model(given.model)  # raises before anything begins if a package or a key is missing
        with target.open(create=True) as dsn:
            Demo(dsn, target, model=given.model, turns=given.turns).run()
    except PGStateError as error:
        fail(str(error))
        return 1
    except KeyboardInterrupt:
        errors.print("[yellow]stopped[/]")
        return INTERRUPTED
    return 0


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    # A signal raises, so that every `finally` runs and the embedded server stops.
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, _exit)
    sys.exit(main())
