"""Options that several commands take. Their names are literals, so that `--help` imports nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

THREAD_STATUSES: Final = ("idle", "busy", "interrupted", "error")
RUN_STATUSES: Final = ("pending", "running", "interrupted", "success", "error", "cancelled", "timeout")
USAGE_KEYS: Final = ("agent", "model", "tenant", "user", "day")
STRATEGIES: Final = ("keep_latest", "delete", "delete_all")
DECISIONS: Final = ("done", "retry", "fail")
ONLY_STATUS: Final = "Only with this status:"
ORPHANS: Final = "without a checkpoint; the next prune or `maintain` removes them after a day"
SERVER_PORT: Final = 2024
INSPECTOR_PORT: Final = 2025
OTLP_VARIABLE: Final = "PGSTATE_OTLP_ENDPOINT"
RECEIPT_KEY_VARIABLE: Final = "PGSTATE_RECEIPT_KEY_FILE"
SINCE_HELP: Final = "Only what began at most this long ago, like 12h or 30d."

ThreadArgument = Annotated[str, typer.Argument(metavar="THREAD", help="The thread.")]
ThreadsOption = Annotated[
    list[str] | None, typer.Option("--thread", metavar="ID", help="Only this thread; may be repeated.")
]
LimitOption = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Maximum number of rows.")]
UserOption = Annotated[str | None, typer.Option(metavar="ID", help="Only rows of this user.")]
TenantOption = Annotated[str | None, typer.Option(metavar="ID", help="Only rows of this tenant.")]
AgentOption = Annotated[str | None, typer.Option(metavar="NAME", help="Only rows of this agent.")]
CheckpointOption = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="ID", help="A checkpoint: its id, 4 or more characters of the id, or its label."
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

OtlpEndpointOption = Annotated[
    str | None,
    typer.Option(
        envvar=OTLP_VARIABLE,
        metavar="URL",
        show_default=False,
        help="Export spans to this collector of OpenTelemetry.",
    ),
]
OtlpContentOption = Annotated[
    bool, typer.Option("--otlp-content", help="Export inputs, outputs and messages of errors, too.")
]

ReceiptKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--receipt-key-file",
        envvar=RECEIPT_KEY_VARIABLE,
        metavar="FILE",
        show_default=False,
        exists=True,
        dir_okay=False,
        help="The key that signs receipts of erasures on the pages.",
    ),
]

GraphsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="GRAPH", help="A graph: agent.py:graph, shop.agents:graph or name=agent.py:graph."),
]
