"""Scopes: what SQL finds, and what Python admits, is what a small model of LangGraph's filters says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import examples

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.scopes import admits, both, contains
from langgraph_pgstate.server.auth import scope_of

SCALARS = ["a", "b", 1, True, None]
METADATA: list[dict[str, Any]] = [
    {},
    *({"o": value} for value in SCALARS),
    *({"o": value} for value in (["a"], ["a", "b"], [1, "b"], [], [["a"]], {"a": "b"})),
    *({"o": one, "t": other} for one in ("a", ["b"]) for other in ("a", "b", ["a", 1])),
]
OPERANDS = st.sampled_from(SCALARS)
FIELDS = st.one_of(
    OPERANDS,
    OPERANDS.map(lambda value: {"$eq": value}),
    OPERANDS.map(lambda value: {"$contains": value}),
    st.lists(OPERANDS, max_size=2).map(lambda values: {"$contains": values}),
)
FILTERS = st.recursive(
    st.dictionaries(st.sampled_from(["o", "t"]), FIELDS, max_size=2),
    lambda inner: st.one_of(
        st.builds(
            lambda one, parts, name: {**one, name: parts},
            inner,
            st.lists(inner, min_size=1, max_size=3),
            st.sampled_from(["$or", "$and"]),
        )
    ),
    max_leaves=6,
)


def matches(filters: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether metadata fulfil a filter, as LangGraph describes it."""

    def is_same(one: Any, other: Any) -> bool:
        return isinstance(one, bool) == isinstance(other, bool) and one == other

    def fulfils(name: str, wanted: Any) -> bool:
        if name == "$or":
            return any(matches(one, metadata) for one in wanted)
        if name == "$and":
            return all(matches(one, metadata) for one in wanted)
        if name not in metadata:
            return False
        found = metadata[name]
        if not isinstance(wanted, Mapping):
            return is_same(found, wanted)
        ((operator, operand),) = wanted.items()
        if operator == "$eq":
            return is_same(found, operand)
        operands = operand if isinstance(operand, list) else [operand]
        return isinstance(found, list) and all(any(is_same(have, one) for have in found) for one in operands)

    return all(fulfils(name, wanted) for name, wanted in filters.items())


@given(FILTERS, FILTERS)
@example({"$or": [{"o": "a"}, {"o": "b"}]}, {"t": {"$contains": "a"}})
@example({"$and": [{"o": "a"}, {"t": "a"}]}, {"$or": [{"t": {"$contains": "a"}}, {"t": {"$contains": "b"}}]})
@settings(max_examples=examples(400), deadline=None)
def test_what_is_admitted_fulfils_the_filter(one: dict[str, Any], other: dict[str, Any]) -> None:
    for metadata in METADATA:
        assert admits(scope_of(one), metadata) == matches(one, metadata)
        together = both(scope_of(one), scope_of(other))
        assert admits(together, metadata) == (matches(one, metadata) and matches(other, metadata))


def test_what_sql_finds_fulfils_the_filter(connection: psycopg.Connection, saver: PGStateSaver) -> None:
    state = PGState(connection, schema=saver.schema)
    known = {f"t{number}": metadata for number, metadata in enumerate(METADATA)}
    for id, metadata in known.items():
        state.threads.create(id, metadata=metadata)

    @given(FILTERS)
    @example({"$or": [{"o": "a"}, {"o": "b"}]})
    @settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def check(filters: dict[str, Any]) -> None:
        scope = scope_of(filters)
        wanted = {id for id, metadata in known.items() if matches(filters, metadata)}
        found = {
            "sorted": {one.thread_id for one in state.threads.sorted(scope=scope, limit=100)},
            "search": {one.thread_id for one in state.threads.search(scope=scope, limit=100).items},
            "by ids": {one.thread_id for one in state.threads.sorted(scope=scope, ids=[*known], limit=100)},
            "get": {id for id in known if state.threads.get(id, scope=scope) is not None},
        }
        for call, ids in found.items():
            assert ids == wanted, call
        assert state.threads.count(scope=scope) == len(wanted)
        with_t = {id for id in wanted if known[id].get("t") == "a"}
        assert {one.thread_id for one in state.threads.sorted(scope=scope, metadata={"t": "a"})} == with_t

    check()


def test_a_scope_without_alternatives_shows_nothing(connection: psycopg.Connection, saver: PGStateSaver) -> None:
    state = PGState(connection, schema=saver.schema)
    state.threads.create("t")
    assert state.threads.get("t", scope=()) is None
    assert (state.threads.count(scope=()), state.threads.count(scope={}), state.threads.count(scope=[{}])) == (0, 1, 1)
    assert (state.threads.sorted(scope=()), state.threads.search(scope=()).items) == ((), ())
    with pytest.raises(ConfigurationError, match="scope must be a mapping"):
        state.threads.count(scope=["owner"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "filters",
    [
        {"$or": []},
        {"$and": []},
        {"$or": {"o": "a"}},
        {"$or": ["a"]},
        {"$not": {"o": "a"}},
        {"$not": "a"},
        {7: "a"},
        {"o": {"$ne": "a"}},
        {"o": {"$eq": "a", "$contains": "a"}},
        {"o": {"p": 1}},
        {"o": ["a"]},
        {"o": {"$eq": {"p": 1}}},
        {"o": {"$contains": [{"k": 1}]}},
        {"$and": [{"$or": [{"a": number} for number in range(40)]}, {"$or": [{"b": number} for number in range(40)]}]},
    ],
)
def test_a_filter_of_another_form_is_refused(filters: Any) -> None:
    with pytest.raises(TypeError, match="filter"):
        scope_of(filters)


@pytest.mark.slow
def test_long_lists_are_not_compared_each_with_each() -> None:
    many = [str(number) for number in range(100_000)]
    assert contains([*many, 1, None, {"a": 1}], [*reversed(many), 1.0, None, {"a": 1}])
    assert not contains([*many, 1], [*many, True])
    assert not contains([{"a": 1}, [1]], [{"a": 2}])
    assert contains([[1, 2], [3]], [[2]])
