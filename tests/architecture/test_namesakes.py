"""Each package has its tests in a folder of its name, and each module at the top a file."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "langgraph_pgstate", ROOT / "tests"
# Of the whole.
OF_ALL = {"acceptance", "architecture", "chaos", "models"}


def test_each_package_has_a_folder_of_tests_and_each_folder_a_package() -> None:
    packages = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py")} - {"."}
    folders = {str(path.parent.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")} - {"."}
    assert packages <= folders
    assert {folder.partition("/")[0] for folder in folders} - OF_ALL <= {name.partition("/")[0] for name in packages}


def test_each_module_at_the_top_has_its_namesake() -> None:
    modules = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    tests = {path.name.removeprefix("test_") for path in TESTS.glob("test_*.py")}
    # It names what `server/langgraph_platform.py` has.
    assert modules - tests == {"agent_server.py"}
