"""Namespaces: paths of labels, compared label by label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from langgraph.store.base import InvalidNamespaceError

from langgraph_pgstate.arguments import identifier
from langgraph_pgstate.db.statements import array_literal
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.options import MAX_KEY_BYTES

Namespace = tuple[str, ...]

# No label begins with this noncharacter, so an array with it sorts after all namespaces.
_LAST: Final = "\U0010ffff"
# Bytes in an index entry in addition to the texts of labels: for the array, and for each label.
_ARRAY_BYTES, _LABEL_BYTES = 24, 8


class Range(NamedTuple):
    """The bounds of the namespaces that begin with some labels, as array literals.

    `upper` is excluded. It has the same labels, with `\\x01`, the smallest character, added to the last label. Without
    labels, `upper` sorts after all namespaces.
    """

    lower: str
    upper: str


def labels_of(labels: Sequence[str], *, what: str = "namespace", can_be_empty: bool = False) -> Namespace:
    """Return validated labels."""
    if isinstance(labels, str) or not isinstance(labels, Sequence):
        raise InvalidNamespaceError(f"{what} must be a sequence of labels, not {labels!r}")
    found = tuple(labels)
    if not found and not can_be_empty:
        raise InvalidNamespaceError(f"{what} must have a label")
    for label in found:
        if not isinstance(label, str) or not label or label.startswith(_LAST):
            raise InvalidNamespaceError(f"labels of a {what} must be non-empty strings, not {label!r}")
        try:
            identifier("label", label)
        except ConfigurationError as error:
            raise InvalidNamespaceError(str(error)) from None
    return found


def check_size(namespace: Namespace, key: str) -> None:
    """Check that a namespace and a key fit into an index entry."""
    size = _ARRAY_BYTES + len(key.encode()) + sum(len(label.encode()) + _LABEL_BYTES for label in namespace)
    if size > MAX_KEY_BYTES:
        raise ConfigurationError(
            f"namespace and key must together take at most {MAX_KEY_BYTES:,} bytes, with {_LABEL_BYTES} more for each "
            f"label, not {size:,}: {namespace[:3]}…"
        )


def literal(namespace: Sequence[str]) -> str:
    """Return a namespace as an array literal."""
    return array_literal([*namespace])


def range_of(prefix: Namespace) -> Range:
    """Return the namespaces that begin with some labels."""
    # An array with NULL sorts after all arrays without.
    return Range(literal(prefix), literal([*prefix[:-1], f"{prefix[-1]}\x01"]) if prefix else "{NULL}")
