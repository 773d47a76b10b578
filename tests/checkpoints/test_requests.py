"""Arguments: which configs name a thread and which are refused; metadata is stored as it was given."""

from __future__ import annotations

import math
from typing import Any
from uuid import UUID

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from support.samples import config_of, id_of, put_values

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import ConfigurationError, UnsafeTypeError
from tests.codec.test_fidelity import ALLOWED, OURS, PLAIN, Order, same

pytestmark = pytest.mark.smoke


# Ids.


@pytest.mark.parametrize("thread_id", [7, UUID(int=7)])
def test_a_thread_id_that_is_no_string_is_its_string(thread_id: Any, saver: PGStateSaver) -> None:
    """`thread_id=7` and `thread_id="7"` are one thread, for every method."""
    config = put_values(saver, config_of(thread_id), {"channel": "x"})
    assert config == config_of(str(thread_id), "", id_of(config))
    saver.put_writes(config_of(thread_id, "", id_of(config)), [("channel", "y")], "task")
    for either in (thread_id, str(thread_id)):
        found = saver.get_tuple(config_of(either))
        assert found is not None
        assert found.config == config
        assert found.pending_writes == [("task", "channel", "y")]
        assert len([*saver.list(config_of(either))]) == 1
    saver.copy_thread(thread_id, 8)  # type: ignore[arg-type]
    assert saver.prune([thread_id], strategy="delete").checkpoints == 1
    assert saver.get_tuple(config_of("8")) is not None
    saver.delete_thread(8)  # type: ignore[arg-type]
    assert saver.get_tuple(config_of("8")) is None


@pytest.mark.parametrize("thread_id", [None, "", True, 1.5, "a\0b", "\ud800", b"x", "x" * 3000, ["x"]])
def test_a_thread_id_that_cannot_be_stored_is_refused(thread_id: Any, saver: PGStateSaver) -> None:
    """With an error that says what is wrong, and before anything is written."""
    with pytest.raises(ConfigurationError):
        put_values(saver, config_of(thread_id), {"channel": "x"})
    assert not [*saver.list(None)]


@pytest.mark.parametrize("config", ["t", 7, ["t"]])
def test_a_config_that_is_none_is_refused(config: Any, saver: PGStateSaver) -> None:
    for call in (saver.get_tuple, lambda config: list(saver.list(config))):
        with pytest.raises(ConfigurationError, match="a config must be a dict"):
            call(config)


# Types of the user's own.


@pytest.fixture
def strict(saver: PGStateSaver) -> PGStateSaver:
    """A saver over the same connections that builds nothing but LangGraph's own types and what is allowed."""
    return PGStateSaver.over(saver._database, {"schema": saver.schema, "strict": True})


# Metadata.


@pytest.mark.parametrize("value", [*(PLAIN | OURS).values()], ids=[*(PLAIN | OURS)])
def test_metadata_comes_back_as_it_was(value: Any, saver: PGStateSaver) -> None:
    """Any value at the top of the metadata; LangGraph's contract takes NUL out of strings."""
    config = put_values(saver, config_of(), {}, key=value)
    found = saver.get_tuple(config)
    assert found is not None
    assert same(without_nul(found.metadata["key"])) == same(without_nul(value))  # type: ignore[typeddict-item]


# The serializer itself has no nested bytearray.
NESTED = {name: value for name, value in PLAIN.items() if name != "bytearray"}


@pytest.mark.parametrize("value", NESTED.values(), ids=NESTED)
def test_nested_metadata_comes_back_as_it_was(value: Any, saver: PGStateSaver) -> None:
    """Any value that the serializer can say, below the top."""
    config = put_values(saver, config_of(), {}, key={"deep": [value]})
    found = saver.get_tuple(config)
    assert found is not None
    assert same(without_nul(found.metadata["key"])) == same(without_nul({"deep": [value]}))  # type: ignore[typeddict-item]


def without_nul(value: Any) -> Any:
    if type(value) is str:
        return value.replace("\0", "")
    if type(value) is list:
        return [without_nul(item) for item in value]
    if type(value) is dict:
        return {without_nul(key): without_nul(item) for key, item in value.items()}
    return value


def test_metadata_of_the_config_is_merged(saver: PGStateSaver) -> None:
    """As every LangGraph saver does it."""
    memory = InMemorySaver()
    config: Any = {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "user_id": "u", "__private": 1, "nested": {"a": 1}},
        "metadata": {"run_id": "r", "tags\0": "x\0", "langgraph_step": 4, "score": math.nan},
    }
    answers = []
    for target in (saver, memory):
        put_values(target, config, {}, id="1f000000-0000-6000-8000-000000000001")
        found = target.get_tuple(config_of())
        assert found is not None
        answers.append(same(without_nul(dict(found.metadata))))
    assert answers[0] == answers[1]


def test_a_users_type_in_metadata_is_refused_by_name(strict: PGStateSaver) -> None:
    """Strict mode holds for metadata, too."""
    config = put_values(strict, config_of(), {}, order=Order(1, []))
    with pytest.raises(UnsafeTypeError, match="Order"):
        strict.get_tuple(config)
    found = strict.with_allowlist(ALLOWED).get_tuple(config)
    assert found is not None
    assert found.metadata["order"] == Order(1, [])  # type: ignore[typeddict-item]
