"""A named query, its parameters and its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Row = tuple[Any, ...]
Parameters = Mapping[str, Any]
Rows = Sequence[Row]


class Query(Protocol):
    """A named statement, ready for one schema."""

    @property
    def name(self) -> str:
        """Name in the `.sql` file."""
        ...

    @property
    def text(self) -> bytes:
        """The statement, with `$n` placeholders."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameter names in placeholder order."""
        ...
