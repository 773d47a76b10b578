"""Feedback on runs, given by people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Unpack

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.filters import FeedbackFilter, Moment
from langgraph_pgstate.operations.checkpoints.requests import identifier, thread_id_of
from langgraph_pgstate.operations.record import feedback
from langgraph_pgstate.scopes import Scope
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Feedback, FeedbackAverage, Page

DEFAULT_NAME: Final = "score"
_MONTH: Final = timedelta(days=30)


class AsyncRunFeedback:
    """Scores and comments on runs and on their spans. Feedback is deleted with its run.

    Args:
        database: The database.
        queries: The queries of its schema.
        codec: Encodes comments if it has a serializer of the caller's own; by default it has not.
    """

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
            comment: A text. With a serializer of the caller's own it is encoded by that.
            span_id: A span of the run, if only that is judged.
            by: Who gives it.
            source: `human`, `model` or `program`.
            feedback_id: Id of the feedback; a new one by default. What was stored under it is replaced.

        Raises:
            NotFoundError: If there is no such run or span.
            ConfigurationError: If an argument is invalid, or there is neither a score nor a comment.
        """
        given = (self._codec, thread_id, run_id, name, score, comment, span_id, by, source, feedback_id)
        parameters = feedback.request_feedback(*given)
        return await self._database.run(feedback.put_feedback, self._queries, self._codec, parameters)

    async def list(self, **filters: Unpack[FeedbackFilter]) -> Page[Feedback]:
        """Return a page of feedback, newest first. One round trip.

        Args:
            **filters: See `FeedbackFilter`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        parameters = feedback.request_feedback_list(**filters)
        return await self._database.run(feedback.list_feedback, self._queries, self._codec, parameters)

    async def delete(self, thread_id: str, run_id: str, feedback_id: str) -> bool:
        """Delete feedback. One round trip; safe to repeat.

        Returns:
            Whether there was such feedback.
        """
        key = thread_id_of(thread_id), identifier("run_id", run_id), identifier("feedback_id", feedback_id)
        return await self._database.run(feedback.delete_feedback, self._queries, *key)

    async def averages(
        self,
        by: str | Sequence[str] = "agent",
        *,
        since: Moment | None = _MONTH,
        until: datetime | None = None,
        scope: Scope | None = None,
        limit: int = 1000,
    ) -> tuple[FeedbackAverage, ...]:
        """Return counts and mean scores by name, the most frequent first. One round trip; reads at most 100,000 rows,
        the newest.

        Args:
            by: One or several of `agent`, `model` and `release`.
            since: Only feedback given at this time or later; a timedelta counts back from now; `None` for all.
            until: Only feedback given before this time.
            scope: Only of threads whose metadata contain this.
            limit: Maximum number of rows, 1,000 at most.

        Raises:
            ConfigurationError: If a key is unknown or an argument is invalid.
        """
        parameters = feedback.request_averages(by, since, until, limit, scope=scope)
        return await self._database.run(feedback.average_feedback, self._queries, parameters)


class RunFeedback:
    """Blocking twin of `AsyncRunFeedback`."""

    def __init__(self, database: Database, queries: Queries, codec: ValueCodec | None = None) -> None:
        self._database, self._queries, self._codec = BlockingRunner(database), queries, codec or ValueCodec()

    add = blocking(AsyncRunFeedback.add)
    list = blocking(AsyncRunFeedback.list)
    delete = blocking(AsyncRunFeedback.delete)
    averages = blocking(AsyncRunFeedback.averages)
