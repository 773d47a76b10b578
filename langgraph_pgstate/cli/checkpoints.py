"""The commands that read all checkpoints: `check` and `prune`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

import typer

from langgraph_pgstate.admin.types import CheckReport
from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.options import ORPHANS, STRATEGIES, ThreadsOption
from langgraph_pgstate.cli.output import bytes_in_words, conclude, count, job, one_of, print_json
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.options import age

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
