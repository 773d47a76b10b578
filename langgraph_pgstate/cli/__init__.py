"""The console script `pgstate`; needs the `cli` extra."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line."""
    try:
        import rich
        import typer
    except ImportError:
        sys.stderr.write("pgstate needs its `cli` extra: pip install 'langgraph-pgstate[cli]'\n")
        raise SystemExit(2) from None
    del rich, typer
    from langgraph_pgstate.cli.app import app

    # Ended from outside, the way out still leads through every `finally`: no embedded server stays behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    app(prog_name="pgstate")


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
