"""The commands of `pgstate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from langgraph_pgstate import __version__
from langgraph_pgstate.admin import Admin
from langgraph_pgstate.cli import branches, interrupts, record, upcast
from langgraph_pgstate.cli.output import (
    bytes_in_words,
    console,
    count,
    fail,
    new_table,
    one_of,
    print_table,
    progress_bar,
)
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, PGStateError
from langgraph_pgstate.operations.admin.schema import setup_script
from langgraph_pgstate.operations.admin.sizes import count_orphan_writes, get_server_version, list_table_sizes
from langgraph_pgstate.operations.threads.prune import KEEP_LATEST, STRATEGIES, request_prune
from langgraph_pgstate.saver import PGStateSaver
from langgraph_pgstate.settings import DEFAULT_SCHEMA, DSN_VARIABLE, age, check_schema_name
from langgraph_pgstate.sql import queries
from langgraph_pgstate.types import CheckReport, Problem, Progress, TransferReport


class _Commands(TyperGroup):
    """Shows the package's errors as one line; anything else is a bug and keeps its stack trace."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PGStateError as error:
            fail(str(error))
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_ORPHANS = "of a checkpoint that is not there, and gone a day later with the next prune or `maintain`"

ThreadsOption = Annotated[
    list[str] | None, typer.Option("--thread", metavar="ID", help="Only this thread; may be repeated.")
]


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
            help="PostgreSQL to work on; without it the embedded one, with its data in .pgstate/",
        ),
    ] = None,
    schema: Annotated[str, typer.Option(metavar="NAME", help="Schema of the tables.")] = DEFAULT_SCHEMA,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """LangGraph checkpoints and their record on PostgreSQL: set up, look at, verify, prune, move in and out."""
    ctx.obj = Target(dsn or None, schema)


@app.command()
def demo(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(metavar="PROVIDER:NAME", help="A real chat model instead of the offline one; needs its key."),
    ] = None,
    turns: Annotated[
        int | None, typer.Option(min=0, show_default=False, help="Turns the conversation goes on for.")
    ] = None,
) -> None:
    """Kill an agent in the middle of a superstep, resume it, fork it."""
    from langgraph_pgstate.cli.agent import provider_model
    from langgraph_pgstate.cli.demo import Demo

    if model:
        provider_model(model)  # what is missing is said before anything begins
    target: Target = ctx.obj
    with target.open(create=True) as dsn:
        Demo(dsn, target.schema, target.place, model=model, turns=turns, program=target.program()).run()


@app.command()
def setup(
    ctx: typer.Context,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead, for migrations of your own.")] = False,
    metadata_index: Annotated[bool, typer.Option("--metadata-index", help="Also index all metadata (GIN).")] = False,
) -> None:
    """Make the tables, or bring them up to date; safe to repeat."""
    target: Target = ctx.obj
    if sql:
        typer.echo(setup_script(check_schema_name(target.schema)), nl=False)
        return
    with _admin(target, create=True) as admin:
        for name in admin.setup(metadata_index=metadata_index):
            console.print(f"applied {name}")
        console.print(f"schema {target.schema} is up to date, at version {admin.status().version}")


@app.command()
def migrate(
    ctx: typer.Context,
    to: Annotated[
        int | None, typer.Option(min=0, metavar="N", show_default=False, help="Version; else the newest.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask before going down.")] = False,
) -> None:
    """Move the schema up, or down to an older version."""
    target: Target = ctx.obj
    with _admin(target) as admin:
        version = admin.status().version
        if to is not None and to < version and not yes:
            console.print(f"[yellow]Going down from version {version} to {to} loses what the tables hold.[/]")
            typer.confirm(f"Take schema {target.schema} down to version {to}?", abort=True)
        moved = admin.migrate(to)
        for name in moved:
            console.print(name)
        console.print(f"schema {target.schema} is at version {admin.status().version}")


