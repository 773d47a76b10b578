"""Ids of segments."""

from __future__ import annotations

import pytest

from langgraph_pgstate.checkpoints.planning import new_segment_id

pytestmark = [pytest.mark.smoke, pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")]


# Ids.


def test_segment_ids_are_positive_and_distinct() -> None:
    """They fit `integer`, and none is one that is known to be taken."""
    ids: set[int] = set()
    for _ in range(5000):
        ids.add(new_segment_id(ids))
    assert len(ids) == 5000
    assert all(0 <= id < 2**31 for id in ids)
