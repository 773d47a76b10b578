"""What pyproject.toml declares is what is tried."""

from __future__ import annotations

import importlib
import os
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
OPTIONAL = PYPROJECT["optional-dependencies"]
DECLARED = [*PYPROJECT["dependencies"], *OPTIONAL["binary"], *OPTIONAL["embedded"], *OPTIONAL["cli"]]


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


@pytest.mark.smoke
@pytest.mark.skipif(not os.environ.get("PGSTATE_TEST_LOWEST"), reason="`make test-versions` installs the lowest")
@pytest.mark.parametrize("requirement", sorted(set(DECLARED)))
def test_the_lowest_that_is_declared_can_be_had(requirement: str) -> None:
    """A bound below what the other dependencies allow says that something works which nobody can try."""
    name, lowest = re.split(r"(?:\[\w+\])?>=", requirement)
    installed = numbers(metadata.version(name))
    assert installed[: len(numbers(lowest))] == numbers(lowest)


@pytest.mark.smoke
def test_every_module_can_be_imported() -> None:
    package = Path(__file__).parents[2] / "langgraph_pgstate"
    for file in sorted(package.rglob("*.py")):
        if file.name != "__main__.py":
            parts = file.relative_to(package.parent).with_suffix("").parts
            importlib.import_module(".".join(parts).removesuffix(".__init__"))