@app.command()
def status(ctx: typer.Context) -> None:
    """Show the schema's version, and rows and bytes of its tables."""
    target: Target = ctx.obj
    with target.open() as dsn, Database.open(dsn, schema=target.schema, pool=False) as database:
        state = Admin(database).status()
        server = database.run(get_server_version, queries(target.schema))
        tables = database.run(list_table_sizes, queries(target.schema))
        orphaned = database.run(count_orphan_writes, queries(target.schema), tables)
    standing = f"version {state.version} of {state.expected}" if state.version else "not set up"
    console.print(f"PostgreSQL {server} ({escape(target.place)}), schema [bold]{state.schema}[/]: {standing}")
    if state.pending:
        console.print(f"[yellow]pending:[/] {', '.join(state.pending)}; run `pgstate migrate` or `pgstate setup`")
    if not tables:
        return
    threads = next((f"{'' if item.exact else 'about '}{item.rows:,}" for item in tables if item.name == "threads"), "0")
    console.print(f"threads: [bold]{threads}[/]")
    if orphaned:
        console.print(f"{_ORPHANS}: {count(orphaned, 'pending write')}")
    shown = new_table("table", right=("rows", "bytes", "of these indexes"))
    for item in tables:
        rows = f"{'' if item.exact else '~'}{item.rows:,}"
        shown.add_row(item.name, rows, bytes_in_words(item.bytes), bytes_in_words(item.index_bytes))
    shown.add_section()
    total, indexes = sum(item.bytes for item in tables), sum(item.index_bytes for item in tables)
    shown.add_row("all", "", bytes_in_words(total), bytes_in_words(indexes), style="bold")
    print_table(shown)


@app.command()
def check(
    ctx: typer.Context,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Only this thread.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every value, too.")] = False,
    types: Annotated[
        bool, typer.Option("--types", help="List the stored types that are not LangGraph's own; builds none of them.")
    ] = False,
) -> None:
    """Re-read every checkpoint and name what is broken; exit code 1 if anything is."""
    with _admin(ctx.obj) as admin, _progress("checking") as advance:
        report = admin.check(thread, deep=deep, types=types, progress=advance)
    if thread is not None and not report.checkpoints and not report.writes and not report.problems:
        raise NotFoundError(f"there is no thread {thread!r}")
    console.print(
        f"read {count(report.threads, 'thread')}, {count(report.checkpoints, 'checkpoint')}, "
        f"{count(report.segments, 'segment')}, {count(report.writes, 'pending write')}"
    )
    if types:
        _print_types(report)
    if report.unreferenced:
        console.print(f"not referred to, and gone with the next prune: {count(report.unreferenced, 'segment')}")
    if report.orphan_writes:
        console.print(f"{_ORPHANS}: {count(report.orphan_writes, 'pending write')}")
    if report.problems:
        _print_problems(report.problems, "broken")
        raise typer.Exit(1)
    console.print("[green]all is well[/]")


@app.command()
def prune(
    ctx: typer.Context,
    keep_last: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", show_default=False, help="Keep each thread's newest N checkpoints."),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", show_default=False, help="Only what is older, like 30d or 12h.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help=f"{', '.join(STRATEGIES)}; {KEEP_LATEST} if not given.",
            callback=one_of(*STRATEGIES),
        ),
    ] = None,
    thread: ThreadsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask before deleting all threads.")] = False,
) -> None:
    """Remove old checkpoints, or whole threads; exit code 1 if damaged threads were left."""
    if keep_last is None and older_than is None and strategy is None:
        raise ConfigurationError("say what may go: --keep-last N, --older-than AGE or --strategy NAME")
    limit: timedelta | None = age(older_than) if older_than else None
    rule = strategy or KEEP_LATEST
    # Whatever is wrong is said before anything is asked.
    request_prune(thread, rule, keep_last or 1, limit, dry_run)
    target: Target = ctx.obj
    with target.open() as dsn, PGStateSaver.from_conn_string(dsn, schema=target.schema, pool=False) as saver:
        if rule != KEEP_LATEST and not (thread or limit or dry_run or yes):
            # A server that does not answer, or has no tables, is told of before, too.
            next(saver.list(None, limit=1, metadata_only=True), None)
            typer.confirm(f"Delete every thread in schema {target.schema}?", abort=True)
        result = saver.prune(thread or None, strategy=rule, keep_last=keep_last or 1, older_than=limit, dry_run=dry_run)
    console.print(
        f"{'would remove' if result.dry_run else 'removed'} {bytes_in_words(result.bytes)} "
        f"of {count(result.threads, 'thread')}: {count(result.checkpoints, 'checkpoint')}, "
        f"{count(result.writes, 'pending write')}, {count(result.segments, 'segment')}"
    )
    if result.damaged:
        console.print(f"[bold red]{count(len(result.damaged), 'thread')} left as damaged; see `pgstate check`:[/]")
        for id in result.damaged:
            console.print(f"  {escape(id)}")
        raise typer.Exit(1)


