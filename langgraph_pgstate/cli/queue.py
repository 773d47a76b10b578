"""The commands of the queue: `worker`, `enqueue`, `join`, `cancel`, `dead-letters` and `resume`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from langgraph_pgstate.cli.drawing import console, errors, escape
from langgraph_pgstate.cli.export import exporting
from langgraph_pgstate.cli.interrupts import shell_user
from langgraph_pgstate.cli.options import (
    GraphsArgument,
    LimitOption,
    OtlpContentOption,
    OtlpEndpointOption,
    ThreadArgument,
)
from langgraph_pgstate.cli.output import (
    INTERRUPTED,
    as_json,
    command_of,
    count,
    format_time,
    log_to_terminal,
    new_table,
    one_of,
    print_json,
    print_json_page,
    shorten,
    show,
)
from langgraph_pgstate.cli.record import find_run, why_pending
from langgraph_pgstate.cli.target import Target, absent
from langgraph_pgstate.errors import (
    ConfigurationError,
    RunTimeoutError,
    StaleHeadError,
    ThreadBusyError,
)

if TYPE_CHECKING:
    from langgraph_pgstate.runs import RunHandle
    from langgraph_pgstate.state import AsyncPGState, PGState
    from langgraph_pgstate.worker.graphs import GraphSource
    from langgraph_pgstate.worker.state_config import StateConfig

CANCELLATIONS: Final = ("cancel", "interrupt", "rollback")
LETTER_ACTIONS: Final = ("list", "retry", "discard")
_CONFIG: Final = "langgraph.json"
# Seconds for which the process waits for threads of blocking nodes before it ends.
_THREAD_SECONDS: Final = 1.0
# Seconds between two searches for the reason why a run does not begin.
_TELL_SECONDS: Final = 2.0

RunArgument = Annotated[
    str | None, typer.Argument(metavar="RUN", help="The id of the run, its beginning or end; by default the newest.")
]


def worker(
    ctx: typer.Context,
    graphs: GraphsArgument = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"Run the graphs of this {_CONFIG}; by default ./{_CONFIG} if no GRAPH is given."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop when no run can be claimed.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at the same time.")] = 10,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Serve this queue (by default `default`); may be repeated.")
    ] = None,
    version: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also execute runs of this version; may be repeated."),
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long runs may take to stop after SIGTERM.")
    ] = 30.0,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, metavar="N", show_default=False, help="Serve metrics for Prometheus at this port."
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address of the metrics.")] = "127.0.0.1",
    adopt: Annotated[bool, typer.Option("--adopt", help="Also take over crashed runs that were not enqueued.")] = False,
    otlp_endpoint: OtlpEndpointOption = None,
    otlp_content: OtlpContentOption = False,
) -> None:
    """Run graphs from the queue. The worker ends at SIGTERM. The exit code is 0 after a drain, else 130 or 143."""
    from langgraph_pgstate.worker.graphs import load_config, load_graphs
    from langgraph_pgstate.worker.state_config import load_memory_options, load_state_config

    target: Target = ctx.obj
    if target.is_json:
        raise ConfigurationError("worker prints no JSON: leave out --json")
    if config is None and not graphs:
        if not Path(_CONFIG).exists():
            raise ConfigurationError(
                f"worker requires a graph, like agent.py:graph, or --config FILE, because there is no ./{_CONFIG}"
            )
        config = Path(_CONFIG)
    found = load_graphs(graphs or ())
    if config is not None:
        found = {**load_config(config), **found}
        target = target.with_environment()
    options = {
        "concurrency": concurrency,
        "queues": queue or ["default"],
        "versions": dict.fromkeys(found, version or []),
        "drain_timeout": drain_timeout,
        "adopt": adopt,
    }
    log_to_terminal()
    logging.getLogger("langgraph_pgstate.worker").setLevel(logging.INFO)
    with target.open() as dsn:
        target.check(dsn)
        given = load_state_config(config)
        memory = {} if config is None else load_memory_options(config)
        with exporting(dsn, target, otlp_endpoint, otlp_content):
            where: Any = {"schema": target.schema, "tenant": target.tenant, "memory": memory}
            code = _work(dsn, where, found, options, given, once=once, metrics=(metrics_host, metrics_port))
    leave(code)


def enqueue(
    ctx: typer.Context,
    graph: Annotated[str, typer.Argument(metavar="GRAPH", help="Name of the graph, as the workers know it.")],
    input: Annotated[
        str | None,
        typer.Argument(metavar="JSON", help="The input. Without it, the thread is resumed.", show_default=False),
    ] = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="The thread; by default a new one.")] = None,
    run: Annotated[
        str | None, typer.Option(metavar="ID", help="The id of the run. A run with this id is enqueued only once.")
    ] = None,
    queue: Annotated[str, typer.Option(metavar="NAME", help="The queue.")] = "default",
    priority: Annotated[int, typer.Option(metavar="N", help="Runs of higher priority are claimed first.")] = 0,
    key: Annotated[
        str, typer.Option(metavar="KEY", help="A key, such as a user. Keys take turns, and can have limits.")
    ] = "",
    version: Annotated[str, typer.Option(metavar="NAME", help="Version of the workers that may run it.")] = "",
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="If the thread is busy: enqueue, reject, interrupt or rollback.",
            callback=one_of("enqueue", "reject", "interrupt", "rollback"),
        ),
    ] = "enqueue",
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait for the end, then print the state. Meanwhile, say why a run does not begin."),
    ] = False,
) -> None:
    """Enqueue a run of a graph. A worker executes the run."""
    given = input_of(input)
    target: Target = ctx.obj
    with target.connect() as state:
        options: Any = {"queue": queue, "priority": priority, "version": version, "multitask_strategy": strategy}
        if key:
            options["key"] = key
        handle = state.runs.enqueue(graph, given, thread_id=thread, run_id=run, **options)
        values = _wait(target, state, handle) if wait else None
    _print_enqueued(target, handle, values if wait else ...)


def join(
    ctx: typer.Context,
    thread: ThreadArgument,
    run: RunArgument = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Only events after this one.", show_default=False)
    ] = None,
) -> None:
    """Print the events of a run, past and live, until the run ends.

    Each event is a line of JSON. If no worker accepts the run, the command says so and waits for one.
    """
    target: Target = ctx.obj
    last = after
    with target.connect() as state:
        found = find_run(state.runs, thread, run)
        if reason := why_pending(target, state.runs, found.thread_id, found.run_id):
            errors.print(f"run {found.run_id} waits: {escape(reason)}")
        try:
            for event in state.runs.join(found, last_event_id=after):
                print_json(event)
                last = event.id or last
        except KeyboardInterrupt:
            _leave_waiting(target, found.thread_id, found.run_id, last)


def _wait(target: Target, state: PGState, handle: RunHandle) -> Any:
    """Wait for a run's end, and return its final state. Print why the run is pending."""
    errors.print(f"run {handle.run_id} of thread {escape(handle.thread_id)} is enqueued")
    told: str | None = None
    try:
        while True:
            try:
                return as_json(handle.wait(_TELL_SECONDS))
            except RunTimeoutError:
                reason = why_pending(target, state.runs, handle.thread_id, handle.run_id)
                if reason is not None and reason != told:
                    errors.print(f"[yellow]it waits: {escape(reason)}[/]")
                told = reason
    except KeyboardInterrupt:
        _leave_waiting(target, handle.thread_id, handle.run_id, None)


