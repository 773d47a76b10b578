"""The command `audit`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

import typer

from langgraph_pgstate.cli.drawing import console
from langgraph_pgstate.cli.output import conclude, count, one_of, print_json
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.cli.threads import person
from langgraph_pgstate.errors import ConfigurationError

ACTIONS: Final = ("verify", "export", "adopt")


def audit(
    ctx: typer.Context,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="verify, export or adopt.", callback=one_of(*ACTIONS))
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
