"""Commands to a thread, in the protocol's second version, and their parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple
from uuid import UUID, uuid5

from langgraph.types import StateSnapshot
from pydantic import AliasChoices, ConfigDict, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException

from langgraph_pgstate.errors import NotFoundError, PGStateError, UnavailableError
from langgraph_pgstate.heavy import compute
from langgraph_pgstate.record.types import Run
from langgraph_pgstate.runs.requests import RunRequest
from langgraph_pgstate.runs.types import EnqueuedRun
from langgraph_pgstate.server import runs
from langgraph_pgstate.server.assistants import open_graph
from langgraph_pgstate.server.bodies import Body, Goto, Json, Limit, RunCreate, Strategy
from langgraph_pgstate.server.errors import STATUSES, sentences
from langgraph_pgstate.server.graphs import config_at
from langgraph_pgstate.server.service import Call
from langgraph_pgstate.server.threads import checkpoint_of, graph_of
from langgraph_pgstate.server.translation import microseconds
from langgraph_pgstate.threads.types import Thread


class RunParams(Body):
    """Parameters of all commands that create a run."""

    config: Json | None = None
    metadata: Json | None = None


class RunStart(RunParams):
    """Parameters of `run.start`."""

    assistant_id: str
    input: Any = None
    multitask_strategy: Strategy = Field(
        "enqueue", validation_alias=AliasChoices("multitaskStrategy", "multitask_strategy")
    )


class InputResponse(Body):
    """The answer to one interrupt."""

    interrupt_id: str
    response: Any = None


class InputRespond(RunParams):
    """Parameters of `input.respond`: one answer, or several."""

    responses: Annotated[list[InputResponse], Field(min_length=1)]
    update: Json | list[tuple[str, Any]] | None = None
    goto: Goto | None = None

    @model_validator(mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        return {"responses": [value], **value} if isinstance(value, dict) and "responses" not in value else value


class InjectedMessage(Body):
    """A message to a graph."""

    model_config = ConfigDict(extra="allow")

    role: Literal["user", "system"]
    content: str


class InputInject(Body):
    """Parameters of `input.inject`."""

    namespace: list[str] = Field(default_factory=list)
    message: InjectedMessage


class StateGet(Body):
    """Parameters of `state.get`."""

    namespace: list[str] = Field(default_factory=list)
    keys: list[str] | None = None


class StateList(Body):
    """Parameters of `state.listCheckpoints`."""

    namespace: list[str] = Field(default_factory=list)
    limit: Limit = 10
    before: str | None = None


class StateFork(RunParams):
    """Parameters of `state.fork`."""

    checkpoint_id: str
    input: Any = None


class AgentTree(Body):
    """Parameters of `agent.getTree`."""

    run_id: str | None = None


MODES: Final = ("values", "updates", "messages-tuple", "tools", "custom", "tasks", "checkpoints")
"""The stream modes whose events are stored for a run that a command starts."""

_CODES: Final[Mapping[int, str]] = {
    400: "invalid_argument",
    403: "permission_denied",
    404: "no_such_run",
    422: "invalid_argument",
    501: "not_supported",
}
# Namespace of the UUIDs of runs that resume a thread with answers.
_ANSWER_RUNS: Final = UUID("0f6f6c9e-5d6c-5d0b-9f57-3f6c1a8f9d52")
_STATUSES: Final = {"pending": "started", "running": "running", "success": "completed", "interrupted": "interrupted"}


class CommandError(Exception):
    """An error by which a command is refused. The client receives the code and the message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Answer(NamedTuple):
    result: Mapping[str, Any]
    run: Run | None = None


async def command(call: Call) -> Any:
    """Execute a command of the protocol's second version."""
    given = call.body
    try:
        found = await _dispatch(call, given.method, given.params)
    except (CommandError, HTTPException, ValidationError, PGStateError) as error:
        if isinstance(error, UnavailableError):
            raise
        return {"type": "error", "id": given.id, **_refusal(error)}
    meta: dict[str, Any] = {"thread_id": call.path("thread_id")}
    if found.run is not None:
        # The number of an event is its time. Events with smaller numbers belong to earlier runs of the thread.
        meta["applied_through_seq"] = microseconds(found.run.enqueued_at)
    return {"type": "success", "id": given.id, "result": found.result, "meta": meta}


