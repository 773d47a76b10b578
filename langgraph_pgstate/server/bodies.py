"""Bodies of requests. Unknown fields are ignored, as by LangGraph's own server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, Self

from langgraph.types import Command, Send
from langgraph_sdk.schema import AssistantSelectField, CronSelectField, ThreadSelectField
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from langgraph_pgstate.options import TtlStrategy
from langgraph_pgstate.server.json import PATH

Json = dict[str, Any]
# Limits of metadata. Metadata are converted on the event loop, indexed, and read with each page of threads.
_METADATA_VALUES: Final = 10_000
_METADATA_BYTES: Final = 256 * 1024
# Limits of conditions in a search. Each state or item is compared with every condition.
_CONDITION_VALUES: Final = 1000
_MOST_TAGS: Final = 1000
# Maximum number of tasks of a superstep. LangGraph prepares all tasks on the event loop without a pause.
_MOST_UPDATES: Final = 250
Limit = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0, lt=2**31)]
Nodes = Literal["*"] | list[str]
StreamMode = Literal[
    "values",
    "messages",
    "messages-tuple",
    "updates",
    "events",
    "tasks",
    "checkpoints",
    "debug",
    "custom",
    "tools",
    "lifecycle",
]
Durability = Literal["sync", "async", "exit"]
Strategy = Literal["reject", "rollback", "interrupt", "enqueue"]
ThreadStatus = Literal["idle", "busy", "interrupted", "error"]
STATE_FIELDS: Final = (
    "values",
    "next",
    "tasks",
    "metadata",
    "created_at",
    "checkpoint",
    "parent_checkpoint",
    "interrupts",
    "checkpoint_id",
    "parent_checkpoint_id",
)
SortOrder = Literal["asc", "desc"]


def _several(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, str) else value


def _field_of_state(name: str) -> str:
    if name not in STATE_FIELDS and not name.startswith("values."):
        raise ValueError(f"{name!r} must be a field of a state: {', '.join(STATE_FIELDS)}, or values.CHANNEL")
    return name


def _with_zone(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _small(value: Any, most: int = _METADATA_VALUES) -> Any:
    """Return metadata or conditions. Refuse large ones, before pydantic converts them."""
    left, count, size = [value], 0, 0
    while left:
        one = left.pop()
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, int):
            size += one.bit_length() // 3
        elif isinstance(one, list | dict):
            count += len(one)
            if count <= most:
                left += one.values() if isinstance(one, dict) else one
                size += sum(map(len, one)) if isinstance(one, dict) else 0
        if count > most or size > _METADATA_BYTES:
            raise ValueError(f"the object must have at most {most} values and {_METADATA_BYTES // 1024} KB")
    return value


Metadata = Annotated[Json, BeforeValidator(_small)]
# `configurable` has the limits of metadata, because it is copied into the metadata of each checkpoint of the run.
Configurable = Metadata
Conditions = Annotated[Json, BeforeValidator(lambda value: _small(value, _CONDITION_VALUES))]


# Prefixes of keys that a client may not set, because they change how a graph runs or name the user for whom it runs.
_RESERVED = ("__", "langgraph_auth_")
Modes = Annotated[list[StreamMode], BeforeValidator(_several)]
JsonPath = Annotated[str, Field(pattern=f"^{PATH}$", max_length=500)]
Time = Annotated[datetime, AfterValidator(_with_zone)]


class Body(BaseModel):
    """The base class of the bodies of requests."""

    model_config = ConfigDict(extra="ignore")

    @classmethod
    def of(cls, value: Any) -> Self:
        """Return the body that parsed JSON describes."""
        return cls.model_validate({} if value is None else value)


class TimeToLive(Body):
    """A time to live, in minutes."""

    strategy: TtlStrategy = "delete"
    ttl: Annotated[float, Field(gt=0, lt=5e8)]

    @property
    def time(self) -> timedelta:
        """The time for which the thread is kept after its last access."""
        return timedelta(minutes=self.ttl)


class SendBody(Body):
    """A node to go to, with its own input."""

    node: str
    input: Any = None


Goto = str | SendBody | Annotated[list[str | SendBody], Field(max_length=_MOST_UPDATES)]


class CommandBody(Body):
    """A command: an answer to interrupts, an update, nodes to go to."""

    goto: Goto | None = None
    update: Json | list[tuple[str, Any]] | None = None
    resume: Any = None

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        # Refuse an empty command here, because LangGraph's own error would not mention the command.
        if self.resume is None and not self.update and not self.goto:
            raise ValueError("the command must have resume (other than null), update or goto")
        return self

    def command(self) -> Command[Any]:
        """Return LangGraph's command."""
        given = self.goto if isinstance(self.goto, list) else [] if self.goto is None else [self.goto]
        goto: Sequence[Any] = [one if isinstance(one, str) else Send(one.node, one.input) for one in given]
        return Command(goto=goto, update=self.update, resume=self.resume)


