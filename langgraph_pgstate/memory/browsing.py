"""Reads of stored items for display to persons. These reads are not counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from langgraph_pgstate.arguments import identifier, several, text_of, thread_id_of
from langgraph_pgstate.db.protocol import Read, Row, Rows, read_all
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.memory.namespaces import Namespace, labels_of, literal, range_of
from langgraph_pgstate.memory.types import Cause, Caused, StoredItem
from langgraph_pgstate.paging import LAST, Page, decode_cursor, page_size, read_page

_KIND: Final = "items"


def read_items(
    user_id: str | None,
    namespace: Sequence[str] | None,
    kind: str | None,
    agent: str | None,
    tenant_id: str | None,
    text: str | None,
    limit: int,
    cursor: str | None,
) -> Read[Page[StoredItem]]:
    """Return a `Read` of a page of items, last stored first."""
    if user_id is None and namespace is None:
        raise ConfigurationError("browse must be given a user_id or a namespace")
    prefix = () if namespace is None else labels_of(namespace, can_be_empty=True)
    updated_at, labels, key = decode_cursor(_KIND, cursor, (LAST, [], ""))
    parameters: dict[str, Any] = {
        **range_of(prefix)._asdict(),
        "user_id": text_of("user_id", user_id),
        "kind": text_of("kind", kind),
        "agent": text_of("agent", agent),
        "tenant_id": text_of("tenant_id", tenant_id),
        # Compare with the value as JSON.
        "text": None if text is None else json.dumps(identifier("text", text), ensure_ascii=False)[1:-1],
        "cursor_at": updated_at,
        "cursor_namespace": literal([identifier("cursor", label) for label in labels]),
        "cursor_key": key,
    }
    return read_page("browse_items", parameters, limit, _item, _KIND, _position)


def _position(one: StoredItem) -> tuple[Any, ...]:
    return one.updated_at, [*one.namespace], one.key


def _item(namespace: list[str], *columns: Any) -> StoredItem:
    return StoredItem(tuple(namespace), *columns)


def read_item(namespace: Namespace, key: str) -> Read[StoredItem | None]:
    """Return a `Read` of an item, with the message that caused it."""

    def decode(rows: Rows) -> StoredItem | None:
        return _with_message(rows[0]) if rows else None

    return Read("inspect_item", {"namespace": literal(namespace), "key": key}, decode)


def _with_message(row: Row) -> StoredItem:
    *columns, role, text, ns, checkpoint_id, channel = row
    cause = None if checkpoint_id is None else Cause(role, text or "", ns, checkpoint_id, channel)
    return replace(_item(*columns), message=cause)


def read_caused(
    thread_id: str, run_id: str | None, message_ids: Sequence[str] | None, limit: int
) -> Read[tuple[Caused, ...]]:
    """Return a `Read` of the versions that were stored in a thread, newest first."""

    def make(namespace: list[str], *columns: Any) -> Caused:
        return Caused(tuple(namespace), *columns)

    parameters: dict[str, Any] = {
        "thread_id": thread_id_of(thread_id),
        "run_id": text_of("run_id", run_id),
        "page_size": page_size(limit),
    }
    if message_ids is not None:
        ids = [identifier("message_ids", one) for one in several("message_ids", message_ids)]
        return read_all("list_caused_by_messages", {**parameters, "message_ids": ids}, make)
    return read_all("list_caused_in_thread", parameters, make)
