"""The command `export`, and the exporter inside `serve` and `worker`."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import console
from langgraph_pgstate.cli.options import OTLP_VARIABLE
from langgraph_pgstate.cli.output import count, log_to_terminal, one_of, print_json
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.options import age, check_lasting

if TYPE_CHECKING:
    from datetime import timedelta

    from langgraph_pgstate.otlp import SpanExporter

FORMATS: Final = ("otlp", "parquet")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def export(
    ctx: typer.Context,
    format: Annotated[str, typer.Argument(metavar="FORMAT", help="otlp or parquet.", callback=one_of(*FORMATS))],
    endpoint: Annotated[
        str | None,
        typer.Option(envvar=OTLP_VARIABLE, metavar="URL", help="With otlp: the collector, like http://localhost:4318."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With parquet: the place, like s3://bucket/prefix or file:///folder."),
    ] = None,
    month: Annotated[
        list[str] | None,
        typer.Option(metavar="MONTH", help="With parquet: only this month, like 2026-01; may be repeated."),
    ] = None,
    drop_older_than: Annotated[
        int | None,
        typer.Option(min=1, metavar="MONTHS", help="With parquet: only spans of older months, and drop them."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            show_default=False,
            help="Export again what began at most this long ago; with --follow, only if nothing was exported before.",
        ),
    ] = None,
    content: Annotated[bool, typer.Option("--content", help="Also inputs, outputs and messages of errors.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Continue until SIGTERM.")] = False,
) -> None:
    """Export spans to OpenTelemetry, or records to Parquet files.

    `otlp` exports the spans that have ended and were not exported yet. `parquet` writes runs, spans, messages, tool
    executions and usage. Each month has its own files.
    """
    target: Target = ctx.obj
    if format == "parquet":
        if to is None:
            raise ConfigurationError("export parquet requires --to URL, the folder or bucket of the files")
        _export_parquet(target, to, month, content, drop_older_than)
        return
    if endpoint is None:
        raise ConfigurationError(f"--endpoint or {OTLP_VARIABLE} must be the address of the OTLP collector")
    if follow and target.is_json:
        raise ConfigurationError("--follow prints no JSON: leave out --json")
    with target.open() as dsn:
        target.check(dsn)
        exporter = _exporter(dsn, target, endpoint, content, None if since is None else age(since))
        if follow:
            _follow(exporter)
            return
        sent = exporter.export()
    if target.is_json:
        print_json({"spans": sent})
    else:
        console.print(f"exported {count(sent, 'span')}")


def _export_parquet(
    target: Target, to: str, months: list[str] | None, content: bool, drop_older_than: int | None
) -> None:
    to = check_lasting(to)
    with target.connect() as state:
        if drop_older_than is not None:
            files = state.parquet.drop_spans(to, drop_older_than)
        else:
            files = state.parquet.export(to, months=months or None, content=content)
    if target.is_json:
        print_json(*[file._asdict() for file in files])
        return
    for file in files:
        console.print(f"{file.url}: {count(file.rows, 'row')}", soft_wrap=True)
    if not files:
        console.print("no rows to export")


@contextmanager
def exporting(dsn: str, target: Target, endpoint: str | None, content: bool) -> Iterator[None]:
    """Export spans during the block, if there is an endpoint."""
    if not endpoint:
        yield
        return
    with _exporter(dsn, target, endpoint, content, None):
        yield


def _exporter(dsn: str, target: Target, endpoint: str, content: bool, since: timedelta | None) -> SpanExporter:
    try:
        from langgraph_pgstate.otlp.exporter import SpanExporter
    except ImportError as error:
        raise ConfigurationError(
            f"export otlp requires the extra `otlp`: pip install 'langgraph-pgstate[otlp]' ({error})"
        ) from error
    logging.getLogger("langgraph_pgstate.otlp").setLevel(logging.INFO)
    # Hide the log of OpenTelemetry's exporter, because this package reports what happens to the spans.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    where: dict[str, Any] = {"schema": target.schema, "tenant": target.tenant, "encryption": target.encryption()}
    return SpanExporter(dsn, endpoint, **where, content=content, since=since)


def _follow(exporter: SpanExporter) -> None:
    log_to_terminal()
    stopped = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopped.set()) for number in _SIGNALS}
    try:
        with exporter:
            # Wait with a timeout, so that Python can call signal handlers.
            while not stopped.wait(0.5):
                pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