class CheckpointBody(Body):
    """A checkpoint of a thread."""

    checkpoint_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_map: Json | None = None

    def configurable(self) -> Json:
        """Return the checkpoint as keys of a config."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class Update(Body):
    """An update of a state, as if a node had returned it."""

    values: Any = None
    command: CommandBody | None = None
    as_node: str | None = None


class Superstep(Body):
    """Updates of one superstep."""

    updates: Annotated[list[Update], Field(max_length=_MOST_UPDATES)]


class ThreadCreate(Body):
    """A thread to create."""

    thread_id: str | None = None
    metadata: Metadata | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"
    ttl: TimeToLive | None = None
    supersteps: list[Superstep] | None = None


class ThreadUpdate(Body):
    """Changes of a thread."""

    metadata: Metadata | None = None
    ttl: TimeToLive | None = None


ThreadField = ThreadSelectField | Literal["state_updated_at", "error"]


StateField = Annotated[str, AfterValidator(_field_of_state)]


class ThreadCount(Body):
    """Conditions on threads."""

    metadata: Metadata | None = None
    values: Conditions | None = None
    status: ThreadStatus | None = None


class ThreadSearch(ThreadCount):
    """Conditions on threads, their order, and the part that is returned."""

    ids: list[str] | None = None
    limit: Limit = 10
    offset: Offset = 0
    sort_by: Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"] | None = None
    sort_order: SortOrder | None = None
    select: list[ThreadField] | None = None
    extract: Annotated[dict[str, JsonPath], Field(max_length=10)] | None = None


class ThreadPrune(Body):
    """Threads to prune."""

    thread_ids: Annotated[list[str], Field(max_length=1000)]
    strategy: Literal["delete", "keep_latest"] = "delete"


class StateAt(Body):
    """A checkpoint whose state is read."""

    checkpoint: CheckpointBody
    subgraphs: bool = False
    select: list[StateField] | None = None


class StateUpdate(Update):
    """An update of a thread's state."""

    checkpoint_id: str | None = None
    checkpoint: CheckpointBody | None = None


def _place(value: Any) -> Any:
    """Return the id of a checkpoint. A client may give the id itself, the checkpoint, or a config that names it."""
    if isinstance(value, Mapping):
        configurable = value.get("configurable", value)
        value = configurable.get("checkpoint_id") if isinstance(configurable, Mapping) else None
        if not isinstance(value, str):
            raise ValueError("the checkpoint must be an id, or an object or config with a checkpoint_id")
    return value


class History(Body):
    """Conditions on the states of a thread."""

    limit: Limit = 10
    before: Annotated[str | None, BeforeValidator(_place)] = None
    metadata: Metadata | None = None
    checkpoint: CheckpointBody | None = None
    select: list[StateField] | None = None


class RunConfig(Body):
    """The part of a config that a client may set."""

    tags: Annotated[list[str], Field(max_length=_MOST_TAGS)] | None = None
    metadata: Metadata | None = None
    recursion_limit: Annotated[int, Field(ge=1)] | None = None
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    run_name: str | None = None
    configurable: Configurable | None = None


class RunCreate(Body):
    """A run to create."""

    assistant_id: str
    thread_id: str | None = None
    input: Any = None
    command: CommandBody | None = None
    checkpoint_id: str | None = None
    checkpoint: CheckpointBody | None = None
    config: RunConfig | None = None
    context: Configurable | None = None
    metadata: Metadata | None = None
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    stream_mode: Modes = Field(default_factory=list)
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    on_disconnect: Literal["cancel", "continue"] = "continue"
    on_completion: Literal["delete", "keep"] | None = None
    multitask_strategy: Strategy = "enqueue"
    if_not_exists: Literal["create", "reject"] = "reject"
    after_seconds: Annotated[float, Field(ge=0, lt=3e9)] | None = None
    durability: Durability | None = None
    checkpoint_during: bool | None = None
    webhook: str | None = None


class RunBatch(Body):
    """Runs to create at once. The body is a list of runs."""

    runs: Annotated[list[RunCreate], Field(min_length=1, max_length=1000)]

    @classmethod
    def of(cls, value: Any) -> Self:
        """Check a list of runs."""
        return cls.model_validate({"runs": value})


