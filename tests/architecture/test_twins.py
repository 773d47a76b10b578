"""Both classes of each part take the same arguments, and only what waits differently is written twice."""

from __future__ import annotations

import ast
import copy
import inspect

import pytest
from support.record import PARTS

from langgraph_pgstate.files import AsyncFiles, Files
from langgraph_pgstate.schedules import AsyncSchedules, Schedules
from tests.architecture.test_architecture import methods, modules, parameters

pytestmark = pytest.mark.smoke


PAIRS = [*zip(*PARTS.values(), strict=True), (Schedules, AsyncSchedules), (Files, AsyncFiles)]

# Written twice with equal bodies, for they call what is written twice or return another class.
WRITTEN_TWICE = {
    "Connector": "psycopg's connections",
    "Database": "the connections themselves",
    "Interrupts": "handles",
    "KeyLoader": "the database",
    "Leases": "a block that holds a lease",
    "Memories": "notes, of which each has its own",
    "PGMemoryStore": "its connections, and a timer or a task that counts reads",
    "PGState": "the saver and the recorder, which have threads or tasks",
    "RunHandle": "the queue, of which each has its own",
    "Runs": "handles",
    "Schedules": "handles",
    "Worker": "threads or tasks",
    "_Fresh": "the recorder, which has threads or tasks",
}


@pytest.mark.parametrize("pair", PAIRS)
def test_both_apis_of_a_part_take_the_same_arguments(pair: tuple[type, type]) -> None:
    blocking, suspending = map(methods, pair)
    assert blocking.keys() == suspending.keys()
    for name in blocking:
        assert parameters(blocking[name]) == parameters(suspending[name]), name
        # A handle is made without the database; the others return iterators.
        assert name in ("__init__", "handle", "join", "join_thread") or inspect.iscoroutinefunction(suspending[name])
        assert not inspect.iscoroutinefunction(blocking[name])


class _Blocking(ast.NodeTransformer):
    """Makes of an async function its blocking twin."""

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        return self.generic_visit(ast.With(node.items, node.body))

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self.generic_visit(ast.For(node.target, node.iter, node.body, node.orelse))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(node.id.replace("Async", ""), node.ctx)


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return [ast.dump(_Blocking().visit(copy.deepcopy(statement))) for statement in body]


def _functions(class_: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {node.name: node for node in class_.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_only_what_waits_differently_is_written_twice() -> None:
    found = set()
    for tree in modules().values():
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        for name, class_ in classes.items():
            if twin := classes.get(f"Async{name}") or classes.get(f"_Async{name.removeprefix('_')}"):
                suspending = _functions(twin)
                for method, function in _functions(class_).items():
                    other = suspending.get(method)
                    if isinstance(other, ast.AsyncFunctionDef) and _body(function) == _body(other):
                        found.add(name)
    assert found == WRITTEN_TWICE.keys(), "blocking(AsyncX.method) makes a blocking method of an async one"
