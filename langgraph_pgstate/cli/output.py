"""What every command prints with: one console, one way to say bytes, times and failures, and tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

console: Final = Console(highlight=False)
errors: Final = Console(stderr=True, highlight=False, soft_wrap=True)
_WIDEST: Final = 1000
# Prose is cut down to this before a narrow table loses a column.
_PROSE_WIDTH: Final = 24


def fail(message: str) -> None:
    """Say in one red line what went wrong."""
    errors.print(f"[bold red]error:[/] [red]{escape(' '.join(message.split()))}[/]")


def bytes_in_words(size: float) -> str:
    """A number of bytes as people read it: `812 B`, `3.4 kB`, `18.2 MB`; a kB is 1,000 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def count(number: int, noun: str) -> str:
    """`1 thread`, `2,000 threads`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten(text: str, width: int) -> str:
    """One line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: max(width - 1, 0)].rstrip() + "…"


def progress_bar() -> Progress:
    """A bar that says what is being done, how much of it, and for how long."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def one_of(*choices: str) -> Callable[[str | None], str | None]:
    """Return a callback that refuses an option's value unless it is one of some."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in choices:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return check


def new_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table as every command prints it; numbers stand to the right."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, no_wrap=True)
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def print_table(table: Table, *, spare: Sequence[str] = (), prose: Sequence[str] = ()) -> None:
    """Print a table: whole, but on a narrower terminal no wider than that.

    There it loses columns, those without a value first, and what is still too wide is folded. In a pipe or a file all
    of it is there: an id that is cut off cannot be used.

    Args:
        table: The table.
        spare: Headers of columns that it can do without, the least missed first.
        prose: Headers of columns that may be folded before another is left out.
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


def _width_of(table: Table, prose: Sequence[str] = ()) -> int:
    """Columns that a table takes if nothing is folded but some columns of prose."""
    options = console.options.update(width=_WIDEST)
    width = Measurement.get(console, options, table).maximum
    for column in table.columns:
        if column.header in prose:
            natural = max(Measurement.get(console, options, cell).maximum for cell in [column.header, *column.cells])
            width -= max(natural - _PROSE_WIDTH, 0)
    return width


def _without(table: Table, headers: Sequence[str]) -> Table:
    """A copy of a table that lacks some columns."""
    kept = [column for column in table.columns if column.header not in headers]
    copy = Table(box=table.box)
    for column in kept:
        copy.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap)
    for row, cells in zip(table.rows, zip(*(column.cells for column in kept), strict=True), strict=True):
        copy.add_row(*cells, style=row.style, end_section=row.end_section)
    return copy
