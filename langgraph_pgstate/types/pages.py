"""A page of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a longer answer.

    Attributes:
        items: What it holds, in order.
        next: Pass it as `cursor=` for the following page; `None` at the end.
    """

    items: tuple[T, ...]
    next: str | None
