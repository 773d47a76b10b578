"""The console that commands print to: tables, JSON, progress, and text for bytes, times and errors."""

from __future__ import annotations

import base64
import json
import logging
import math
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import typer

from langgraph_pgstate.cli.drawing import Console, Measurement, ProgressBar, Table, console, errors, escape

if TYPE_CHECKING:
    from langgraph_pgstate.record.types import Problem
    from langgraph_pgstate.threads.types import Progress

_WIDEST: Final = 1000
INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as in shells."""
STATUS_STYLES: Final = {
    "success": "green",
    "error": "red",
    "crashed": "red",
    "timeout": "red",
    "running": "cyan",
    "busy": "cyan",
    "interrupted": "yellow",
    "cancelled": "yellow",
    "unknown": "yellow",
}
# On a narrow terminal, columns of prose get this width. If the table is still too wide, columns are left out.
_PROSE_WIDTH: Final = 24


def fail(message: str) -> None:
    """Print an error as one red line on standard error."""
    errors.print(f"[bold red]error:[/] [red]{escape(' '.join(message.split()))}[/]")


def print_problems(problems: Sequence[Problem], title: str) -> None:
    """Print problems below a red title, one per line."""
    console.print(f"[bold red]{len(problems):,} {title}:[/]")
    for problem in problems:
        console.print(f"  thread {escape(problem.thread_id)}, {escape(problem.where)}: {escape(problem.why)}")


def conclude(problems: Sequence[Problem], what: str) -> None:
    """Print problems and end the command with exit code 1. Without problems, print that nothing is `what`."""
    if problems:
        print_problems(problems, what)
        raise typer.Exit(1)
    console.print(f"[green]nothing is {what}[/]")


def bytes_in_words(size: float) -> str:
    """Return a size as text: `812 B`, `3.4 kB`, `18.2 MB`. A kB is 1,000 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 thread`, `2,000 threads`."""
    return f"{number:,} {noun if number == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("x"):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith(("ry", "cy")) else f"{noun}s"


def shorten(text: str, width: int) -> str:
    """Return text as one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: max(width - 1, 0)].rstrip() + "…"


def money(amount: Decimal) -> str:
    """Return an amount with two decimals, or with three significant digits if it is less than 1."""
    if not amount:
        return ""
    if abs(amount) >= 1:
        return f"{amount:,.2f}"
    return f"{amount:.3g}" if abs(amount) >= Decimal("0.0001") else f"{amount:.1e}"


def styled_status(status: str) -> str:
    """Return a status as markup in its style."""
    return f"[{STATUS_STYLES[status]}]{status}[/]" if status in STATUS_STYLES else status


def format_time(moment: datetime | None, *, seconds: bool = False) -> str:
    """Return a time in the local time zone, with the zone's name; empty for `None`."""
    return "" if moment is None else moment.astimezone().strftime(f"%Y-%m-%d %H:%M{':%S' if seconds else ''} %Z")


def log_to_terminal(process: str = "") -> None:
    """Print warnings of all loggers on standard error, with the local time."""
    form = f"%(asctime)s {process}%(levelname)s %(message)s"
    logging.basicConfig(format=form, datefmt="%Y-%m-%d %H:%M:%S %Z", level=logging.WARNING)


@contextmanager
def progress(doing: str, total: int | None = None) -> Iterator[Callable[[int, int | None], None]]:
    """Show the progress of a job on a terminal. Yield a function that takes the finished number and the total."""
    if not errors.is_terminal:
        # Without a terminal, rich before 14.3 prints an empty line even for a disabled bar.
        yield lambda done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with ProgressBar(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        # The bar needs the real console, because it uses the console as a context manager.
        console=getattr(errors, "made", errors),
        transient=True,
    ) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def job(doing: str) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a job over threads. Yield the function to call after each thread.

    Ctrl-C ends the command, and prints how many threads are finished. Each thread is one transaction, so the job can be
    run again.
    """
    done, total = 0, 0

    def advance(reached: Progress) -> None:
        nonlocal done, total
        done, total = reached.threads, reached.total
        update(done, total)

    try:
        with progress(f"{doing} threads") as update:
            yield advance
    except KeyboardInterrupt:
        place = f" at {done:,} of {count(total, 'thread')}" if total else ""
        errors.print(f"[yellow]stopped{place}; run it again to go on[/]")
        raise typer.Exit(INTERRUPTED) from None


def command_of(name: str, *arguments: str, **options: str | None) -> str:
    """Return a command line, quoted for a shell. Options that are `None` are left out."""
    given = [part for option, value in options.items() if value is not None for part in (f"--{option}", value)]
    # Put `--` before the arguments. Otherwise an id that begins with a dash would be taken for an option.
    is_marked = any(one.startswith("-") for one in arguments)
    return shlex.join([name, *given, "--", *arguments] if is_marked else [name, *arguments, *given])


def print_command(program: str, name: str, *arguments: str, **options: str | None) -> None:
    """Print a command to paste. On a narrow terminal, break it into two lines that a shell joins."""
    rest = command_of(name, *arguments, **options)
    is_narrow = console.is_terminal and len(program) + len(rest) + 3 > console.width
    parts = [f"{program} \\", f"    {rest}"] if is_narrow else [f"{program} {rest}"]
    for part in parts:
        console.print(f"  {part}", soft_wrap=True, markup=False)


def print_json(*documents: Any) -> None:
    """Print documents as JSON, one per line. In another encoding than UTF-8, print escapes of JSON."""
    is_ascii = str(getattr(sys.stdout, "encoding", "")).lower().replace("-", "") != "utf8"
    for document in documents:
        typer.echo(json.dumps(as_json(document), ensure_ascii=is_ascii, allow_nan=False))


def print_json_page(items: Iterable[Any], following: str | None = None) -> None:
    """Print items as JSON, one per line. If there are more, say so on standard error."""
    print_json(*items)
    if following:
        errors.print("there are more (--limit)", style="dim")


def as_json(value: Any) -> Any:
    """Return a value in JSON types: times in ISO 8601, durations in seconds, bytes in base64, others as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if is_dataclass(value) and not isinstance(value, type):
        # Convert the times of rows to UTC, because PostgreSQL returns them in the server's time zone.
        return {field.name: as_json(utc(getattr(value, field.name))) for field in fields(value)}
    if hasattr(value, "model_dump"):
        return as_json(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, Sequence | Set):
        return [as_json(item) for item in value]
    return str(value)


def utc(value: Any) -> Any:
    """Return a time in UTC. Return any other value unchanged."""
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


def one_of(*choices: str) -> Callable[[str | None], str | None]:
    """Return a callback that refuses any other value of an option."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return check


def new_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """Return an empty table. The columns in `right` are aligned to the right."""
    from rich import box

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_table(table: Table, *, spare: Sequence[str] = (), prose: Sequence[str] = ()) -> None:
    """Print a table, no wider than the terminal.

    On a narrow terminal, columns are left out, empty columns first. Then wide cells are folded. A pipe or a file gets
    the whole table.

    Args:
        spare: Headers of columns that may be left out, the least important first.
        prose: Headers of columns that may be folded before a column is left out.
    """
    if (width := _width_of(table)) <= console.width:
        console.print(table)
        return
    if not console.is_terminal:
        Console(highlight=False, width=width).print(table)
        return
    headers = [str(column.header) for column in table.columns]
    empty = [str(column.header) for column in table.columns if not any(column.cells)]
    lost: list[str] = []
    fitted = table
    for header in [*empty, *(header for header in spare if header not in empty)]:
        if _width_of(fitted, prose) <= console.width:
            break
        lost.append(header)
        fitted = _without(table, lost)
    is_enough = _width_of(fitted, prose) <= console.width
    for column in fitted.columns:
        if column.header in prose or (column.justify != "right" and not is_enough):
            column.no_wrap, column.overflow = False, "fold"
    console.print(fitted)
    if missing := [header for header in headers if header in lost and header not in empty]:
        console.print(f"[dim]left out on a terminal of {console.width} columns: {', '.join(missing)}[/]")


def show(
    table: Table,
    rows: int,
    noun: str,
    following: str | None,
    *,
    spare: Sequence[str] = (),
    prose: Sequence[str] = (),
) -> None:
    """Print a page as a table, and whether there are more items."""
    if not rows:
        console.print(f"no {_plural(noun)}")
        return
    print_table(table, spare=spare, prose=prose)
    if following:
        console.print(f"[dim]the first {count(rows, noun)}; there are more (--limit)[/]")


def _width_of(table: Table, prose: Sequence[str] = ()) -> int:
    """Return the width of a table in which only columns of prose are folded."""
    options = console.options.update(width=_WIDEST)
    width = Measurement.get(console, options, table).maximum
    for column in table.columns:
        if column.header in prose:
            natural = max(Measurement.get(console, options, cell).maximum for cell in [column.header, *column.cells])
            width -= max(natural - _PROSE_WIDTH, 0)
    return width


def _without(table: Table, headers: Sequence[str]) -> Table:
    kept = [column for column in table.columns if column.header not in headers]
    copy = Table(box=table.box)
    for column in kept:
        copy.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap)
    for row, cells in zip(table.rows, zip(*(column.cells for column in kept), strict=True), strict=True):
        copy.add_row(*cells, style=row.style, end_section=row.end_section)
    return copy
