"""A page of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a longer result.

    Attributes:
        items: The items, in order.
        next: The `cursor=` of the following page; `None` at the end.
    """

    items: tuple[T, ...]
    next: str | None
