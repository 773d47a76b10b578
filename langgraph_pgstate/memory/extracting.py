"""A graph that extracts memories from an ended run with the caller's function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import run_in_executor
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel

from langgraph_pgstate.arguments import configurable_of
from langgraph_pgstate.db.adapters import run_blocking
from langgraph_pgstate.db.protocol import Connection
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, NotFoundError
from langgraph_pgstate.langgraph_compat import CHECKPOINTER, DURABILITY
from langgraph_pgstate.memory.memories import ROOT, digest_of, namespace_of, owner_of, text_of
from langgraph_pgstate.memory.namespaces import literal
from langgraph_pgstate.memory.remembering import AsyncMemories
from langgraph_pgstate.memory.store import AsyncPGMemoryStore, PGMemoryStore
from langgraph_pgstate.record.messages import AsyncMessages
from langgraph_pgstate.record.windows import WindowOptions, budget_of
from langgraph_pgstate.schema.queries import Queries

Extracted = str | Mapping[str, Any]
"""A memory: its content, or arguments of `remember` without owner and origin."""

Extractor = Callable[[list[BaseMessage]], Iterable[Extracted] | Awaitable[Iterable[Extracted]]]

# The value of `changed_by` for extracted memories.
BY: Final = "extraction"
_ARGUMENTS: Final = frozenset({"content", "kind", "key", "importance", "expires_at", "metadata", "message_id"})


class _Extraction(TypedDict, total=False):
    """The state of an extraction: a run, its memories as arguments of `remember`, and the keys of stored memories."""

    thread_id: str
    run_id: str
    memories: list[dict[str, Any]]
    stored: list[str]


def extraction(state: Any, extract: Extractor, **options: Unpack[WindowOptions]) -> Pregel[Any, Any, Any, Any]:
    """Return a graph that extracts memories from an ended run, and stores them for the run's user and tenant.

    A worker runs this graph after each run of another graph: `Worker(state, {"chat": chat, "extract": extraction(state,
    extract)}, followed_by={"chat": "extract"})`. If the worker dies, another worker stores the extracted memories
    without calling `extract` again. The origin of the memories is the last checkpoint of the run.

    Args:
        state: A `PGState` or an `AsyncPGState`. With an `AsyncPGState`, `extract` may be a coroutine function.
        extract: Called with the messages of the thread at the end of the run. Returns the memories: texts, or dicts of
            arguments of `remember` (`content`, `kind`, `key`, `importance`, `expires_at`, `metadata`, `message_id`).
        **options: Limits of the messages that `extract` gets; all messages by default. See `WindowOptions`.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    store = getattr(state, "memory", None)
    if not isinstance(store, PGMemoryStore | AsyncPGMemoryStore):
        raise ArgumentTypeError(f"extraction must be given a state, not {type(state).__name__}")
    is_async = isinstance(store, AsyncPGMemoryStore)
    if not callable(extract) or (inspect.iscoroutinefunction(extract) and not is_async):
        raise ArgumentTypeError(
            f"extract must be a function{'' if is_async else ' that is not async'}, not {extract!r}"
        )
    budget_of(options)
    steps = _Steps(state, store, extract, options)
    builder = StateGraph(_Extraction)
    for step in (steps.extract, steps.remember):
        builder.add_node(step.__name__, step if is_async else _blocking(step))
    return builder.add_edge(START, "extract").add_edge("extract", "remember").compile(name="extraction")


class _Run(NamedTuple):
    """An ended run, and the id of its last checkpoint if that checkpoint still exists."""

    thread_id: str
    run_id: str
    user_id: str | None
    tenant_id: str | None
    checkpoint_id: str | None


