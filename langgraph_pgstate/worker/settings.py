"""Validated settings of a worker, and the runs that follow other runs, as `followed_by` says. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self
from uuid import NAMESPACE_URL, uuid5

from langgraph_pgstate.arguments import several
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError
from langgraph_pgstate.options import MAX_LEASE_SECONDS
from langgraph_pgstate.runs.options import WorkerOptions
from langgraph_pgstate.runs.requests import RunRequest, request_run
from langgraph_pgstate.runs.types import ClaimedRun

KEY_SECONDS: Final = 0.2
"""Seconds that a thread of many runs waits for a master key, before the thread goes on with other work."""
_IDS: Final = uuid5(NAMESPACE_URL, "langgraph-pgstate:following")
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of a worker; see `WorkerOptions`."""

    concurrency: int = 10
    queues: tuple[str, ...] = ("default",)
    versions: str | Mapping[str, str | Sequence[str]] = ""
    lease_ttl: float = 12.0
    poll: float = 0.5
    drain_timeout: float = 30.0
    max_crashes: int = 3
    followed_by: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: WorkerOptions) -> Self:
        """Return the settings of a worker's options."""
        known = {field.name for field in fields(cls)}
        given: dict[str, Any] = {name: value for name, value in options.items() if name in known}
        if "queues" in given:
            queues = [*several("queues", given["queues"])]
            if not all(isinstance(one, str) for one in queues):
                raise ArgumentTypeError(f"queues must be a list of names, not {queues!r}")
            given["queues"] = tuple(dict.fromkeys(queues))
        settings = cls(**given)
        for name in ("concurrency", "max_crashes"):
            value = getattr(settings, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} must be a whole number, 1 or more, not {value!r}")
        for name, least in (("lease_ttl", 0.1), ("poll", 0.01), ("drain_timeout", 0.0)):
            value = getattr(settings, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not least <= value <= MAX_LEASE_SECONDS:
                raise ConfigurationError(f"{name} must be {least} to {MAX_LEASE_SECONDS:.0f} seconds, not {value!r}")
        if not settings.queues:
            raise ConfigurationError("queues must name at least one queue")
        return settings


def accepted_versions(
    given: str | Mapping[str, str | Sequence[str]], graphs: Sequence[str]
) -> Mapping[str, tuple[str, ...]]:
    """Return the versions that a worker accepts, by graph."""
    if not isinstance(given, str | Mapping):
        raise ArgumentTypeError(f"versions must be text, or texts by graph, not {given!r}")
    by_graph = dict.fromkeys(graphs, given) if isinstance(given, str) else given
    found: dict[str, tuple[str, ...]] = {}
    for graph, versions in by_graph.items():
        if graph not in graphs:
            raise ConfigurationError(f"versions must name graphs that the worker runs, not {graph!r}")
        several = (versions,) if isinstance(versions, str) else tuple(versions)
        if not all(isinstance(one, str) for one in several):
            raise ArgumentTypeError(f"versions of graph {graph!r} must be text, not {versions!r}")
        found[graph] = tuple(dict.fromkeys(one for one in several if one))
    return found


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
