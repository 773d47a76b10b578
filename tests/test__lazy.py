"""Names of packages that are loaded when they are asked for."""

from __future__ import annotations

import importlib

import pytest

import langgraph_pgstate

PACKAGES = ("", ".admin", ".assistants", ".record", ".runs", ".saver", ".schedules", ".threads", ".tools", ".worker")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_there(package: str) -> None:
    module = importlib.import_module(f"langgraph_pgstate{package}")
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in vars(module), "it is looked up once"


def test_an_unknown_name_is_said_to_be_one() -> None:
    with pytest.raises(AttributeError, match="'langgraph_pgstate' has no attribute 'PGSaver'"):
        langgraph_pgstate.PGSaver  # noqa: B018
    with pytest.raises(ImportError, match="PGSaver"):
        exec("from langgraph_pgstate import PGSaver")