def _leave_waiting(target: Target, thread_id: str, run_id: str, last: str | None) -> NoReturn:
    """Print the command that waits for the run again, and end this command."""
    command = f"{target.program()} {command_of('join', thread_id, run_id, after=last)}"
    errors.print(f"[yellow]stopped waiting; the run stays in the queue, or goes on.[/] Its events: {escape(command)}")
    raise typer.Exit(INTERRUPTED) from None


def _print_enqueued(target: Target, handle: RunHandle, values: Any) -> None:
    facts = {"thread_id": handle.thread_id, "run_id": handle.run_id}
    if target.is_json:
        print_json(facts if values is ... else facts | {"values": values})
    elif values is not ...:
        print_json(values)
    else:
        console.print(f"enqueued run {handle.run_id}\non thread {escape(handle.thread_id)}", soft_wrap=True)


def input_of(text: str | None) -> Any:
    """Return the input of a graph from JSON text."""
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"the input must be JSON: {error}") from None


def cancel(
    ctx: typer.Context,
    thread: ThreadArgument,
    run: RunArgument = None,
    action: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="cancel; interrupt: end the run as interrupted; rollback: also delete its checkpoints.",
            callback=one_of(*CANCELLATIONS),
        ),
    ] = "cancel",
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who cancels it; by default the shell's user.")] = None,
) -> None:
    """Cancel an enqueued run."""
    target: Target = ctx.obj
    with target.connect() as state:
        found = find_run(state.runs, thread, run)
        status = state.runs.cancel(thread, found.run_id, action, by=by or shell_user())
    if target.is_json:
        print_json({"thread_id": thread, "run_id": found.run_id, "status": status})
    elif status == "running":
        console.print("its worker was asked to stop the run")
    else:
        console.print(f"the run has the status {status}")


