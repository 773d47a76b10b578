"""The commands that rewrite or complete what is stored: `upcast` and `backfill`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from langgraph_pgstate.admin import Admin
from langgraph_pgstate.cli.output import console, count, new_table, print_table, progress_bar
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.operations.admin import schema as schemas
from langgraph_pgstate.sql import queries
from langgraph_pgstate.state import PGState
from langgraph_pgstate.threads import Threads
from langgraph_pgstate.types import Progress, UpcastReport


def upcast(
    ctx: typer.Context,
    to: Annotated[int, typer.Option("--to", min=1, metavar="N", help="The application's state_version.")],
    upcasters: Annotated[
        str, typer.Option("--upcasters", metavar="MODULE:NAME", help="Its upcasters, a dict like {2: f, 3: g}.")
    ],
    serde: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="Its serializer, if it has one of its own or types of its own."),
    ] = None,
    thread: Annotated[
        list[str] | None, typer.Option("--thread", metavar="ID", help="Only this thread; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, only tell what would change.")] = False,
) -> None:
    """Bring all checkpoints up to the current version of the state; can be stopped and run again."""
    steps = _attribute(upcasters)
    if not isinstance(steps, Mapping):
        raise ConfigurationError(f"{upcasters} is no dict of upcasters")
    serializer = _attribute(serde) if serde else None
    if isinstance(serializer, type):
        serializer = serializer()
    target: Target = ctx.obj
    with (
        target.open() as dsn,
        Database.open(dsn, schema=target.schema, pool=False) as database,
        progress_bar() as bar,
    ):
        known = Threads(database, queries(target.schema))
        database.run(schemas.check_version, queries(target.schema))
        for id in thread or ():
            if known.get(id) is None:
                raise NotFoundError(f"there is no thread {id!r} in schema {target.schema}")
        task = bar.add_task("reading threads" if dry_run else "upcasting threads", total=None)

        def advance(progress: Progress) -> None:
            bar.update(task, completed=progress.threads, total=progress.total)

        report = Admin(database, serde=serializer).upcast(
            to, steps, thread_ids=thread or None, dry_run=dry_run, progress=advance
        )
    _print_upcast(report, to)
    if report.problems:
        raise typer.Exit(1)


def backfill(
    ctx: typer.Context,
    thread: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this thread; repeatable.")] = None,
) -> None:
    """Record the messages of threads that were written without the recorder; can be stopped and run again."""
    target: Target = ctx.obj
    with target.open() as dsn, PGState.open(dsn, schema=target.schema, pool=False) as state, progress_bar() as bar:
        for id in thread or ():
            if state.threads.get(id) is None:
                raise NotFoundError(f"there is no thread {id!r} in schema {target.schema}")
        task = bar.add_task("reading threads", total=None)

        def advance(progress: Progress) -> None:
            bar.update(task, completed=progress.threads, total=progress.total)

        report = state.backfill(thread or None, progress=advance)
    console.print(
        f"read {count(report.threads, 'thread')}, {count(report.checkpoints, 'checkpoint')}: recorded "
        f"{count(report.messages, 'message')} at {count(report.filled, 'checkpoint')}, and how "
        f"{count(report.statuses, 'thread')} stand{'s' if report.statuses == 1 else ''}"
    )
    if report.problems:
        console.print(
            f"[bold red]{count(len(report.problems), 'checkpoint')} could not be read; see `pgstate check`:[/]"
        )
        for problem in report.problems:
            console.print(f"  {escape(problem.where)}: {escape(problem.why)}")
        raise typer.Exit(1)


def _print_upcast(report: UpcastReport, version: int) -> None:
    console.print(
        f"looked at {count(report.threads, 'thread')}: {count(report.outdated, 'checkpoint')} of another version, "
        f"{report.upcast:,} {'would be' if report.dry_run else 'were'} brought to version {version}"
    )
    changes = {"appears": report.added, "changes": report.changed, "disappears": report.removed}
    if any(changes.values()):
        table: Table = new_table("channel", *changes)
        for channel in sorted(set().union(*changes.values())):
            table.add_row(escape(channel), *(f"{counter[channel] or '':}" for counter in changes.values()))
        print_table(table)
    if report.problems:
        console.print(f"[bold red]{count(len(report.problems), 'checkpoint')} could not be brought up:[/]")
        for problem in report.problems:
            console.print(f"  {escape(problem.where)}: {escape(problem.why)}")


def _attribute(name: str) -> Any:
    """What `module:attribute` names, looked for in the working directory, too."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise ConfigurationError(f"{name!r} does not name a module and an attribute, like app.state:upcasters")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{name!r} cannot be had: {error}") from error
    return found
