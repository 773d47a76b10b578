"""Both classes of each part that reads the record take the same arguments."""

from __future__ import annotations

import inspect

import pytest
from support_record import PARTS

from langgraph_pgstate.runs import AsyncSchedules, Schedules
from tests.architecture.test_architecture import methods, parameters

pytestmark = pytest.mark.smoke


PAIRS = [*zip(*PARTS.values(), strict=True), (Schedules, AsyncSchedules)]


@pytest.mark.parametrize("pair", PAIRS)
def test_both_apis_of_a_part_take_the_same_arguments(pair: tuple[type, type]) -> None:
    blocking, suspending = map(methods, pair)
    assert blocking.keys() == suspending.keys()
    for name in blocking:
        assert parameters(blocking[name]) == parameters(suspending[name]), name
        # A handle is made without the database; the others return iterators.
        assert name in ("__init__", "handle", "join", "join_thread") or inspect.iscoroutinefunction(suspending[name])
        assert not inspect.iscoroutinefunction(blocking[name])
