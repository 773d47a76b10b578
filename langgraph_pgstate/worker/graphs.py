"""The graphs of a worker, by name, from modules or `langgraph.json`.

A graph is compiled, or a factory makes the graph for each run, as on the Agent Server: `make()`, `make(config)`,
`make(runtime)` or `make(config, runtime)`. `runtime` is a `ServerRuntime` of `langgraph_sdk.runtime`. A factory may be
a coroutine function. A factory may return a context manager, which is exited after the run.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, get_type_hints

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.pregel.remote import RemoteGraph
from langgraph.store.base import BaseStore
from pydantic import BaseModel

from langgraph_pgstate.arguments import configurable_of
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.langgraph_compat import is_server_runtime, server_runtime
from langgraph_pgstate.worker.config_keys import check_keys

_USER: Final = "langgraph_auth_user"


class AuthenticatedUser(dict[str, Any]):
    """An authenticated user. Keys are also attributes, as of LangGraph's `ServerInfo.user`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def with_user(configurable: dict[str, Any]) -> dict[str, Any]:
    """Return `configurable` of a config with the user, if any, as an `AuthenticatedUser`."""
    found = configurable.get(_USER)
    return {**configurable, _USER: AuthenticatedUser(found)} if isinstance(found, Mapping) else configurable


def user_of(config: Mapping[str, Any]) -> Any:
    """Return the user that a config names, if any."""
    return configurable_of(config).get(_USER)


def given_context(config: Mapping[str, Any], context: Any) -> Any:
    """Return the context of a run, before `fitted_context`.

    A run of an assistant always has a context, so that the defaults of the schema apply.
    """
    return {} if context is None and _is_of_assistant(config) else context


def fitted_context(graph: Pregel[Any, Any, Any, Any], config: Mapping[str, Any], context: Any) -> Any:
    """Return the context of a run, for an assistant without keys that the graph's schema does not take."""
    context = given_context(config, context)
    if not isinstance(context, Mapping) or not _is_of_assistant(config):
        return context
    known = _fields_of(graph.context_schema)
    return context if known is None else {name: value for name, value in context.items() if name in known}


def _is_of_assistant(config: Mapping[str, Any]) -> bool:
    return "assistant_id" in configurable_of(config)


def _fields_of(schema: Any) -> frozenset[str] | None:
    """Return the names that a type takes; `None` if the type takes all names."""
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        if schema.model_config.get("extra") != "forbid":
            return None
        fields = schema.model_fields
        return frozenset({*fields, *(one.alias for one in fields.values() if one.alias)})
    if not isinstance(schema, type) or not is_dataclass(schema):
        return None
    parameters = inspect.signature(schema).parameters.values()
    is_open = any(one.kind is one.VAR_KEYWORD for one in parameters)
    return None if is_open else frozenset(one.name for one in parameters)


Access = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
"""Why a factory is called, as LangGraph's `ServerRuntime.access_context` names it."""

_ENV_FILE_HELP: Final = "`env` of langgraph.json must be a file of NAME=value lines or an object"


