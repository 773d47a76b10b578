"""The context of a run, fitted to the schema of its graph; and its user."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from pydantic import BaseModel, ConfigDict, Field

from langgraph_pgstate.worker.graphs import AuthenticatedUser, fitted_context, user_of, with_user


class State(TypedDict):
    given: Any


@dataclass
class Plain:
    a: int = 1
    once: InitVar[int] = 2


class Loose(BaseModel):
    a: int = 1


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    a: int = Field(1, alias="A")


class Keys(TypedDict, total=False):
    a: int


@pytest.mark.parametrize(
    ("schema", "known"),
    [
        (Plain, {"a": 1, "once": 3}),
        (Strict, {"a": 1, "A": 2}),
        (Loose, {"a": 1, "A": 2, "once": 3, "x": 4}),
        (Keys, {"a": 1, "A": 2, "once": 3, "x": 4}),
        (None, {"a": 1, "A": 2, "once": 3, "x": 4}),
    ],
)
def test_keys_that_a_schema_does_not_take_are_left_out_of_an_assistants_run(schema: Any, known: dict[str, int]) -> None:
    graph = StateGraph(State, context_schema=schema).add_node("a", lambda _: {}).add_edge(START, "a").compile()
    given = {"a": 1, "A": 2, "once": 3, "x": 4}
    config = {"configurable": {"assistant_id": "b"}}
    assert fitted_context(graph, config, given) == known
    assert fitted_context(graph, config, None) == {}
    assert fitted_context(graph, {}, given) is given
    assert fitted_context(graph, {}, None) is None


def test_a_user_has_its_fields_as_attributes_and_keys() -> None:
    found = user_of({"configurable": with_user({"langgraph_auth_user": {"identity": "eve"}})})
    assert isinstance(found, AuthenticatedUser)
    assert found.identity == found["identity"] == "eve"
    assert not hasattr(found, "role")
    assert user_of({"configurable": with_user({})}) is None
