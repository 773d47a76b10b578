"""Prices of models."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Price:
    """One row of `prices`: the price of a million tokens of a model from a given time on.

    Attributes:
        model: The model's name as the provider reports it.
        provider: The provider; empty for any.
        valid_from: Start of validity; `None` for always.
        input: Price per million input tokens.
        output: Price per million output tokens.
        cache_read: Price per million input tokens read from a cache; `None` means the same as `input`.
        reasoning: Price per million reasoning tokens; `None` means the same as `output`.
    """

    model: str
    provider: str
    valid_from: datetime | None
    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    reasoning: Decimal | None = None
