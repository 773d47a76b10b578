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
        bool, typer.Option("--answered", help="List threads that have answers and are not resumed yet.")
    ] = False,
    limit: LimitOption = 20,
) -> None:
    """List interrupted threads with their interrupts. The newest come first."""
    target: Target = ctx.obj
    with target.connect() as state:
        page = state.interrupts.threads(user_id=user, tenant_id=tenant, agent=agent, answered=answered, limit=limit)
    if target.is_json:
        print_json_page(page.items, page.next)
        return
    table = new_table("thread", "user", "agent", "since", "id", "answer" if answered else "interrupt")
    for thread in page.items:
        first = [escape(thread.thread_id), escape(thread.user_id or ""), escape(thread.agent or "")]
        lines: list[tuple[Any, str, Any]] = (
            [(one.answered_at, one.interrupt_id, one.value) for one in thread.answers]
            if answered
            else [(one.asked_at, one.interrupt_id, one.error or one.question or one.value) for one in thread.interrupts]
        )
        for at, interrupt_id, value in lines:
            # Show the beginning of an id, which `answer` accepts.
            shown = interrupt_id[:8] if console.is_terminal else interrupt_id
            table.add_row(*first, format_time(at), escape(shown), escape(shorten(value_text(value), 80)))
            first = [""] * 3
    spare = ("user", "agent", "since")
    show(table, len(page.items), "interrupted thread", page.next, spare=spare, prose=("interrupt", "answer"))


def answer(
    ctx: typer.Context,
    thread: ThreadArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The answer, as JSON or plain text.")],
    interrupt: Annotated[
        str | None, typer.Option(metavar="ID", help="If there are several interrupts: the id of one, or its beginning.")
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who answers; by default the shell's user.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Take VALUE as text, not as JSON.")] = False,
) -> None:
    """Answer an interrupt, once. A worker resumes an enqueued run; the application must resume any other run."""
    target: Target = ctx.obj
    with target.connect() as state:
        part = state.interrupts
        readable = [one.interrupt_id for one in part.list(thread) if one.error is None]
        matching = [id for id in readable if id.startswith(interrupt or "")]
        if interrupt and len(matching) > 1:
            raise ConfigurationError(
                f"{len(matching)} interrupts of thread {thread!r} begin with {interrupt!r}: give more of the id"
            )
        chosen = matching[0] if len(matching) == 1 else interrupt
        command = part.answer(thread, value if text else value_of(value), by=by or shell_user(), interrupt_id=chosen)
        found = part.answered(thread, chosen or "")
        left = part.list(thread)
    run_id = None if found is None else found.answer.run_id
    if target.is_json:
        print_json(as_json(command) | {"run_id": run_id, "open_interrupts": len(left)})
        return
    if run_id is not None:
        console.print(f"answered; a worker resumes it with run {run_id}", soft_wrap=True)
    else:
        console.print("answered; its run was not enqueued")
        if not left and found is not None:
            from langgraph_pgstate.cli.tree import short_id

            console.print("to go on, if the application does not pass the graph `interrupts.resume(…)`:", style="dim")
            print_command(target.program(), "resume", thread, checkpoint=short_id(found.answer.checkpoint_id))
    if left:
        console.print(f"[yellow]it still waits for {count(len(left), 'answer')}[/]")


def value_of(text: str) -> Any:
    """Return the value of JSON text, and any other text unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def value_text(value: Any) -> str:
    """Return a value as text: a string unchanged, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(as_json(value), ensure_ascii=False, separators=(",", ":"))


def shell_user() -> str | None:
    """Return the name of the user of this shell."""
    return os.environ.get("USER") or os.environ.get("LOGNAME")