async def _dispatch(call: Call, method: str, params: Mapping[str, Any]) -> _Answer:
    if method not in _COMMANDS:
        known = method.startswith("subscription.")
        code, reason = ("not_supported", "needs a WebSocket") if known else ("unknown_command", "is not known")
        raise CommandError(code, f"command {method!r} {reason}")
    body, handler = _COMMANDS[method]
    return await handler(call, body.of(params))


def _refusal(error: Exception) -> dict[str, Any]:
    if isinstance(error, CommandError):
        return {"error": error.code, "message": str(error)}
    if isinstance(error, ValidationError):
        return {"error": "invalid_argument", "message": "; ".join(sentences(error))}
    if isinstance(error, HTTPException):
        return {"error": _CODES.get(error.status_code, "unknown_error"), "message": error.detail}
    status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), None)
    if status is None:
        raise error
    return {"error": _CODES.get(status, "unknown_error"), "message": str(error)}


async def _start(call: Call, given: RunStart) -> _Answer:
    """Start a run. If the thread waits for an answer, the input is the answer."""
    thread_id = call.path("thread_id")
    body: dict[str, Any] = {"input": given.input, "multitask_strategy": given.multitask_strategy}
    is_fork = bool(((given.config or {}).get("configurable") or {}).get("checkpoint_id"))
    if given.input is not None and not is_fork and await _has_interrupts(call, thread_id):
        body = {"command": {"resume": given.input}, "multitask_strategy": given.multitask_strategy}
    return await _run(call, given, given.assistant_id, body, if_not_exists="create")


async def _respond(call: Call, given: InputRespond) -> _Answer:
    """Answer interrupts, each once, and resume the run."""
    thread = await call.thread("read")
    answers = {one.interrupt_id: one.response for one in given.responses}
    run_id = ""
    while True:
        asked = {one.interrupt_id: one.run_id for one in await call.state.interrupts.list(thread.thread_id)}
        if unknown := answers.keys() - asked.keys():
            raise CommandError("no_such_interrupt", f"thread {thread.thread_id!r} has no interrupt {min(unknown)!r}")
        # The run id derives from the interrupts, so that a repeated command finds its run. If this run has ended and
        # the interrupts still wait, derive another id from this id.
        run_id = _answer_run_id(thread.thread_id, run_id, asked, answers)
        run = await call.state.runs.get(thread.thread_id, run_id)
        if run is None or run.ended_at is None:
            break
    chosen = {id: asked[id] for id in answers}
    others = [_answer_run_id(thread.thread_id, "", asked, [id]) for id in asked.keys() - answers.keys()]

    async def put(request: RunRequest) -> EnqueuedRun:
        try:
            return await call.state.interrupts.enqueue_answers(chosen, request, others)
        except NotFoundError as error:
            raise CommandError("no_such_interrupt", str(error)) from None

    resume = {"resume": answers, "update": given.update, "goto": given.model_dump(include={"goto"})["goto"]}
    return await _run(call, given, graph_of(call, thread), {"command": resume}, run_id, put)


def _answer_run_id(thread_id: str, earlier: str, asked: Mapping[str, str | None], ids: Iterable[str]) -> str:
    """Return the id of a run that answers some interrupts. `asked` has the run that asks, by interrupt."""
    return str(uuid5(_ANSWER_RUNS, "\n".join([thread_id, earlier, *(f"{id} {asked[id]}" for id in sorted(ids))])))


async def _inject(call: Call, given: InputInject) -> _Answer:
    """Enqueue a run with a message, after the runs of the thread."""
    if given.namespace:
        raise CommandError("not_supported", "namespace must be empty: messages cannot go to subgraphs")
    thread = await call.thread("read")
    input = {"messages": [await compute(given.message, given.message.model_dump)]}
    await _run(call, RunParams(), graph_of(call, thread), {"input": input})
    return _Answer({})


async def _fork(call: Call, given: StateFork) -> _Answer:
    """Start a run from a checkpoint."""
    thread = await call.thread("read")
    body = {"input": given.input, "checkpoint_id": given.checkpoint_id}
    found = await _run(call, given, graph_of(call, thread), body)
    return found._replace(result={**found.result, "thread_id": thread.thread_id})


