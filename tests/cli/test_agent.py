"""The demo's agent and its model."""

from __future__ import annotations

import sys

import pytest
from support_cli import Run, words

pytestmark = pytest.mark.smoke


def test_a_real_model_without_its_package_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain", None)
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    assert "pip install langchain langchain-nobody" in words(run("demo", "--model", "nobody:model", code=1))
