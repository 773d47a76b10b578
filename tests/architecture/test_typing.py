"""What mypy knows of the package where it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = """
from langgraph_pgstate import AsyncPGState, PGStateSaver, ToolPolicy
reveal_type(PGStateSaver.setup)
from langgraph_pgstate.threads import Nothing
from langgraph_pgstate import PGSaver
"""
OPTIONS = """
from psycopg import Connection
from langgraph_pgstate import AsyncPGState, PGState, PGStateSaver
def check(connection: Connection) -> None:
    PGStateSaver(connection, schema='app', guard=('head', 'lease'), cache_bytes=0)
    PGState.open('', pool=3, project=['a'], on_corrupt='previous')
    AsyncPGState.embedded('here', guard='head')
    PGStateSaver(connection, gaurd='head')
    PGStateSaver.from_conn_string('', cache_bytes='much')
    PGState.open('', projects=['a'])
    AsyncPGState.embedded('here', strict='yes')
"""
# File, line and a word of all that is said.
SAID = [
    ("names", 3, "metadata_index"),
    ("names", 4, '"Nothing"'),
    ("names", 5, '"PGSaver"'),
    ("options", 8, "gaurd"),
    ("options", 9, "cache_bytes"),
    ("options", 10, "projects"),
    ("options", 11, "strict"),
]


@pytest.mark.slow
@pytest.mark.once
def test_mypy_knows_names_and_options_and_no_others(tmp_path: Path) -> None:
    snippets = [tmp_path / "names.py", tmp_path / "options.py"]
    for snippet, text in zip(snippets, (NAMES, OPTIONS), strict=True):
        snippet.write_text(text)
    # With the options of `make lint`, whose cache it uses.
    command = [sys.executable, "-m", "mypy", *snippets]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # Notes besides that of `reveal_type` explain errors.
    found = re.findall(r"(\w+)\.py:(\d+): (?:error: |note: Revealed)(.*)", done.stdout)
    assert sorted((name, int(line)) for name, line, _ in found) == sorted((name, line) for name, line, _ in SAID)
    for name, line, word in SAID:
        assert any(word in text for where, number, text in found if (where, int(number)) == (name, line)), done.stdout
