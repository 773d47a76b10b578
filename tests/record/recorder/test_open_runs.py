"""The runs in progress: which one a checkpoint of a thread belongs to."""

from __future__ import annotations

from uuid import uuid4

from langgraph_pgstate.arguments import Address
from langgraph_pgstate.record.recorder.records import OpenRuns, RunRecord, place_of


def run_of(run_id: str, *, is_begun: bool, thread_id: str = "t") -> RunRecord:
    run = RunRecord(uuid4(), run_id, thread_id, 0.0, "holder")
    run.is_begun = is_begun
    return run


def test_a_checkpoint_belongs_to_the_newest_run_that_has_begun_and_an_input_to_one_that_has_not() -> None:
    runs = OpenRuns()
    for run in (run_of("a", is_begun=True), run_of("b", is_begun=True), run_of("c", is_begun=False)):
        runs.add(run)
    runs.add(run_of("other", is_begun=True, thread_id="u"))
    loop, first, named = runs.run_on("t", "loop"), runs.run_on("t", "input"), runs.run_on("t", "loop", "a")
    assert loop is not None
    assert first is not None
    assert named is not None
    assert (loop.run_id, first.run_id, named.run_id) == ("b", "c", "a")
    assert runs.run_on("nobody") is None


def test_a_put_that_is_sent_again_finds_its_run_until_that_has_ended() -> None:
    runs, address = OpenRuns(), Address("t", "", "c1")
    first, second = run_of("a", is_begun=True), run_of("b", is_begun=True)
    runs.add(first)
    runs.add(second)
    first.taken[place_of(address)] = None
    assert runs.run_putting(address) is first
    assert runs.run_putting(address._replace(checkpoint_id="c2")) is None
    runs.remove(first)
    runs.remove(first)
    assert runs.run_putting(address) is None
    assert runs.run_on("t") is second
