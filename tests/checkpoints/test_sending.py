"""What a put answers to each refusal of its batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import errors
from support import put_arguments
from support.samples import config_of, id_of, put_values

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.arguments import Address, address_of
from langgraph_pgstate.checkpoints import sending
from langgraph_pgstate.checkpoints.planning import plan_put
from langgraph_pgstate.checkpoints.requests import request_put
from langgraph_pgstate.checkpoints.sending import Batch, Refusal, explain_refusal
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.adapters import BlockingConnection, run_blocking
from langgraph_pgstate.schema.queries import queries


@pytest.mark.parametrize(
    ("error", "replaces", "is_recorded", "expected"),
    [
        (errors.UniqueViolation(), False, True, Refusal.ID_EXISTS),
        (errors.UniqueViolation(), True, True, Refusal.HOOK_REFUSED),
        (errors.DivisionByZero(), False, True, Refusal.HOOK_REFUSED),
        (errors.InvalidTextRepresentation('"pgstate-guard:base:1;"'), False, True, Refusal.HELD_ROW_MISSING),
        (errors.InvalidTextRepresentation("»pgstate-guard:base:1;«"), False, True, Refusal.HELD_ROW_MISSING),
    ],
)
def test_a_refusal_has_one_reason(error: Any, replaces: bool, is_recorded: bool, expected: Refusal) -> None:
    batch = Batch([], 0, replaces, is_recorded)
    assert explain_refusal(error, batch, Address("t", "", "c"), None, None) is expected


@pytest.mark.parametrize("error", [errors.UniqueViolation(), errors.DivisionByZero(), ValueError()])
def test_any_other_error_is_raised_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        explain_refusal(error, Batch([], 0, True, False), Address("t", "", "c"), None, None)
    assert raised.value is error


@pytest.mark.parametrize("is_changed", [False, True])
def test_several_bases_are_held_at_their_revisions(
    is_changed: bool, saver: PGStateSaver, schema: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: `hold_bases`, without which a put would refer to segments of a checkpoint that was replaced."""
    configs = [put_values(saver, config_of(), {"n": number}) for number in range(2)]
    manifests = {id_of(config): saver._saver_cache.cache.manifest(address_of(config)) for config in configs}
    bases = {id: manifest.revision for id, manifest in manifests.items() if manifest is not None}
    codec = ValueCodec(None)
    plan = replace(plan_put(codec, request_put(codec, *put_arguments(config_of(), 3)), None), base_revisions=bases)
    if is_changed:
        plan.base_revisions[id_of(configs[1])] += 1
    planned: list[Any] = []
    plan_again = sending.plan_from_database
    monkeypatch.setattr(sending, "plan_from_database", lambda *args: planned.append(args) or plan_again(*args))
    stored = run_blocking(sending.put(BlockingConnection(connection), queries(schema), codec, plan))
    assert len(planned) == is_changed
    assert (stored is plan) is not is_changed
    assert saver.get_tuple(stored.request.address.config) is not None