def dead_letters(
    ctx: typer.Context,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="list, retry or discard.", callback=one_of(*LETTER_ACTIONS))
    ] = "list",
    thread: Annotated[str | None, typer.Argument(metavar="THREAD", help="With retry and discard: the thread.")] = None,
    run: RunArgument = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="With retry and discard: who; by default the shell's user.")
    ] = None,
    limit: LimitOption = 20,
) -> None:
    """List runs that failed for good; retry or discard one. The newest come first."""
    target: Target = ctx.obj
    if (action == "list") is not (thread is None):
        raise ConfigurationError("dead-letters takes retry THREAD [RUN], discard THREAD [RUN], or no argument")
    with target.connect() as state:
        if thread is not None:
            _settle_letter(target, state, action, thread, run, by or shell_user())
            return
        page = state.runs.dead_letters(limit=limit)
    if target.is_json:
        print_json_page(page.items, page.next)
        return
    table = new_table("thread", "run", "graph", "status", "ended", "attempts", "error")
    for letter in page.items:
        run_id = letter.run_id[-8:] if console.is_terminal else letter.run_id
        error = ": ".join(part for part in (letter.error_type, letter.error_message) if part)
        cells = [letter.thread_id, run_id, letter.agent or "", letter.status, format_time(letter.ended_at)]
        table.add_row(*map(escape, cells), str(letter.attempt), escape(shorten(error, 80)))
    show(table, len(page.items), "dead letter", page.next, spare=("attempts", "graph"), prose=("error",))


def resume(
    ctx: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(metavar="THREAD", help="The interrupted thread. Without it, crashed runs are resumed."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Resume every crashed run that was not enqueued, if its graph has a name.")
    ] = False,
    graph: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="The graph of THREAD. Without THREAD: only crashed runs of this graph; may be repeated.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="ID", help="With THREAD: only if this is its newest checkpoint.", show_default=False),
    ] = None,
    queue: Annotated[
        str, typer.Option(metavar="NAME", help="The queue, if the interrupted run was not enqueued.")
    ] = "default",
    wait: Annotated[bool, typer.Option("--wait", help="With THREAD: wait for the end, and print the state.")] = False,
) -> None:
    """Resume an interrupted thread, or crashed runs.

    The command enqueues a run, which a worker executes. The run continues with the stored answers, or after a
    breakpoint.
    """
    target: Target = ctx.obj
    if thread is None:
        if checkpoint is not None or wait:
            raise ConfigurationError("--checkpoint and --wait require a THREAD")
        if not everything and not graph:
            raise ConfigurationError("resume requires THREAD, or --all or --graph NAME for crashed runs")
        with target.connect() as state:
            found = state.runs.adopt(graph or None)
        if target.is_json:
            print_json(*({"thread_id": one.thread_id, "run_id": one.run_id} for one in found))
            return
        for one in found:
            console.print(f"enqueued run {one.run_id}\non thread {escape(one.thread_id)}", soft_wrap=True)
        console.print(f"{count(len(found), 'crashed run')} enqueued")
        return
    if everything or len(graph or ()) > 1:
        raise ConfigurationError("resume THREAD takes no --all, and at most one --graph")
    with target.connect() as state:
        handle = _resume(state, thread, graph[0] if graph else None, checkpoint, queue)
        values = _wait(target, state, handle) if wait else ...
        reason = None if wait else why_pending(target, state.runs, handle.thread_id, handle.run_id)
        queued = state.runs.queued(thread_id=thread).items
    _print_enqueued(target, handle, values)
    if not wait and not target.is_json:
        for graph_of in (one.graph for one in queued if one.run_id == handle.run_id):
            console.print(f"of graph {escape(graph_of)}", soft_wrap=True)
    if reason is not None and not target.is_json:
        console.print(f"[yellow]it waits: {escape(reason)}[/]", soft_wrap=True)


