"""Several workers in one process, of which one has a run that is alone."""

from __future__ import annotations

from langgraph_pgstate.worker.claims import Isolation


def test_a_run_is_alone_in_its_process() -> None:
    isolation = Isolation()
    assert isolation.enter("one")
    assert not isolation.enter_alone("other")
    assert isolation.enter_alone("one")
    assert not isolation.enter("other")
    isolation.leave("other")
    assert not isolation.enter("other")
    isolation.leave("one")
    assert isolation.enter("other")
    assert isolation.enter("one")
    assert not isolation.enter_alone("one")
