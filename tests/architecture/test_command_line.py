"""The command line stands on `PGState` and `Admin`, and lists its commands in groups."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from support.cli import words
from typer.main import get_command
from typer.testing import CliRunner

from langgraph_pgstate.cli.app import app
from tests.architecture.test_architecture import modules, nodes_of

pytestmark = pytest.mark.smoke

# What commands use of the package: its objects, what they take and return, and the programs that they start.
ALLOWED = re.compile(
    r"langgraph_pgstate(\.cli\..*|\.cli|\.errors|\.options|\..*\.(options|types))?$|"
    r"langgraph_pgstate\.(state|admin\.api|memory\.memories|runs|threads|otlp|keep|metrics|process_identity)$|"
    r"langgraph_pgstate\.(db\.(dsn|embedded)|codec\.serializer|otlp\.exporter)$|"
    r"langgraph_pgstate\.(server|worker)\..*"
)
# Modules whose public names are those of their package. Of `codec.serializer`, one is an argument of `PGState`.
OBJECTS = {
    "langgraph_pgstate.runs": {"Runs", "RunHandle"},
    "langgraph_pgstate.threads": {"Threads"},
    "langgraph_pgstate.keep": {"Erasure", "Privacy", "StoredErasure"},
    "langgraph_pgstate.state": {"AsyncPGState", "PGState", "StateOptions"},
    "langgraph_pgstate.admin.api": {"Admin"},
    "langgraph_pgstate.memory.memories": {"ROOT", "namespace_of", "owner_of"},
    "langgraph_pgstate.codec.serializer": {"plain_serializer"},
    "langgraph_pgstate.process_identity": {"short_holder"},
}


def refused(tree: ast.AST) -> Iterator[str]:
    """Yield what a module imports that commands may not."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.startswith("langgraph_pgstate"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("langgraph_pgstate"):
            assert node.module is not None
            known = OBJECTS.get(node.module)
            names = [one.name for one in node.names if known is not None and one.name not in known]
            if not ALLOWED.match(node.module) or names:
                yield f"{node.module}: {', '.join(names)}"


def test_commands_use_the_public_face_of_the_package() -> None:
    found = {name: [*refused(tree)] for name, tree in modules().items() if name.startswith("cli/")}
    assert {name: imports for name, imports in found.items() if imports} == {}


def test_the_search_finds_imports_of_operations() -> None:
    """The test above rests on it."""
    source = """
from langgraph_pgstate.threads.prune import prune_thread
from langgraph_pgstate.state import PGState, core_of
from langgraph_pgstate.threads.types import Thread
from langgraph_pgstate.threads import Threads, prune
import langgraph_pgstate.db.database
"""
    assert [*refused(ast.parse(source))] == [
        "langgraph_pgstate.threads.prune: ",
        "langgraph_pgstate.state: core_of",
        "langgraph_pgstate.threads: prune",
        "langgraph_pgstate.db.database",
    ]


def test_every_command_is_in_a_group_with_one_line() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output
    lines = shown[shown.index("Start:") :].splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    commands = getattr(get_command(app), "commands", {})
    assert sorted(listed) == sorted(commands)
    assert [line for line in lines if line and not re.match(r"  [a-z]|[A-Z][a-z ]+:$", line)] == []
    for name, command in commands.items():
        assert f"{name} " in shown
        assert (command.help or "").split(".")[0] in words(CliRunner().invoke(app, [name, "--help"]))
