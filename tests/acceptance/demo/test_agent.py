"""The demo's agent and its model."""

from __future__ import annotations

import sys

import pytest

from examples.demo.__main__ import main
from examples.demo.agent import _trip_tools

pytestmark = pytest.mark.smoke


def test_each_city_has_flights_of_its_own() -> None:
    (search,) = (tool for tool in _trip_tools(lambda *_: None, 0) if tool.name == "search_flights")
    lisbon, porto = (search.invoke({"origin": "Berlin", "destination": city}) for city in ("Lisbon", "Porto"))
    assert lisbon.startswith("TP 533 at")
    assert porto.startswith("TP 531 at")


def test_a_real_model_without_its_package_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "langchain", None)
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    monkeypatch.setattr(sys, "argv", ["demo", "--model", "nobody:model"])
    assert main() == 1
    assert "pip install langchain langchain-nobody" in " ".join(capsys.readouterr().err.split())