class GraphSource:
    """A named graph, or a factory that makes the graph for each run.

    Args:
        name: The name by which runs are enqueued.
        value: A compiled graph, an `@entrypoint`, a `StateGraph`, or a factory of a graph.

    Raises:
        ConfigurationError: If `value` is anything else, or a factory takes other arguments than a config and a runtime.
    """

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        if isinstance(value, StateGraph):
            value = value.compile()
        if isinstance(value, RemoteGraph) or not (isinstance(value, Pregel) or callable(value)):
            raise ArgumentTypeError(
                f"graph {name!r} must be a compiled graph, an @entrypoint, a StateGraph or a factory of one, "
                f"not {type(value).__name__}"
            )
        self.graph: Pregel[Any, Any, Any, Any] | None = value if isinstance(value, Pregel) else None
        self._make: Callable[..., Any] | None = None if self.graph is not None else value
        self._parameters = {} if self._make is None else _parameters_of(name, self._make)
        self._store: BaseStore | None = None
        self._check_store: Callable[[BaseStore], None] = lambda _: None

    def with_store(self, store: BaseStore) -> GraphSource:
        """Return this source with a LangGraph store for graphs without a store."""
        found = copy.copy(self)
        found._store = store
        if self.graph is not None:
            found.graph = found._checked(self.graph)
        return found

    @property
    def stores(self) -> list[BaseStore]:
        """The store of `with_store`, and the store of the graph."""
        given = [self._store, None if self.graph is None else self.graph.store]
        return [store for store in given if store is not None]

    def with_stores(
        self, store_of: Callable[[BaseStore], BaseStore], check: Callable[[BaseStore], None]
    ) -> GraphSource:
        """Return this source with each store replaced by the result of `store_of`. A factory's stores are checked."""
        found = copy.copy(self)
        found._check_store = check
        if self._store is not None:
            found._store = store_of(self._store)
        if self.graph is not None and self.graph.store is not None:
            found.graph = self.graph.copy({"store": store_of(self.graph.store)})
        return found

    @property
    def is_factory(self) -> bool:
        """Whether the graph is made for each call."""
        return self._make is not None

    @contextmanager
    def open(
        self, config: Mapping[str, Any], access: Access = "threads.create_run", context: Any = None
    ) -> Iterator[Pregel[Any, Any, Any, Any]]:
        """Provide the graph for one run.

        Args:
            config: The config that a factory gets.
            access: Why a factory is called.
            context: The context of the run.

        Raises:
            ConfigurationError: If the factory makes no graph, or is asynchronous.
        """
        made = self._call(config, access, context)
        if inspect.isawaitable(made) or isinstance(made, AbstractAsyncContextManager):
            if inspect.iscoroutine(made):
                made.close()
            raise ConfigurationError(f"the factory of graph {self.name!r} must not be asynchronous. Use AsyncWorker")
        if isinstance(made, AbstractContextManager):
            with made as graph:
                yield self._checked(graph)
        else:
            yield self._checked(made)

    @asynccontextmanager
    async def aopen(
        self, config: Mapping[str, Any], access: Access = "threads.create_run", context: Any = None
    ) -> AsyncIterator[Pregel[Any, Any, Any, Any]]:
        """Async twin of `open`."""
        made = self._call(config, access, context)
        if inspect.isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            async with made as graph:
                yield self._checked(graph)
        elif isinstance(made, AbstractContextManager):
            with made as graph:
                yield self._checked(graph)
        else:
            yield self._checked(made)

    def _call(self, config: Mapping[str, Any], access: Access, context: Any) -> Any:
        if self._make is None:
            return self.graph
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for parameter, is_runtime in self._parameters.items():
            value: Any = config
            if is_runtime:
                value = server_runtime(access, given_context(config, context), user_of(config), self._store)
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                named[parameter.name] = value
        return self._make(*positional, **named)

    def _checked(self, made: Any) -> Pregel[Any, Any, Any, Any]:
        graph = made.compile() if isinstance(made, StateGraph) else made
        if not isinstance(graph, Pregel):
            raise ArgumentTypeError(f"the factory of graph {self.name!r} must make a graph, not {type(made).__name__}")
        if graph.store is not None:
            self._check_store(graph.store)
            return graph
        return graph if self._store is None else graph.copy({"store": self._store})


def graph_sources(graphs: Mapping[str, Any]) -> dict[str, GraphSource]:
    """Return graphs and factories by name.

    Raises:
        ConfigurationError: If there are no graphs, or a graph is not usable.
    """
    if not isinstance(graphs, Mapping) or not graphs:
        raise ArgumentTypeError(f'graphs must be given by name, like {{"agent": graph}}, not {graphs!r}')
    for name in graphs:
        if not isinstance(name, str) or not name:
            raise ArgumentTypeError(f"the name of a graph must be a string, not {name!r}")
    return {
        name: value if isinstance(value, GraphSource) else GraphSource(name, value) for name, value in graphs.items()
    }


def load_graphs(specs: Sequence[str], directory: Path | None = None) -> dict[str, GraphSource]:
    """Import graphs from specs like `agent.py:graph`, `shop.agents:graph` or `name=agent.py:graph`.

    Without a name, a graph is named after its file or the last part of its module.

    Args:
        specs: The specs.
        directory: Directory of relative paths and of modules. By default, the current directory.

    Raises:
        ConfigurationError: If a spec is malformed, a graph does not exist, or two graphs have the same name.
    """
    found: dict[str, GraphSource] = {}
    for spec in specs:
        given, _, place = spec.rpartition("=")
        path, colon, variable = place.rpartition(":")
        if not colon or not path or not variable:
            raise ConfigurationError(f"a graph must be named like agent.py:graph or name=agent.py:graph, not {spec!r}")
        name = given or (Path(path).stem if _is_file(path) else path.rpartition(".")[2])
        if name in found:
            raise ConfigurationError(
                f"graphs must have different names, but two graphs have the name {name!r}. Rename one: other={place}"
            )
        found[name] = GraphSource(name, _load(path, variable, directory or Path.cwd()))
    return found


def load_value(place: str, directory: Path) -> Any:
    """Import a value by a name like `./auth.py:auth` or `shop.auth:auth`.

    Raises:
        ConfigurationError: If the name is malformed, or no such value exists.
    """
    path, colon, variable = place.rpartition(":")
    if not colon or not path or not variable:
        raise ConfigurationError(f"a value must be named like ./auth.py:auth or shop.auth:auth, not {place!r}")
    return _load(path, variable, directory)


def read_config(file: str | Path) -> dict[str, Any]:
    """Return the content of a `langgraph.json`.

    Raises:
        ConfigurationError: If the file is missing, or is not a JSON object.
    """
    path = Path(file)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path} must be a JSON object, not {type(config).__name__}")
    return config


