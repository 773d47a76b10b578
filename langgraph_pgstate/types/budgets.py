"""Budgets of money."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Budget:
    """Money that model calls may cost on one day, in UTC.

    Attributes:
        scope: `tenant`, `user`, `agent` or `key`.
        name: The tenant, user, agent or key; `*` for each that has no budget of its own.
        amount: Cost at which further calls are refused, in the currency of prices.
        spent: Recorded cost of today's calls; `None` for `*`.
    """

    scope: str
    name: str
    amount: Decimal
    spent: Decimal | None
