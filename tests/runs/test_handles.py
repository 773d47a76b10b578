"""Handles of runs: how long they wait."""

from __future__ import annotations

import pytest

from langgraph_pgstate.errors import RunTimeoutError
from langgraph_pgstate.runs import RunHandle
from langgraph_pgstate.runs.handles import PollPauses


def test_the_pauses_grow_up_to_half_a_second() -> None:
    pauses = PollPauses("t", "r", None)
    assert [pauses.next("running") for _ in range(17)] == pytest.approx(
        [*(0.02 * 1.25**number for number in range(15)), 0.5, 0.5]
    )
    assert pauses.next("success") is None


def test_a_pause_does_not_go_beyond_the_timeout() -> None:
    pause = PollPauses("t", "r", 0.01).next("pending")
    assert pause is not None
    assert pause <= 0.01
    with pytest.raises(RunTimeoutError, match="'r' of thread 't' is still pending after 0 s") as raised:
        PollPauses("t", "r", 0).next("pending")
    assert isinstance(raised.value, TimeoutError)


def test_a_handle_shows_its_ids() -> None:
    assert repr(RunHandle(None, "t", "r")) == "RunHandle(thread_id='t', run_id='r')"  # type: ignore[arg-type]
