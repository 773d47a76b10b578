"""The child process of the demo, in this process: what it tells while it works on its job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from examples.demo.agent import TASTE_WISH
from examples.demo.child import Job, run
from langgraph_pgstate import PGState, PGStateSaver


@pytest.mark.slow
def test_a_job_is_done_and_told_line_by_line(dsn: str, saver: PGStateSaver, capfd: pytest.CaptureFixture[str]) -> None:
    job = Job("begin", dsn, saver.schema, "t", "p1", None, hotel_seconds=0)
    assert Job(**json.loads(job.to_json())) == job
    run(job)
    events: list[dict[str, Any]] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    tools = [event for event in events if event["what"] == "tool"]
    assert {event["name"] for event in tools} == {"search_flights", "book_flight", "book_hotel", "convert_currency"}
    assert {event["phase"] for event in tools} == {"begin", "end"}
    found = saver.get_tuple({"configurable": {"thread_id": "t"}})
    assert found is not None
    assert found.metadata["process"] == "p1"
    assert events[-1]["messages"] == len(found.checkpoint["channel_values"]["messages"])


@pytest.mark.slow
def test_what_one_conversation_learns_another_knows(
    dsn: str, saver: PGStateSaver, capfd: pytest.CaptureFixture[str]
) -> None:
    for part, thread_id in (("learn", "first"), ("know", "second")):
        run(Job(part, dsn, saver.schema, thread_id, "p", None, user_id="eve"))
    events: list[dict[str, Any]] = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert "Eats no meat; Never flies before nine" in events[-1]["text"]
    with PGState.open(dsn, schema=saver.schema) as state:
        known = [state.memory.inspect(one.namespace, one.key) for one in state.memory.browse(user_id="eve").items]
    assert {one and one.thread_id for one in known} == {"first"}
    assert {one and one.message and one.message.text for one in known} == {TASTE_WISH}