class _Steps:
    def __init__(self, state: Any, store: Any, extract: Extractor, options: WindowOptions) -> None:
        self._state, self._store, self._extract, self._options = state, store, extract, options

    async def extract(self, given: _Extraction) -> _Extraction:
        """Extract the memories of a run, unless memories of the run are stored already.

        A cancellation does not stop a function that runs in an OS thread. The result of the function is dropped.
        """
        run = await self._run(given)
        if await self._stored(run):
            return {"memories": []}
        messages = await AsyncMessages.window(
            self._state.messages, run.thread_id, checkpoint_id=run.checkpoint_id, **self._options
        )
        return {"memories": [_arguments_of(one) for one in await self._called(messages)] if messages else []}

    async def remember(self, given: _Extraction, config: RunnableConfig) -> _Extraction:
        """Store the memories, except those that an earlier attempt stored.

        With `durability='sync'`, a checkpoint has the memories before they are stored. Without it, another attempt
        might extract different memories.
        """
        configurable = configurable_of(config)
        if configurable.get(CHECKPOINTER) and configurable.get(DURABILITY) in (None, "async"):
            raise ConfigurationError("an extraction must run with durability='sync'")
        run = await self._run(given)
        stored, keys = await self._stored(run), []
        for one in given["memories"]:
            if digest_of(one.get("kind", "fact"), one["content"]) in stored:
                continue
            memory = await AsyncMemories.remember(
                self._store,
                **one,
                user_id=run.user_id,
                tenant_id=run.tenant_id,
                thread_id=run.thread_id,
                run_id=run.run_id,
                checkpoint_id=run.checkpoint_id,
                by=BY,
            )
            keys.append(memory.key)
        return {"stored": keys}

    async def _run(self, given: _Extraction) -> _Run:
        run: _Run = await self._store.runner.run(get_run, self._store.queries, given["thread_id"], given["run_id"])
        return run

    async def _stored(self, run: _Run) -> set[str]:
        found: set[str] = await self._store.runner.run(list_extracted, self._store.queries, run)
        return found

    async def _called(self, messages: list[BaseMessage]) -> Iterable[Extracted]:
        if isinstance(self._store, PGMemoryStore) or inspect.iscoroutinefunction(self._extract):
            found = self._extract(messages)
        else:
            found = await run_in_executor(None, self._extract, messages)
        return await found if isinstance(found, Awaitable) else found


async def get_run(db: Connection, queries: Queries, thread_id: str, run_id: str) -> _Run:
    """Return the run whose memories are extracted. One round trip."""
    rows = await db.fetch(queries.get_extracted_run, {"thread_id": thread_id, "run_id": run_id})
    if not rows:
        raise NotFoundError(f"there is no run {run_id!r} of thread {thread_id!r}")
    run = _Run(thread_id, run_id, *rows[0])
    if not (run.user_id or run.tenant_id):
        raise ConfigurationError(
            f"run {run_id!r} of thread {thread_id!r} must have a user or a tenant as the owner of its memories: "
            "set configurable.user_id in its config"
        )
    return run


async def list_extracted(db: Connection, queries: Queries, run: _Run) -> set[str]:
    """Return the digests of all memories that were extracted from a run, including replaced memories."""
    where = literal(namespace_of(ROOT, owner_of(run.tenant_id, run.user_id, None)))
    given = {"namespace": where, "thread_id": run.thread_id, "run_id": run.run_id, "changed_by": BY}
    return {digest_of(kind, text_of(value)) for kind, value, *_ in await db.fetch(queries.list_extracted, given)}


def extract_summaries(messages: list[BaseMessage]) -> list[Extracted]:
    """Return the summaries by which LangChain's `SummarizationMiddleware` replaced earlier messages.

    Pass this function as `extract` to `extraction`. Each summary is stored once, as a memory of the kind `summary`.
    Summaries by the middleware of deepagents are not found.
    """
    return [
        {"content": message.text, "kind": "summary", "key": message.id, "message_id": message.id}
        for message in messages
        if message.additional_kwargs.get("lc_source") == "summarization" and message.text.strip()
    ]


def _arguments_of(one: Extracted) -> dict[str, Any]:
    """Return validated arguments of `remember`."""
    given = {"content": one} if isinstance(one, str) else one
    if not isinstance(given, Mapping) or not isinstance(given.get("content"), str) or given.keys() - _ARGUMENTS:
        raise ConfigurationError(
            f"an extractor must return texts, or dicts of content and {', '.join(sorted(_ARGUMENTS - {'content'}))}, "
            f"not {one!r:.200}"
        )
    return {**given}


def _blocking(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def run(*args: Any, **kwargs: Any) -> Any:
        return run_blocking(step(*args, **kwargs))

    return run
