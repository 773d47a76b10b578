"""What `langgraph.json` and its environment say about the state."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.record.options import RecorderSettings
from langgraph_pgstate.worker.graphs import load_environment
from langgraph_pgstate.worker.state_config import load_state_config


def written(directory: Path, **config: Any) -> Path:
    file = directory / "langgraph.json"
    file.write_text(json.dumps(config))
    return file


@pytest.mark.parametrize(
    ("ttl", "expected"),
    [
        (None, None),
        ({}, None),
        ({"default_ttl": 1.5}, timedelta(seconds=90)),
        ({"strategy": "archive", "default_ttl": 1}, "strategy"),
        ({"default_ttl": 0}, "default_ttl"),
        ({"default_ttl": True}, "default_ttl"),
        ({"default_ttl": "1"}, "default_ttl"),
        (7, "checkpointer.ttl"),
    ],
)
def test_threads_expire(tmp_path: Path, ttl: Any, expected: Any) -> None:
    file = written(tmp_path, checkpointer={"ttl": ttl})
    if isinstance(expected, str):
        with pytest.raises(ConfigurationError, match=expected):
            load_state_config(file)
    else:
        assert load_state_config(file).get("thread_ttl") == expected


@pytest.mark.parametrize("strategy", [None, "delete", "keep_latest"])
def test_expired_threads_are_deleted_or_pruned(tmp_path: Path, strategy: str | None) -> None:
    file = written(tmp_path, checkpointer={"ttl": {"default_ttl": 1, "strategy": strategy}})
    assert load_state_config(file).get("thread_ttl_strategy") == (strategy or "delete")


def test_contents_are_recorded_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTATE_RECORD_CONTENT", "")
    assert "recording" not in load_state_config(None)
    monkeypatch.delenv("PGSTATE_RECORD_CONTENT")
    load_environment(written(tmp_path, env={"PGSTATE_RECORD_CONTENT": "false"}))
    assert load_state_config(None)["recording"] == RecorderSettings(content=False)
    monkeypatch.setenv("PGSTATE_RECORD_CONTENT", "perhaps")
    with pytest.raises(ConfigurationError, match="PGSTATE_RECORD_CONTENT must be true or"):
        load_state_config(None)
    monkeypatch.delenv("PGSTATE_RECORD_CONTENT")


def test_the_environment_names_channels_to_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "project" not in load_state_config(None)
    # Restored after the test.
    monkeypatch.setenv("PGSTATE_PROJECT", "")
    monkeypatch.delenv("PGSTATE_PROJECT")
    load_environment(written(tmp_path, env={"PGSTATE_PROJECT": "booking, basket,"}))
    assert load_state_config(None)["project"] == ["booking", "basket"]
