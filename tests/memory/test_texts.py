"""Values as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import examples

from langgraph_pgstate import heavy
from langgraph_pgstate.errors import SerializationError
from langgraph_pgstate.memory import texts
from langgraph_pgstate.memory.texts import json_value

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | NUMBERS | st.text("aé\u2028")
KEYS = st.text('ab"\\é') | st.integers() | st.none() | st.booleans()
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=9) | st.dictionaries(KEYS, inner, max_size=9))


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(KEYS, VALUES))
def test_a_value_of_many_values_is_encoded_as_any_other(value: dict[Any, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heavy, "MANY_VALUES", 5)
        patch.setattr(texts, "_PART", 3)
        assert json_value(value) == json.dumps(value, ensure_ascii=False)


def test_what_json_cannot_represent_is_refused_also_among_many() -> None:
    within: list[Any] = [0] * 2000
    within.append(within)
    deep: list[Any] = [0] * 2000
    for _ in range(200):
        deep = [deep]
    assert json.loads(json_value({"deep": deep})) == {"deep": deep}
    for value in ([*range(2000), float("nan")], [*range(2000), object()], within):
        with pytest.raises(SerializationError):
            json_value({"value": value})
