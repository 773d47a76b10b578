"""The commands on threads: lists, searches, events and their audit, deletion, leases and holds."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from langgraph_pgstate.cli.drawing import Text, console, escape
from langgraph_pgstate.cli.interrupts import shell_user, value_text
from langgraph_pgstate.cli.options import (
    ONLY_STATUS,
    THREAD_STATUSES,
    AgentOption,
    CheckpointOption,
    LimitOption,
    TenantOption,
    ThreadArgument,
    UserOption,
    YesOption,
)
from langgraph_pgstate.cli.output import (
    bytes_in_words,
    conclude,
    count,
    format_time,
    new_table,
    one_of,
    print_json,
    print_json_page,
    shorten,
    show,
    styled_status,
)
from langgraph_pgstate.cli.target import Target, absent
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.options import age

_ROLE_STYLES = {"human": "bold cyan", "ai": "bold green", "tool": "bold blue", "system": "bold magenta"}
_ACTIONS: Final = ("verify", "export", "adopt")


def threads(
    ctx: typer.Context,
    user: UserOption = None,
    tenant: TenantOption = None,
    agent: AgentOption = None,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"{ONLY_STATUS} {', '.join(THREAD_STATUSES)}.", callback=one_of(*THREAD_STATUSES)
        ),
    ] = None,
    limit: LimitOption = 20,
) -> None:
    """List threads, most recently active first."""
    target: Target = ctx.obj
    with target.connect() as state:
        page = state.threads.list(user_id=user, tenant_id=tenant, agent=agent, status=status, limit=limit)
    if target.is_json:
        print_json_page(page.items, page.next)
        return
    table = new_table("thread", "title", "user", "tenant", "agent", "status", "created", "updated", "expires")
    for thread in page.items:
        owner = [thread.user_id or "", thread.tenant_id or "", thread.agent or ""]
        times = map(format_time, (thread.created_at, thread.updated_at, thread.expires_at))
        cells = [thread.thread_id, shorten(thread.title or "", 40), *owner]
        marks = [", archived"] * (thread.archived_at is not None) + [", held"] * thread.is_held
        table.add_row(*map(escape, cells), styled_status(thread.status) + "".join(marks), *times)
    spare = ("created", "tenant", "expires", "user", "agent", "title")
    show(table, len(page.items), "thread", page.next, spare=spare, prose=("title",))


def conversation(
    ctx: typer.Context,
    thread: ThreadArgument,
    checkpoint: CheckpointOption = None,
    last: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the last N messages.")] = None,
    channel: Annotated[
        str | None, typer.Option(metavar="NAME", help="The channel; by default `messages`, or the last changed one.")
    ] = None,
) -> None:
    """Print the recorded messages of a thread. By default, print all up to its newest checkpoint."""
    target: Target = ctx.obj
    with target.connect() as state:
        at = state.threads.find(thread, checkpoint)["configurable"]["checkpoint_id"] if checkpoint else None
        messages = state.messages.conversation(thread, last=last, checkpoint_id=at, channel=channel)
        if not messages:
            found = state.threads.get(thread)
            if found is None or found.archived_at is not None:
                raise absent(state.threads, thread)
    if target.is_json:
        print_json(*messages)
        return
    if not messages:
        console.print("no recorded messages (`pgstate show` has the state, `pgstate backfill` records it)")
    for message in messages:
        name = f"{message.role or '?'} {message.agent or ''}".strip()
        line = Text(name, style=_ROLE_STYLES.get(message.role or "", "bold"), overflow="fold")
        line.append(f"  {format_time(message.created_at)}", style="dim")
        console.print(line)
        for text in filter(None, [message.content, *map(_call_text, message.tool_calls or ())]):
            console.print(Text(text, overflow="fold"))


def search(
    ctx: typer.Context,
    words: Annotated[
        str, typer.Argument(metavar="WORDS", help='Words of a message; "a phrase", or, -without work, too.')
    ],
    user: UserOption = None,
    tenant: TenantOption = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Only of this thread.")] = None,
    best_first: Annotated[bool, typer.Option("--best-first", help="Sort by rank instead of time.")] = False,
    limit: LimitOption = 20,
) -> None:
    """Search the recorded messages, newest first."""
    target: Target = ctx.obj
    with target.connect() as state:
        page = state.messages.search(
            words, user_id=user, tenant_id=tenant, thread_id=thread, best_first=best_first, limit=limit
        )
    if target.is_json:
        print_json_page(page.items, page.next)
        return
    table = new_table("thread", "time", "role", "text")
    for hit in page.items:
        message = hit.message
        cells = [message.thread_id, format_time(message.created_at), message.role or "", shorten(hit.snippet, 160)]
        table.add_row(*map(escape, cells))
    show(table, len(page.items), "message", page.next, spare=("role", "time"), prose=("text",))


def events(
    ctx: typer.Context,
    thread: ThreadArgument,
    kind: Annotated[str | None, typer.Option(metavar="NAME", help="Only events of this kind, like handoff.")] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only events of this run.")] = None,
    limit: LimitOption = 100,
) -> None:
    """List the newest events of a thread, oldest first."""
    target: Target = ctx.obj
    with target.connect() as state:
        page = state.events.list(thread, kind=kind, run_id=run, limit=1000)
        found = list(page.items)
        while page.next:
            page = state.events.list(thread, kind=kind, run_id=run, limit=1000, cursor=page.next)
            found = [*found, *page.items][-limit:]
    found = found[-limit:]
    if target.is_json:
        print_json(*found)
        return
    table = new_table("time", "kind", "run", "checkpoint", "agent", "details")
    for event in found:
        details = ", ".join(f"{key}={value_text(value)}" for key, value in event.payload.items() if value is not None)
        run_id = (event.run_id or "")[-8:] if console.is_terminal else event.run_id or ""
        at = format_time(event.created_at, seconds=True)
        cells = [at, event.kind, run_id, event.checkpoint_id or "", event.agent or "", shorten(details, 160)]
        table.add_row(*map(escape, cells))
    show(table, len(found), "event", None, spare=("checkpoint", "agent", "run"), prose=("details",))


def delete(
    ctx: typer.Context,
    thread: ThreadArgument,
    tombstone: Annotated[
        str | None, typer.Option(metavar="AGE", help="Refuse late writes of guarded runs for this long, like 1d.")
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who deletes it; by default the shell's user.")] = None,
    yes: YesOption = False,
) -> None:
    """Delete a thread with its checkpoints and its record. An event says who did."""
    late = age(tombstone) if tombstone else timedelta(0)
    target: Target = ctx.obj
    with target.connect(tombstones_for=late) as state:
        found = state.saver.prune([thread], strategy="delete", dry_run=True)
        if not found.threads:
            raise absent(state.threads, thread)
        if not yes:
            what = f"thread {thread} with {count(found.checkpoints, 'checkpoint')}"
            typer.confirm(f"Delete {what}?", abort=True, err=True)
        state.saver.delete_thread(thread, by=by or shell_user())
    if target.is_json:
        print_json(replace(found, dry_run=False))
        return
    console.print(
        f"deleted thread {escape(thread)}: {count(found.checkpoints, 'checkpoint')}, "
        f"{count(found.writes, 'pending write')}, {bytes_in_words(found.bytes)}"
    )


def person(by: str | None) -> str:
    """Return the name of the person who acts: the given name, or the user of this shell."""
    if not (name := by or shell_user()):
        raise typer.BadParameter("--by must name the person: this shell has no user")
    return name


def holds(
    ctx: typer.Context,
    thread: Annotated[
        str | None, typer.Argument(metavar="THREAD", help="Only of this thread.", show_default=False)
    ] = None,
    limit: LimitOption = 100,
) -> None:
    """List the legal holds of threads, by whom and why."""
    target: Target = ctx.obj
    with target.connect() as state:
        page = state.threads.holds(thread, limit=limit)
    if target.is_json:
        print_json_page(page.items, page.next)
        return
    table = new_table("thread", "by", "since", "reason")
    for found in page.items:
        table.add_row(*map(escape, [found.thread_id, found.held_by, format_time(found.created_at), found.reason]))
    show(table, len(page.items), "hold", page.next, prose=("reason",))


def hold(
    ctx: typer.Context,
    thread: ThreadArgument,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="The reason, like the number of a case.")],
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who holds it; by default the shell's user.")] = None,
) -> None:
    """Put a legal hold on a thread. Nothing of it is deleted until the hold is released."""
    target: Target = ctx.obj
    with target.connect() as state:
        found = state.threads.hold(thread, reason, by=person(by))
    if target.is_json:
        print_json(found)
        return
    console.print(f"thread {escape(thread)} is held by {escape(found.held_by)} since {format_time(found.created_at)}")


def release(
    ctx: typer.Context,
    thread: ThreadArgument,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="The reason of the hold.")],
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who ends it; by default the shell's user.")] = None,
) -> None:
    """End a legal hold of a thread."""
    target: Target = ctx.obj
    with target.connect() as state:
        if not state.threads.release(thread, reason, by=person(by)):
            raise NotFoundError(f"thread {thread!r} is not held for the reason {reason!r}")
        left = state.threads.holds(thread).items
    if target.is_json:
        print_json({"thread_id": thread, "holds": len(left)})
        return
    others = f", and still held for {count(len(left), 'other reason')}" if left else ""
    console.print(f"thread {escape(thread)} is released{others}")


def leases(ctx: typer.Context, limit: LimitOption = 100) -> None:
    """List the held leases and their holders. The first to expire come first."""
    target: Target = ctx.obj
    with target.connect() as state:
        page = state.leases.list(limit=limit)
    if target.is_json:
        print_json_page(page.items, page.next)
        return
    table = new_table("thread", "host", "process", "acquired", "expires", "holder")
    for lease in page.items:
        host, *rest = lease.holder_id.split("/")
        process = rest[2] if len(rest) > 2 else ""
        expires = format_time(lease.expires_at, seconds=True)
        cells = [lease.thread_id, host, process, format_time(lease.acquired_at), expires, lease.holder_id]
        table.add_row(*map(escape, cells))
    show(table, len(page.items), "lease", page.next, spare=("holder", "acquired", "host", "process"))


def _call_text(call: object) -> str:
    if isinstance(call, dict):
        return f"→ {call.get('name')} {value_text(call.get('args') or {})}"
    return f"→ {value_text(call)}"


def audit(
    ctx: typer.Context,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="verify, export or adopt.", callback=one_of(*_ACTIONS))
    ] = "verify",
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Only this thread.")] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            exists=True,
            dir_okay=False,
            help="With verify: an earlier export, whose events must still exist.",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, dir_okay=False, help="With export: the file; by default it is printed."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With adopt: who declares the events genuine; by default the shell's user."),
    ] = None,
) -> None:
    """Verify, export or complete the chains of events.

    `adopt` adds the events that are in no chain yet. The exit code is 1 if an event was removed, changed or inserted.
    """
    target: Target = ctx.obj
    if against is not None and action != "verify":
        raise ConfigurationError(f"--against requires verify, got {action}")
    if to is not None and action != "export":
        raise ConfigurationError(f"--to requires export, got {action}")
    with target.connect() as state, ExitStack() as stack:
        if action == "export":
            file = stack.enter_context(to.open("wb")) if to is not None else typer.get_binary_stream("stdout")
            for line in state.audit.export(thread):
                file.write(line + b"\n")
            return
        if action == "adopt":
            adopted = state.audit.adopt(person(by), thread)
            if target.is_json:
                print_json({"events": adopted})
            else:
                console.print(f"adopted {count(adopted, 'event')}")
            return
        lines = stack.enter_context(against.open("rb")) if against is not None else ()
        report = state.audit.verify(thread, exported=lines)
    if target.is_json:
        print_json(report)
        raise typer.Exit(int(bool(report.problems)))
    console.print(f"read {count(report.threads, 'thread')}, {count(report.events, 'event')}")
    if report.explained:
        console.print(f"{count(report.explained, 'event')} deleted or redacted since, as later events say")
    if report.before:
        console.print(f"{count(report.before, 'event')} from before the audit, in no chain")
    if report.ended:
        console.print(f"{count(report.ended, 'exported event')} of threads that were deleted since")
    conclude(report.problems, "wrong")