class RunsCancel(Body):
    """Runs to cancel: some runs of a thread, or all runs with a status."""

    thread_id: str | None = None
    run_ids: list[str] | None = None
    status: Literal["pending", "running", "all"] | None = None


class CronChange(Body):
    """Changes of a cron."""

    schedule: str | None = None
    timezone: str | None = None
    end_time: Time | None = None
    enabled: bool | None = None
    input: Any = None
    config: RunConfig | None = None
    context: Configurable | None = None
    metadata: Metadata | None = None
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    stream_mode: Modes = Field(default_factory=list)
    stream_subgraphs: bool = False
    durability: Durability | None = None
    on_run_completed: Literal["delete", "keep"] | None = None
    webhook: str | None = None


class CronCreate(CronChange):
    """A cron to create."""

    assistant_id: str
    schedule: str
    multitask_strategy: Strategy = "enqueue"


class CronCount(Body):
    """Conditions on crons."""

    assistant_id: str | None = None
    thread_id: str | None = None
    metadata: Metadata | None = None


class CronSearch(CronCount):
    """Conditions on crons, their order, and the part that is returned."""

    enabled: bool | None = None
    limit: Limit = 10
    offset: Offset = 0
    sort_by: (
        Literal["cron_id", "assistant_id", "thread_id", "created_at", "updated_at", "next_run_date", "end_time"] | None
    ) = None
    sort_order: SortOrder | None = None
    select: list[CronSelectField] | None = None


class FeedbackCreate(Body):
    """A score or a comment on a run."""

    name: str = "score"
    score: float | None = None
    comment: str | None = None
    span_id: str | None = None
    source: Literal["human", "model", "program"] = "human"
    created_by: str | None = None
    feedback_id: str | None = None


class AssistantChange(Body):
    """Changes of an assistant."""

    graph_id: str | None = None
    config: RunConfig | None = None
    context: Configurable | None = None
    metadata: Metadata | None = None
    name: str | None = None
    description: str | None = None


class AssistantCreate(AssistantChange):
    """An assistant to create."""

    graph_id: str
    assistant_id: str | None = None
    if_exists: Literal["raise", "do_nothing"] = "raise"


class AssistantVersions(Body):
    """Conditions on the versions of an assistant."""

    metadata: Metadata | None = None
    limit: Limit = 10
    offset: Offset = 0


class AssistantLatest(Body):
    """The version of an assistant that becomes the current version."""

    version: Annotated[int, Field(ge=1, lt=2**31)]


class AssistantCount(Body):
    """Conditions on assistants."""

    metadata: Metadata | None = None
    graph_id: str | None = None
    name: str | None = None


class AssistantSearch(AssistantCount):
    """Conditions on assistants, their order, and the part that is returned."""

    limit: Limit = 10
    offset: Offset = 0
    sort_by: Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"] | None = None
    sort_order: SortOrder | None = None
    select: list[AssistantSelectField] | None = None


class ItemPut(Body):
    """An item to store."""

    namespace: list[str]
    key: str
    value: Json
    index: Literal[False] | list[str] | None = None
    ttl: Annotated[float, Field(gt=0)] | None = None


class ItemDelete(Body):
    """An item to delete."""

    namespace: list[str]
    key: str


class ItemSearch(Body):
    """Conditions on items."""

    namespace_prefix: list[str]
    filter: Conditions | None = None
    limit: Limit = 10
    offset: Offset = 0
    query: str | None = None
    refresh_ttl: bool | None = None


class NamespaceSearch(Body):
    """Conditions on namespaces."""

    prefix: list[str] | None = None
    suffix: list[str] | None = None
    max_depth: Annotated[int, Field(ge=1)] | None = None
    limit: Limit = 100
    offset: Offset = 0


class EventStream(Body):
    """The events of a thread that a client wants, in the protocol's second version."""

    channels: Annotated[list[str], Field(min_length=1)]
    namespaces: list[list[str]] | None = None
    depth: Annotated[int, Field(ge=0)] | None = None
    since: Annotated[int, Field(ge=0)] | None = None


class ThreadCommand(Body):
    """A command to a thread, in the protocol's second version."""

    id: Annotated[int, Field(ge=0)]
    method: str
    params: Json = Field(default_factory=dict)


def without_reserved(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a config without the keys that only the server may set."""
    given = config.get("configurable") or {}
    return {**config, "configurable": {name: given[name] for name in given if not name.startswith(_RESERVED)}}
