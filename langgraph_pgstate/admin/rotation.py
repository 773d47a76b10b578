"""Encryption of stored values, replacement of data keys, and digests of words. Applications may run meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from typing import Any, Final

from langgraph_pgstate.admin.types import RotationProgress, RotationReport
from langgraph_pgstate.admin.words import add_words_to_page
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.database import Database, KeyLoader
from langgraph_pgstate.encryption.columns import KEYS
from langgraph_pgstate.encryption.keys import KeyRing, list_replaced, replace_keys, retire_keys
from langgraph_pgstate.record.types import Problem
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.resealing import reseal_page

OnProgress = Callable[[RotationProgress], None]

# Seconds to wait for other processes to commit values that they have encrypted with a replaced key.
_MARGIN_SECONDS: Final = 5.0


def rotate(
    database: Database, keys: KeyRing, queries: Queries, scope: str | None, wait: bool, progress: OnProgress | None
) -> RotationReport:
    """Make new data keys, encrypt all older values again, and retire the older keys. See `Admin.rotate_keys`."""
    report, settled = RotationReport(), keys.encryption.cache_seconds + _MARGIN_SECONDS
    report.keys = run_blocking(replace_keys(KeyLoader(database), keys, scope))
    while True:
        ages = database.run(list_replaced, queries)
        report.left = len(ages)
        if not ages:
            return report
        before = report.values
        found = _pass(database, queries, report, progress, {*ages})
        missing = settled - min(ages.values())
        if missing > 0:
            if not wait:
                return report
            if progress is not None:
                progress(RotationProgress("", report.rows, report.values, missing))
            time.sleep(missing)
            continue
        if idle := ages.keys() - found:
            report.retired += database.run(retire_keys, queries, [*idle])
            report.left -= len(idle)
        if not report.left or report.values == before:
            # Another pass would find the same values, which do not decrypt or cannot be changed.
            return report


def encrypt(database: Database, queries: Queries, progress: OnProgress | None) -> RotationReport:
    """Encrypt values that are stored in plain text. See `Admin.encrypt`."""
    report = RotationReport()
    _pass(database, queries, report, progress, {None})
    return report


def add_words(database: Database, queries: Queries, progress: OnProgress | None) -> RotationReport:
    """Store digests of the words of content that was encrypted without them. See `Admin.add_words`."""
    report = RotationReport()
    for table, first in (("messages", ("", "", "", "")), ("memories", ("{}", ""))):
        cursor: tuple[Any, ...] | None = first
        while cursor is not None:
            cursor, rows, values = database.run(add_words_to_page, queries, table, cursor)
            report.rows += rows
            report.values += values
            if progress is not None:
                progress(RotationProgress(table, report.rows, report.values))
    return report


def _pass(
    database: Database,
    queries: Queries,
    report: RotationReport,
    progress: OnProgress | None,
    wanted: Set[str | None],
) -> Set[str | None]:
    """Encrypt all values under the `wanted` keys, and return the keys of values that were found.

    The key `None` means plain values.
    """
    found, problems = set[str | None](), list[Problem]()
    report.rows = 0
    for table in KEYS:
        cursor: tuple[Any, ...] | None = None
        while True:
            page = database.run(reseal_page, queries.schema, table, cursor, wanted)
            found |= page.found
            report.rows += page.rows
            report.values += page.changed
            problems += [Problem(thread_id, where, why) for thread_id, where, why in page.problems]
            if progress is not None:
                progress(RotationProgress(table, report.rows, report.values))
            cursor = page.cursor
            if cursor is None:
                break
    report.problems = problems
    return found
