"""The commands about interrupts: list them, and answer them."""

from __future__ import annotations

import os
from typing import Annotated, Any

import orjson
import typer
from rich.markup import escape

from langgraph_pgstate.cli.output import console, count, new_table, shorten
from langgraph_pgstate.cli.record import AgentOption, LimitOption, TenantOption, UserOption, parts_of, show
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.threads import Threads


def interrupts(
    ctx: typer.Context,
    user: UserOption = None,
    tenant: TenantOption = None,
    agent: AgentOption = None,
    answered: Annotated[
        bool, typer.Option("--answered", help="Those that were answered and did not go on yet, instead.")
    ] = False,
    limit: LimitOption = 20,
) -> None:
    """List interrupted threads, those asked last first, with what they ask."""
    with parts_of(ctx.obj) as parts:
        page = Threads(*parts).interrupted(user_id=user, tenant_id=tenant, agent=agent, answered=answered, limit=limit)
    table = new_table("thread", "user", "agent", "since", "id", "answer" if answered else "interrupt")
    for thread in page.items:
        first = [escape(thread.thread_id), escape(thread.user_id or ""), escape(thread.agent or "")]
        lines: list[tuple[Any, str, Any]] = (
            [(one.answered_at, one.interrupt_id, one.value) for one in thread.answers]
            if answered
            else [(one.asked_at, one.interrupt_id, one.error or one.value) for one in thread.interrupts]
        )
        for at, interrupt_id, value in lines:
            moment = at.astimezone().strftime("%Y-%m-%d %H:%M")
            # `answer` takes how an id begins; a program that reads the list takes the whole.
            shown = interrupt_id[:8] if console.is_terminal else interrupt_id
            table.add_row(*first, moment, escape(shown), escape(shorten(_said(value), 80)))
            first = [""] * 3
    spare = ("user", "agent", "since")
    show(table, len(page.items), "interrupted thread", page.next, spare=spare, prose=("interrupt", "answer"))


def answer(
    ctx: typer.Context,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The thread.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The answer: JSON, or else plain text.")],
    interrupt: Annotated[
        str | None, typer.Option(metavar="ID", help="Which interrupt, or how its id begins, if several wait.")
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
            matching = [one for one in part.interrupts(thread) if one.interrupt_id.startswith(interrupt)]
            if len(matching) > 1:
                raise ConfigurationError(f"{len(matching)} interrupts of thread {thread!r} begin with {interrupt!r}")
            interrupt = matching[0].interrupt_id if matching else interrupt
        part.answer(thread, given, by=by or _me(), interrupt_id=interrupt)
        left = part.interrupts(thread)
    console.print(f"answered; thread {escape(thread)} goes on when the application passes it `threads.resume(…)`")
    if left:
        console.print(f"[yellow]it still waits for {count(len(left), 'answer')}[/]")


def _said(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return str(value)


def _me() -> str | None:
    return os.environ.get("USER") or os.environ.get("LOGNAME")