def _resume(state: PGState, thread_id: str, graph: str | None, checkpoint: str | None, queue: str) -> RunHandle:
    """Enqueue the run that resumes an interrupted thread."""
    found = state.threads.get(thread_id)
    if found is None or found.head_checkpoint_id is None:
        raise absent(state.threads, thread_id, f"there is no thread {thread_id!r} with checkpoints")
    for run in state.runs.list(thread_id=thread_id, limit=1).items:
        if run.status in ("pending", "running") and not run.is_crashed:
            raise ThreadBusyError(thread_id, run.run_id, run.started_at)
    at = found.head_checkpoint_id
    if checkpoint is not None:
        at = state.threads.find(thread_id, checkpoint)["configurable"]["checkpoint_id"]
    if at != found.head_checkpoint_id:
        raise StaleHeadError(thread_id, "", at, found.head_checkpoint_id)
    if found.status != "interrupted" and not state.interrupts.answers(thread_id):
        raise ConfigurationError(f"thread {thread_id!r} is not interrupted: its status is {found.status}")
    owner = {"user_id": found.user_id, "tenant_id": found.tenant_id}
    configurable = {name: value for name, value in owner.items() if value is not None}
    known = _known_graphs(state)
    if graph is None:
        # If no worker is known, use the recorded graph. The run then waits for a worker with this graph.
        graph = found.agent if not known or found.agent in known else min(known) if len(known) == 1 else None
    config = {"configurable": configurable}
    try:
        return state.interrupts.resume_run(thread_id, at, graph=graph, config=config, queue=queue)
    except ConfigurationError as error:
        if graph is not None or "name its graph" not in str(error):
            raise
        names = f"; the workers have the graphs {', '.join(sorted(known))}" if known else ""
        raise ConfigurationError(f"{error} with --graph NAME{names}") from None


def _known_graphs(state: PGState) -> set[str]:
    """Return the graphs of the workers that are alive, and of `langgraph.json` here."""
    found = {name for one in state.runs.workers() if one.is_alive for name in one.graphs}
    with suppress(OSError, ValueError):
        found |= set(json.loads(Path(_CONFIG).read_text(encoding="utf-8")).get("graphs") or ())
    return found


def _settle_letter(target: Target, state: PGState, action: str, thread: str, run: str | None, by: str | None) -> None:
    found = find_run(state.runs, thread, run)
    take = state.runs.retry if action == "retry" else state.runs.discard
    if not take(thread, found.run_id, by=by):
        why = f"it is no dead letter, its status is {found.status}"
        if found.status in ("error", "timeout"):
            why = "it was discarded, or another run of its thread has gone on"
        raise ConfigurationError(f"cannot {action} run {found.run_id} of thread {thread!r}: {why}")
    if target.is_json:
        print_json({"thread_id": thread, "run_id": found.run_id, "action": action})
    else:
        console.print("enqueued again" if action == "retry" else "discarded")


def _work(
    dsn: str,
    where: Any,
    graphs: dict[str, GraphSource],
    options: Any,
    given: StateConfig,
    *,
    once: bool,
    metrics: tuple[str, int | None],
) -> int:
    from langgraph_pgstate.options import PoolSettings
    from langgraph_pgstate.server.langgraph_platform import serving
    from langgraph_pgstate.state import AsyncPGState
    from langgraph_pgstate.worker.worker import AsyncWorker

    async def work() -> int:
        pool = PoolSettings(max_size=options["concurrency"])
        async with AsyncPGState.open(dsn, **where, pool=pool, **given) as state:
            if metrics[1] is not None:
                _serve_metrics(state, metrics[0], metrics[1])
            served = graphs
            if where["memory"] is not None:
                await state.memory.setup_indexes()
                served = {name: source.with_store(state.memory) for name, source in graphs.items()}
            worker = AsyncWorker(state, served, **options)
            # Make this state available to graphs that import the ledger of `agent_server`.
            with serving(state):
                return await (worker.run_until_idle() if once else worker.run_forever())

    loop = asyncio.new_event_loop()
    # Threads for blocking nodes. One run may use several threads at the same time.
    threads = ThreadPoolExecutor(max(32, 4 * options["concurrency"]))
    loop.set_default_executor(threads)
    try:
        # Do not use `asyncio.run`, which would wait for blocking nodes.
        return loop.run_until_complete(work())
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _serve_metrics(state: AsyncPGState, host: str, port: int) -> None:
    """Serve the metrics of a state, in daemon threads."""
    try:
        from prometheus_client import start_http_server

        from langgraph_pgstate.metrics import Metrics
    except ImportError as error:
        raise ConfigurationError(
            f"--metrics requires the extra `metrics`: pip install 'langgraph-pgstate[metrics]' ({error})"
        ) from error
    try:
        server, _ = start_http_server(port, host, Metrics(state).registry)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    name = f"[{host}]" if ":" in host else host
    logging.getLogger("langgraph_pgstate.worker").info("metrics at http://%s:%d/metrics", name, server.server_port)


def leave(code: int) -> None:
    """End the process, even if a blocking node is still running."""
    deadline = time.monotonic() + _THREAD_SECONDS
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    raise typer.Exit(code)
