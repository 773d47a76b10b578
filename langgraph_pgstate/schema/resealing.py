"""Encryption of stored content: of copied rows, under newer data keys, or of plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from functools import cache, partial
from typing import Any, Final, NamedTuple

from langgraph_pgstate.db.contents import may_be_plain, reseal
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.encryption.cipher import key_id_at, where
from langgraph_pgstate.encryption.columns import CONTENTS, KEYS, SEALED_KEY, Content, Kind, contents_of
from langgraph_pgstate.encryption.keys import KeyRing
from langgraph_pgstate.errors import (
    DecryptionError,
    EncryptedError,
    MissingKeysError,
    NotEncryptedError,
)
from langgraph_pgstate.schema.queries import (
    NamedQuery,
    Queries,
    Statement,
    queries,
    range_contents,
    read_contents,
    scan_contents,
    write_content,
)

COPIED: Final = (
    "threads",
    "checkpoints",
    "segments",
    "writes",
    "messages",
    "projections",
    "answers",
    "tool_executions",
)
"""The tables whose rows are copied to forks and copies of a thread."""

_PAGE: Final = 100
# Rows in a page of `scan_contents.sql`, and maximum bytes of the values that one transaction stores again.
_SCANNED: Final = 500
_RUN_BYTES: Final = 4_000_000
# Maximum number of characters of a value whose words are indexed. A put has the same limit.
_MAX_WORDS: Final = 200_000
# SQL for the beginning of a value, by kind of content. `key_id_at` reads the id of the data key from this beginning.
_HEADS: Final[dict[Kind, str]] = {
    "bytes": "substr({}, 1, 12)",
    "text": "left({}, 17)",
    "digest": "left({}, 17)",
    "json": "left({} #>> '{{}}', 17)",
    "object": f"CASE WHEN {{0}} IS NOT NULL THEN coalesce(left({{0}} ->> '{SEALED_KEY}', 17), '') END",
}
_LEAST: Final = {"idx": -(2**31), "segment_id": -(2**31), "started_at": "-infinity"}


async def bind_copy(db: Connection, queries: Queries, source_id: str, target_id: str) -> None:
    """Encrypt the content of a thread's copy under the data key of the copy's owner.

    Call this in the transaction that makes the copy.

    Raises:
        EncryptedError: If the content is encrypted and no keys are given.
        EncryptionError: If content cannot be decrypted.
    """
    if db.keys is not None:
        for table in COPIED:
            await reseal_rows(db, db.keys, queries.schema, table, target_id, source_id)
    elif (await db.fetch(queries.has_encrypted, {"thread_id": target_id}))[0][0]:
        raise EncryptedError(f"thread {source_id!r}")


async def reseal_rows(
    db: Connection, keys: KeyRing, schema: str, table: str, thread_id: str, source_id: str | None = None
) -> int:
    """Encrypt a thread's content in one table under the current data key. Return the number of changed values.

    Each page of rows is stored again in one transaction, except values that were changed meanwhile.
    """
    reading, rest = _reading(schema, table), KEYS[table][1:]
    changed = 0
    cursor: list[Any] | None = None
    while True:
        parameters = {"thread_id": thread_id, **dict(zip(rest, cursor or _least(rest), strict=True))}
        rows = await db.fetch(reading, parameters)
        again = partial(_again, keys, schema, table, source_id, rows)
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
    source_id: str | None,
    rows: Sequence[Sequence[Any]],
    problems: list[tuple[str, str, str]] | None = None,
) -> list[Statement]:
    """Return the statements that store the values of a page again.

    A `MissingKeysError` names all keys that are known to be needed. Values that cannot be decrypted are added to
    `problems`. If `problems` is `None`, such a value raises.
    """
    names = KEYS[table]
    found: list[Statement] = []
    missing: set[tuple[str, str]] = set()
    for row in rows:
        at = dict(zip((*names, *_read_columns(table)), row, strict=True))
        for column in _sealed(table):
            value, content = at[column], CONTENTS[f"{table}.{column}"]
            if value is None or may_be_plain(content, value):
                continue
            parts = [at[name] for name in content.key]
            others = [] if source_id is None else [[source_id, *parts[1:]]]
            try:
                new = reseal(keys, f"{table}.{column}", parts, others, value)
            except MissingKeysError as error:
                missing |= error.wanted
                continue
            except (DecryptionError, NotEncryptedError) as error:
                if problems is None:
                    raise
                problems.append((str(at.get("thread_id", "")), where(f"{table}.{column}", parts), str(error)))
                continue
            if new is not None:
                given = {f"{name}_": at[name] for name in names}
                is_json = CONTENTS[f"{table}.{column}"].kind in ("json", "object")
                pair = {"value": new, "before": value}
                given |= {name: json.dumps(one) for name, one in pair.items()} if is_json else pair
                found.append((_writing(schema, table, column), given))
                if table == "memories" and content.is_value and SEALED_KEY not in value:
                    found.append((queries(schema).replace_words, _words_of(at, pair)))
    if missing:
        raise MissingKeysError(missing)
    return found


def _words_of(at: Mapping[str, Any], pair: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that replace the searchable words of a memory that was stored in plain text."""
    text = pair["before"].get("content")
    return {
        "namespace": [*at["namespace"]],
        "key": at["key"],
        "value": json.dumps(pair["value"]),
        "words": (text if isinstance(text, str) else json.dumps(pair["before"], ensure_ascii=False))[:_MAX_WORDS],
        "language": "pg_catalog.simple",
        "are_missing": False,
    }


