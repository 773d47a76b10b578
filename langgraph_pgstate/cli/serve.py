"""The commands `serve` and `inspect`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import console
from langgraph_pgstate.cli.export import exporting
from langgraph_pgstate.cli.options import (
    INSPECTOR_PORT,
    SERVER_PORT,
    GraphsArgument,
    OtlpContentOption,
    OtlpEndpointOption,
    ReceiptKeyOption,
)
from langgraph_pgstate.cli.output import fail, log_to_terminal
from langgraph_pgstate.cli.queue import leave
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, PGStateError

if TYPE_CHECKING:
    from langgraph_pgstate.server.app import ServerOptions
    from langgraph_pgstate.server.supervising import Membership

_CONFIG: Final = "langgraph.json"
_STUDIO: Final = "https://smith.langchain.com/studio/?baseUrl="


def serve(
    ctx: typer.Context,
    graphs: GraphsArgument = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Use graphs, auth and store of this file; by default ./{_CONFIG} if no GRAPH is given.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="The port; 0 for a free one.")] = SERVER_PORT,
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of processes. A process that dies is started again.")
    ] = 1,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at the same time, in each process.")] = 10,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Execute no runs here; leave them to workers.")
    ] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse requests that change data.")] = False,
    rate_limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="Maximum requests per minute for each user; without auth, for each address."),
    ] = None,
    max_body_size: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="Maximum bytes of a request; 16 MiB by default.")
    ] = None,
    max_body_values: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Maximum lists, objects and items in a request; 100,000 by default."),
    ] = None,
    reuse_port: Annotated[
        bool, typer.Option("--reuse-port", help="Share the port with other processes of this command.")
    ] = False,
    receipt_key: ReceiptKeyOption = None,
    otlp_endpoint: OtlpEndpointOption = None,
    otlp_content: OtlpContentOption = False,
) -> None:
    """Serve graphs over LangGraph's HTTP protocol, and run them. It ends at SIGTERM, and at once at a second signal."""
    try:
        from langgraph_pgstate.server.rates import RateLimit
        from langgraph_pgstate.server.serving import listen
        from langgraph_pgstate.server.supervising import Supervisor
    except ImportError as error:
        raise ConfigurationError(
            f"serve and inspect require the extra `server`: pip install 'langgraph-pgstate[server]' ({error})"
        ) from error
    target: Target = ctx.obj
    if target.is_json:
        raise ConfigurationError("serve prints no JSON: leave out --json")
    if config is None and not graphs:
        if not Path(_CONFIG).exists():
            raise ConfigurationError(
                f"serve requires a graph, like agent.py:graph, or --config FILE, because there is no ./{_CONFIG}"
            )
        config = Path(_CONFIG)
    worker: Any = False if no_worker else {"concurrency": concurrency}
    process = "%(processName)s[%(process)d] " if workers > 1 else ""
    log_to_terminal(process)
    for name in ("server", "worker"):
        logging.getLogger(f"langgraph_pgstate.{name}").setLevel(logging.INFO)
    if config is not None:
        from langgraph_pgstate.worker.graphs import load_environment

        # Load the environment before the target, because it may name the database.
        load_environment(config)
        target = target.with_environment()
    with target.open(create=True) as dsn, listen(host, port, is_shared=reuse_port) as listener:
        # Make the limit before the fork, so that all processes share its counts.
        limit = None if rate_limit is None else RateLimit(rate_limit)
        options: ServerOptions = {"worker": worker, "read_only": read_only, "rate_limit": limit}
        if receipt_key is not None:
            options["receipt_key"] = receipt_key.read_bytes()
        if max_body_size is not None:
            options["max_body_size"] = max_body_size
        if max_body_values is not None:
            options["max_body_values"] = max_body_values

        def work(member: Membership | None = None) -> int:
            exporter = exporting(dsn, target, otlp_endpoint, otlp_content)
            return _serve(target, dsn, listener, graphs or [], config, options, concurrency, exporter, member)

        code = work() if workers == 1 else Supervisor(lambda member: _code(work, member), workers, listener.close).run()
    leave(code)


