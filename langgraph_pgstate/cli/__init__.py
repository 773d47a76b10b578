"""The console script `pgstate`; needs the `cli` extra."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        import rich
        import typer
    except ImportError:
        sys.stderr.write("pgstate needs its `cli` extra: pip install 'langgraph-pgstate[cli]'\n")
        raise SystemExit(2) from None
    del rich, typer
    raise SystemExit(0)