def _sealed(table: str) -> dict[str, Content]:
    """Return the columns of a table whose values are encrypted one by one."""
    return {name: content for name, content in contents_of(table).items() if content.kind != "words"}


class Reached(NamedTuple):
    """The result of encrypting a page of a table again.

    Attributes:
        cursor: The key of the page's last row; `None` after the last page.
        rows: Number of rows in the page.
        found: Ids of the wanted data keys under which values were found.
        changed: Number of values that were encrypted again. Values that were changed meanwhile are left out.
        problems: Values that cannot be decrypted: thread, place and reason.
    """

    cursor: tuple[Any, ...] | None
    rows: int
    found: Set[str | None]
    changed: int
    problems: tuple[tuple[str, str, str], ...]


async def reseal_page(
    db: Connection,
    schema: str,
    table: str,
    cursor: tuple[Any, ...] | None,
    wanted: Set[str | None],
) -> Reached:
    """Encrypt values of a page of a table again, of all threads. Safe during other writes, and to repeat.

    The beginnings of values show which values are wanted. These are stored again in transactions of a few megabytes,
    unless they were changed meanwhile.

    Args:
        db: The connection, with keys.
        schema: The schema.
        table: The table.
        cursor: The key after which the page begins; `None` for the first page.
        wanted: Ids of the data keys of wanted values; `None` for values that are not encrypted.
    """
    assert db.keys is not None
    names, kinds = KEYS[table], [content.kind for content in _sealed(table).values()]
    rows = await db.fetch(_scanning(schema, table, cursor is None), _after(names, cursor))
    found, runs = set[str | None](), list[tuple[tuple[Any, ...] | None, tuple[Any, ...]]]()
    before, size, is_open = cursor, 0, False
    for row in rows:
        key = tuple(row[: len(names)])
        heads, sizes = row[len(names) :: 2], row[len(names) + 1 :: 2]
        ids = {
            key_id_at(head, is_bytes=kind == "bytes")
            for kind, head in zip(kinds, heads, strict=True)
            if head is not None
        } & wanted
        found |= ids
        if not ids:
            is_open = False
        elif is_open and size < _RUN_BYTES:
            runs[-1] = runs[-1][0], key
            size += sum(one or 0 for one in sizes)
        else:
            runs.append((before, key))
            size, is_open = sum(one or 0 for one in sizes), True
        before = key
    changed, problems = 0, list[tuple[str, str, str]]()
    for start, end in runs:
        upto = {f"{name}_to": part for name, part in zip(names, end, strict=True)}
        values = await db.fetch(_ranging(schema, table, start is None), {**_after(names, start), **upto})
        statements = await db.compute(partial(_again, db.keys, schema, table, None, values, problems))
        if statements:
            changed += sum(await db.execute_together(statements))
    return Reached(before if len(rows) == _SCANNED else None, len(rows), found, changed, tuple(problems))


def _after(names: Sequence[str], cursor: tuple[Any, ...] | None) -> dict[str, Any]:
    return {} if cursor is None else {f"{name}_": part for name, part in zip(names, cursor, strict=True)}


def _read_columns(table: str) -> list[str]:
    """Return the columns of a table that are read besides its key: content, and columns to which content is bound."""
    contents = _sealed(table)
    bound = {name: None for content in contents.values() for name in content.key}
    return [*contents, *(name for name in bound if name not in KEYS[table])]


def _least(names: Sequence[str]) -> list[Any]:
    """Return a cursor before all rows."""
    return [_LEAST.get(name, "") for name in names]


@cache
def _reading(schema: str, table: str) -> NamedQuery:
    keys = KEYS[table]
    text = read_contents(schema, table, keys, _read_columns(table))
    return NamedQuery(f"read_{table}", "Return content.", text.encode(), ("thread_id", *keys[1:]))


@cache
def _writing(schema: str, table: str, column: str) -> NamedQuery:
    keys = KEYS[table]
    text = write_content(schema, table, keys, column)
    parameters = ("value", *(f"{name}_" for name in keys), "before")
    return NamedQuery(f"write_{table}_{column}", "Store content.", text.encode(), parameters)


@cache
def _scanning(schema: str, table: str, is_first: bool) -> NamedQuery:
    keys = KEYS[table]
    heads = [
        one
        for column, content in _sealed(table).items()
        for one in (_HEADS[content.kind].format(column), f"pg_column_size({column})")
    ]
    text = scan_contents(schema, table, keys, heads, is_first=is_first)
    parameters = () if is_first else tuple(f"{name}_" for name in keys)
    return NamedQuery(f"scan_{table}", "Return beginnings of content.", text.encode(), parameters)


@cache
def _ranging(schema: str, table: str, is_first: bool) -> NamedQuery:
    keys = KEYS[table]
    text = range_contents(schema, table, keys, _read_columns(table), is_first=is_first)
    first = () if is_first else tuple(f"{name}_" for name in keys)
    return NamedQuery(f"range_{table}", "Return content.", text.encode(), (*first, *(f"{name}_to" for name in keys)))
