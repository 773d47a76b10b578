"""The program `pgstate`: its global options and the list of its commands, which the other modules define."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from langgraph_pgstate import __version__
from langgraph_pgstate.cli import (
    branches,
    checkpoints,
    export,
    inspect,
    interrupts,
    ledger,
    limits,
    prices,
    queue,
    record,
    schedules,
    schema,
    serve,
    threads,
    transfer,
    upcast,
)
from langgraph_pgstate.cli.drawing import errors
from langgraph_pgstate.cli.output import INTERRUPTED, fail
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, PGStateError
from langgraph_pgstate.options import DEFAULT_SCHEMA, DSN_VARIABLE


class _Commands(TyperGroup):
    """Shows errors of the package as one line; other errors are bugs and keep their stack trace."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # click would cut each text to one line.
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join((one.help or "").split())) for name, one in self.commands.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PGStateError as error:
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
    # Plain: rich takes three times as long to import as all else that the help needs.
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
            help="The database; else the embedded one, with its data in .pgstate/.",
        ),
    ] = None,
    schema: Annotated[str, typer.Option(metavar="NAME", help="Schema of the tables.")] = DEFAULT_SCHEMA,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: lists as one document per line, all else as one document.")
    ] = False,
) -> None:
    """LangGraph checkpoints and their record on PostgreSQL. The options below may also follow a command."""
    ctx.obj = Target(dsn, schema, is_json)


@app.command()
def demo(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(metavar="PROVIDER:NAME", help="A real chat model; needs its key. Else an offline one."),
    ] = None,
    turns: Annotated[
        int | None, typer.Option(min=0, show_default=False, help="Turns of the conversation after the resume.")
    ] = None,
) -> None:
    """Kill an agent in the middle of a superstep, resume it, fork it."""
    from langgraph_pgstate.cli.agent import provider_model
    from langgraph_pgstate.cli.demo import Demo

    target: Target = ctx.obj
    if target.is_json:
        raise ConfigurationError("the demo prints no JSON")
    if model:
        provider_model(model)  # raises before anything begins if a package or a key is missing
    with target.open(create=True) as dsn:
        Demo(dsn, target.schema, target.place, model=model, turns=turns, program=target.program()).run()


for _command in (
    schema.setup,
    schema.migrate,
    schema.status,
    checkpoints.check,
    checkpoints.prune,
    branches.tree,
    branches.show,
    threads.conversation,
    branches.diff,
    branches.label,
    branches.fork,
    threads.delete,
    threads.threads,
    record.runs,
    record.trace,
    threads.events,
    threads.search,
    record.tools,
    prices.cost,
    prices.prices,
    prices.price,
    ledger.executions,
    ledger.settle,
    threads.leases,
    record.maintain,
    record.expire,
    record.sweep,
    interrupts.interrupts,
    interrupts.answer,
    serve.serve,
    inspect.inspect,
    queue.worker,
    queue.enqueue,
    queue.join,
    queue.cancel,
    queue.resume,
    schedules.schedule,
    limits.limits,
    limits.budgets,
    upcast.upcast,
    upcast.backfill,
    export.export,
    queue.dead_letters,
    transfer.import_langgraph,
    transfer.export_langgraph,
):
    app.command()(_command)
