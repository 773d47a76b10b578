"""The commands `interrupts` and `answer`."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.options import AgentOption, LimitOption, TenantOption, ThreadArgument, UserOption
from langgraph_pgstate.cli.output import (
    as_json,
    count,
    format_time,
    new_table,
    print_command,
    print_json,
    print_json_page,
    shorten,
    show,
)
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError


def interrupts(
    ctx: typer.Context,
    user: UserOption = None,
    tenant: TenantOption = None,
    agent: AgentOption = None,
    answered: Annotated[
        bool, typer.Option("--answered", help="List those that were answered and have not gone on yet.")
    ] = False,
    limit: LimitOption = 20,
) -> None:
    """List interrupted threads with their interrupts, newest first."""
    from langgraph_pgstate.interrupts.pending import question_of

    target: Target = ctx.obj
    with target.connect() as parts:
        page = parts.interrupts.threads(user_id=user, tenant_id=tenant, agent=agent, answered=answered, limit=limit)
    if target.is_json:
        print_json_page(page.items, page.next)
        return
    table = new_table("thread", "user", "agent", "since", "id", "answer" if answered else "interrupt")
    for thread in page.items:
        first = [escape(thread.thread_id), escape(thread.user_id or ""), escape(thread.agent or "")]
        lines: list[tuple[Any, str, Any]] = (
            [(one.answered_at, one.interrupt_id, one.value) for one in thread.answers]
            if answered
            else [
                (one.asked_at, one.interrupt_id, one.error or question_of(one.value) or one.value)
                for one in thread.interrupts
            ]
        )
        for at, interrupt_id, value in lines:
            # `answer` takes the beginning of an id.
            shown = interrupt_id[:8] if console.is_terminal else interrupt_id
            table.add_row(*first, format_time(at), escape(shown), escape(shorten(value_text(value), 80)))
            first = [""] * 3
    spare = ("user", "agent", "since")
    show(table, len(page.items), "interrupted thread", page.next, spare=spare, prose=("interrupt", "answer"))


def answer(
    ctx: typer.Context,
    thread: ThreadArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The answer: JSON, or else plain text.")],
    interrupt: Annotated[
        str | None, typer.Option(metavar="ID", help="The interrupt, or the beginning of its id, if there are several.")
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who answers; else the user of this shell.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Take VALUE as text, not as JSON.")] = False,
) -> None:
    """Answer an interrupt, once. An enqueued run is resumed by a worker, others when the application resumes them."""
    from langgraph_pgstate.codec.values import ValueCodec
    from langgraph_pgstate.interrupts import answers

    target: Target = ctx.obj
    with target.connect() as parts:
        part = parts.interrupts
        if interrupt:
            matching = [one for one in part.list(thread) if one.interrupt_id.startswith(interrupt)]
            if len(matching) > 1:
                raise ConfigurationError(f"{len(matching)} interrupts of thread {thread!r} begin with {interrupt!r}")
            interrupt = matching[0].interrupt_id if matching else interrupt
        codec = ValueCodec()
        request = answers.request_answer(codec, value if text else value_of(value), by or _shell_user(), interrupt)
        given = parts.database.run(answers.answer, parts.queries, codec, thread, request)
        left = part.list(thread)
    if target.is_json:
        command = as_json(answers.command_for(given))
        print_json(command | {"run_id": given.run_id, "open_interrupts": len(left)})
        return
    if given.run_id is not None:
        console.print(f"answered; a worker resumes it with run {given.run_id}", soft_wrap=True)
    else:
        console.print("answered; its run was not enqueued")
        if not left:
            from langgraph_pgstate.cli.tree import short_id

            console.print("to go on, if the application does not pass the graph `interrupts.resume(…)`:", style="dim")
            print_command(target.program(), "resume", thread, checkpoint=short_id(given.checkpoint_id))
    if left:
        console.print(f"[yellow]it still waits for {count(len(left), 'answer')}[/]")


def value_of(text: str) -> Any:
    """Return what JSON text holds; other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def value_text(value: Any) -> str:
    """Return a value as text: a string as it is, others as JSON."""
    return value if isinstance(value, str) else json.dumps(as_json(value), ensure_ascii=False, separators=(",", ":"))


def _shell_user() -> str | None:
    return os.environ.get("USER") or os.environ.get("LOGNAME")
