"""The commands that read or rewrite all checkpoints: `check`, `prune`, `upcast` and `backfill`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from langgraph_pgstate.admin.types import CheckReport
from langgraph_pgstate.cli.drawing import Table, console, escape
from langgraph_pgstate.cli.options import ORPHANS, STRATEGIES, ThreadsOption
from langgraph_pgstate.cli.output import (
    bytes_in_words,
    conclude,
    count,
    job,
    new_table,
    one_of,
    print_json,
    print_table,
)
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.options import age

if TYPE_CHECKING:
    from langgraph_pgstate.admin.types import UpcastReport
    from langgraph_pgstate.threads import Threads

_KEEP_LATEST: Final = STRATEGIES[0]


def check(
    ctx: typer.Context,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Only this thread.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every value.")] = False,
    types: Annotated[bool, typer.Option("--types", help="List stored types that are not LangGraph's own.")] = False,
) -> None:
    """Read every checkpoint and list what is broken. The exit code is 1 if anything is broken."""
    target: Target = ctx.obj
    with target.admin() as admin, job("checking") as advance:
        report = admin.check(thread, deep=deep, types=types, progress=advance)
    if thread is not None and not report.checkpoints and not report.writes and not report.problems:
        raise NotFoundError(f"there are no checkpoints of thread {thread!r}; the thread may be archived")
    if target.is_json:
        print_json(report)
        raise typer.Exit(int(bool(report.problems)))
    console.print(
        f"read {count(report.threads, 'thread')}, {count(report.checkpoints, 'checkpoint')}, "
        f"{count(report.segments, 'segment')}, {count(report.writes, 'pending write')}"
    )
    if types:
        _print_types(report)
    if report.unreferenced:
        console.print(f"{count(report.unreferenced, 'segment')} without a reference; the next prune removes them")
    if report.orphan_writes:
        console.print(f"{count(report.orphan_writes, 'pending write')} {ORPHANS}")
    conclude(report.problems, "broken")


def prune(
    ctx: typer.Context,
    keep_last: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", show_default=False, help="Keep the newest N checkpoints of each thread."),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", show_default=False, help="Remove only older data, like 30d or 12h.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help=f"{', '.join(STRATEGIES)}; else {_KEEP_LATEST}.",
            callback=one_of(*STRATEGIES),
        ),
    ] = None,
    thread: ThreadsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before all threads are deleted.")] = False,
) -> None:
    """Remove old checkpoints, or whole threads. The exit code is 1 if damaged threads were left."""
    if keep_last is None and older_than is None and strategy is None:
        raise ConfigurationError("prune requires --keep-last N, --older-than AGE or --strategy NAME")
    limit: timedelta | None = age(older_than) if older_than else None
    rule = strategy or _KEEP_LATEST
    if keep_last is not None and rule != _KEEP_LATEST:
        raise ConfigurationError(f"--keep-last requires --strategy {_KEEP_LATEST}, got {rule}")
    target: Target = ctx.obj
    with target.connect() as state:
        if rule != _KEEP_LATEST and not (thread or limit or dry_run or yes):
            typer.confirm(f"Delete every thread in schema {target.schema}?", abort=True, err=True)
        with job("reading" if dry_run else "pruning") as advance:
            result = state.saver.prune(
                thread or None,
                strategy=rule,
                keep_last=keep_last or 1,
                older_than=limit,
                dry_run=dry_run,
                progress=advance,
            )
    if target.is_json:
        print_json(result)
        raise typer.Exit(int(bool(result.damaged)))
    console.print(
        f"{'would remove' if result.dry_run else 'removed'} {bytes_in_words(result.bytes)} "
        f"of {count(result.threads, 'thread')}: {count(result.checkpoints, 'checkpoint')}, "
        f"{count(result.writes, 'pending write')}, {count(result.segments, 'segment')}"
    )
    if result.held:
        console.print(f"{count(len(result.held), 'thread')} kept, because they are held; see `pgstate holds`")
    if result.archived:
        console.print(f"{count(len(result.archived), 'thread')} left as archived; see `pgstate archive`")
    if result.damaged:
        console.print(f"[bold red]{count(len(result.damaged), 'thread')} left as damaged; see `pgstate check`:[/]")
        for id in result.damaged:
            console.print(f"  {escape(id)}")
        raise typer.Exit(1)


def _print_types(report: CheckReport) -> None:
    if report.others:
        console.print(f"{count(report.others, 'value')} of another serializer, whose types only it knows")
    if not report.types:
        console.print("no types besides LangGraph's own")
        return
    console.print(f"{count(len(report.types), 'type')} besides LangGraph's own:")
    # Do not fold these lines, because users paste them into a shell and a program.
    typer.echo(f"PGSTATE_ALLOWED_TYPES={','.join(report.types)}")
    typer.echo(f"allowed_types={[*report.types]}")


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
