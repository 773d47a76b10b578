"""Feedback, as applications give and ask it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.record import Parts, Record, ask, at, every_page

from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.record.types import FeedbackAverage

pytestmark = pytest.mark.smoke


async def test_feedback_is_added_replaced_listed_and_deleted(parts: Parts, record: Record) -> None:
    record.run()
    record.span("s")
    feedback = parts.runs.feedback
    given = await ask(feedback.add("t", "r", score=True, comment="kind", by="eve", feedback_id="f"))
    assert (given.name, given.score, given.comment, given.created_by, given.source) == (
        "score",
        1,
        "kind",
        "eve",
        "human",
    )
    again = await ask(feedback.add("t", "r", name="tone", score=0.5, span_id="s", source="model", feedback_id="f"))
    assert (again.name, again.score, again.comment, again.span_id, again.source) == ("tone", 0.5, None, "s", "model")
    assert again.created_at == given.created_at
    assert (await ask(feedback.list(thread_id="t"))).items == (again,)
    assert await ask(feedback.delete("t", "r", "f")) is True
    assert await ask(feedback.delete("t", "r", "f")) is False
    assert (await ask(feedback.list())).items == ()


async def test_feedback_is_on_a_run_or_a_span_that_exists(parts: Parts, record: Record) -> None:
    record.run()
    with pytest.raises(NotFoundError, match="has no run 'q'"):
        await ask(parts.runs.feedback.add("t", "q", score=1))
    with pytest.raises(NotFoundError, match="has no run 'r' with a span 's'"):
        await ask(parts.runs.feedback.add("t", "r", score=1, span_id="s"))


async def test_feedback_is_listed_newest_first_page_by_page(parts: Parts, record: Record) -> None:
    for number in range(4):
        record.run(f"r{number}", thread_id=f"t{number % 2}")
        given(record, f"f{number}", f"r{number}", created=number // 2, thread_id=f"t{number % 2}", name=f"n{number}")
    pages = await every_page(parts.runs.feedback.list, limit=3)
    assert [[item.feedback_id for item in page] for page in pages] == [["f2", "f3", "f0"], ["f1"]]
    pages = await every_page(parts.runs.feedback.list, limit=1, thread_id="t1")
    assert [[item.feedback_id for item in page] for page in pages] == [["f3"], ["f1"]]
    for filters in (
        {"name": "n2"},
        {"thread_id": "t0", "run_id": "r2"},
        {"since": at(1), "source": "human", "limit": 1},
    ):
        assert [item.feedback_id for item in (await ask(parts.runs.feedback.list(**filters))).items] == ["f2"]
    assert (await ask(parts.runs.feedback.list(since=timedelta(seconds=1)))).items == ()


async def test_averages(parts: Parts, record: Record) -> None:
    record.thread("t", metadata={"owner": "eve"})
    record.thread("u", metadata={"owner": "bob"})
    record.run("a", agent="travel", release="1")
    record.run("b", agent="travel", release="2", thread_id="u")
    record.span("s1", "llm", run_id="a", model="large")
    record.span("s2", "llm", run_id="a", model="small")
    record.span("s3", "llm", run_id="a", model="small")
    for number, score in enumerate((1.0, 0.0, None)):
        given(record, f"f{number}", "a", score=score, comment="x" if score is None else None)
    given(record, "f3", "a", score=0.5, span_id="s2")
    given(record, "f4", "b", thread_id="u", score=1.0)

    async def averages(*by: str, **options: object) -> list[tuple[object, ...]]:
        found = await ask(parts.runs.feedback.averages(by, since=None, **options))
        assert all(isinstance(one, FeedbackAverage) and one.name == "score" for one in found)
        return [(*filter(None, (one.agent, one.model, one.release)), one.count, one.scores, one.mean) for one in found]

    assert await averages() == [(5, 4, 0.625)]
    assert await averages("agent", "release") == [("travel", "1", 4, 3, 0.5), ("travel", "2", 1, 1, 1.0)]
    assert await averages("model") == [("small", 4, 3, 0.5), ("large", 3, 2, 0.5), (1, 1, 1.0)]
    assert await averages(scope={"owner": "eve"}) == [(4, 3, 0.5)]
    assert await averages(until=at(0)) == []
    with pytest.raises(ConfigurationError, match="agent, model, release"):
        await averages("day")


def given(record: Record, feedback_id: str, run_id: str, created: float = 0, **values: object) -> None:
    """Feedback of a person."""
    known = {"thread_id": "t", "feedback_id": feedback_id, "run_id": run_id, "created_at": at(created)}
    record.add("feedback", **{**known, "source": "human", "name": "score", "score": 1.0, **values})
