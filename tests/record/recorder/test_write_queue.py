"""Rows that wait to be written."""

from __future__ import annotations

import uuid
from typing import Any

import hypothesis.strategies as st
import orjson
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support import examples, loop_graph
from support.recorder import config, recording, recording_async, rows

from langgraph_pgstate.errors import StaleHeadError
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder import write_queue
from langgraph_pgstate.record.recorder.records import RunRecord, SpanRecord
from langgraph_pgstate.record.recorder.tracker import Tracker
from langgraph_pgstate.record.recorder.write_queue import Pending, WriteQueue
from tests.record.recorder.test_writer import NEVER, Connection, begin, start, taken


@pytest.mark.parametrize("has_writer", [True, False])
def test_what_nobody_else_would_write_soon_a_put_takes_along(has_writer: bool) -> None:
    queue = WriteQueue(RecorderSettings(interval=1e-9 if has_writer else NEVER), has_writer=has_writer)
    tracker = Tracker(queue)
    root = begin(tracker, None, "graph")
    begin(tracker, root, "running", 1)
    tracker.end(begin(tracker, root, "ahead", 6), {})
    assert taken(tracker, queue, "", 0) == ["graph", "running", "ahead"]


def test_a_full_queue_makes_the_graph_wait_and_drops_nothing(dsn: str, schema: str, connection: Connection) -> None:
    waiting = []
    options = RecorderSettings(queue_size=10, interval=NEVER)
    with recording(dsn, schema, options, hook=False) as (saver, recorder):
        graph = loop_graph(60, lambda count: waiting.append(recorder._queue.waiting))
        recorder.record(graph.compile(checkpointer=saver)).invoke(start(), {**config(), "recursion_limit": 100})
    assert max(waiting) < 20
    assert len(rows(connection, schema, "spans", kind="node")) == 60


async def test_a_full_queue_makes_an_asynchronous_graph_wait(dsn: str, schema: str, connection: Connection) -> None:
    waiting = []
    options = RecorderSettings(queue_size=10, interval=NEVER)
    async with recording_async(dsn, schema, options, hook=False) as (saver, recorder):
        graph = loop_graph(60, lambda count: waiting.append(recorder._queue.waiting))
        limited = {**config(), "recursion_limit": 100}
        await recorder.record(graph.compile(checkpointer=saver)).ainvoke(start(), limited)
    assert max(waiting) < 20
    assert len(rows(connection, schema, "spans", kind="node")) == 60


class Tables:
    """The tables as the database keeps them: a row that names a run is stored only if the run is there."""

    def __init__(self) -> None:
        self.runs: dict[str, str] = {}
        self.spans: dict[str, str] = {}
        self.events: set[str] = set()

    def store(self, pending: Pending) -> None:
        entry = pending.journal_entry
        for row in map(orjson.loads, entry.runs):
            self.runs[row["run_id"]] = row["status"]
        for row in map(orjson.loads, entry.spans):
            if row["run_id"] in self.runs:
                self.spans[row["span_id"]] = row["status"]
        for row in map(orjson.loads, entry.events):
            if row["run_id"] is None or row["run_id"] in self.runs:
                self.events.add(row["event_id"])


class Recorded(RuleBasedStateMachine):
    """Runs that begin and end while a writer collects their rows now and then."""

    @initialize(limits=st.sampled_from([(500, 4_000_000, 60.0), (3, 4_000_000, 60.0), (500, 4_000_000, -1.0)]))
    def open(self, limits: tuple[int, int, float]) -> None:
        self.patch = pytest.MonkeyPatch()
        for name, value in zip(("_BATCH_RECORDS", "_BATCH_BYTES", "_DUMP_SECONDS"), limits, strict=True):
            self.patch.setattr(write_queue, name, value)
        self.queue = WriteQueue(RecorderSettings(interval=100.0))
        self.tracker, self.tables = Tracker(self.queue), Tables()
        self.open_ids: list[uuid.UUID] = []
        self.expected: dict[str, str] = {}
        self.runs: list[RunRecord] = []
        self.events: set[str] = set()

    def note(self, id: uuid.UUID) -> None:
        span = self.tracker.find(id)
        assert span is not None
        self.expected[row_of(span)["span_id"]] = "running"

    @rule(children=st.integers(0, 4))
    def begin(self, children: int) -> None:
        root = begin(self.tracker, None, "graph", thread_id=f"t{len(self.runs)}")
        found = self.tracker.find(root)
        assert found is not None
        found.run.is_begun = True
        self.runs.append(found.run)
        ids = [begin(self.tracker, root, "model") for _ in range(children)]
        for id in (root, *ids):
            self.note(id)
        self.open_ids += [root, *reversed(ids)]

    @precondition(lambda self: self.open_ids)
    @rule()
    def end(self) -> None:
        id = self.open_ids.pop()
        span = self.tracker.find(id)
        assert span is not None
        self.expected[row_of(span)["span_id"]] = "success"
        self.tracker.end(id, {})

    @rule()
    def refuse(self) -> None:
        root = begin(self.tracker, None, "graph", thread_id="refused")
        found = self.tracker.find(root)
        assert found is not None
        self.tracker.end(root, error=StaleHeadError("refused", "", "1", None))
        self.events.update(found.run.events)

    @rule(seconds=st.sampled_from([10.0, 30.0, 60.0, 120.0]))
    def pass_time(self, seconds: float) -> None:
        for run in self.runs:
            run.written_at -= seconds
            for span in run.dirty.values():
                span.waits_since -= seconds

    @rule(include_recent=st.booleans())
    def write(self, include_recent: bool) -> None:
        """As `write_pending`."""
        for run in self.runs:
            self.events.update(run.events)
        for _ in range(1000):
            pending = self.queue.collect(include_recent)
            if pending is None:
                return
            self.tables.store(pending)
            self.queue.acknowledge(pending)
            if pending.is_complete:
                return
        raise AssertionError("the rows never end")

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.write(True)
        self.patch.undo()
        assert (self.queue.waiting, self.queue.has_news) == (0, False)
        in_progress = [run.key for run in self.runs if run.ended_at is None]
        assert sorted(self.queue.own_runs()) == sorted(in_progress)
        assert self.queue.is_busy is bool(in_progress)
        assert self.tables.spans == self.expected
        assert self.tables.runs == {run.run_id: run.status for run in self.runs}
        assert self.tables.events == self.events


TestRecorded = Recorded.TestCase
TestRecorded.settings = settings(max_examples=examples(600), stateful_step_count=12, deadline=None)


def row_of(span: SpanRecord) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(span.dump(RecorderSettings()))
    return found


@pytest.mark.parametrize("output", [{"token_usage": object()}, {"usage": "3 tokens"}, ["3 tokens"]])
def test_a_model_whose_answer_has_another_form_hinders_no_other_row(output: Any) -> None:
    queue = WriteQueue(RecorderSettings())
    tracker = Tracker(queue)
    root, id = begin(tracker, None, "graph"), uuid.uuid4()
    span = tracker.begin("llm", "Model", id, root, [], {}, None)
    assert span is not None
    span.response = ([], output)
    tracker.end(id)
    tracker.end(root)
    pending = queue.collect()
    assert pending is not None
    found = {row["name"]: row for row in map(orjson.loads, pending.journal_entry.spans)}
    assert found.keys() == {"graph", "Model"}
    assert (found["Model"]["status"], found["Model"].get("attributes")) == ("success", None)
