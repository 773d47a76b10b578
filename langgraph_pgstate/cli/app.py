"""The program `pgstate`: its global options, and the list of the commands that the other modules define."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from errno import EPIPE
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from langgraph_pgstate import __version__
from langgraph_pgstate.cli import (
    archive,
    branches,
    checkpoints,
    encryption,
    export,
    interrupts,
    ledger,
    limits,
    memory,
    prices,
    privacy,
    queue,
    record,
    retention,
    schedules,
    schema,
    serve,
    threads,
    transfer,
)
from langgraph_pgstate.cli.drawing import errors
from langgraph_pgstate.cli.output import INTERRUPTED, fail
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.options import DEFAULT_SCHEMA, DSN_VARIABLE


class _Commands(TyperGroup):
    """A group of commands that prints errors of the package in one line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by group, each with its first sentence."""
        width = max(map(len, self.commands))
        for group, commands in groupby(self.commands.values(), key=attrgetter("rich_help_panel")):
            with formatter.section(group):
                formatter.write_dl([(str(one.name).ljust(width), (one.help or "").split(".")[0]) for one in commands])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PGStateError as error:
            fail(str(error))
            raise typer.Exit(1) from None
        except OSError as error:
            # Typer handles a pipe that its reader has closed.
            if error.errno == EPIPE:
                raise
            fail(str(error))
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            errors.print("[yellow]stopped[/]")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Print the help without rich, whose import takes three times as long as the rest of the help.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"pgstate {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    dsn: Annotated[
        str | None,
        typer.Option(
            envvar=DSN_VARIABLE,
            show_default=False,
            metavar="DSN",
            help="The database; by default the embedded one, with its data in .pgstate/.",
        ),
    ] = None,
    schema: Annotated[str, typer.Option(metavar="NAME", help="Schema of the tables.")] = DEFAULT_SCHEMA,
    tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default=False, help="The tenant, if the tables keep tenants apart."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: a list as one document per line, all else as one document.")
    ] = False,
) -> None:
    """LangGraph checkpoints and their record on PostgreSQL. --dsn, --schema and --json may also follow a command."""
    ctx.obj = Target(dsn, schema, is_json, tenant)


_COMMANDS: Final[Mapping[str, tuple[Callable[..., None], ...]]] = {
    "Start": (schema.setup, schema.status, schema.migrate, schema.tenancy),
    "Run and serve": (serve.serve, queue.worker, serve.inspect),
    "Threads": (
        threads.threads,
        threads.conversation,
        threads.search,
        threads.events,
        threads.leases,
        record.expire,
        threads.holds,
        threads.hold,
        threads.release,
        threads.delete,
    ),
    "States": (branches.show, branches.tree, branches.diff, branches.label, branches.fork),
    "Interrupts and tools": (
        interrupts.interrupts,
        interrupts.answer,
        queue.resume,
        ledger.executions,
        ledger.settle,
    ),
    "Queue": (
        queue.enqueue,
        queue.join,
        queue.cancel,
        queue.dead_letters,
        schedules.schedule,
        limits.limits,
        limits.budgets,
    ),
    "Memory": (memory.memory,),
    "Record": (record.runs, record.trace, record.tools, prices.cost, prices.prices, prices.price, export.export),
    "Maintenance": (
        record.maintain,
        archive.archive,
        retention.retention,
        record.sweep,
        checkpoints.prune,
        checkpoints.check,
        threads.audit,
        privacy.privacy,
        encryption.encryption,
        checkpoints.upcast,
        checkpoints.backfill,
        transfer.import_langgraph,
        transfer.export_langgraph,
    ),
}
for _group, _members in _COMMANDS.items():
    for _command in _members:
        app.command(rich_help_panel=_group)(_command)
