"""Runs that follow other runs, as `followed_by` of the worker's options says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.runs.requests import RunRequest, request_run
from langgraph_pgstate.runs.types import ClaimedRun

_IDS: Final = uuid5(NAMESPACE_URL, "langgraph-pgstate:following")
_ATTEMPTS: Final = 5


def check_followers(given: Any, graphs: Collection[str]) -> Mapping[str, str]:
    """Return a validated `followed_by`."""
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"followed_by must be a dict from graph to graph, not {given!r}")
    for name in (*given, *given.values()):
        if name not in graphs:
            raise ConfigurationError(f"followed_by must name graphs that the worker runs, not {name!r}")
    if chained := given.keys() & {*given.values()}:
        raise ConfigurationError(f"followed_by must not chain runs, but {min(chained)!r} is both a key and a value")
    return {**given}


def following(codec: ValueCodec, followed_by: Mapping[str, str], run: ClaimedRun) -> RunRequest | None:
    """Return the request of the run that follows a run, if any. Each call returns the same request."""
    graph = followed_by.get(run.graph)
    if graph is None:
        return None
    request = request_run(
        codec,
        graph,
        {"thread_id": run.thread_id, "run_id": run.run_id},
        thread_id=str(uuid5(_IDS, f"{graph} {run.thread_id}")),
        run_id=str(uuid5(_IDS, f"{graph} {run.run_id} {run.thread_id}")),
        metadata={"follows_thread_id": run.thread_id, "follows_run_id": run.run_id},
        queue=run.queue,
        key=run.queue_key,
        max_attempts=_ATTEMPTS,
        durability="sync",
        stream_mode=[],
        on_completion="delete",
    )
    owner = {**request.owner, **{name: (run.options.get("owner") or {}).get(name) for name in ("user_id", "tenant_id")}}
    return replace(request, owner=owner, options={**request.options, "owner": owner})
