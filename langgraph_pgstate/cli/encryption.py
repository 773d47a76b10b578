"""The command `encryption`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import console, errors, escape
from langgraph_pgstate.cli.output import (
    as_json,
    count,
    new_table,
    one_of,
    print_json,
    print_problems,
    print_table,
    progress,
)
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, EncryptionError, TenantError

if TYPE_CHECKING:
    from langgraph_pgstate.admin.api import Admin
    from langgraph_pgstate.admin.types import RotationReport

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
        bool, typer.Option("--every", help="With rewrap: also data keys that the first master key has already wrapped.")
    ] = False,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="With rotate: do not wait for other processes; a later call ends the rotation."),
    ] = False,
) -> None:
    """Count, rewrap or rotate keys; encrypt content; add words.

    PGSTATE_ENCRYPTION_KEYS has the master keys. The application may run. After an interruption, repeat the command to
    continue. If the tables keep tenants apart, the command serves all tenants in turn, or only one with `pgstate
    --tenant NAME`. After `words`, searches also find what was encrypted before PGSTATE_ENCRYPTION_SEARCH=words was set.
    """
    for given, name, wanted in (
        (scope, "--scope", "rotate"),
        (every, "--every", "rewrap"),
        (no_wait, "--no-wait", "rotate"),
    ):
        if given and action != wanted:
            raise ConfigurationError(f"{name} requires {wanted}, got {action}")
    target: Target = ctx.obj
    names: list[str] = []
    if target.tenant is None and target.dsn is not None:
        # A role that may list tenants does the action for each tenant. For other roles, the action itself raises the
        # error.
        with suppress(TenantError), target.admin() as admin:
            names = admin.tenants()
    targets = [replace(target, tenant=name) for name in names] or [target]

    def act(one: Target, *, wait: bool = not no_wait) -> Any:
        with one.admin(accept_plain=action == "encrypt") as admin:
            return _act(admin, action, scope, every, wait)

    begun: dict[str | None, RotationReport] = {}
    if action == "rotate" and names and not no_wait:
        # Begin the rotations of all tenants now. Otherwise the command would wait for each tenant in turn.
        for one in targets:
            # The second call for this tenant, below, raises this error again.
            with suppress(EncryptionError):
                begun[one.tenant] = act(one, wait=False)
    is_whole = True
    for one in targets:
        first = found = begun.get(one.tenant)
        try:
            if first is None:
                found = act(one)
            elif first.left:
                found = act(one)
                found.keys, found.values = found.keys + first.keys, found.values + first.values
        except EncryptionError as error:
            if not names:
                raise
            is_whole = False
            errors.print(f"[bold red]tenant {escape(str(one.tenant))}:[/] {escape(str(error))}")
            continue
        _show(target, action, found, one.tenant if names else None)
        is_whole = is_whole and not getattr(found, "problems", ())
    raise typer.Exit(int(not is_whole))


def _act(admin: Admin, action: str, scope: str | None, every: bool, wait: bool) -> Any:
    if action == "status":
        return admin.data_keys()
    if action == "rewrap":
        with progress("wrapping keys") as advance:
            return admin.rewrap_keys(every=every, progress=lambda done: advance(done, None))
    with progress("adding words" if action == "words" else "encrypting") as advance:
        given: Any = {"progress": lambda reached: advance(reached.rows, None)}
        if action == "words":
            return admin.add_words(**given)
        return admin.encrypt(**given) if action == "encrypt" else admin.rotate_keys(scope=scope, wait=wait, **given)


def _show(target: Target, action: str, found: Any, tenant: str | None) -> None:
    of_tenant = {} if tenant is None else {"tenant": tenant}
    if target.is_json:
        name = {"status": "masters", "rewrap": "keys"}.get(action)
        print_json(of_tenant | (as_json(found) if name is None else {name: found}))
        return
    if tenant is not None:
        console.print(f"tenant {escape(tenant)}:")
    if action == "rewrap":
        console.print(f"wrapped {count(found, 'data key')} again")
    elif action == "status":
        table = new_table("master key", "current", "replaced", "retired", "destroyed")
        for one in found:
            table.add_row(escape(one.master_id), *(f"{number:,}" for number in one[1:]))
        print_table(table)
    elif action == "words":
        console.print(f"looked at {count(found.rows, 'row')}, added digests of words to {count(found.values, 'row')}")
    else:
        console.print(f"looked at {count(found.rows, 'row')}, encrypted {count(found.values, 'value')} again")
        if action == "rotate":
            console.print(
                f"made {count(found.keys, 'data key')}, retired {found.retired:,}; {found.left:,} are not retired yet"
            )
        if found.problems:
            print_problems(found.problems, "values do not decrypt")
            if action == "rotate":
                console.print("restore these values from a backup, or delete their rows; then rotate again")
