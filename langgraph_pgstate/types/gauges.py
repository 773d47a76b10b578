"""Numbers for a monitoring system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Gauge(NamedTuple):
    """A number that can go up and down.

    Attributes:
        name: Its name.
        labels: What it is of.
        value: The number.
    """

    name: str
    labels: Mapping[str, str]
    value: float
