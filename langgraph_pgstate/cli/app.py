"""The commands of `pgstate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from langgraph_pgstate import __version__
from langgraph_pgstate.cli import (
    branches,
    export,
    inspect,
    interrupts,
    ledger,
    limits,
    prices,
    queue,
    record,
    schedules,
    serve,
    threads,
    upcast,
)
from langgraph_pgstate.cli.drawing import console, errors, escape
from langgraph_pgstate.cli.options import STRATEGIES, ThreadsOption
from langgraph_pgstate.cli.output import (
    INTERRUPTED,
    as_json,
    bytes_in_words,
    count,
    fail,
    job,
    new_table,
    one_of,
    print_json,
    print_table,
)
from langgraph_pgstate.cli.target import Parts, Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, PGStateError
from langgraph_pgstate.settings import DEFAULT_SCHEMA, DSN_VARIABLE, age, check_schema_name
from langgraph_pgstate.types import CheckReport, Problem, Progress, PruneResult, TransferReport

if TYPE_CHECKING:
    from langgraph_pgstate.admin import Admin
    from langgraph_pgstate.operations.threads.prune import PruneRequest


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

_ORPHANS = "without a checkpoint; the next prune or `maintain` removes them after a day"
_KEEP_LATEST = STRATEGIES[0]


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
    ctx.obj = Target(dsn or None, schema, is_json)


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


@app.command()
def setup(
    ctx: typer.Context,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead, for your own migrations.")] = False,
    metadata_index: Annotated[bool, typer.Option("--metadata-index", help="Also index all metadata (GIN).")] = False,
) -> None:
    """Make the tables, or bring them up to date. It can be repeated."""
    from langgraph_pgstate.operations.admin.schema import setup_script

    target: Target = ctx.obj
    if sql:
        script = setup_script(check_schema_name(target.schema))
        if target.is_json:
            print_json({"sql": script})
        else:
            typer.echo(script, nl=False)
        return
    with _admin(target, create=True) as admin:
        applied = admin.setup(metadata_index=metadata_index)
        state = admin.status()
    if target.is_json:
        print_json(as_json(state) | {"applied": applied})
        return
    for name in applied:
        console.print(f"applied {name}")
    console.print(f"schema {target.schema} is up to date, at version {state.version}")


@app.command()
def migrate(
    ctx: typer.Context,
    to: Annotated[
        int | None, typer.Option(min=0, metavar="N", show_default=False, help="The version; else the newest.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before going down.")] = False,
) -> None:
    """Move the schema to a newer or older version."""
    target: Target = ctx.obj
    with _admin(target) as admin:
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


@app.command()
def status(ctx: typer.Context) -> None:
    """Show the version of the schema, and rows and bytes of its tables."""
    from langgraph_pgstate.admin import Admin
    from langgraph_pgstate.db.database import Database
    from langgraph_pgstate.operations.admin.sizes import count_orphan_writes, get_server_version, list_table_sizes
    from langgraph_pgstate.sql import queries

    target: Target = ctx.obj
    with target.open() as dsn, Database.open(dsn, schema=target.schema, pool=False) as database:
        state = Admin(database).status()
        server = database.run(get_server_version, queries(target.schema))
        tables = database.run(list_table_sizes, queries(target.schema))
        orphaned = database.run(count_orphan_writes, queries(target.schema), tables)
    if target.is_json:
        print_json(as_json(state) | {"server_version": server, "orphan_writes": orphaned, "tables": as_json(tables)})
        return
    standing = f"version {state.version} of {state.expected}" if state.version else "not set up"
    console.print(f"PostgreSQL {server} ({escape(target.place)}), schema [bold]{state.schema}[/]: {standing}")
    if state.pending:
        console.print(f"[yellow]pending:[/] {', '.join(state.pending)}; run `pgstate migrate` or `pgstate setup`")
    if not tables:
        return
    threads = next((f"{'' if item.exact else 'about '}{item.rows:,}" for item in tables if item.name == "threads"), "0")
    console.print(f"threads: [bold]{threads}[/]")
    if orphaned:
        console.print(f"{count(orphaned, 'pending write')} {_ORPHANS}")
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
    types: Annotated[bool, typer.Option("--types", help="List stored types that are not LangGraph's own.")] = False,
) -> None:
    """Read every checkpoint and list what is broken; exit code 1 if anything is."""
    target: Target = ctx.obj
    with _admin(target) as admin, job("checking") as advance:
        report = admin.check(thread, deep=deep, types=types, progress=advance)
    if thread is not None and not report.checkpoints and not report.writes and not report.problems:
        raise NotFoundError(f"there is no thread {thread!r}")
    if target.is_json:
        print_json(report)
        raise typer.Exit(int(bool(report.problems)))
    console.print(
        f"read {count(report.threads, 'thread')}, {count(report.checkpoints, 'checkpoint')}, "
        f"{count(report.segments, 'segment')}, {count(report.writes, 'pending write')}"
    )
    if types:
        _print_types(report)
    if report.unreferenced:
        console.print(f"{count(report.unreferenced, 'segment')} without a reference; the next prune removes them")
    if report.orphan_writes:
        console.print(f"{count(report.orphan_writes, 'pending write')} {_ORPHANS}")
    if report.problems:
        _print_problems(report.problems, "broken")
        raise typer.Exit(1)
    console.print("[green]nothing is broken[/]")


@app.command()
def prune(
    ctx: typer.Context,
    keep_last: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", show_default=False, help="Keep the newest N checkpoints of each thread."),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", show_default=False, help="Remove only what is older, like 30d or 12h.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help=f"{', '.join(STRATEGIES)}; else {_KEEP_LATEST}.",
            callback=one_of(*STRATEGIES),
        ),
    ] = None,
    thread: ThreadsOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before all threads are deleted.")] = False,
) -> None:
    """Remove old checkpoints, or whole threads; exit code 1 if damaged threads were left."""
    from langgraph_pgstate.operations.threads.prune import request_prune

    if keep_last is None and older_than is None and strategy is None:
        raise ConfigurationError("say what to remove: --keep-last N, --older-than AGE or --strategy NAME")
    limit: timedelta | None = age(older_than) if older_than else None
    rule = strategy or _KEEP_LATEST
    request = request_prune(thread or None, rule, keep_last or 1, limit, dry_run)
    target: Target = ctx.obj
    with target.connect() as parts:
        if rule != _KEEP_LATEST and not (thread or limit or dry_run or yes):
            typer.confirm(f"Delete every thread in schema {target.schema}?", abort=True, err=True)
        result = _prune(parts, request)
    if target.is_json:
        print_json(result)
        raise typer.Exit(int(bool(result.damaged)))
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


def _prune(parts: Parts, request: PruneRequest) -> PruneResult:
    from langgraph_pgstate.operations.admin.integrity import count_threads
    from langgraph_pgstate.operations.threads.prune import next_threads, prune_thread

    run, known = parts.database.run, parts.queries
    ids = request.thread_ids
    total = run(count_threads, known) if ids is None else len(ids)
    result, done = PruneResult(dry_run=request.dry_run), 0
    with job("reading" if request.dry_run else "pruning") as advance:
        page: Sequence[str] = run(next_threads, known, "") if ids is None else ids
        while page:
            for id in page:
                result += run(prune_thread, known, request, id)
                done += 1
                advance(Progress(done, max(total, done), result.checkpoints, id))
            page = run(next_threads, known, page[-1]) if ids is None else ()
    return result


for _command in (
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
):
    app.command()(_command)


app.command("dead-letters")(queue.dead_letters)


@app.command("import-langgraph")
def import_langgraph(
    ctx: typer.Context,
    source: Annotated[str, typer.Option("--from", metavar="DSN", help="Database with LangGraph's tables.")],
    source_schema: Annotated[str, typer.Option("--from-schema", metavar="NAME", help="Schema there.")] = "public",
    thread: ThreadsOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also copy threads that went on in both places.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Compare each thread after the copy.")] = True,
) -> None:
    """Copy threads from the tables of LangGraph's saver. It can be stopped and run again."""
    target: Target = ctx.obj
    with _admin(target, create=True) as admin:
        admin.setup()
        with job("importing") as advance:
            report = admin.import_langgraph(
                source,
                source_schema=source_schema,
                thread_ids=thread or None,
                overwrite=overwrite,
                verify=verify,
                progress=advance,
            )
    _print_transfer(target, "imported", report)