def _code(work: Callable[[Membership], int], member: Membership) -> int:
    """Serve in one of several processes. Return the exit code, or end the process with it."""
    try:
        leave(work(member))
    except typer.Exit as ended:
        return ended.exit_code
    except PGStateError as error:
        fail(str(error))
        return 1
    return 0


def _serve(
    target: Target,
    dsn: str,
    listener: Any,
    names: list[str],
    config: Path | None,
    given: ServerOptions,
    concurrency: int,
    exporter: AbstractContextManager[None],
    member: Membership | None,
) -> int:
    from langgraph_pgstate.options import PoolSettings
    from langgraph_pgstate.server.app import create_app
    from langgraph_pgstate.server.config import load_server_config
    from langgraph_pgstate.server.serving import DEFAULT_CORS, run
    from langgraph_pgstate.state import AsyncPGState, PGState
    from langgraph_pgstate.worker.graphs import load_graphs
    from langgraph_pgstate.worker.state_config import load_state_config

    graphs: dict[str, Any] = {}
    options: ServerOptions = {"cors": DEFAULT_CORS}
    if config is not None:
        graphs, options = load_server_config(config)
    graphs |= load_graphs(names)
    if target.dsn is None:
        with PGState.open(dsn, schema=target.schema) as state:
            state.setup()
    else:
        target.check(dsn)
    pool = PoolSettings(max_size=2 * concurrency)
    options = {"inspector": True, **options, **given}
    where = {"schema": target.schema, "tenant": target.tenant, "encryption": target.encryption()}
    state_options: Any = {**where, "pool": pool, **load_state_config(config)}
    app = create_app(lambda: AsyncPGState.open(dsn, **state_options), graphs, **options)
    url = url_of(listener) + options.get("prefix", "")
    lines = (f"serving {', '.join(graphs)} at {url}", f"Inspector: {url}/ui", f"Studio: {_STUDIO}{url}")
    if member is None or member.is_first:
        console.print("\n".join(lines), soft_wrap=True, highlight=False)
    with exporter:
        return run(
            app, listener, is_open=options.get("auth") is not None, threads=max(32, 4 * concurrency), member=member
        )


def url_of(listener: Any) -> str:
    """Return the URL of a listening socket."""
    address, port = listener.getsockname()[:2]
    return f"http://{f'[{address}]' if ':' in address else address}:{port}"


def inspect(
    ctx: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="The port; 0 for a free one.")
    ] = INSPECTOR_PORT,
) -> None:
    """Show threads, runs and costs as pages in a browser.

    The command serves only this machine, until SIGTERM. It writes nothing.
    """
    try:
        from langgraph_pgstate.server.app import create_app
        from langgraph_pgstate.server.serving import listen, run
    except ImportError as error:
        raise ConfigurationError(
            f"serve and inspect require the extra `server`: pip install 'langgraph-pgstate[server]' ({error})"
        ) from error
    from langgraph_pgstate.codec.serializer import plain_serializer
    from langgraph_pgstate.state import AsyncPGState

    target: Target = ctx.obj
    if target.is_json:
        raise ConfigurationError("inspect prints no JSON: leave out --json, or add ?format=json to a page's address")
    with target.open() as dsn, listen("127.0.0.1", port) as listener:
        target.check(dsn)
        app = create_app(
            lambda: AsyncPGState.open(
                dsn,
                schema=target.schema,
                tenant=target.tenant,
                encryption=target.encryption(),
                serde=plain_serializer(),
                pool=4,
                recover_journal=False,
            ),
            {},
            inspector=True,
            read_only=True,
        )
        console.print(f"{url_of(listener)}/ui", soft_wrap=True, highlight=False)
        code = run(app, listener, is_open=False)
    leave(code)
