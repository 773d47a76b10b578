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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.export import exporting
from langgraph_pgstate.cli.options import (
    GraphsArgument,
    LimitOption,
    OtlpContentOption,
    OtlpEndpointOption,
    ThreadArgument,
)
from langgraph_pgstate.cli.output import (
    as_json,
    count,
    format_time,
    new_table,
    one_of,
    print_json,
    print_json_page,
    shorten,
    show,
)
from langgraph_pgstate.cli.record import find_run
from langgraph_pgstate.cli.target import Parts, Target
from langgraph_pgstate.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph_pgstate.runs.graphs import GraphSource
    from langgraph_pgstate.settings import WebhookSettings
    from langgraph_pgstate.state import AsyncPGState

CANCELLATIONS: Final = ("cancel", "interrupt", "rollback")
LETTER_ACTIONS: Final = ("list", "retry", "discard")
_CONFIG: Final = "langgraph.json"
# Threads of nodes that block end with the process if they take longer.
_THREAD_SECONDS: Final = 1.0

RunArgument = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="The run, or the beginning or end of its id; else the newest.")
]


def worker(
    ctx: typer.Context,
    graphs: GraphsArgument = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"The graphs of a {_CONFIG}; ./{_CONFIG} without a GRAPH.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop when no run can be claimed.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at once.")] = 10,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Serve this queue; may be repeated. Else: default.")
    ] = None,
    version: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also run runs of this version; may be repeated."),
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="How long runs may take to stop after SIGTERM.")
    ] = 30.0,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", show_default=False, help="Serve metrics for Prometheus here."),
    ] = None,
    metrics_host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to serve them.")] = "127.0.0.1",
    adopt: Annotated[bool, typer.Option("--adopt", help="Also take over crashed runs that were not enqueued.")] = False,
    otlp_endpoint: OtlpEndpointOption = None,
    otlp_content: OtlpContentOption = False,
) -> None:
    """Run graphs from the queue, until SIGTERM; exit code 0 after a drain, 130 or 143 after a second signal."""
    from langgraph_pgstate.runs.graphs import load_config, load_graphs
    from langgraph_pgstate.runs.webhook_config import load_webhook_settings

    target: Target = ctx.obj
    if target.is_json:
        raise ConfigurationError("a worker prints no JSON")
    if config is None and not graphs:
        if not Path(_CONFIG).exists():
            raise ConfigurationError(f"name a graph, like agent.py:graph, or --config FILE; there is no ./{_CONFIG}")
        config = Path(_CONFIG)
    found = load_graphs(graphs or ())
    if config is not None:
        found = {**load_config(config), **found}
    options = {
        "concurrency": concurrency,
        "queues": queue or ["default"],
        "versions": dict.fromkeys(found, version or []),
        "drain_timeout": drain_timeout,
        "adopt": adopt,
    }
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("langgraph_pgstate.worker").setLevel(logging.INFO)
    with target.connect():
        pass
    webhooks = None if config is None else load_webhook_settings(config)
    with target.open() as dsn, exporting(dsn, target.schema, otlp_endpoint, otlp_content):
        code = _work(dsn, target.schema, found, options, webhooks, once=once, metrics=(metrics_host, metrics_port))
    leave(code)


def enqueue(
    ctx: typer.Context,
    graph: Annotated[str, typer.Argument(metavar="GRAPH", help="Name of the graph, as the workers know it.")],
    input: Annotated[
        str | None,
        typer.Argument(metavar="[JSON]", help="The input; without it the thread goes on.", show_default=False),
    ] = None,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="The thread; else a new one.")] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="The run's id; enqueued once under it.")] = None,
    queue: Annotated[str, typer.Option(metavar="NAME", help="The queue.")] = "default",
    priority: Annotated[int, typer.Option(metavar="N", help="Higher is claimed first.")] = 0,
    key: Annotated[str, typer.Option(metavar="KEY", help="Keys take turns, and have limits.")] = "",
    version: Annotated[str, typer.Option(metavar="NAME", help="Only workers of this version run it.")] = "",
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="If the thread is busy: enqueue, reject, interrupt or rollback.",
            callback=one_of("enqueue", "reject", "interrupt", "rollback"),
        ),
    ] = "enqueue",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the run's end, and print the state it left.")] = False,
) -> None:
    """Enqueue a run of a graph; a worker runs it."""
    given = input_of(input)
    target: Target = ctx.obj
    with target.connect() as parts:
        options: Any = {"queue": queue, "priority": priority, "version": version, "multitask_strategy": strategy}
        if key:
            options["key"] = key
        handle = parts.runs.enqueue(graph, given, thread_id=thread, run_id=run, **options)
        values = as_json(handle.wait()) if wait else None
    facts = {"thread_id": handle.thread_id, "run_id": handle.run_id}
    if target.is_json:
        print_json(facts | ({"values": values} if wait else {}))
    elif wait:
        print_json(values)
    else:
        console.print(f"enqueued run {handle.run_id}\non thread {escape(handle.thread_id)}", soft_wrap=True)


def join(
    ctx: typer.Context,
    thread: ThreadArgument,
    run: RunArgument = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Only events after this one.", show_default=False)
    ] = None,
) -> None:
    """Print the events of a run as lines of JSON, past and live, until it ends.

    If no worker accepts the run, this is said, and it waits for one.
    """
    target: Target = ctx.obj
    with target.connect() as parts:
        found = find_run(parts.runs, thread, run)
        for queued in parts.runs.queued(thread_id=found.thread_id, status="pending").items:
            if queued.run_id == found.run_id and not queued.is_accepted:
                typer.echo(f"run {found.run_id} waits: no worker accepts {queued.graph} of {queued.queue}", err=True)
        for event in parts.runs.join(found, last_event_id=after):
            print(json.dumps(as_json(event), ensure_ascii=False, default=str), flush=True)


