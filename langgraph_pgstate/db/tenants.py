"""The tenant of a transaction, and statements for tables whose keys begin with the tenant."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from typing import Final, NamedTuple

from psycopg import sql

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

NO_TENANT: Final = "*"
"""The setting for no tenant. No row is visible, but roles that may list tenants see their names."""

OF_NO_TENANT: Final[Mapping[str, str]] = {
    "migrations": "versions of the schema, which all tenants share",
    "prices": "prices of models, which the operator sets for all tenants",
    "memory_indexes": "models and dimensions of embeddings, which the operator sets for all tenants",
    "event_chaining": "whether events are chained, which the operator decides for all tenants",
    "maintenance": "what maintain did, in numbers, for all tenants together",
}
"""The tables without a tenant column, with the reason for each."""

MAX_TENANT_BYTES: Final = 64
"""Maximum bytes of a tenant's name, which must fit into index keys with ids."""

_INSERT_OR_CONFLICT: Final = re.compile(rb'ON CONFLICT \((?=\w)|INSERT INTO "\w+"\.(\w+)')
_KEY: Final = b"ON CONFLICT (pgstate_tenant, "
_MAX_FORMS: Final = 10_000
_forms: Final[dict[bytes, bytes]] = {}


class _Setting(NamedTuple):
    """The statement that sets the tenant of a transaction. It has the form of a `Query`."""

    name: str
    text: bytes
    parameters: tuple[str, ...]
    is_planned_each_time: bool = False
    contents: None = None


def _setting() -> _Setting:
    # Read the file here, because `schema.queries` is in a higher layer.
    lines = resources.files(__package__).joinpath("tenants.sql").read_text("utf-8").splitlines()
    body = "\n".join(line for line in lines if not line.startswith("--")).strip().rstrip(";")
    text = body.replace("set_config(", "pg_catalog.set_config(").replace(":tenant::", "$1::")
    return _Setting("set_tenant", text.encode(), ("tenant",))


SETTING: Final = _setting()


def naming(tenant: str) -> sql.Composed:
    """Return the statement that names the tenant of an open transaction.

    Unlike a query, it takes no snapshot, so the caller can still set the transaction's isolation level.
    """
    return sql.SQL("SET LOCAL pgstate.tenant = {}").format(tenant)


def tenant_of(value: object) -> str:
    """Return a tenant's name as a plain string. Raise `ConfigurationError` if the name is invalid."""
    if not isinstance(value, str):
        raise ArgumentTypeError(f"tenant must be a string, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        size = 0
    if not size or size > MAX_TENANT_BYTES or "\0" in value or value == NO_TENANT:
        raise ConfigurationError(
            f"tenant must be a text of 1 to {MAX_TENANT_BYTES} bytes, without NUL and not '*', got {value!r}"
        )
    return str.__str__(value)


def wake_key(tenant: str | None, run_id: str) -> str:
    """Return the name of a run in notifications, which hides the run's id from listeners of other tenants."""
    if tenant is None:
        return run_id
    return hashlib.sha256(f"{tenant}\0{run_id}".encode()).hexdigest()[:32]


def tenant_form(text: bytes) -> bytes:
    """Return a statement whose ON CONFLICT names the tenant's column first, as keys of tables of tenants do."""
    found = _forms.get(text)
    if found is None:
        if len(_forms) >= _MAX_FORMS:
            _forms.clear()
        found = _forms[text] = _formed(text)
    return found


def _formed(text: bytes) -> bytes:
    table = b""

    def replace(match: re.Match[bytes]) -> bytes:
        nonlocal table
        if match.group(1) is not None:
            table = match.group(1)
            return match.group()
        return match.group() if table.decode() in OF_NO_TENANT else _KEY

    return _INSERT_OR_CONFLICT.sub(replace, text)
