"""Encrypting again what is stored: for the rows of copies, under newer data keys, and what was stored in plain text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from typing import Any, Final

from langgraph_pgstate.db.contents import reseal
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.encryption.columns import CONTENTS, KEYS, contents_of
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import EncryptedError
from langgraph_pgstate.schema.queries import NamedQuery, Queries, Statement, read_contents, write_content

COPIED: Final = ("checkpoints", "segments", "writes")
"""The tables whose rows forks and copies of a thread bring along."""

_PAGE: Final = 100
_INT4_MIN: Final = -(2**31)


async def bind_copy(db: Connection, queries: Queries, source_id: str, target_id: str) -> None:
    """Bind the content of a copied thread to the copy, under the data key of its owner. In the copy's transaction.

    Args:
        db: The connection.
        queries: The queries of the schema.
        source_id: The thread.
        target_id: The copy.

    Raises:
        EncryptedError: If it is encrypted, and there are no keys.
        EncryptionError: If content does not decrypt.
    """
    if db.keys is not None:
        for table in COPIED:
            await reseal_rows(db, db.keys, queries.schema, table, target_id, source_id)
    elif (await db.fetch(queries.has_encrypted, {"thread_id": target_id}))[0][0]:
        raise EncryptedError(f"thread {source_id!r}")


async def reseal_rows(
    db: Connection, keys: KeyRing, schema: str, table: str, thread_id: str, source_id: str | None = None
) -> int:
    """Encrypt the content of a thread in one table as it is to be stored, where it is not. Return the values changed.

    A page of rows is read, and its values are stored again in one transaction. A value that is changed meanwhile stays.
    """
    reading, rest = _reading(schema, table), KEYS[table][1:]
    columns, changed = [*contents_of(table)], 0
    cursor: list[Any] | None = None
    while True:
        parameters = {"thread_id": thread_id, **dict(zip(rest, cursor or _least(rest), strict=True))}
        rows = await db.fetch(reading, parameters)
        again = partial(_again, keys, schema, table, thread_id, source_id, columns, rows)
        statements = await db.compute(again) if len(rows) == _PAGE else again()
        if statements:
            changed += sum(await db.execute_together(statements))
        if len(rows) < _PAGE or not rest:
            return changed
        cursor = [*rows[-1][1 : len(KEYS[table])]]


def _again(
    keys: KeyRing,
    schema: str,
    table: str,
    thread_id: str,
    source_id: str | None,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> list[Statement]:
    """Return the statements that store the values of a page again."""
    names = KEYS[table]
    found: list[Statement] = []
    for row in rows:
        at = dict(zip((*names, *columns), row, strict=True))
        for column in columns:
            if (value := at[column]) is None:
                continue
            parts = [at[name] for name in CONTENTS[f"{table}.{column}"].key]
            others = [] if source_id is None else [[source_id, *parts[1:]]]
            new = reseal(keys, f"{table}.{column}", parts, others, value)
            if new is not None:
                given = {f"{name}_": at[name] for name in names}
                is_json = CONTENTS[f"{table}.{column}"].kind in ("json", "object")
                pair = {"value": new, "before": value}
                given |= {name: json.dumps(one) for name, one in pair.items()} if is_json else pair
                found.append((_writing(schema, table, column), given))
    return found


def _least(names: Sequence[str]) -> list[Any]:
    """Return a cursor before all rows."""
    return [_INT4_MIN if name in ("idx", "segment_id") else "" for name in names]


@cache
def _reading(schema: str, table: str) -> NamedQuery:
    keys, columns = KEYS[table], [*contents_of(table)]
    text = read_contents(schema, table, keys, columns)
    return NamedQuery(f"read_{table}", "Return content.", text.encode(), ("thread_id", *keys[1:]))


@cache
def _writing(schema: str, table: str, column: str) -> NamedQuery:
    keys = KEYS[table]
    text = write_content(schema, table, keys, column)
    parameters = ("value", *(f"{name}_" for name in keys), "before")
    return NamedQuery(f"write_{table}_{column}", "Store content.", text.encode(), parameters)