def input_of(text: str | None) -> Any:
    """Return the input of a graph that JSON text holds.

    Raises:
        ConfigurationError: If it is not JSON.
    """
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"the input is not JSON: {error}") from None


def cancel(
    ctx: typer.Context,
    thread: ThreadArgument,
    run: RunArgument = None,
    action: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="cancel; interrupt ends it as interrupted; rollback also deletes its checkpoints.",
            callback=one_of(*CANCELLATIONS),
        ),
    ] = "cancel",
) -> None:
    """Cancel an enqueued run."""
    target: Target = ctx.obj
    with target.connect() as parts:
        found = find_run(parts.runs, thread, run)
        status = parts.runs.cancel(thread, found.run_id, action)
    if target.is_json:
        print_json({"thread_id": thread, "run_id": found.run_id, "status": status})
    elif status == "running":
        console.print("its worker was asked to stop it")
    else:
        console.print(f"the run has the status {status}")


def dead_letters(
    ctx: typer.Context,
    action: Annotated[
        str, typer.Argument(metavar="[ACTION]", help="list, retry or discard.", callback=one_of(*LETTER_ACTIONS))
    ] = "list",
    thread: Annotated[
        str | None, typer.Argument(metavar="[THREAD]", help="With retry and discard: the thread.")
    ] = None,
    run: RunArgument = None,
    limit: LimitOption = 20,
) -> None:
    """List enqueued runs that failed for good, newest first; retry or discard one."""
    target: Target = ctx.obj
    if (action == "list") is not (thread is None):
        raise ConfigurationError("dead-letters takes retry THREAD [RUN], discard THREAD [RUN], or nothing to list all")
    with target.connect() as parts:
        if thread is not None:
            _settle_letter(target, parts, action, thread, run)
            return
        page = parts.runs.dead_letters(limit=limit)
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
    everything: Annotated[
        bool, typer.Option("--all", help="Every crashed run that was not enqueued and can go on.")
    ] = False,
    graph: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only of this graph; may be repeated.")
    ] = None,
) -> None:
    """Enqueue runs of a plain `graph.invoke` whose process died, so that a worker finishes them."""
    if not everything and not graph:
        raise ConfigurationError("say which runs: --all or --graph NAME")
    target: Target = ctx.obj
    with target.connect() as parts:
        found = parts.runs.adopt(graph or None)
    if target.is_json:
        print_json(*({"thread_id": one.thread_id, "run_id": one.run_id} for one in found))
        return
    for one in found:
        console.print(f"enqueued run {one.run_id}\non thread {escape(one.thread_id)}", soft_wrap=True)
    console.print(f"{count(len(found), 'crashed run')} enqueued")


def _settle_letter(target: Target, parts: Parts, action: str, thread: str, run: str | None) -> None:
    found = find_run(parts.runs, thread, run)
    take = parts.runs.retry if action == "retry" else parts.runs.discard
    if not take(thread, found.run_id):
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
    schema: str,
    graphs: dict[str, GraphSource],
    options: Any,
    webhooks: WebhookSettings | None,
    *,
    once: bool,
    metrics: tuple[str, int | None],
) -> int:
    """Run a worker until it stops, and return its exit code."""
    from langgraph_pgstate.agent_server import serving
    from langgraph_pgstate.runs.worker import AsyncWorker
    from langgraph_pgstate.settings import PoolSettings
    from langgraph_pgstate.state import AsyncPGState

    async def work() -> int:
        pool = PoolSettings(max_size=options["concurrency"])
        async with AsyncPGState.open(dsn, schema=schema, pool=pool, webhooks=webhooks) as state:
            if metrics[1] is not None:
                _serve_metrics(state, metrics[0], metrics[1])
            worker = AsyncWorker(state, graphs, **options)
            # Graphs that import the ledger of `agent_server` run here as they do in `serve`.
            with serving(state):
                return await (worker.run_until_idle() if once else worker.run_forever())

    loop = asyncio.new_event_loop()
    # Blocking nodes run in these threads, several of one run at once.
    threads = ThreadPoolExecutor(max(32, 4 * options["concurrency"]))
    loop.set_default_executor(threads)
    try:
        # `asyncio.run` would wait for nodes that block.
        return loop.run_until_complete(work())
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def _serve_metrics(state: AsyncPGState, host: str, port: int) -> None:
    """Serve the metrics of a state, in threads that end with the process.

    Raises:
        ConfigurationError: If the address cannot be listened on, or a package is missing.
    """
    try:
        from prometheus_client import start_http_server

        from langgraph_pgstate.metrics import Metrics
    except ImportError as error:
        raise ConfigurationError(f"{error}; pip install 'langgraph-pgstate[metrics]'") from error
    try:
        server, _ = start_http_server(port, host, Metrics(state).registry)
    except OSError as error:
        raise ConfigurationError(f"{host}:{port} cannot be listened on: {error.strerror or error}") from error
    name = f"[{host}]" if ":" in host else host
    logging.getLogger("langgraph_pgstate.worker").info("metrics at http://%s:%d/metrics", name, server.server_port)


def leave(code: int) -> None:
    """End the process, also if a node that blocks has not ended."""
    deadline = time.monotonic() + _THREAD_SECONDS
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    raise typer.Exit(code)
