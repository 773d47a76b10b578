"""The note of what maintenance did."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.schema.queries import Queries

if TYPE_CHECKING:
    from langgraph_pgstate.record.types import MaintenanceReport


async def note(db: Connection, queries: Queries, seconds: float, report: MaintenanceReport) -> None:
    """Store what maintenance did, and how large the tables are now. One statement."""
    parameters = {
        "seconds": seconds,
        "report": json.dumps(asdict(report)),
        "schema": f'"{queries.schema}"',
    }
    await db.execute(queries.note_maintenance, parameters)
