"""The command `inspect`."""

from __future__ import annotations

from typing import Annotated

import typer

from langgraph_pgstate.cli.drawing import console
from langgraph_pgstate.cli.options import INSPECTOR_PORT
from langgraph_pgstate.cli.queue import leave
from langgraph_pgstate.cli.serve import url_of
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError


def inspect(
    ctx: typer.Context,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="The port; 0 for a free one.")
    ] = INSPECTOR_PORT,
) -> None:
    """Show threads, runs and costs as pages in a browser. On this machine, until SIGTERM. It writes nothing."""
    try:
        from langgraph_pgstate.server.app import create_app
        from langgraph_pgstate.server.serving import listen, run
    except ImportError as error:
        raise ConfigurationError(f"{error}; install the extra `server` of langgraph-pgstate") from error
    from langgraph_pgstate.codec.serializer import plain_serializer
    from langgraph_pgstate.state import AsyncPGState

    target: Target = ctx.obj
    if target.is_json:
        raise ConfigurationError("a server prints no JSON; the pages do, with ?format=json")
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