@app.command("export-langgraph")
def export_langgraph(
    ctx: typer.Context,
    goal: Annotated[str, typer.Option("--to", metavar="DSN", help="Database to write to.")],
    goal_schema: Annotated[str, typer.Option("--to-schema", metavar="NAME", help="Schema there.")] = "public",
    thread: ThreadsOption = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also write threads that went on in both places.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Compare each thread after the copy.")] = True,
) -> None:
    """Copy threads to the tables of LangGraph's saver; makes them if needed. It can be stopped and run again."""
    target: Target = ctx.obj
    with _admin(target) as admin, job("exporting") as advance:
        report = admin.export_langgraph(
            goal,
            target_schema=goal_schema,
            thread_ids=thread or None,
            overwrite=overwrite,
            verify=verify,
            progress=advance,
        )
    _print_transfer(target, "exported", report)


@contextmanager
def _admin(target: Target, *, create: bool = False) -> Iterator[Admin]:
    from langgraph_pgstate.admin import Admin

    with target.open(create=create) as dsn, Admin.open(dsn, schema=target.schema) as admin:
        yield admin


def _print_types(report: CheckReport) -> None:
    if report.others:
        console.print(f"{count(report.others, 'value')} of another serializer, whose types only it knows")
    if not report.types:
        console.print("no types besides LangGraph's own")
        return
    console.print(f"{count(len(report.types), 'type')} besides LangGraph's own:")
    # Lines to paste, so they are not folded.
    typer.echo(f"PGSTATE_ALLOWED_TYPES={','.join(report.types)}")
    typer.echo(f"allowed_types={[*report.types]}")


def _print_problems(problems: Sequence[Problem], title: str) -> None:
    console.print(f"[bold red]{len(problems):,} {title}:[/]")
    for problem in problems:
        console.print(f"  thread {escape(problem.thread_id)}, {escape(problem.where)}: {escape(problem.why)}")


def _print_transfer(target: Target, done: str, report: TransferReport) -> None:
    if target.is_json:
        print_json(report)
    else:
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
