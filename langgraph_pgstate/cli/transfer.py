"""The commands that copy threads from and to the tables of LangGraph's saver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from langgraph_pgstate.admin.types import TransferReport
from langgraph_pgstate.cli.drawing import console
from langgraph_pgstate.cli.options import ThreadsOption
from langgraph_pgstate.cli.output import count, job, print_json, print_problems
from langgraph_pgstate.cli.target import Target
from langgraph_pgstate.errors import ConfigurationError

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Also copy threads that have changed in both places, as another branch.")
]
VerifyOption = Annotated[bool, typer.Option(help="Compare each thread after the copy.")]


def import_langgraph(
    ctx: typer.Context,
    source: Annotated[str, typer.Option("--from", metavar="DSN", help="Database with LangGraph's tables.")],
    source_schema: Annotated[
        str, typer.Option("--from-schema", metavar="NAME", help="Schema of these tables.")
    ] = "public",
    thread: ThreadsOption = None,
    overwrite: OverwriteOption = False,
    verify: VerifyOption = True,
    decrypt: Annotated[
        bool,
        typer.Option("--decrypt", help="Decrypt values of LangGraph's EncryptedSerializer by LANGGRAPH_AES_KEY."),
    ] = False,
) -> None:
    """Copy threads from the tables of LangGraph's saver. A stopped copy can be run again."""
    serializer = _aes_serializer() if decrypt else None
    target: Target = ctx.obj
    with target.admin(create=True) as admin:
        admin.setup()
        with job("importing") as advance:
            report = admin.import_langgraph(
                source,
                source_schema=source_schema,
                thread_ids=thread or None,
                overwrite=overwrite,
                verify=verify,
                decrypt_with=serializer,
                progress=advance,
            )
    _print_transfer(target, "imported", report)


def _aes_serializer() -> EncryptedSerializer:
    """Return LangGraph's serializer for the key in the environment."""
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

    try:
        return EncryptedSerializer.from_pycryptodome_aes()
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"--decrypt: {error}") from error


def export_langgraph(
    ctx: typer.Context,
    goal: Annotated[str, typer.Option("--to", metavar="DSN", help="Database to write to.")],
    goal_schema: Annotated[str, typer.Option("--to-schema", metavar="NAME", help="Schema of these tables.")] = "public",
    thread: ThreadsOption = None,
    overwrite: OverwriteOption = False,
    verify: VerifyOption = True,
) -> None:
    """Copy threads to the tables of LangGraph's saver. Missing tables are made. A stopped copy can be run again."""
    target: Target = ctx.obj
    with target.admin() as admin, job("exporting") as advance:
        report = admin.export_langgraph(
            goal,
            target_schema=goal_schema,
            thread_ids=thread or None,
            overwrite=overwrite,
            verify=verify,
            progress=advance,
        )
    _print_transfer(target, "exported", report)


def _print_transfer(target: Target, done: str, report: TransferReport) -> None:
    if target.is_json:
        print_json(report)
    else:
        console.print(
            f"{done} {count(report.threads, 'thread')}: {count(report.checkpoints, 'checkpoint')} and "
            f"{count(report.writes, 'pending write')} written, {report.unchanged:,} were there already; "
            f"{report.verified:,} compared with the other side"
        )
        if report.conflicts:
            print_problems(report.conflicts, "went on in both places and were left as they are (--overwrite)")
        if report.differences:
            print_problems(report.differences, "differ")
    if report.conflicts or report.differences:
        raise typer.Exit(1)
