"""Feedback: scores and comments on runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Unpack
from uuid import uuid4

from langgraph_pgstate.arguments import (
    Moment,
    check_key_size,
    identifier,
    request_scope,
    since_of,
    text_of,
    texts_of,
    thread_id_of,
    time_of,
)
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection, Read, Row, read_all
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, NotFoundError
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.paging import LAST, Page, check_filters, decode_cursor, page_size, read_page
from langgraph_pgstate.record.filters import FeedbackFilter
from langgraph_pgstate.record.types import Feedback, FeedbackAverage
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope

FEEDBACK_KEYS: Final = ("agent", "model", "release")
SOURCES: Final = ("human", "model", "program")

MOST_SCORE: Final = 1e15
"""Largest absolute value of a score, as in the table's constraint. Greater scores could make sums overflow."""

MOST_ROWS: Final = 100_000
"""Maximum number of rows that a statistic reads: the newest rows of its period."""

_KIND: Final = "feedback"
_COMMENT: Final = "comment"
_FOREIGN_KEY_VIOLATION: Final = "23503"


def request_feedback(
    codec: ValueCodec,
    thread_id: str,
    run_id: str,
    name: str,
    score: float | None,
    comment: str | None,
    span_id: str | None,
    by: str | None,
    source: str,
    feedback_id: str | None,
) -> dict[str, Any]:
    """Validate and encode feedback, and return its query parameters.

    Raises:
        ConfigurationError: If an argument is invalid, or there is neither a score nor a comment.
    """
    if score is not None and (not isinstance(score, int | float) or not abs(score) <= MOST_SCORE):
        raise ArgumentTypeError(f"score must be a finite number, from -{MOST_SCORE:g} to {MOST_SCORE:g}, not {score!r}")
    if score is None and not comment:
        raise ConfigurationError("feedback must have a score or a comment, or both")
    if source not in SOURCES:
        raise ConfigurationError(f"source must be one of {', '.join(SOURCES)}, not {source!r}")
    if not identifier("name", name):
        raise ConfigurationError("name must not be empty")
    key = {
        "thread_id": thread_id_of(thread_id),
        "run_id": identifier("run_id", run_id),
        "feedback_id": identifier("feedback_id", feedback_id or str(uuid4())),
    }
    check_key_size("thread_id, run_id and feedback_id", *key.values())
    text = text_of(_COMMENT, comment) or None
    # The caller's own serializer may encrypt. Store the comment only in encoded form if there is such a serializer.
    kind, data = (None, None) if text is None or codec.is_native else codec.dumps(_COMMENT, text)
    return {
        **key,
        "span_id": text_of("span_id", span_id),
        "created_by": text_of("by", by),
        "source": source,
        "name": name,
        "score": None if score is None else float(score),
        "comment": text if codec.is_native else None,
        "value_type": kind,
        "value": data,
    }


async def put_feedback(db: Connection, queries: Queries, codec: ValueCodec, parameters: dict[str, Any]) -> Feedback:
    """Store feedback, or replace the feedback under its id. One statement; safe to repeat.

    Raises:
        NotFoundError: If there is no such run, or the run has no such span.
        ThreadArchivedError: If the thread is archived.
    """
    try:
        rows = await db.fetch(queries.put_feedback, parameters)
    except Exception as error:
        if getattr(error, "sqlstate", None) != _FOREIGN_KEY_VIOLATION:
            raise
        # The run was deleted meanwhile.
        rows = []
    if not rows:
        await refuse_archived(db, queries, parameters["thread_id"])
        span = "" if parameters["span_id"] is None else f" with a span {parameters['span_id']!r}"
        raise NotFoundError(f"thread {parameters['thread_id']!r} has no run {parameters['run_id']!r}{span}")
    return _feedback(codec, rows[0])


