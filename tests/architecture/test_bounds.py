"""What pyproject.toml declares is what is tried."""

from __future__ import annotations

import importlib
import os
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from langgraph_pgstate.langgraph_compat import TESTED_VERSIONS

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = [line for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
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


def versions_of(name: str) -> list[str]:
    """The versions of a package in the constraints, on all Pythons."""
    found = [line.partition(" ;")[0].split("==") for line in CONSTRAINTS]
    return [version for other, version in found if canonicalize_name(other) == canonicalize_name(name)]


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """What an installed package needs here, and what those need."""
    if (name, extras) in seen:
        return set()
    seen.add((name, extras))
    names = {name}
    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        asked = [{"extra": extra} for extra in extras or {""}]
        if requirement.marker is None or any(requirement.marker.evaluate(one) for one in asked):
            names |= needed(canonicalize_name(requirement.name), frozenset(requirement.extras), seen)
    return names


def test_the_constraints_are_names_and_versions() -> None:
    for line in CONSTRAINTS:
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[0-9][0-9a-z.+]*( ; [\w'\"!=<>. ()]+)?", line), line


def test_the_constraints_have_all_that_the_tests_need() -> None:
    """Otherwise what is released tomorrow is installed, too."""
    names = needed(PYPROJECT["name"], frozenset({"dev"}), set()) - {PYPROJECT["name"]}
    assert {name for name in names if not versions_of(name)} == set()


def test_the_constraints_are_within_the_bounds_that_are_declared() -> None:
    for line in {*PYPROJECT["dependencies"], *(line for extra in OPTIONAL.values() for line in extra)}:
        requirement = Requirement(line)
        for version in versions_of(requirement.name):
            assert requirement.specifier.contains(version), (line, version)


def test_the_tested_versions_of_langgraph_are_the_bound_and_the_constraint() -> None:
    [declared] = [line for line in PYPROJECT["dependencies"] if line.startswith("langgraph>=")]
    assert (declared.partition(">=")[2], *versions_of("langgraph")) == TESTED_VERSIONS
    assert "tested with LangGraph {} to {}.".format(*TESTED_VERSIONS) in (ROOT / "docs" / "migrating.md").read_text()


def test_an_extra_with_a_command_brings_the_command() -> None:
    """The installed package is tried by tests/acceptance/test_package.py."""
    for extra in ("server", "metrics", "otlp"):
        assert "langgraph-pgstate[cli]" in OPTIONAL[extra]
    assert any(Requirement(line).extras == {"binary"} for line in OPTIONAL["embedded"])
