"""Prices of models."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Price:
    """One row of `prices`: what a million tokens of a model cost, from a time on.

    Attributes:
        model: The model's name, as the provider says it.
        provider: The provider; empty for any.
        valid_from: From when on; `None` for ever.
        input: Per million tokens read.
        output: Per million tokens written.
        cache_read: Per million tokens read from a cache; as `input` if left out.
        reasoning: Per million tokens of reasoning; as `output` if left out.
    """

    model: str
    provider: str
    valid_from: datetime | None
    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    reasoning: Decimal | None = None
