"""The commands that rewrite or complete what is stored: `upcast` and `backfill`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from langgraph_pgstate.cli.drawing import Table, console, escape
from langgraph_pgstate.cli.options import ThreadsOption
from langgraph_pgstate.cli.output import count, job, new_table, print_json, print_table
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from langgraph_pgstate.admin.types import UpcastReport
    from langgraph_pgstate.threads import Threads


def upcast(
    ctx: typer.Context,
    to: Annotated[int, typer.Option("--to", min=1, metavar="N", help="The application's state_version.")],
    upcasters: Annotated[
        str,
        typer.Option(
            "--upcasters", metavar="MODULE:NAME", help="The application's upcasters: a dict like {2: f, 3: g}."
        ),
    ],
    serde: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="The application's serializer, if it has its own or custom types."),
    ] = None,
    thread: ThreadsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; only count.")] = False,
) -> None:
    """Rewrite checkpoints in the newest version of the state. A stopped command can be run again."""
    steps = _attribute(upcasters)
    if not isinstance(steps, Mapping):
        raise ConfigurationError(f"--upcasters must name a dict of upcasters, got {upcasters}")
    serializer = _attribute(serde) if serde else None
    if isinstance(serializer, type):
        serializer = serializer()
    target: Target = ctx.obj
    with target.connect() as state, target.admin(serde=serializer) as admin:
        _check_threads(state.threads, thread)
        with job("reading" if dry_run else "upcasting") as advance:
            report = admin.upcast(to, steps, thread_ids=thread or None, dry_run=dry_run, progress=advance)
    if target.is_json:
        print_json(report)
    else:
        _print_upcast(report, to)
    if report.problems:
        raise typer.Exit(1)


def backfill(ctx: typer.Context, thread: ThreadsOption = None) -> None:
    """Record the messages of threads that had no recorder. A stopped command can be run again."""
    target: Target = ctx.obj
    with target.connect() as state, job("reading") as advance:
        _check_threads(state.threads, thread)
        report = state.backfill(thread or None, progress=advance)
    if target.is_json:
        print_json(report)
    else:
        console.print(
            f"read {count(report.threads, 'thread')}, {count(report.checkpoints, 'checkpoint')}: recorded "
            f"{count(report.messages, 'message')} at {count(report.filled, 'checkpoint')}, and the status of "
            f"{count(report.statuses, 'thread')}"
        )
        if report.problems:
            console.print(
                f"[bold red]{count(len(report.problems), 'checkpoint')} could not be read; see `pgstate check`:[/]"
            )
            for problem in report.problems:
                console.print(f"  {escape(problem.where)}: {escape(problem.why)}")
    if report.problems:
        raise typer.Exit(1)


def _check_threads(threads: Threads, thread_ids: list[str] | None) -> None:
    for id in thread_ids or ():
        if threads.get(id) is None:
            raise NotFoundError(f"there is no thread {id!r}")


def _print_upcast(report: UpcastReport, version: int) -> None:
    console.print(
        f"read {count(report.threads, 'thread')}: {count(report.outdated, 'checkpoint')} of another version, "
        f"{report.upcast:,} {'would be' if report.dry_run else 'were'} rewritten in version {version}"
    )
    changes = {"appears": report.added, "changes": report.changed, "disappears": report.removed}
    if any(changes.values()):
        table: Table = new_table("channel", *changes)
        for channel in sorted(set().union(*changes.values())):
            table.add_row(escape(channel), *(f"{counter[channel] or '':}" for counter in changes.values()))
        print_table(table)
    if report.problems:
        console.print(f"[bold red]{count(len(report.problems), 'checkpoint')} could not be rewritten:[/]")
        for problem in report.problems:
            console.print(f"  {escape(problem.where)}: {escape(problem.why)}")


def _attribute(name: str) -> Any:
    """Return the object that `module:attribute` names. The working directory is searched, too."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise ConfigurationError(
            f"--upcasters and --serde must have the form module:attribute, like app.state:upcasters, got {name!r}"
        )
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{name!r} cannot be imported: {error}") from error
    return found
