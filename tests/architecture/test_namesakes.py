"""Each module has its test file, in the folder and under the name that it has itself."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "langgraph_pgstate", ROOT / "tests"
# What only holds types or constants, and what has no code but a constructor.
WITHOUT_LOGIC = {
    "db/protocol.py",
    "threads/common.py",
    "settings/threads.py",
    *(f"types/{path.name}" for path in (PACKAGE / "types").glob("*.py")),
}


def modules() -> set[str]:
    """Every module with code, by its path in the package."""
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")}
    return found - WITHOUT_LOGIC


def test_each_module_has_its_namesake() -> None:
    tests = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
    missing = {name for name in modules() if str(Path(name).with_name(f"test_{Path(name).name}")) not in tests}
    assert missing == set()
