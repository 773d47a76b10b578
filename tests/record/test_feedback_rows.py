"""Feedback, as it is stored: checked, readable or encoded, and gone with its run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.serde.base import SerializerProtocol
from support import wait_until
from support.record import Record

from langgraph_pgstate import PGState
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.record.feedback import list_feedback, request_feedback


class Reversing(SerializerProtocol):
    """A serializer that nobody else can read."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "reversed", str(obj).encode()[::-1]

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return data[1][::-1].decode()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "a score or a comment"),
        ({"comment": ""}, "a score or a comment"),
        ({"score": float("nan")}, "finite"),
        ({"score": "good"}, "finite"),
        ({"score": -1e200}, "from -1e"),
        ({"score": 1, "source": "robot"}, "human, model, program"),
        ({"score": 1, "name": ""}, "empty"),
        ({"score": 1, "comment": "a\0b"}, "NUL"),
        ({"score": 1, "feedback_id": "x" * 3000}, "2600 bytes"),
    ],
)
def test_what_cannot_be_stored_is_refused(given: dict[str, Any], why: str) -> None:
    known = {"name": "score", "score": None, "comment": None, "span_id": None, "by": None, "source": "human"}
    with pytest.raises(ConfigurationError, match=why):
        request_feedback(ValueCodec(), "t", "r", **{**known, "feedback_id": None, **given})


@pytest.mark.parametrize("score", [1.1e15, -1.1e15, float("inf"), float("nan")])
def test_no_other_client_stores_a_score_that_would_spoil_sums(score: float, record: Record) -> None:
    record.thread()
    record.run()
    feedback: dict[str, Any] = {"thread_id": "t", "run_id": "r", "source": "human", "name": "score"}
    record.add("feedback", **feedback, feedback_id="most", score=1e15)
    with pytest.raises(psycopg.errors.CheckViolation, match="feedback_score_is_bounded"):
        record.add("feedback", **feedback, feedback_id="more", score=score)


def test_a_run_is_of_a_thread() -> None:
    with pytest.raises(ConfigurationError, match="thread_id"):
        list_feedback(ValueCodec(), run_id="r")


def test_a_comment_is_encoded_by_a_serializer_of_the_callers(dsn: str, record: Record) -> None:
    record.thread()
    record.run()
    with PGState.open(dsn, schema=record.schema, serde=Reversing(), pool=False) as state:
        state.runs.feedback.add("t", "r", comment="she was rude", feedback_id="f")
        assert state.runs.feedback.list().items[0].comment == "she was rude"
        [average] = state.runs.feedback.averages()
        assert (average.count, average.scores, average.comments) == (1, 0, 1)
    assert record.rows("SELECT comment, convert_from(value, 'UTF8') FROM feedback") == [(None, "edur saw ehs")]
    with Admin.open(dsn, schema=record.schema) as admin:
        # Its types are unknown without the serializer, which is no damage that would be hidden.
        assert [problem.where for problem in admin.check("t", deep=True).problems] == [
            "the comment of feedback 'f' on run 'r'"
        ]


def test_feedback_on_a_run_that_is_deleted_meanwhile_is_not_left_behind(dsn: str, record: Record) -> None:
    """The insertion saw the run, and waits for the deletion."""
    record.thread()
    record.run()
    with (
        ThreadPoolExecutor() as threads,
        psycopg.connect(dsn) as deleting,
        PGState.open(dsn, schema=record.schema, pool=False) as state,
    ):
        deleting.execute(f"DELETE FROM {record.schema}.runs")
        adding = threads.submit(state.runs.feedback.add, "t", "r", score=1)
        wait_until(lambda: is_blocked(record), "the insertion's wait")
        deleting.commit()
        with pytest.raises(NotFoundError):
            adding.result()
    assert record.rows("SELECT count(*) FROM feedback") == [(0,)]


def is_blocked(record: Record) -> bool:
    return bool(record.rows("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'feedback'"))