async def _run(
    call: Call,
    given: RunParams,
    assistant_id: str,
    body: Mapping[str, Any],
    run_id: str | None = None,
    put: runs.Put | None = None,
    **options: Any,
) -> _Answer:
    made = RunCreate.of(
        {
            "assistant_id": assistant_id,
            "config": given.config,
            "metadata": given.metadata,
            "stream_mode": MODES,
            "stream_subgraphs": True,
            **body,
            **options,
        }
    )
    handle = await runs.enqueue(call, made, call.path("thread_id"), run_id, put)
    if not handle.is_new:
        raise CommandError("no_such_interrupt", "the interrupt is answered already")
    run = await runs.found_run(call, handle.thread_id, handle.run_id)
    return _Answer({"run_id": run.run_id}, run)


async def _get_state(call: Call, given: StateGet) -> _Answer:
    thread = await call.thread("read")
    config = config_at(thread.thread_id, checkpoint_ns="|".join(given.namespace))
    async with open_graph(call, graph_of(call, thread), thread) as graph:
        snapshot = await graph.aget_state(config)
    values = snapshot.values
    if given.keys is not None and isinstance(values, Mapping):
        values = {name: values[name] for name in given.keys if name in values}
    place = checkpoint_of(snapshot.config)
    if place is None or place["checkpoint_id"] is None:
        return _Answer({"values": values})
    return _Answer({"values": values, "checkpoint": {"id": place["checkpoint_id"], "ns": place["checkpoint_ns"]}})


async def _list_checkpoints(call: Call, given: StateList) -> _Answer:
    thread = await call.thread("read")
    config = config_at(thread.thread_id, checkpoint_ns="|".join(given.namespace))
    before: Any = None if given.before is None else {"configurable": {"checkpoint_id": given.before}}
    async with open_graph(call, graph_of(call, thread), thread) as graph:
        history = graph.aget_state_history(config, limit=given.limit, before=before)
        return _Answer({"checkpoints": [_summary(one) async for one in history]})


def _summary(snapshot: StateSnapshot) -> dict[str, Any]:
    metadata = snapshot.metadata or {}
    return {
        "id": snapshot.config["configurable"]["checkpoint_id"],
        "timestamp": snapshot.created_at,
        "step": metadata.get("step"),
        "metadata": metadata,
    }


async def _get_tree(call: Call, given: AgentTree) -> _Answer:
    """Return a run's status, and the subgraphs of its unfinished tasks."""
    thread = await call.thread("read")
    if given.run_id is not None:
        run = await runs.found_run(call, thread.thread_id, given.run_id)
    else:
        newest = (await call.state.runs.list(thread_id=thread.thread_id, limit=1)).items
        if not newest:
            raise CommandError("no_such_run", f"thread {thread.thread_id!r} has no run")
        run = newest[0]
    name = graph_of(call, thread)
    async with open_graph(call, name, thread) as graph:
        snapshot = await graph.aget_state(config_at(thread.thread_id), subgraphs=True)
    status = _STATUSES.get(run.status, "interrupted" if run.status == "cancelled" else "failed")
    return _Answer({"tree": {"namespace": [], "status": status, "graph_name": name, **_children(snapshot)}})


def _children(snapshot: StateSnapshot) -> dict[str, Any]:
    found = []
    for task in snapshot.tasks:
        if isinstance(task.state, StateSnapshot):
            namespace = task.state.config["configurable"].get("checkpoint_ns", "").split("|")
            status = "interrupted" if task.interrupts else "failed" if task.error else "running"
            node = {"namespace": namespace, "status": status, "graph_name": task.name}
            found.append({**node, **_children(task.state)})
    return {"children": found} if found else {}


async def _has_interrupts(call: Call, thread_id: str) -> bool:
    scope = await call.authorize("threads", "read", {"thread_id": thread_id})
    thread: Thread | None = await call.state.threads.get(thread_id, scope=scope)
    if thread is None or thread.status != "interrupted":
        return False
    return bool(await call.state.interrupts.list(thread_id))


_COMMANDS: Final[Mapping[str, tuple[type[Body], Callable[[Any, Any], Awaitable[_Answer]]]]] = {
    "run.start": (RunStart, _start),
    "input.respond": (InputRespond, _respond),
    "input.inject": (InputInject, _inject),
    "state.get": (StateGet, _get_state),
    "state.listCheckpoints": (StateList, _list_checkpoints),
    "state.fork": (StateFork, _fork),
    "agent.getTree": (AgentTree, _get_tree),
}
