"""Parameters of commands to a thread."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from langgraph_pgstate.server import commands


def test_one_answer_is_a_list_of_one() -> None:
    one = commands.InputRespond.of({"interrupt_id": "i", "response": 1, "metadata": {"by": "ann"}})
    assert [(given.interrupt_id, given.response) for given in one.responses] == [("i", 1)]
    assert one.metadata == {"by": "ann"}
    several = commands.InputRespond.of({"responses": [{"interrupt_id": "i"}, {"interrupt_id": "j"}]})
    assert [given.interrupt_id for given in several.responses] == ["i", "j"]
    with pytest.raises(ValidationError):
        commands.InputRespond.of({"responses": []})


def test_a_strategy_is_named_as_in_javascript_and_in_python() -> None:
    for name in ("multitaskStrategy", "multitask_strategy"):
        assert commands.RunStart.of({"assistant_id": "a", name: "reject"}).multitask_strategy == "reject"
    assert commands.RunStart.of({"assistant_id": "a"}).multitask_strategy == "enqueue"


def test_an_injected_message_keeps_its_other_fields() -> None:
    given = commands.InputInject.of({"message": {"role": "user", "content": "hi", "id": "1"}})
    assert given.message.model_dump() == {"role": "user", "content": "hi", "id": "1"}
    with pytest.raises(ValidationError):
        commands.InputInject.of({"message": {"role": "ai", "content": "hi"}})
