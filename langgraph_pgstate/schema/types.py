"""Types of the schema: its status, applied migrations, and moves to tenants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The version of a schema and its pending migrations.

    Attributes:
        schema: The PostgreSQL schema.
        version: Number of the newest applied migration, 0 if there is none.
        expected: Number of the newest migration of this package.
        pending: Names of the migrations still to apply.
        is_usable: Whether this package works with the schema.
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
        version: The number.
        name: The name.
        applied_at: Time at which it was applied.
    """

    version: int
    name: str
    applied_at: datetime


@dataclass(frozen=True, slots=True)
class TenancyProgress:
    """The progress of a move to tenants.

    Attributes:
        step: `rows` while rows get their tenants, `keys` while keys are built.
        name: The table or the key.
        done: Number of finished blocks of the table, or of finished keys.
        total: Number of blocks of the table, or of keys.
    """

    step: Literal["rows", "keys"]
    name: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TenancyMove:
    """The result of a move to tenants.

    Attributes:
        is_switched: Whether tenants are kept apart now.
        rows: Number of rows whose tenant this call has set.
        tenants: Number of tenants.
        left: Number of rows without a tenant, by table.
        had_ended: Whether an earlier move had ended. Then this call has changed nothing, whatever its rule.
    """

    is_switched: bool
    rows: int = 0
    tenants: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    had_ended: bool = False
