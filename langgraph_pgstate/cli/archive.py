"""The command `archive`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.options import AgentOption, LimitOption, UserOption, YesOption
from langgraph_pgstate.cli.output import (
    bytes_in_words,
    count,
    format_time,
    new_table,
    one_of,
    print_json,
    print_json_page,
    show,
)
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.keep.types import ArchiveReport
from langgraph_pgstate.options import age, check_lasting

ACTIONS: Final = ("put", "restore", "list", "check", "delete")


def archive(
    ctx: typer.Context,
    action: Annotated[
        str,
        typer.Argument(metavar="ACTION", help="put, restore, list, check or delete.", callback=one_of(*ACTIONS)),
    ] = "list",
    threads: Annotated[
        list[str] | None, typer.Argument(metavar="[THREAD]...", help="The threads.", show_default=False)
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="With put: the place, like s3://bucket/prefix or file:///folder.", show_default=False
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="With restore: the place, for threads of another database."),
    ] = None,
    user: UserOption = None,
    agent: AgentOption = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="With put: threads without activity for this long, like 90d."),
    ] = None,
    limit: LimitOption = 100,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With put: only count. With restore: only read and verify.")
    ] = False,
    missing_ok: Annotated[
        bool,
        typer.Option("--missing-ok", help="With delete: a copy whose objects are lost counts as deleted."),
    ] = False,
    is_sure: YesOption = False,
) -> None:
    """Archive threads outside of the database, and restore them.

    `put` reads the rows back from the archive and verifies them, and only then deletes them from the database. The
    environment has the credentials of buckets. The exit code is 1 if a named thread is not archived, or if there is
    nothing to delete or to restore.
    """
    target: Target = ctx.obj
    given = threads or None
    if action == "put":
        _put(target, given, to, user, agent, older_than, dry_run)
        return
    if given is None and action == "delete":
        raise ConfigurationError("archive delete requires the ids of threads")
    if given is None and source is None and action == "restore":
        raise ConfigurationError(
            "archive restore requires the ids of threads, or --from URL for all threads of an archive"
        )
    with target.connect() as state:
        if action == "list":
            page = state.archive.list(user_id=user, agent=agent, limit=limit)
            if target.is_json:
                print_json_page(page.items, page.next)
                return
            table = new_table("thread", "title", "user", "agent", "archived", "updated", "archive")
            for one in page.items:
                times = format_time(one.archived_at), format_time(one.updated_at)
                cells = [one.thread_id, one.title or "", one.user_id or "", one.agent or "", *times, one.url]
                table.add_row(*map(escape, cells))
            show(table, len(page.items), "thread", page.next, spare=("updated", "agent", "user"), prose=("title",))
            return
        if action == "delete":
            if not is_sure:
                named = count(len(given or ()), "thread")
                question = f"Delete all copies of {named} in archives? A thread that was not restored is then lost"
                typer.confirm(question, abort=True, err=True)
            deleted = state.archive.delete(given or (), missing_ok=missing_ok)
            if not deleted.copies:
                raise NotFoundError("there is no copy of the threads in any archive")
            if target.is_json:
                print_json(deleted)
            else:
                console.print(f"copies deleted: {deleted.copies:,}; threads deleted for good: {deleted.threads:,}")
            return
        report = (
            state.archive.check(given)
            if action == "check"
            else state.archive.restore(given, source=source, dry_run=dry_run)
        )
    if action == "restore" and not report.threads + report.unchanged:
        raise NotFoundError(f"there is no archive below {source}")
    if target.is_json:
        print_json(report)
        return
    done = "verified" if action == "check" or dry_run else "restored"
    console.print(f"{done}: {count(report.threads, 'thread')} with {count(report.rows, 'row')}")


def _put(
    target: Target,
    threads: list[str] | None,
    to: str | None,
    user: str | None,
    agent: str | None,
    older_than: str | None,
    dry_run: bool,
) -> None:
    if to is None:
        raise ConfigurationError("archive put requires --to URL, the URL of the archive")
    if not threads and user is None and agent is None and older_than is None:
        raise ConfigurationError("archive put requires the ids of threads, or one of --older-than, --user and --agent")
    to = check_lasting(to)
    with target.connect() as state:
        filters: Any = {name: value for name, value in (("user_id", user), ("agent", agent)) if value is not None}
        if older_than is not None:
            filters["idle_for"] = age(older_than)
            if threads is None:
                filters["updated_before"] = datetime.now(UTC) - age(older_than)
        report = state.archive.put(threads, to=to, dry_run=dry_run, **filters)
    if target.is_json:
        print_json(report)
    else:
        print_archived(report)
    if threads and not all(one.is_archived for one in report.left):
        raise typer.Exit(1)


def print_archived(report: ArchiveReport) -> None:
    """Print how many threads were archived, and which were not."""
    done = "would be archived" if report.dry_run else "archived"
    size = f"{bytes_in_words(report.bytes)} {'in the database' if report.dry_run else 'stored'}"
    console.print(f"{done}: {count(report.threads, 'thread')} with {count(report.rows, 'row')}, {size}")
    for one in report.left:
        console.print(f"  {escape(one.thread_id)} {one.why}")
