"""Graphs of a worker: from files, modules, langgraph.json and factories."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk.runtime import ServerRuntime
from support import loop_graph

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.worker.graphs import GraphSource, graph_sources, load_config, load_environment, load_graphs

FILE = """
from beside_{name} import STEPS
from support import loop_graph
builder = loop_graph(STEPS)
graph = builder.compile()
def make(config): return loop_graph(config["configurable"]["steps"])
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a module of graphs and one beside it, whose names no other test uses."""
    name = f"agent_{abs(hash(tmp_path))}"
    (tmp_path / f"beside_{name}.py").write_text("STEPS = 2\n")
    (tmp_path / f"{name}.py").write_text(FILE.format(name=name))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path / f"{name}.py"


def result_of(source: GraphSource, **configurable: Any) -> int:
    """How many items a graph makes."""
    with source.open({"configurable": configurable}) as graph:
        return len(graph.invoke({"count": 0})["items"])


def test_a_file_is_named_after_itself_or_as_said(project: Path) -> None:
    found = load_graphs(
        [f"{project.name}:graph", f"other={project.name}:builder", f"made={project.name}:make"], project.parent
    )
    assert list(found) == [project.stem, "other", "made"]
    assert result_of(found["other"]) == result_of(found[project.stem]) == 2
    assert result_of(found["made"], steps=5) == 5


def test_a_module_is_found_in_the_directory(project: Path) -> None:
    assert result_of(load_graphs([f"{project.stem}:graph"], project.parent)[project.stem]) == 2


@pytest.mark.parametrize("spec", ["agent.py", "nothing.py:graph", "no.such.module:graph", ":graph", "x.py:"])
def test_a_spec_that_names_nothing_is_refused(spec: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        load_graphs([spec], tmp_path)


def test_a_missing_variable_names_the_graphs_there_are(project: Path) -> None:
    with pytest.raises(ConfigurationError, match="its graphs are builder, graph"):
        load_graphs([f"{project.name}:agent"], project.parent)


def test_two_graphs_of_one_name_are_refused(project: Path) -> None:
    with pytest.raises(ConfigurationError, match="two graphs"):
        load_graphs([f"{project.name}:graph", f"{project.name}:builder"], project.parent)


def test_langgraph_json_gives_graphs_environment_and_directories(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.parent / ".env").write_text(
        "# a comment\nexport PGSTATE_T_ONE='1 #'\nPGSTATE_T_TWO=2 # two\nPGSTATE_T_SET=no\n"
    )
    config = {
        "graphs": {"a": f"./{project.name}:graph", "b": {"path": f"./{project.name}:make"}},
        "env": ".env",
        "dependencies": ["."],
    }
    (project.parent / "langgraph.json").write_text(json.dumps(config))
    for name in ("PGSTATE_T_ONE", "PGSTATE_T_TWO"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PGSTATE_T_SET", "yes")
    found = load_config(project.parent / "langgraph.json")
    assert result_of(found["a"]) == 2
    assert result_of(found["b"], steps=3) == 3
    assert [os.environ[f"PGSTATE_T_{name}"] for name in ("ONE", "TWO", "SET")] == ["1 #", "2", "yes"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"graphs": {}}', '{"graphs": {"a": 1}}', '{"graphs": {"a": "x"}}'])
def test_a_malformed_langgraph_json_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "langgraph.json").write_text(text)
    with pytest.raises(ConfigurationError):
        load_config(tmp_path / "langgraph.json")
    if not text.startswith("{"):
        with pytest.raises(ConfigurationError, match=r"must be a JSON object|cannot be read"):
            load_environment(tmp_path / "langgraph.json")


@pytest.mark.parametrize("value", [None, 1, {}, lambda one, two: None, lambda *, one: None])
def test_what_is_no_graph_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        graph_sources({"agent": value})


def test_graphs_are_given_by_name() -> None:
    for graphs in ({}, [loop_graph(1)], {1: loop_graph(1)}):
        with pytest.raises(ArgumentTypeError):
            graph_sources(graphs)  # type: ignore[arg-type]


async def test_factories_of_every_kind_make_a_graph_for_each_run() -> None:
    left: list[str] = []

    @contextmanager
    def block() -> Iterator[Any]:
        yield loop_graph(1).compile()
        left.append("block")

    @asynccontextmanager
    async def task(config: Any) -> AsyncIterator[Any]:
        yield loop_graph(1)
        left.append("task")

    async def coroutine(config: Any = None) -> Any:
        return loop_graph(1)

    for number, factory in enumerate((block, task, coroutine, lambda: loop_graph(1))):
        source = GraphSource("agent", factory)
        async with source.aopen({}) as graph:
            assert len((await graph.ainvoke({"count": 0}))["items"]) == 1
        if number in (1, 2):
            with pytest.raises(ConfigurationError, match="AsyncWorker"), source.open({}):
                pass
        else:
            assert result_of(source) == 1
    assert left == ["block", "block", "task"]


def test_a_factory_that_makes_no_graph_is_an_error() -> None:
    with pytest.raises(ArgumentTypeError, match="must make a graph"), GraphSource("agent", lambda: {}).open({}):
        pass


def test_a_factory_takes_a_config_a_runtime_or_both() -> None:
    called: list[Any] = []

    def both(given: ServerRuntime[Any], /, *, config: Any = None) -> Any:
        called.append((given.access_context, config))
        return loop_graph(1)

    def either(runtime: ServerRuntime | None = None) -> Any:
        assert runtime is not None
        called.append((runtime.access_context, None))
        return loop_graph(1)

    config = {"configurable": {"a": 1}}
    for make, known in ((both, config), (either, None)):
        with GraphSource("made", make).open(config, "threads.read") as graph:
            assert graph is not None
        assert called.pop() == ("threads.read", known)
    for wrong in (lambda config, other: None, lambda *, other: None, lambda one, two: None):
        with pytest.raises(ConfigurationError, match="made"):
            GraphSource("made", wrong)
