"""A name with an underscore is used in its own module only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.test_architecture import modules, nodes_of

pytestmark = pytest.mark.smoke

# Methods of named tuples, and of Python.
PUBLIC = {"_asdict", "_replace", "_exit"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def defined_in(tree: ast.AST) -> set[str]:
    """The names of functions and classes of a module, and of all that it assigns."""
    found = set()
    for node in nodes_of(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.Attribute(ast.Name("self" | "cls"), ctx=ast.Store()):
                found.add(node.attr)
    return found


def foreign_arguments(function: Function, own: set[str]) -> set[str]:
    """The arguments of a function that are objects of other modules."""
    return {
        one.arg
        for one in ast.walk(function.args)
        if isinstance(one, ast.arg) and one.annotation is not None and not own & names_in(one.annotation)
    }


def names_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def strangers(tree: ast.AST) -> Iterator[str]:
    """Yield the private names of other modules that a module uses."""
    own = defined_in(tree)
    functions = [node for node in nodes_of(tree) if isinstance(node, Function)]
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("langgraph_pgstate"):
            yield from (alias.name for alias in node.names if is_private(alias.name))
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            around = (one for one in functions if one.lineno <= node.lineno <= (one.end_lineno or 0))
            match node.value:
                case ast.Name("self" | "cls"):
                    pass
                case ast.Name(name) if node.attr in own and not any(name in foreign_arguments(f, own) for f in around):
                    pass
                case ast.Call(ast.Name()) if node.attr in own:
                    pass
                case _:
                    yield ast.unparse(node)


def test_no_module_uses_private_names_of_another() -> None:
    found = {
        name: sorted({*strangers(tree)})
        # What LangGraph keeps private.
        for name, tree in modules().items()
        if name != "langgraph_compat.py"
    }
    assert {name: uses for name, uses in found.items() if uses} == {}


def test_the_search_finds_each_way_to_use_one() -> None:
    """The test above rests on it."""
    source = """
from langgraph_pgstate.tools.intents import _current

class Own:
    def __init__(self, state: State, other: Own):
        self._database = state._database
        self._keys = other._keys = self._queue._keys
        self.clone = Own()._make(), state.saver._leased()._replace(), other._run

    def _make(self): ...
"""
    assert {*strangers(ast.parse(source))} == {
        "_current",
        "state._database",
        "self._queue._keys",
        "state.saver._leased",
        "other._run",
    }
