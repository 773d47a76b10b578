"""The commands that make, migrate and show the tables: `setup`, `tenancy`, `migrate` and `status`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from langgraph_pgstate.cli.drawing import console, errors, escape
from langgraph_pgstate.cli.options import ORPHANS
from langgraph_pgstate.cli.output import as_json, bytes_in_words, count, new_table, print_json, print_table
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError

_OperatorsOption = Annotated[
    list[str] | None,
    typer.Option("--operators", metavar="ROLE", show_default=False, help="A role that sees all tenants."),
]
_WorkersOption = Annotated[
    list[str] | None,
    typer.Option("--workers", metavar="ROLE", show_default=False, help="A role that may list tenants."),
]


def setup(
    ctx: typer.Context,
    sql: Annotated[bool, typer.Option("--sql", help="Only print the SQL, for your own migrations.")] = False,
    metadata_index: Annotated[bool, typer.Option("--metadata-index", help="Also index all metadata (GIN).")] = False,
    file_index: Annotated[
        bool, typer.Option("--file-index", help="Also index the texts of files, for grep; requires pg_trgm.")
    ] = False,
    tenancy: Annotated[
        str | None,
        typer.Option(
            metavar="rls", show_default=False, help="Keep tenants apart by row-level security; only for new tables."
        ),
    ] = None,
    operators: _OperatorsOption = None,
    workers: _WorkersOption = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Chain events by hashes from now on, for `pgstate audit`.")
    ] = False,
) -> None:
    """Make the tables, or update them to the newest version. Safe to repeat."""
    from langgraph_pgstate.admin.api import Admin

    target: Target = ctx.obj
    if sql and tenancy is not None:
        raise ConfigurationError("--sql must be given without --tenancy, because it prints no row-level security")
    if sql and audit:
        raise ConfigurationError("--sql must be given without --audit, because it prints no statements for the audit")
    if sql:
        script = Admin.setup_script(target.schema)
        if target.is_json:
            print_json({"sql": script})
        else:
            typer.echo(script, nl=False)
        return
    with target.admin(create=True) as admin:
        tenants: Any = {"tenancy": tenancy, "operators": operators or (), "workers": workers or ()}
        applied = admin.setup(metadata_index=metadata_index, file_index=file_index, audit=audit, **tenants)
        state = admin.status()
    if target.is_json:
        print_json(as_json(state) | {"applied": applied})
        return
    for name in applied:
        console.print(f"applied {name}")
    console.print(f"schema {target.schema} is up to date, at version {state.version}")


def tenancy(
    ctx: typer.Context,
    tenant: Annotated[
        str | None, typer.Option("--to", metavar="NAME", show_default=False, help="The tenant of all rows.")
    ] = None,
    tenant_from: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            show_default=False,
            help="Source of a thread's tenant: tenant_id, user_id or metadata.KEY.",
        ),
    ] = None,
    otherwise: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="The tenant of rows for which --from finds none."),
    ] = None,
    namespace_part: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            show_default=False,
            help="Position of the tenant in namespaces of memories and files; 1 is the first label.",
        ),
    ] = None,
    operators: _OperatorsOption = None,
    workers: _WorkersOption = None,
    prepare: Annotated[bool, typer.Option("--prepare", help="Only prepare the move; the next call ends it.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Undo a move that has not ended.")] = False,
) -> None:
    """Move existing rows to tenants. The application may run. Repeat the command after an interruption."""
    from langgraph_pgstate.schema.types import TenancyProgress

    target: Target = ctx.obj
    if target.tenant is not None:
        raise ConfigurationError(
            "tenancy must be called without --tenant, because it moves all rows: give the tenant by --to"
        )
    options = (tenant, tenant_from, otherwise, namespace_part, operators, workers)
    if undo and (prepare or any(one is not None for one in options)):
        raise ConfigurationError("--undo takes no other options")
    shown = ""

    def show(progress: TenancyProgress) -> None:
        nonlocal shown
        line = f"rows: {escape(progress.name)}" if progress.step == "rows" else "building keys"
        if line != shown:
            shown = line
            errors.print(line)

    with target.connect() as state:
        if undo:
            was_begun = state.undo_move_to_tenants()
            if target.is_json:
                print_json({"undone": was_begun})
            else:
                console.print("the move is undone" if was_begun else "no move was begun")
            return
        done = state.move_to_tenants(
            tenant,
            tenant_from=tenant_from,
            otherwise=otherwise,
            namespace_part=namespace_part,
            operators=operators or (),
            workers=workers or (),
            switch=not prepare,
            progress=show,
        )
    if target.is_json:
        print_json(as_json(done))
        return
    for name, number in sorted(done.left.items()):
        console.print(f"[yellow]{count(number, 'row')} of {name} without a tenant:[/] name one by --otherwise")
    if done.had_ended:
        console.print(f"the tenants of schema {target.schema} are kept apart by an earlier move: nothing was changed")
        return
    standing = (
        "are kept apart" if done.is_switched else "are ready to be kept apart: repeat the command without --prepare"
    )
    console.print(f"the tenants of schema {target.schema} {standing}")


def migrate(
    ctx: typer.Context,
    to: Annotated[
        int | None, typer.Option(min=0, metavar="N", show_default=False, help="The version; by default the newest.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a downgrade, which loses data.")] = False,
) -> None:
    """Move the schema to a newer or older version."""
    target: Target = ctx.obj
    with target.admin() as admin:
        version = admin.status().version
        if to is not None and to < version and not yes:
            errors.print(f"[yellow]Going down from version {version} to {to} loses data of the tables.[/]")
            typer.confirm(f"Take schema {target.schema} down to version {to}?", abort=True, err=True)
        moved = admin.migrate(to)
        state = admin.status()
    if target.is_json:
        print_json(as_json(state) | {"moved": moved})
        return
    for name in moved:
        console.print(name)
    console.print(f"schema {target.schema} is at version {state.version}")


def status(ctx: typer.Context) -> None:
    """Show the schema's version, and the sizes of its tables."""
    target: Target = ctx.obj
    with target.admin() as admin:
        state, sizes = admin.status(), admin.sizes()
    server, tables = sizes.server_version, sizes.tables
    if target.is_json:
        print_json(as_json(state) | as_json(sizes))
        return
    standing = f"version {state.version} of {state.expected}" if state.version else "not set up"
    if state.version > state.expected:
        standing = f"version {state.version}, newer than this package, which has version {state.expected}"
    console.print(f"PostgreSQL {server} ({escape(target.place)}), schema [bold]{state.schema}[/]: {standing}")
    if state.version > state.expected and not state.is_usable:
        console.print("[yellow]this package cannot use the schema:[/] upgrade langgraph_pgstate")
    if state.pending:
        console.print(f"[yellow]pending:[/] {', '.join(state.pending)}; run `pgstate migrate` or `pgstate setup`")
    if not tables:
        return
    threads = next((f"{'' if item.exact else 'about '}{item.rows:,}" for item in tables if item.name == "threads"), "0")
    console.print(f"threads: [bold]{threads}[/]")
    if sizes.orphan_writes:
        console.print(f"{count(sizes.orphan_writes, 'pending write')} {ORPHANS}")
    shown = new_table("table", right=("rows", "bytes", "of these indexes"))
    for item in tables:
        rows = f"{'' if item.exact else '~'}{item.rows:,}"
        shown.add_row(item.name, rows, bytes_in_words(item.bytes), bytes_in_words(item.index_bytes))
    shown.add_section()
    total, indexes = sum(item.bytes for item in tables), sum(item.index_bytes for item in tables)
    shown.add_row("all", "", bytes_in_words(total), bytes_in_words(indexes), style="bold")
    print_table(shown)
