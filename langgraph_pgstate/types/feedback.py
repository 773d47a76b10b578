"""Feedback on runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Feedback:
    """A score or a comment, or both, on a run or on one of its spans.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        feedback_id: The feedback's id.
        span_id: The span that is judged; `None`: the whole run.
        created_at: Time it was given first.
        created_by: Who gave it, if that is known.
        source: `human`, `model` or `program`.
        name: What is judged.
        score: The score, on a scale of the application; `None` for none.
        comment: The comment; `None` for none.
    """

    thread_id: str
    run_id: str
    feedback_id: str
    span_id: str | None
    created_at: datetime
    created_by: str | None
    source: str
    name: str
    score: float | None
    comment: str | None


@dataclass(frozen=True, slots=True)
class FeedbackAverage:
    """Feedback of one name, aggregated by the requested keys. The other keys are `None`.

    Attributes:
        name: What is judged.
        agent: The agent of the runs.
        model: The model that the runs, or the judged spans, called. A run of several models counts for each.
        release: The release of the application.
        count: Number of scores and comments.
        scores: Number of scores.
        mean: Mean score; `None` without scores.
        comments: Number of comments.
    """

    name: str
    agent: str | None
    model: str | None
    release: str | None
    count: int
    scores: int
    mean: float | None
    comments: int