def list_feedback(codec: ValueCodec, **filters: Any) -> Read[Page[Feedback]]:
    """Return a `Read` of a page of feedback, newest first; see `FeedbackFilter`.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    check_filters(filters, FeedbackFilter)
    at, cursor_thread, cursor_run, cursor_id = decode_cursor(_KIND, filters.get("cursor"), (LAST, "", "", ""))
    thread_id = filters.get("thread_id")
    if thread_id is None and filters.get("run_id") is not None:
        raise ConfigurationError("thread_id must be given if run_id is given")
    parameters = {
        "thread_id": None if thread_id is None else thread_id_of(thread_id),
        **texts_of(filters, "run_id", "name", "source"),
        **since_of(filters.get("since")),
        "cursor_at": at,
        "cursor_thread": cursor_thread,
        "cursor_run": cursor_run,
        "cursor_id": cursor_id,
    }
    return read_page(
        "list_feedback",
        parameters,
        filters.get("limit", 20),
        lambda *row: _feedback(codec, row),
        _KIND,
        lambda item: (item.created_at, item.thread_id, item.run_id, item.feedback_id),
    )


async def delete_feedback(db: Connection, queries: Queries, thread_id: str, run_id: str, feedback_id: str) -> bool:
    """Delete feedback, and return whether there was any. One statement; safe to repeat."""
    key = {"thread_id": thread_id, "run_id": run_id, "feedback_id": feedback_id}
    return bool(await db.execute(queries.delete_feedback, key))


def average_feedback(
    by: str | Sequence[str],
    since: Moment | None,
    until: datetime | None,
    limit: int = 1000,
    agent: str | None = None,
    user_id: str | None = None,
    tenant_id: str | None = None,
    scope: Scope | None = None,
) -> Read[tuple[FeedbackAverage, ...]]:
    """Return a `Read` of mean scores, grouped by name and by the keys in `by`, the largest group first.

    Raises:
        ConfigurationError: If a key is not in `FEEDBACK_KEYS`, or another argument is invalid.
    """
    keys = [by] if isinstance(by, str) else list(by)
    if unknown := [key for key in keys if key not in FEEDBACK_KEYS]:
        raise ConfigurationError(f"by must be one or several of {', '.join(FEEDBACK_KEYS)}, got {unknown[0]!r}")
    scoped = request_scope(scope)
    parameters = {
        "by": keys,
        **since_of(since),
        "until": time_of("until", until),
        "agent": text_of("agent", agent),
        "user_id": text_of("user_id", user_id),
        "tenant_id": text_of("tenant_id", tenant_id),
        "scope": scoped,
        "most": MOST_ROWS,
        "page_size": page_size(limit),
    }
    query = "average_feedback" if scoped is None else "average_feedback_with_scope"
    return read_all(query, parameters, lambda *row: FeedbackAverage(*row[:-1]))


def _feedback(codec: ValueCodec, row: Row) -> Feedback:
    *columns, comment, kind, data = row
    if kind is not None:
        comment = codec.loads(kind, data, f"the comment of feedback {row[2]!r}")
    return Feedback(*(*columns, comment))


DEFAULT_NAME: Final = "score"
_MONTH: Final = timedelta(days=30)


class AsyncRunFeedback:
    """Scores and comments on runs and on their spans. Feedback is deleted with its run."""

    def __init__(self, database: AsyncDatabase, queries: Queries, codec: ValueCodec | None = None) -> None:
        self._database, self._queries, self._codec = database, queries, codec or ValueCodec()

    async def add(
        self,
        thread_id: str,
        run_id: str,
        *,
        name: str = DEFAULT_NAME,
        score: float | None = None,
        comment: str | None = None,
        span_id: str | None = None,
        by: str | None = None,
        source: str = "human",
        feedback_id: str | None = None,
    ) -> Feedback:
        """Store a score or a comment, or both, on a run. Atomic; one round trip. Idempotent with a `feedback_id`.

        Args:
            thread_id: The thread.
            run_id: The run.
            name: What is judged, like `helpfulness`.
            score: The score, on any scale; true is 1 and false 0.
            comment: A text. If the caller has a serializer of their own, it encodes the text.
            span_id: The judged span; by default the whole run is judged.
            by: Name of the person or program that gives the feedback.
            source: `human`, `model` or `program`.
            feedback_id: Id of the feedback; a new one by default. Earlier feedback under this id is replaced.

        Raises:
            NotFoundError: If there is no such run or span.
            ConfigurationError: If an argument is invalid, or there is neither a score nor a comment.
        """
        given = (self._codec, thread_id, run_id, name, score, comment, span_id, by, source, feedback_id)
        parameters = request_feedback(*given)
        return await self._database.run(put_feedback, self._queries, self._codec, parameters)

    async def list(self, **filters: Unpack[FeedbackFilter]) -> Page[Feedback]:
        """Return a page of feedback, newest first. One round trip.

        Args:
            **filters: See `FeedbackFilter`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._database.read(self._queries, list_feedback(self._codec, **filters))

    async def delete(self, thread_id: str, run_id: str, feedback_id: str) -> bool:
        """Delete feedback, and return whether there was any. One round trip; safe to repeat."""
        key = thread_id_of(thread_id), identifier("run_id", run_id), identifier("feedback_id", feedback_id)
        return await self._database.run(delete_feedback, self._queries, *key)

    async def averages(
        self,
        by: str | Sequence[str] = "agent",
        *,
        since: Moment | None = _MONTH,
        until: datetime | None = None,
        scope: Scope | None = None,
        limit: int = 1000,
    ) -> tuple[FeedbackAverage, ...]:
        """Return counts and mean scores, grouped by name and by the keys in `by`, the largest group first.

        One round trip; reads at most 100,000 rows, the newest.

        Args:
            by: One or several of `agent`, `model` and `release`.
            since: Only feedback given at this time or later; a timedelta counts back from now; `None` for all.
            until: Only feedback given before this time.
            scope: Only feedback on threads whose metadata contain this.
            limit: Maximum number of rows, 1,000 at most.

        Raises:
            ConfigurationError: If a key is unknown or an argument is invalid.
        """
        return await self._database.read(self._queries, average_feedback(by, since, until, limit, scope=scope))


class RunFeedback:
    """Blocking twin of `AsyncRunFeedback`."""

    def __init__(self, database: Database, queries: Queries, codec: ValueCodec | None = None) -> None:
        self._database, self._queries, self._codec = BlockingRunner(database), queries, codec or ValueCodec()

    add = blocking(AsyncRunFeedback.add)
    list = blocking(AsyncRunFeedback.list)
    delete = blocking(AsyncRunFeedback.delete)
    averages = blocking(AsyncRunFeedback.averages)
