"""A decorator that records operations of memory as spans of the run that calls them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID, uuid4

from langchain_core.runnables.config import var_child_runnable_config

from langgraph_pgstate.record.recorder.handler import RecordingHandler

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")


def recorded(
    operation: str, told: Callable[..., tuple[str | None, str | None]]
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, T]]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
]:
    """Record each call of a method of a store as a span, if a recorder records the run that calls it.

    Args:
        operation: Name of the operation in OpenTelemetry.
        told: Called with the method's arguments. Returns the key of the item, and the query.
    """

    def decorate(
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        @wraps(method)
        async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            recorder, parent_id = _recorder()
            if recorder is None:
                return await method(self, *args, **kwargs)
            store: Any = self
            record_id, query = told(*args, **kwargs)
            id = uuid4()
            recorder.begin_memory(operation, id, parent_id, store.queries.schema, record_id, query)
            try:
                result = await method(self, *args, **kwargs)
            except BaseException as error:
                recorder.end_memory(id, error)
                raise
            recorder.end_memory(id)
            return result

        return run

    return decorate


def _recorder() -> tuple[RecordingHandler | None, UUID | None]:
    """Return the recorder of the running task, and the span in which it runs."""
    config = var_child_runnable_config.get()
    manager: Any = config.get("callbacks") if config else None
    parent_id = getattr(manager, "parent_run_id", None)
    if parent_id is not None:
        for handler in manager.handlers:
            if isinstance(handler, RecordingHandler) and handler.is_recording(parent_id):
                return handler, parent_id
    return None, None