for _command in (
    branches.tree,
    branches.diff,
    branches.label,
    branches.fork,
    record.threads,
    record.runs,
    record.trace,
    record.tools,
    record.cost,
    record.prices,
    record.price,
    record.maintain,
    record.expire,
    record.sweep,
    interrupts.interrupts,
    interrupts.answer,
    upcast.upcast,
    upcast.backfill,
):
    app.command()(_command)


@app.command("import-langgraph")
def import_langgraph(
    ctx: typer.Context,
    source: Annotated[str, typer.Option("--from", metavar="DSN", help="Database of the old application.")],
    source_schema: Annotated[str, typer.Option("--from-schema", metavar="NAME", help="Schema there.")] = "public",
    thread: ThreadsOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Bring over threads that went on in both places, too.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Compare each thread afterwards.")] = True,
) -> None:
    """Copy threads from LangGraph's own tables; can be stopped and run again."""
    with _admin(ctx.obj, create=True) as admin:
        admin.setup()
        with _progress("importing") as advance:
            report = admin.import_langgraph(
                source,
                source_schema=source_schema,
                thread_ids=thread or None,
                overwrite=overwrite,
                verify=verify,
                progress=advance,
            )
    _print_transfer("imported", report)


@app.command("export-langgraph")
def export_langgraph(
    ctx: typer.Context,
    goal: Annotated[str, typer.Option("--to", metavar="DSN", help="Database to write to.")],
    goal_schema: Annotated[str, typer.Option("--to-schema", metavar="NAME", help="Schema there.")] = "public",
    thread: ThreadsOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write threads that went on in both places, too.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Compare each thread afterwards.")] = True,
) -> None:
    """Copy threads to LangGraph's own tables, which are made if needed."""
    with _admin(ctx.obj) as admin, _progress("exporting") as advance:
        report = admin.export_langgraph(
            goal,
            target_schema=goal_schema,
            thread_ids=thread or None,
            overwrite=overwrite,
            verify=verify,
            progress=advance,
        )
    _print_transfer("exported", report)


@contextmanager
def _admin(target: Target, *, create: bool = False) -> Iterator[Admin]:
    with target.open(create=create) as dsn, Admin.open(dsn, schema=target.schema) as admin:
        yield admin


@contextmanager
def _progress(doing: str) -> Iterator[Callable[[Progress], None]]:
    """A bar over threads, while a job runs."""
    with progress_bar() as bar:
        task = bar.add_task(f"{doing} threads", total=None)

        def advance(progress: Progress) -> None:
            bar.update(task, completed=progress.threads, total=progress.total)

        yield advance


def _print_types(report: CheckReport) -> None:
    if report.others:
        console.print(f"of another serializer, which alone knows their types: {count(report.others, 'value')}")
    if not report.types:
        console.print("no types but LangGraph's own")
        return
    console.print(f"{count(len(report.types), 'type')} beside LangGraph's own:")
    # Whole lines, to be pasted.
    typer.echo(f"PGSTATE_ALLOWED_TYPES={','.join(report.types)}")
    typer.echo(f"allowed_types={[*report.types]}")


def _print_problems(problems: Sequence[Problem], title: str) -> None:
    console.print(f"[bold red]{len(problems):,} {title}:[/]")
    for problem in problems:
        console.print(f"  thread {escape(problem.thread_id)}, {escape(problem.where)}: {escape(problem.why)}")


def _print_transfer(done: str, report: TransferReport) -> None:
    console.print(
        f"{done} {count(report.threads, 'thread')}: {count(report.checkpoints, 'checkpoint')} and "
        f"{count(report.writes, 'pending write')} written, {report.unchanged:,} were there already; "
        f"{report.verified:,} compared with the other side"
    )
    if report.conflicts:
        _print_problems(report.conflicts, "went on in both places and were left as they are (--overwrite)")
    if report.differences:
        _print_problems(report.differences, "differ")
    if report.conflicts or report.differences:
        raise typer.Exit(1)
