"""Version and migrations of a schema."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The version of a schema and its pending migrations.

    Attributes:
        schema: The PostgreSQL schema.
        version: Number of the newest applied migration, 0 if there is none.
        expected: Number of the newest migration of this package.
        pending: Names of the migrations still to apply.
        is_usable: Whether this package works with it: no migration is pending, and unknown ones only add.
    """

    schema: str
    version: int
    expected: int
    pending: tuple[str, ...]
    is_usable: bool


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """A migration that was applied.

    Attributes:
        version: Its number.
        name: Its name.
        applied_at: Time it was applied.
    """

    version: int
    name: str
    applied_at: datetime
