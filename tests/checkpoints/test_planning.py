"""What a put inherits of its exact parent, and what it writes anew."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support.samples import config_of, forget, message, messages, new_checkpoint_id, put_values, values_of

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.arguments import address_of
from tests.saver.test_hazards import assert_all_references_lead_somewhere, noise, other_saver, segment_ids


@pytest.mark.parametrize("removal", ["prune", "delete"])
def test_a_put_after_its_parent_was_removed_writes_the_list_in_full(
    removal: str, saver: PGStateSaver, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A put planned before a removal by another process does not refer to what went.

    Guard: `required` in `put_checkpoint` (an answer of no row makes the put plan again).
    """
    parent = put_values(saver, config_of(), {"messages": messages(0, 20)})
    put_values(saver, config_of(), {"messages": messages(50, 60)})
    with other_saver(dsn, schema) as other:
        if removal == "prune":
            other.prune(["t"])
        else:
            other.delete_thread("t")
        assert other.get_tuple(parent) is None
    child = put_values(saver, parent, {"messages": messages(0, 21)})
    assert values_of(saver, child)["messages"] == messages(0, 21)
    assert_all_references_lead_somewhere(connection, schema)


# Hazard 2: forks.


def test_a_fork_is_a_difference_to_its_exact_parent(
    saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """A fork shares the segments of the checkpoint it starts from, not of the one that was written last.

    Guard: a list is compared with that of the parent the config names, whose row names the segments it shares.
    """
    start = put_values(saver, config_of(), {"messages": messages(0, 20)})
    put_values(saver, start, {"messages": [*messages(0, 19), message(77), message(78)]})
    fork = put_values(saver, start, {"messages": [*messages(0, 20), message(88)]})
    assert values_of(saver, fork)["messages"] == [*messages(0, 20), message(88)]
    assert segment_ids(connection, schema, start) < segment_ids(connection, schema, fork)


def test_a_fork_inherits_the_values_of_its_exact_parent(saver: PGStateSaver) -> None:
    """A channel that a fork does not change has the value it had where the fork starts, not the last one stored.

    Guard: the cache is asked for the parent the config names, and for the version the checkpoint names.
    """
    start = put_values(saver, config_of(), {"topic": {"word": noise(1)}, "small": {"a": 1}})
    put_values(saver, start, {"topic": {"word": noise(2)}, "small": {"a": 2}})
    found = saver.get_tuple(start)
    assert found is not None
    fork: Any = {**found.checkpoint, "id": new_checkpoint_id()}
    saver.get_tuple(config_of())
    child = saver.put(start, fork, {"source": "fork", "step": 1, "parents": {}}, {})
    forget(saver)
    assert values_of(saver, child) == {"topic": {"word": noise(1)}, "small": {"a": 1}}


def test_a_list_planned_against_the_wrong_parent_is_refused_by_the_database(
    saver: PGStateSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with a cache that answers for another checkpoint, a put stores its list whole and readable.

    Guard: `required` compares the revision of the parent's row, and a row names every segment it is read from.
    """
    start = put_values(saver, config_of(), {"messages": messages(0, 20)})
    other = put_values(saver, config_of(), {"messages": messages(0, 30)})
    wrong = saver._saver_cache.cache.manifest(address_of(other))
    assert wrong is not None
    monkeypatch.setattr(saver._saver_cache.cache, "manifest", lambda address: wrong)
    child = put_values(saver, start, {"messages": messages(0, 31)})
    monkeypatch.undo()
    saver.delete_for_runs(["nobody"])
    saver.prune(["t"])
    assert values_of(saver, child)["messages"] == messages(0, 31)
