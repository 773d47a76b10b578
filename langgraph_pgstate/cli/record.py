"""The commands `runs`, `trace`, `tools`, `maintain`, `sweep` and `expire`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import Table, Text, Tree, console, escape
from langgraph_pgstate.cli.options import (
    ONLY_STATUS,
    RUN_STATUSES,
    SINCE_HELP,
    AgentOption,
    LimitOption,
    ThreadArgument,
    UserOption,
)
from langgraph_pgstate.cli.output import (
    STATUS_STYLES,
    bytes_in_words,
    command_of,
    count,
    format_time,
    job,
    money,
    new_table,
    one_of,
    print_json,
    print_json_page,
    print_table,
    shorten,
    show,
    styled_status,
    utc,
)
from langgraph_pgstate.cli.retention import print_applied
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import NotFoundError
from langgraph_pgstate.options import TtlStrategy, age
from langgraph_pgstate.process_identity import short_holder
from langgraph_pgstate.runs.options import DEFAULT_QUEUE
from langgraph_pgstate.threads.types import Progress, PruneResult

if TYPE_CHECKING:
    from langgraph_pgstate.record.types import Run, Span, SpanNode, ToolStatistics
    from langgraph_pgstate.runs import Runs
    from langgraph_pgstate.runs.types import QueuedRun
    from langgraph_pgstate.state import PGState

_KIND_STYLES: Final = {
    "graph": "bold",
    "node": "bold",
    "llm": "magenta",
    "tool": "blue",
    "retriever": "blue",
    "memory": "blue",
}
_SWEEP_PAGE: Final = 100


def runs(
    ctx: typer.Context,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="Only runs of this thread.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only runs that failed or whose process died.")] = False,
    status: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"{ONLY_STATUS} {', '.join(RUN_STATUSES)}.", callback=one_of(*RUN_STATUSES)),
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="AGE", help=SINCE_HELP)] = None,
    user: UserOption = None,
    agent: AgentOption = None,
    min_steps: Annotated[int | None, typer.Option(metavar="N", help="Only runs of N supersteps or more.")] = None,
    queued: Annotated[bool, typer.Option("--queued", help="Only pending and running runs of the queue.")] = False,
    limit: LimitOption = 20,
) -> None:
    """List runs with status, duration and cost, newest first. Say which queued runs no worker accepts."""
    options: dict[str, Any] = {"user_id": user, "agent": agent, "min_steps": min_steps, "limit": limit}
    if since:
        options["since"] = age(since)
    if failed and (thread or status):
        raise typer.BadParameter("--failed takes no --thread and no --status")
    if queued and (failed or status or since or user or agent or min_steps):
        raise typer.BadParameter("--queued must be given without options other than --thread and --limit")
    target: Target = ctx.obj
    if queued:
        _queued(target, thread, limit)
        return
    with target.connect() as state:
        part = state.runs
        waiting = [one for one in part.counts() if one.ready and one.status == "pending" and not one.is_accepted]
        page = part.failed(**options) if failed else part.list(thread_id=thread, status=status, **options)
    if target.is_json:
        print_json_page(page.items, page.next)
        return
    table = new_table("thread", "run", "agent", "status", "started", right=("took", "steps", "tokens", "cost"))
    table.add_column("error", no_wrap=True)
    for run in page.items:
        tokens = f"{run.input_tokens + run.output_tokens:,}"
        figures = [_duration(run.duration), f"{run.steps:,}", tokens, money(run.cost)]
        # Show the end of an id, which `trace` accepts.
        run_id = run.run_id[-8:] if console.is_terminal else run.run_id
        names = map(escape, [run.thread_id, run_id, run.agent or ""])
        table.add_row(
            *names, styled_status(_ending(run)), format_time(run.started_at), *figures, escape(shorten(_error(run), 80))
        )
    spare = ("steps", "tokens", "agent", "cost", "took")
    show(table, len(page.items), "run", page.next, spare=spare, prose=("error",))
    for one in waiting:
        runs_of = f"{count(one.count, 'run')} of graph {escape(one.graph)} in queue {escape(one.queue)}"
        console.print(f"[yellow]no worker accepts {runs_of}[/]")


def _queued(target: Target, thread: str | None, limit: int) -> None:
    with target.connect() as state:
        page = state.runs.queued(thread_id=thread, limit=limit)
    if target.is_json:
        print_json_page(page.items, page.next)
        return
    table = new_table("thread", "run", "graph", "queue", "status", "enqueued", "worker", "note", right=("attempt",))
    for run in page.items:
        run_id = run.run_id[-8:] if console.is_terminal else run.run_id
        note = f"to be ended: {run.cancel}" if run.cancel else ""
        if run.status == "pending" and not run.is_accepted:
            note = "[yellow]no worker accepts it[/]"
        else:
            note = escape(_reason(run) or note)
        names = map(escape, (run.thread_id, run_id, run.graph, run.queue))
        worker = escape(short_holder(run.worker_id or ""))
        times = format_time(run.enqueued_at)
        table.add_row(*names, styled_status(run.status), times, worker, note, str(run.attempt))
    show(table, len(page.items), "queued run", page.next, spare=("queue", "attempt", "enqueued", "worker"))


def why_pending(target: Target, part: Runs, thread_id: str, run_id: str) -> str | None:
    """Return why a run is pending; `None` if it is not, or if a worker is about to claim it."""
    for queued in part.queued(thread_id=thread_id, status="pending").items:
        if queued.run_id == run_id:
            if queued.is_accepted:
                return _reason(queued)
            version = f" of version {queued.version}" if queued.version else ""
            queue = None if queued.queue == DEFAULT_QUEUE else queued.queue
            command = command_of("worker", f"{queued.graph}=FILE.py:NAME", queue=queue, version=queued.version or None)
            return (
                f"no live worker accepts graph {queued.graph}{version} of queue {queued.queue}; "
                f"start one by {target.program()} {command}"
            )
    return None


def _reason(run: QueuedRun) -> str | None:
    if run.is_limited:
        return f"key {run.key} is at its limit"
    if not run.is_ready and run.status == "pending":
        return f"after {format_time(run.run_after)}" if run.run_after else "after another run of its thread"
    return None


def trace(
    ctx: typer.Context,
    thread: ThreadArgument,
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="The id of the run, its beginning or end; by default the newest."),
    ] = None,
) -> None:
    """Draw a run as a tree of nodes, model calls and tools. It shows times, tokens and cost."""
    target: Target = ctx.obj
    with target.connect() as state:
        found = find_run(state.runs, thread, run)
        roots = state.spans.tree(thread, found.run_id)
    if target.is_json:
        print_json({"run": found, "spans": roots})
        return
    console.print(_headline(found), soft_wrap=not console.is_terminal)
    if found.error_message:
        console.print(f"[red]{escape(_error(found))}[/]")
    if not roots:
        console.print("[dim]no spans of this run were recorded[/]")
    for root in roots:
        # `started_at` is the start of the last attempt, but spans of earlier attempts began before that attempt.
        beginning = min(found.started_at, root.span.started_at)
        if len(roots) > 1:
            console.print(f"[dim]{format_time(root.span.started_at, seconds=True)}[/]")
        drawn = Tree(_line(root.span, beginning), guide_style="dim")
        _draw(drawn, root.children, beginning)
        console.print(drawn)


def tools(
    ctx: typer.Context,
    since: Annotated[str, typer.Option(metavar="AGE", help=SINCE_HELP)] = "30d",
    agent: AgentOption = None,
) -> None:
    """Show calls, errors and seconds of tools. Both spans and the tool ledger are counted."""
    target: Target = ctx.obj
    with target.connect() as state:
        calls = state.spans.tools(since=age(since), agent=agent)
        executions = state.spans.executions(since=age(since), agent=agent)
    if target.is_json:
        print_json({"calls": calls, "executions": executions})
        return
    if not calls and not executions:
        console.print(f"no tool was called in the last {escape(since)}")
    for title, found in (("calls", calls), ("actions in the ledger", executions)):
        if found:
            print_table(_statistics(title, found), spare=("p50", "last", "mean", "error rate", "running"))


def maintain(
    ctx: typer.Context,
    months: Annotated[int, typer.Option(min=0, max=120, metavar="N", help="Make partitions for N months.")] = 2,
    drop_older_than: Annotated[
        int | None,
        typer.Option(min=1, metavar="MONTHS", help="Drop spans of months older than this; by default keep all."),
    ] = None,
    stream_ttl: Annotated[
        str, typer.Option(metavar="AGE", help="Keep the streamed events of runs at least this long.")
    ] = "1d",
) -> None:
    """Make partitions, end dead runs, sweep expired threads.

    Run it daily. A run is dead if its process has died. The exit code is 1 if a retention policy failed on some
    threads.
    """
    target: Target = ctx.obj
    with target.connect() as state:
        report = state.maintain(months=months, drop_older_than=drop_older_than, stream_ttl=age(stream_ttl))
    failed = any(one.problems for one in report.policies)
    if target.is_json:
        print_json(report)
        raise typer.Exit(int(failed))
    made, dropped = _months(report.months_made), _months(report.months_dropped)
    settled = f"{count(report.runs_settled, 'run')} of dead processes ended"
    console.print(f"partitions made: {made or 'none, all are there'}; {settled}")
    if drop_older_than is not None:
        console.print(f"partitions dropped, with their spans: {dropped or 'none, no month is so old'}")
    if report.policies:
        print_applied(report.policies)
    if report.memories_expired:
        console.print(f"expired memories, deleted: {report.memories_expired:,}")
    if report.orphan_writes:
        console.print(f"pending writes without a checkpoint, removed: {report.orphan_writes:,}")
    raise typer.Exit(int(failed))


def sweep(
    ctx: typer.Context,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", show_default=False, help="Maximum number of threads; by default all."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
) -> None:
    """Delete or prune expired threads that are not in use. `maintain` also does this."""
    target: Target = ctx.obj
    with target.connect() as state:
        result = state.threads.sweep(limit=limit, dry_run=True) if dry_run else _sweep(state, limit)
    if target.is_json:
        print_json(result)
    else:
        console.print(_swept(result))


def expire(
    ctx: typer.Context,
    thread: ThreadArgument,
    ttl: Annotated[
        str | None,
        typer.Option(metavar="AGE", show_default=False, help="Keep it this long after its last activity, like 30d."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="AGE", show_default=False, help="Keep it this long from now."),
    ] = None,
    never: Annotated[bool, typer.Option("--never", help="Keep it forever.")] = False,
    keep_latest: Annotated[
        bool,
        typer.Option("--keep-latest", help="With --ttl: prune it to its newest checkpoints instead of deleting it."),
    ] = False,
) -> None:
    """Set how long a thread is kept."""
    if (ttl is not None) + (after is not None) + never != 1:
        raise typer.BadParameter("expire requires exactly one of --ttl, --after and --never")
    if keep_latest and ttl is None:
        raise typer.BadParameter("--keep-latest requires --ttl")
    target: Target = ctx.obj
    with target.connect() as state:
        if after is not None:
            at = state.threads.expire(thread, after=age(after))
        else:
            strategy: TtlStrategy = "keep_latest" if keep_latest else "delete"
            at = state.threads.set_ttl(thread, None if ttl is None else age(ttl), strategy=strategy)
    if target.is_json:
        print_json({"thread_id": thread, "expires_at": utc(at)})
    else:
        console.print(f"{escape(thread)} expires {format_time(at) or 'never'}")


def _sweep(state: PGState, limit: int | None) -> PruneResult:
    """Sweep page by page, with a progress bar over the threads that are expired now."""
    total = state.threads.sweep(limit=limit, dry_run=True).threads
    result = PruneResult()
    with job("sweeping expired") as advance:
        while limit is None or result.threads < limit:
            page = _SWEEP_PAGE if limit is None else min(_SWEEP_PAGE, limit - result.threads)
            gone = state.threads.sweep(limit=page)
            if not gone.threads:
                break
            result += gone
            advance(Progress(result.threads, max(total, result.threads), result.checkpoints, ""))
    return result


def _swept(result: PruneResult) -> str:
    if not result.threads:
        return "expired threads: none, or only threads in use"
    gone = f"{count(result.checkpoints, 'checkpoint')}, {bytes_in_words(result.bytes)}"
    what = "to delete or prune" if result.dry_run else "deleted or pruned"
    return f"expired threads {what}: {result.threads:,}, with {gone}"


def find_run(part: Runs, thread_id: str, run_id: str | None) -> Run:
    """Return a run by its id, or by the beginning or end of its id; by default the newest run."""
    if run_id and (found := part.get(thread_id, run_id)):
        return found
    recent = part.list(thread_id=thread_id, limit=1000).items
    matching = [item for item in recent if not run_id or item.run_id.startswith(run_id) or item.run_id.endswith(run_id)]
    if not matching:
        raise NotFoundError(
            f"there is no run {run_id!r} of thread {thread_id!r}" if run_id else f"thread {thread_id!r} has no runs"
        )
    if run_id and len(matching) > 1:
        raise NotFoundError(f"{len(matching)} runs of thread {thread_id!r} begin or end with {run_id!r}")
    return matching[0]


def _statistics(title: str, found: Sequence[ToolStatistics]) -> Table:
    table = new_table("tool", right=(title, "running", "errors", "unknown", "error rate", "mean", "p50", "p95"))
    table.add_column("last", no_wrap=True)
    for item in found:
        rate = "–" if item.error_rate is None else f"{item.error_rate:.1%}"
        counts = [f"{number:,}" if number else "" for number in (item.running, item.errors, item.unknown)]
        seconds = ["–" if value is None else _seconds(value) for value in (item.mean, item.p50, item.p95)]
        table.add_row(escape(item.tool), f"{item.calls:,}", *counts, rate, *seconds, format_time(item.last_at))
    return table


def _headline(run: Run) -> Text:
    line = Text(f"{run.thread_id} ", style="bold")
    line.append(f"run {run.run_id} ", style="dim")
    line.append(_ending(run), style=STATUS_STYLES.get(_ending(run), ""))
    details = [f"attempt {run.attempt}" if run.attempt > 1 else "", run.agent or "", format_time(run.started_at)]
    details += [_duration(run.duration), count(run.steps, "step"), _tokens(run.input_tokens, run.output_tokens)]
    details.append(money(run.cost))
    line.append(" · " + " · ".join(detail for detail in details if detail), style="")
    return line


def _draw(tree: Tree, children: Sequence[SpanNode], beginning: datetime) -> None:
    for node in children:
        _draw(tree.add(_line(node.span, beginning)), node.children, beginning)


def _line(span: Span, beginning: datetime) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{span.kind} ", style="dim")
    line.append(span.name, style=_KIND_STYLES.get(span.kind, ""))
    if span.model and span.model != span.name:
        line.append(f" {span.model}")
    line.append(f"  +{_seconds((span.started_at - beginning).total_seconds())}", style="dim")
    line.append(f"  {_duration(span.duration)}" if span.duration is not None else "")
    if tokens := _tokens(span.input_tokens, span.output_tokens):
        line.append(f"  {tokens}", style="dim")
    if span.cost:
        line.append(f"  {money(span.cost)}", style="dim")
    if span.status != "success":
        line.append(f"  {span.status}", style=STATUS_STYLES.get(span.status, ""))
    if error := ": ".join(part for part in (span.error_type, span.error_message) if part):
        line.append(f"  {shorten(error, 200)}", style="red")
    return line


def _ending(run: Run) -> str:
    return "crashed" if run.is_crashed else run.status


def _error(run: Run) -> str:
    return shorten(": ".join(part for part in (run.error_type, run.error_message) if part), 200)


def _months(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", "-") for name in names)


def _duration(duration: timedelta | None) -> str:
    return "" if duration is None else _seconds(duration.total_seconds())


def _seconds(seconds: float) -> str:
    """Return a duration as text: `12 ms`, `3.4 s`, `2:05 min`, `3:20 h`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


def _tokens(read: int | None, written: int | None) -> str:
    return f"{read or 0:,}→{written or 0:,} tokens" if read or written else ""
