"""The threat model: each claim names tests that exist, and the page stays short."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "threat-model.md").read_text()
_ROWS = [line for line in _PAGE.splitlines() if line.startswith("| ") and not line.startswith("| she |")]


def test_each_claim_names_tests_that_exist() -> None:
    sources = "\n".join(path.read_text() for path in (_ROOT / "tests").rglob("test_*.py"))
    known = Counter(re.findall(r"^(?:async )?def (test_\w+)", sources, re.MULTILINE))
    for row in _ROWS:
        named = re.findall(r"`(test_\w+)`", row.rpartition("|")[0].rpartition("|")[2])
        assert named, row
        # One of a name, so that it is the one that is meant.
        assert [name for name in named if known[name] != 1] == [], row
    assert len(_ROWS) > 30


def test_it_is_short() -> None:
    assert len(_PAGE.split()) < 900


def test_it_is_linked() -> None:
    for name in ("docs/README.md", "docs/security.md", "mkdocs.yml"):
        assert "threat-model.md" in (_ROOT / name).read_text(), name
