"""The command `privacy`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from langgraph_pgstate.cli.drawing import console, escape
from langgraph_pgstate.cli.interrupts import shell_user
from langgraph_pgstate.cli.options import RECEIPT_KEY_VARIABLE, LimitOption, YesOption
from langgraph_pgstate.cli.output import (
    as_json,
    count,
    format_time,
    new_table,
    one_of,
    print_json,
    print_json_page,
    show,
)
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from langgraph_pgstate import PGState
    from langgraph_pgstate.keep import Erasure, StoredErasure

ACTIONS: Final = ("export", "erase", "receipts", "verify")


def privacy(
    ctx: typer.Context,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="export, erase, receipts or verify.", callback=one_of(*ACTIONS))
    ],
    receipt: Annotated[
        str | None,
        typer.Argument(
            metavar="RECEIPT",
            show_default=False,
            help="With verify: the file of a receipt. With receipts: only this id.",
        ),
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="ID", help="The user.")] = None,
    thread: Annotated[
        str | None, typer.Option(metavar="ID", help="The thread; with --message, the thread of the message.")
    ] = None,
    message: Annotated[str | None, typer.Option(metavar="ID", help="Only this message of the thread.")] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, dir_okay=False, help="With export, erase and receipts ID: the file."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key-file",
            envvar=RECEIPT_KEY_VARIABLE,
            metavar="FILE",
            show_default=False,
            exists=True,
            dir_okay=False,
            help="The key of receipts: a secret, or a key for Ed25519 as PEM.",
        ),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="With erase: who erases; by default the shell's user.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With erase: only count.")] = False,
    limit: LimitOption = 20,
    yes: YesOption = False,
) -> None:
    """Export or erase what is stored about a user, with receipts.

    The exit code is 1 if some data is kept or cannot be exported, or if a receipt is not valid.
    """
    target: Target = ctx.obj
    what: dict[str, Any] = {"user_id": user, "thread_id": thread, "message_id": message}
    secret = None if key is None else key.read_bytes()
    if action == "verify":
        _verify(target, receipt, secret, what)
        return
    with target.connect() as state:
        if action == "export":
            if user is None:
                raise ConfigurationError("privacy export requires --user ID")
            raise typer.Exit(int(not _export(state, user, to)))
        if action == "receipts" and receipt is not None:
            text = _text(_stored(state.privacy.receipt(receipt), receipt))
            if to is None:
                typer.echo(text, nl=False)
            else:
                _write(to, text)
            return
        if action == "receipts":
            page = state.privacy.receipts(limit=limit)
            if target.is_json:
                print_json_page(page.items, page.next)
                return
            table = new_table("receipt", "what", "began", "ended", "rows")
            for one in page.items:
                times = format_time(one.started_at), "" if one.ended_at is None else format_time(one.ended_at)
                table.add_row(*map(escape, (one.erasure_id, one.kind, *times, f"{sum(one.counts.values()):,}")))
            show(table, len(page.items), "receipt", page.next)
            return
        if to is not None and not dry_run:
            _check_writable(to)
        if not (dry_run or yes):
            found = state.privacy.erase(**what, key=secret, dry_run=True)
            typer.confirm(f"Erase {count(found.rows, 'row')}? They do not come back", abort=True, err=True)
        done = state.privacy.erase(**what, key=secret, by=by or shell_user() or None, dry_run=dry_run)
    if target.is_json:
        print_json(as_json(done) | {"is_complete": done.is_complete})
    else:
        _print(done, dry_run)
    # Write the file last. If writing fails, the receipt can be read from the database by the id that was printed above.
    if to is not None and done.receipt is not None:
        _write(to, _text(done.receipt))
    raise typer.Exit(int(not done.is_complete))


def _export(state: PGState, user: str, to: Path | None) -> bool:
    """Write all that is stored about a user, and print what cannot be exported. Return whether the export is whole."""
    is_whole = True

    def tell(problem: str) -> None:
        nonlocal is_whole
        is_whole = False
        typer.echo(f"cannot be exported: {problem}", err=True)

    with ExitStack() as stack:
        file = typer.get_binary_stream("stdout")
        if to is not None:
            stack.enter_context(_writing(to))
            file = stack.enter_context(to.open("wb"))
        for line in state.privacy.export(user_id=user, on_problem=tell):
            file.write(line + b"\n")
    return is_whole


def _print(done: Erasure, dry_run: bool) -> None:
    table = new_table("table", "rows")
    for name, rows in done.counts.items():
        table.add_row(escape(name), f"{rows:,}")
    if done.counts:
        console.print(table)
    console.print(f"{'would erase' if dry_run else 'erased'} {count(done.rows, 'row')}")
    for kept in done.kept:
        console.print(f"[bold red]left:[/] {escape(kept.thread_id)}: {escape(kept.why)}")
    if done.kept:
        console.print("there is no receipt yet: repeat the command when nothing keeps these rows any more")
    if done.receipt is not None:
        console.print(f"receipt {escape(str(done.receipt['receipt_id']))}, signature {done.receipt['algorithm']}")


@contextmanager
def _writing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror or error}") from error


def _write(file: Path, text: str) -> None:
    with _writing(file):
        file.write_text(text)


def _check_writable(file: Path) -> None:
    with _writing(file):
        is_new = not os.path.lexists(file)
        file.open("ab").close()
        if is_new:
            file.unlink()


def _stored(found: StoredErasure | None, erasure_id: str) -> Mapping[str, Any]:
    if found is None or found.receipt is None:
        why = "there is no erasure" if found is None else "there is no receipt yet of erasure"
        raise NotFoundError(f"{why} {erasure_id!r}")
    return found.receipt


def _text(receipt: Any) -> str:
    return json.dumps(dict(receipt), indent=2) + "\n"


def _verify(target: Target, receipt: str | None, secret: bytes | None, what: dict[str, Any]) -> None:
    from langgraph_pgstate.keep import Privacy

    if receipt is None or secret is None:
        raise ConfigurationError("privacy verify requires FILE with the receipt, and --key-file FILE with the key")
    try:
        text = Path(receipt).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the file of the receipt cannot be read: {error}") from error
    verdict = Privacy.verify(text, secret, **what)
    is_good = not verdict.why
    if target.is_json:
        print_json(verdict)
    elif not is_good:
        console.print(f"[bold red]{escape(verdict.why)}[/]")
    else:
        about = ", and about this subject" if verdict.is_of else ""
        console.print(f"[green]the receipt is as it was signed{about}[/]")
    raise typer.Exit(int(not is_good))
