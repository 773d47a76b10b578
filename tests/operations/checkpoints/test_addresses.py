"""Addresses: which configs name a thread, and which are refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from samples import config_of, id_of, put_values

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import ConfigurationError

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
        with pytest.raises(ConfigurationError, match="a config is a dict"):
            call(config)
