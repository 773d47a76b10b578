"""Messages whose checkpoint is pruned, and that later ones still have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support import config_of

from langgraph_pgstate import PGState
from tests.record.test_record_states import IDLE, assert_equal, human, put, stored


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema, recording=IDLE) as state:
        state.setup()
        yield state


def test_a_prune_keeps_what_was_said_before_a_labelled_ancestor(state: PGState, connection: psycopg.Connection) -> None:
    config: Any = config_of("t")
    configs = []
    for length in range(1, 7):
        config = put(state, config, human(*"abcdef"[:length]))
        configs.append(config)
    state.threads.label(configs[1], "before refund")
    state.saver.prune(["t"])
    assert len(stored(state, "t")) == 2
    assert_equal(state, connection, "t")
    state.threads.fork("t", to="fork")
    put(state, config_of("fork"), human(*"abcdefg"))
    assert_equal(state, connection, "t", "fork")


def test_a_prune_gives_a_branch_nothing_of_another(state: PGState, connection: psycopg.Connection) -> None:
    root = put(state, config_of("t"), human("a"))
    left = put(state, root, human("a", "left"))
    right = put(state, root, human("a", "right"))
    left = put(state, left, human("a", "left", "more"))
    right = put(state, right, human("a", "right", "other"))
    state.saver.prune(["t"], keep_last=2)
    assert_equal(state, connection, "t")
    for config in (left, right):
        fork = state.threads.fork("t", config["configurable"]["checkpoint_id"])["configurable"]["thread_id"]
        assert_equal(state, connection, fork)


def test_a_deleted_run_leaves_what_later_runs_still_have(state: PGState, connection: psycopg.Connection) -> None:
    config = put(state, config_of("t"), human("a"), "first")
    config = put(state, config, human("a", "b"), "second")
    config = put(state, config, human("a", "b", "c"), "third")
    state.saver.delete_for_runs(["second"])
    assert_equal(state, connection, "t")
    put(state, config, human("a", "b", "c", "d"), "fourth")
    state.saver.delete_for_runs(["first", "third"])
    assert_equal(state, connection, "t")
