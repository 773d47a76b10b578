"""What `--help` and `--version` import: nothing that draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import langgraph_pgstate

pytestmark = pytest.mark.smoke


@pytest.mark.slow
def test_help_imports_no_langgraph() -> None:
    """With a package that imports nothing itself, the commands import only typer."""
    code = f"""
import sys, types
package = types.ModuleType("langgraph_pgstate")
package.__path__, package.__version__ = [{str(Path(langgraph_pgstate.__file__).parent)!r}], "0"
sys.modules["langgraph_pgstate"] = package
import typer
# Some versions of typer import rich themselves.
of_typer = {{*sys.modules}}
from langgraph_pgstate.cli import app, options, output, target
print(*{{"langgraph", "langchain_core", "psycopg", "pydantic", "rich"}} & (sys.modules.keys() - of_typer))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
