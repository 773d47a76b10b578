"""Recognition of errors that the data of a statement causes, and of errors of one row."""

from __future__ import annotations

from typing import Final

from langgraph_pgstate.errors import PGStateError

# Classes of SQLSTATE: 22 (data), 23 (constraints) and 54 (limits).
_REFUSALS: Final = ("22", "23", "54")


def is_refusal(error: BaseException) -> bool:
    """Return whether the database refuses a statement because of its data, so that a retry would fail, too."""
    return (getattr(error, "sqlstate", None) or "").startswith(_REFUSALS)


def is_of_one_row(error: Exception) -> bool:
    """Return whether an operation failed because of its row, so that other rows can still be processed."""
    if isinstance(error, PGStateError):
        return not error.retryable
    # Errors of the database have an attribute `sqlstate`. Other errors are this package's, about a malformed row.
    return is_refusal(error) or not hasattr(error, "sqlstate")
