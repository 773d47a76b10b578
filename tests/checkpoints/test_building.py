"""The batch of a put: which statements, in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support import put_arguments
from support.samples import config_of

from langgraph_pgstate.checkpoints.planning import PutPlan, plan_put
from langgraph_pgstate.checkpoints.requests import request_put
from langgraph_pgstate.checkpoints.sending import build_put
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.leases.guards import Guard
from langgraph_pgstate.schema.queries import queries

QUERIES = queries("pgstate")


class Marking:
    """A hook with one statement of its own, which names the run."""

    def before_put(self, plan: PutPlan, config: Any) -> list[Any]:
        plan.request.columns["run_id"] = "marked"
        return [(QUERIES.delete_tombstone, {"thread_id": "t"})]

    def after_put(self, plan: PutPlan) -> None: ...


def plan_of(base_revisions: dict[str, int]) -> PutPlan:
    codec = ValueCodec(None)
    plan = plan_put(codec, request_put(codec, *put_arguments(config_of(), 1)), None)
    return replace(plan, base_revisions=base_revisions)


def test_guards_go_first_and_hooks_last() -> None:
    batch = build_put(QUERIES, plan_of({"a": 1, "b": 2}), False, Marking(), {}, Guard(thread=True))
    names = [query.name for query, _ in batch.statements]
    assert names == ["make_thread", "check_deleted", "hold_for_write", "hold_bases", names[-2], "delete_tombstone"]
    query, parameters = batch.statements[batch.position]
    assert query.name.startswith("put_checkpoint")
    assert parameters["run_id"] == "marked"
    assert batch.is_recorded


def test_what_touches_the_thread_replaces_the_checkpoint() -> None:
    """One statement serves both, so a batch that replaces names the thread's owner, too."""
    plan = plan_of({})
    assert not build_put(QUERIES, plan, False).replaces
    plan.request.touches_thread = True
    batch = build_put(QUERIES, plan, False)
    assert batch.replaces
    assert batch.statements == build_put(QUERIES, plan, True).statements
    assert "agent" in batch.statements[0][1]
