"""The console script `pgstate`. It requires the extra `cli`."""

from __future__ import annotations

import logging
import signal
import sys
from importlib.util import find_spec
from io import TextIOWrapper
from types import FrameType

_VALUE_OPTIONS = ("--dsn", "--schema")
_FLAGS = ("--json",)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # Print escapes of characters that the terminal's encoding lacks.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _run()
    except KeyboardInterrupt:
        # Commands handle Ctrl-C themselves. This one came before, while modules were imported.
        raise SystemExit(128 + signal.SIGINT) from None


def _run() -> None:
    try:
        import typer

        if find_spec("rich") is None:
            raise ImportError("rich")
    except ImportError:
        sys.stderr.write("pgstate needs the extra `cli` of langgraph-pgstate\n")
        raise SystemExit(2) from None
    del typer
    from langgraph_pgstate.cli.app import app

    # Hide the log records of outages, because commands report an outage in one line.
    logging.getLogger("langgraph_pgstate.connections").addHandler(logging.NullHandler())
    # Raise an exception at a signal, so that every `finally` runs and the embedded server stops.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    app(_with_options_first(sys.argv[1:]), prog_name="pgstate")


def _with_options_first(arguments: list[str]) -> list[str]:
    """Return the arguments with the global options first. Users may write these options after the command."""
    first: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            return [*first, *rest, argument, *remaining]
        if argument in _VALUE_OPTIONS:
            first.append(argument)
            if (value := next(remaining, None)) is not None:
                first.append(value)
        elif argument in _FLAGS or argument.partition("=")[0] in _VALUE_OPTIONS:
            first.append(argument)
        else:
            rest.append(argument)
    return first + rest


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
