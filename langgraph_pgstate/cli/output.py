"""What every command prints with: one console, one way to say bytes, times and failures."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

console: Final = Console(highlight=False)
errors: Final = Console(stderr=True, highlight=False, soft_wrap=True)


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
