"""The commands about people and time: who waits for an answer, answering, and bringing old state up to date."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import orjson
import typer
from rich.markup import escape
from rich.table import Table

from langgraph_pgstate.admin import Admin
from langgraph_pgstate.cli.output import console, count, new_table, print_table, progress_bar, shorten
from langgraph_pgstate.cli.record import AgentOption, LimitOption, TenantOption, UserOption, parts_of, show
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.operations.admin import schema as schemas
from langgraph_pgstate.sql import queries
from langgraph_pgstate.state import PGState
from langgraph_pgstate.threads import Threads
from langgraph_pgstate.types import Progress, UpcastReport


def waiting(
    ctx: typer.Context,
    user: UserOption = None,
    tenant: TenantOption = None,
    agent: AgentOption = None,
    answered: Annotated[
        bool, typer.Option("--answered", help="Those that were answered and did not go on yet, instead.")
    ] = False,
    limit: LimitOption = 20,
) -> None:
    """List the threads that wait for people, those asked last first, with their questions."""
    with parts_of(ctx.obj) as parts:
        page = Threads(*parts).waiting(user_id=user, tenant_id=tenant, agent=agent, answered=answered, limit=limit)
    table = new_table("thread", "user", "agent", "since", "interrupt", "answer" if answered else "question")
    for thread in page.items:
        first = [escape(thread.thread_id), escape(thread.user_id or ""), escape(thread.agent or "")]
        lines: list[tuple[Any, str, Any]] = (
            [(one.answered_at, one.interrupt_id, one.value) for one in thread.answers]
            if answered
            else [(one.asked_at, one.interrupt_id, one.error or one.value) for one in thread.questions]
        )
        for at, interrupt_id, value in lines:
            moment = at.astimezone().strftime("%Y-%m-%d %H:%M")
            # `answer` takes how an id begins; a program that reads the list takes the whole.
            shown = interrupt_id[:8] if console.is_terminal else interrupt_id
            table.add_row(*first, moment, escape(shown), escape(shorten(_said(value), 80)))
            first = [""] * 3
    spare = ("user", "agent", "since")
    show(table, len(page.items), "waiting thread", page.next, spare=spare, prose=("question", "answer"))


def answer(
    ctx: typer.Context,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The answer: JSON, or else plain text.")],
    interrupt: Annotated[
        str | None, typer.Option(metavar="ID", help="Which question, or how its id begins, if several wait.")
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who answers; you, if not given.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Take the answer for plain text in any case.")] = False,
) -> None:
    """Answer what a thread waits for, once; the graph goes on when the application resumes it."""
    given: Any = value
    if not text:
        try:
            given = orjson.loads(value)
        except orjson.JSONDecodeError:
            given = value
    with parts_of(ctx.obj) as parts:
        part = Threads(*parts)
        if interrupt:
            matching = [one for one in part.questions(thread) if one.interrupt_id.startswith(interrupt)]
            if len(matching) > 1:
                raise ConfigurationError(f"{len(matching)} questions of thread {thread!r} begin with {interrupt!r}")
            interrupt = matching[0].interrupt_id if matching else interrupt
        part.answer(thread, given, by=by or _me(), interrupt_id=interrupt)
        left = part.questions(thread)
    console.print(f"answered; thread {escape(thread)} goes on when the application passes it `threads.resume(…)`")
    if left:
        console.print(f"[yellow]it still waits for {count(len(left), 'answer')}[/]")


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


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return str(value)


def _me() -> str | None:
    return os.environ.get("USER") or os.environ.get("LOGNAME")
