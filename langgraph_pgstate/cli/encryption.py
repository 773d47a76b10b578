"""The command `encryption`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.output import count, new_table, one_of, print_json, print_problems, print_table, progress
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError

ACTIONS: Final = ("status", "rewrap", "rotate", "encrypt", "words")


def encryption(
    ctx: typer.Context,
    action: Annotated[
        str,
        typer.Argument(metavar="ACTION", help="status, rewrap, rotate, encrypt or words.", callback=one_of(*ACTIONS)),
    ] = "status",
    scope: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="With rotate: only the data key of this scope."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--every", help="With rewrap: also keys that the first master key has wrapped.")
    ] = False,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="With rotate: do not wait for processes; a later call ends it."),
    ] = False,
) -> None:
    """Count, rewrap or rotate keys; encrypt content; add words.

    The master keys are those of PGSTATE_ENCRYPTION_KEYS. The application may run. After an interruption, call it again
    to continue. After `words`, searches also find what was encrypted before PGSTATE_ENCRYPTION_SEARCH=words was set.
    """
    for given, name, wanted in (
        (scope, "--scope", "rotate"),
        (every, "--every", "rewrap"),
        (no_wait, "--no-wait", "rotate"),
    ):
        if given and action != wanted:
            raise ConfigurationError(f"{name} requires {wanted}, got {action}")
    target: Target = ctx.obj
    with target.admin(accept_plain=action == "encrypt") as admin:
        if action == "status":
            counts = admin.data_keys()
            if target.is_json:
                print_json({"masters": counts})
                return
            table = new_table("master key", "current", "replaced", "retired", "destroyed")
            for one in counts:
                table.add_row(escape(one.master_id), *(f"{number:,}" for number in one[1:]))
            print_table(table)
            return
        if action == "rewrap":
            with progress("wrapping keys") as advance:
                changed = admin.rewrap_keys(every=every, progress=lambda done: advance(done, None))
            if target.is_json:
                print_json({"keys": changed})
            else:
                console.print(f"wrapped {count(changed, 'data key')} again")
            return
        if action == "words":
            with progress("adding words") as advance:
                report = admin.add_words(progress=lambda reached: advance(reached.rows, None))
            if target.is_json:
                print_json(report)
            else:
                rows = count(report.rows, "row")
                console.print(f"looked at {rows}, added digests of words to {count(report.values, 'row')}")
            return
        with progress("encrypting") as advance:
            report = (
                admin.encrypt(progress=lambda reached: advance(reached.rows, None))
                if action == "encrypt"
                else admin.rotate_keys(
                    scope=scope, wait=not no_wait, progress=lambda reached: advance(reached.rows, None)
                )
            )
    if target.is_json:
        print_json(report)
    else:
        console.print(f"looked at {count(report.rows, 'row')}, encrypted {count(report.values, 'value')} again")
        if action == "rotate":
            console.print(
                f"made {count(report.keys, 'data key')}, retired {report.retired:,}; "
                f"{report.left:,} are not retired yet"
            )
        if report.problems:
            print_problems(report.problems, "values do not decrypt")
    if report.problems:
        raise typer.Exit(1)
