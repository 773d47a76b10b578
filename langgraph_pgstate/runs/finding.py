"""The search for tenants with work in the queue, for workers that serve all tenants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.db.tenants import NO_TENANT
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.tenancy import tenant_queries


class TenantWork(NamedTuple):
    """The work that a tenant has in the queue.

    Attributes:
        tenant: Name of the tenant.
        is_ready: Whether runs can be claimed, or wait for limits.
        seconds: Seconds until other work is due: lost or delayed runs, schedules, default answers, runs that have
            deleted their threads.
        webhook_seconds: Seconds until a webhook is due.
        worker_ids: The workers that execute runs of the tenant.
    """

    tenant: str
    is_ready: bool
    seconds: float | None
    webhook_seconds: float | None
    worker_ids: Sequence[str]


async def find_work(
    db: Connection,
    queries: Queries,
    tenants: Sequence[str],
    names: Sequence[str],
    graphs: Sequence[str],
    *,
    adopts: bool = False,
) -> list[TenantWork]:
    """Return the tenants that have work in some queues and for some graphs. One statement.

    Row-level security stays on: the statement sets each tenant in turn, and reads only the rows of this tenant.
    """
    db.tenant = NO_TENANT
    parameters = {"tenants": [*tenants], "queues": [*names], "graphs": [*graphs], "adopts": adopts}
    return [TenantWork(*row) for row in await db.fetch(tenant_queries(queries.schema).find_work, parameters)]
