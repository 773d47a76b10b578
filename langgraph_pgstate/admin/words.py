"""Digests of words for messages and memories that were encrypted without such digests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.encryption.columns import KEYS
from langgraph_pgstate.memory.texts import texts_of, words_of
from langgraph_pgstate.schema.queries import Queries, Statement

# Number of rows in a page. A page is stored in one transaction.
_PAGE: Final = 100


async def add_words_to_page(
    db: Connection, queries: Queries, table: str, cursor: tuple[Any, ...]
) -> tuple[tuple[Any, ...] | None, int, int]:
    """Add digests of words in a page of `messages` or `memories`. One transaction; safe to repeat.

    Rows that are changed meanwhile, have no words or do not decrypt stay unchanged.

    Returns:
        The cursor of the next page, or `None`; the number of rows read; the number of rows changed.
    """
    names = KEYS[table]
    find = queries.find_messages_without_words if table == "messages" else queries.find_memories_without_words
    rows = await db.fetch(find, {**dict(zip(names, cursor, strict=True)), "page_size": _PAGE})
    statements: list[Statement] = []
    for row in rows:
        key = dict(zip(names, row, strict=False))
        content, before, *rest = row[len(names) :]
        if content is None:
            continue
        text = content if table == "messages" else _text_of(content, *rest)
        if db.keys is None or not db.keys.words(text):
            continue
        if table == "messages":
            statements.append((queries.add_words_of_message, {**key, "content": text, "before": before}))
        else:
            given = {"value": before, "words": text, "language": "pg_catalog.simple", "are_missing": True}
            statements.append((queries.replace_words, {**key, **given}))
    changed = sum(await db.execute_together(statements)) if statements else 0
    return (tuple(rows[-1][: len(names)]) if len(rows) == _PAGE else None), len(rows), changed


def _text_of(value: Mapping[str, Any], fields: Sequence[str] | None) -> str:
    """Return an item's searched text: the fields to index, or else `content`, or else the whole value."""
    if fields:
        return words_of(texts_of(value, fields))
    text = value.get("content")
    return text if isinstance(text, str) else json.dumps(value, ensure_ascii=False)