def load_environment(file: str | Path) -> None:
    """Check the keys of a `langgraph.json`, and set the variables of its `env` that are not set already.

    Raises:
        ConfigurationError: If the file is missing or malformed, or has a key that is not supported.
    """
    path, config = Path(file), read_config(file)
    found = _environment(config.get("env"), path.parent.resolve())
    check_keys(config, found)
    for name, value in found.items():
        os.environ.setdefault(name, value)


def load_config(file: str | Path) -> dict[str, GraphSource]:
    """Import the graphs of a `langgraph.json`, after its environment and local dependencies.

    Raises:
        ConfigurationError: If the file is missing or malformed, or a graph cannot be found.
    """
    path, config = Path(file), read_config(file)
    graphs = config.get("graphs")
    if not isinstance(graphs, dict) or not graphs:
        raise ConfigurationError(f'{path} must have "graphs", like {{"agent": "./agent.py:graph"}}')
    directory = path.parent.resolve()
    load_environment(path)
    for dependency in config.get("dependencies") or ():
        if isinstance(dependency, str) and dependency.startswith(".") and (directory / dependency).is_dir():
            _search_in((directory / dependency).resolve())
    specs = []
    for name, graph in graphs.items():
        place = graph.get("path") if isinstance(graph, dict) else graph
        if not isinstance(place, str):
            raise ConfigurationError(f'graph {name!r} of {path} must be like "./agent.py:graph", not {graph!r}')
        specs.append(f"{name}={place}")
    return load_graphs(specs, directory)


def _parameters_of(name: str, make: Callable[..., Any]) -> dict[inspect.Parameter, bool]:
    """Return the parameters of a factory as a dict: true for the runtime, false for the config."""
    try:
        parameters = [*inspect.signature(make).parameters.values()]
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"graph {name!r} must be a graph or a factory of one, not {make!r}") from error
    try:
        hints = get_type_hints(make)
    except Exception:
        # An annotation may name an object that only type checkers import, or `make` may be a `functools.partial`.
        hints = {}
    found: dict[inspect.Parameter, bool] = {}
    others = []
    for one in parameters:
        annotation = hints.get(one.name, one.annotation)
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        if is_server_runtime(annotation) or (one.name == "runtime" and annotation is not RunnableConfig):
            found[one] = True
        elif annotation is RunnableConfig or one.name == "config":
            found[one] = False
        elif one.default is one.empty:
            others.append(one)
    if len(others) == 1 and others[0].kind is not others[0].KEYWORD_ONLY and False not in found.values():
        # A single parameter besides the runtime is the config, whatever its name is.
        return {one: found.get(one, False) for one in parameters if one in found or one in others}
    if others:
        raise ArgumentTypeError(
            f"the factory of graph {name!r} must take no argument, a config, a ServerRuntime or both, "
            f"not {', '.join(one.name for one in others)}"
        )
    return found


def _is_file(path: str) -> bool:
    return path.endswith(".py") or "/" in path


def _load(path: str, variable: str, directory: Path) -> Any:
    try:
        module = _import_file((directory / path).resolve()) if _is_file(path) else _import_module(path, directory)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"{path} cannot be imported: {error}") from error
    try:
        return getattr(module, variable)
    except AttributeError:
        graphs = [name for name, value in vars(module).items() if isinstance(value, Pregel | StateGraph)]
        hint = f"; its graphs are {', '.join(graphs)}" if graphs else ""
        raise ConfigurationError(f"{path} has no {variable!r}{hint}") from None


def _import_module(name: str, directory: Path) -> ModuleType:
    _search_in(directory)
    return importlib.import_module(name)


def _import_file(file: Path) -> ModuleType:
    """Import a file once. As in a script, the file can import modules of its directory."""
    for known in [*sys.modules.values()]:
        if getattr(known, "__file__", None) == str(file):
            return known
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{file} must be a Python file")
    _search_in(file.parent)
    module = importlib.util.module_from_spec(spec)
    # Stored values name the module of their type. Use the name of a normal import, so that other processes find the
    # type.
    sys.modules.setdefault(file.stem, module)
    spec.loader.exec_module(module)
    return module


def _search_in(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _environment(env: Any, directory: Path) -> dict[str, str]:
    if env is None:
        return {}
    if isinstance(env, dict):
        return {str(name): str(value) for name, value in env.items()}
    if not isinstance(env, str):
        raise ConfigurationError(f"{_ENV_FILE_HELP}, not {env!r}")
    try:
        lines = (directory / env).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(f"{_ENV_FILE_HELP}. {env!r} cannot be read: {error}") from error
    found = {}
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and not name.startswith("#"):
            value = value.strip()
            is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found[name.strip()] = value[1:-1] if is_quoted else value.partition(" #")[0].rstrip()
    return found
