"""Both classes of each part that reads the record take the same arguments."""

from __future__ import annotations

import inspect

import pytest
from support_record import PARTS

from tests.architecture.test_architecture import methods, parameters

pytestmark = pytest.mark.smoke


@pytest.mark.parametrize("number", range(5))
def test_both_colours_of_a_part_take_the_same_arguments(number: int) -> None:
    blocking, suspending = (methods(classes[number]) for classes in PARTS.values())
    assert blocking.keys() == suspending.keys()
    for name in blocking:
        assert parameters(blocking[name]) == parameters(suspending[name]), name
        # A handle is made without the database; `join` returns an iterator.
        assert name in ("__init__", "handle", "join") or inspect.iscoroutinefunction(suspending[name])
        assert not inspect.iscoroutinefunction(blocking[name])
