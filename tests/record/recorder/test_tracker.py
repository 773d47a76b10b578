"""What a put takes along of what a run has done."""

from __future__ import annotations

import orjson
from support import config_of, put_arguments

from langgraph_pgstate.checkpoints.journal_entry import JournalEntry
from langgraph_pgstate.checkpoints.planning import plan_put
from langgraph_pgstate.checkpoints.requests import request_put
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.record.recorder.tracker import Tracker
from langgraph_pgstate.record.recorder.write_queue import WriteQueue
from tests.record.recorder.test_writer import NEVER, begin, taken


def test_what_runs_ahead_of_a_put_is_left_for_the_next() -> None:
    queue = WriteQueue(RecorderSettings(interval=NEVER))
    tracker = Tracker(queue)
    root = begin(tracker, None, "graph")
    for name, step in (("ended", 4), ("ahead", 6), ("below", 9)):
        more = {"langgraph_checkpoint_ns": "ended:1|below:1"} if name == "below" else {}
        tracker.end(begin(tracker, root, name, step, **more), {})
    parent = begin(tracker, root, "parent", 5)
    child = begin(tracker, parent, "child")
    # What has only begun may end at once; what something is below of is noted with that.
    assert taken(tracker, queue, "", 4) == ["graph", "ended", "below", "parent"]
    tracker.end(child, {})
    assert taken(tracker, queue, "", 5) == ["ahead", "child"]
    tracker.end(parent, {})
    assert taken(tracker, queue, "", 6) == ["parent"]


def test_a_put_that_is_sent_again_belongs_to_its_run_though_another_has_begun_meanwhile() -> None:
    """Only what was committed with it is taken to be written. Two runs that nothing guards share a thread here."""
    queue = WriteQueue(RecorderSettings(interval=NEVER))
    tracker = Tracker(queue)
    first = begin(tracker, None, "first")
    begin(tracker, first, "node", 1)
    put = request_put(ValueCodec(), *put_arguments(config_of("t"), 1))
    plan = plan_put(ValueCodec(), put, None)
    plan.journal_entry = JournalEntry()
    tracker.before_put(plan)
    # It was refused, as where a prune took its parent.
    begin(tracker, begin(tracker, None, "second"), "node", 1)
    plan.journal_entry = JournalEntry()
    tracker.before_put(plan)
    committed = [orjson.loads(row)["run_id"] for row in plan.journal_entry.runs]
    tracker.after_put(plan)
    pending = queue.collect()
    assert pending is not None
    left = [orjson.loads(row)["run_id"] for row in pending.journal_entry.runs]
    assert len({*committed, *left}) == 2
    assert committed == [str(first)]
