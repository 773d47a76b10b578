"""State of a schema's migrations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """Where a schema stands.

    Attributes:
        schema: The PostgreSQL schema.
        version: Newest applied migration, 0 if there is none.
        expected: Newest migration this package ships.
        pending: Names of the migrations still to apply.
    """

    schema: str
    version: int
    expected: int
    pending: tuple[str, ...]
