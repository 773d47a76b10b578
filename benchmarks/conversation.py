"""What is stored: an agent's conversation through a real graph, and checkpoints as a graph would make them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from benchmarks.contestants import Saver
from benchmarks.prose import prose

MESSAGE_BYTES = 600
# Turns that start at these lengths need no tool, so that a conversation passes 50, 200 and 1000 messages exactly.
_PLAIN_STARTS = (0, 50)
_NAMESPACE = uuid.UUID("9c5b94b1-35ad-49bb-b118-8e8fc24abf80")


def _rng(*parts: object) -> random.Random:
    return random.Random("/".join(map(str, parts)))


@lru_cache(maxsize=65_536)
def text(seed: str, index: int, size: int = MESSAGE_BYTES) -> str:
    """The text of one message of one conversation: always the same, and no other's."""
    return prose(_rng("text", seed, index), size)


def _id(seed: str, index: int) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{seed}/{index}"))


def human(seed: str, index: int) -> HumanMessage:
    """A question."""
    return HumanMessage(content=text(seed, index), id=_id(seed, index))


def messages(seed: str, count: int) -> list[AnyMessage]:
    """A conversation of `count` messages: question, tool call, tool result, answer, and so on."""
    return [message(seed, index) for index in range(count)]


def message(seed: str, index: int) -> AnyMessage:
    """Message number `index` of a conversation that calls a tool in every turn."""
    makers = (human, _tool_call, _tool_result, _answer)
    return makers[index % 4](seed, index)


def _tool_call(seed: str, index: int) -> AIMessage:
    return AIMessage(
        content=text(seed, index, MESSAGE_BYTES - 100),
        id=_id(seed, index),
        tool_calls=[{"name": "lookup", "args": {"query": text(seed, -index, 100)}, "id": f"call_{_id(seed, -index)}"}],
        **_provider_data(seed, index, "tool_calls"),
    )


def _tool_result(seed: str, index: int) -> ToolMessage:
    return ToolMessage(
        content=text(seed, index), id=_id(seed, index), name="lookup", tool_call_id=f"call_{_id(seed, 1 - index)}"
    )


def _answer(seed: str, index: int) -> AIMessage:
    return AIMessage(content=text(seed, index), id=_id(seed, index), **_provider_data(seed, index, "stop"))


def _provider_data(seed: str, index: int, reason: str) -> dict[str, Any]:
    read, written = _rng("usage", seed, index).choices(range(40, 9000), k=2)
    return {
        "response_metadata": {"finish_reason": reason, "model_name": "offline-1"},
        "usage_metadata": {"input_tokens": read, "output_tokens": written, "total_tokens": read + written},
    }


def build_graph(saver: Saver) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A tool-calling agent whose model is deterministic: thread `seed` always has the same conversation."""

    def agent(state: MessagesState, config: RunnableConfig) -> dict[str, list[AnyMessage]]:
        seed, index = config["configurable"]["thread_id"], len(state["messages"])
        needs_tool = isinstance(state["messages"][-1], HumanMessage) and index - 1 not in _PLAIN_STARTS
        return {"messages": [_tool_call(seed, index) if needs_tool else _answer(seed, index)]}

    def tools(state: MessagesState, config: RunnableConfig) -> dict[str, list[AnyMessage]]:
        call = state["messages"][-1]
        assert isinstance(call, AIMessage)
        seed, index = config["configurable"]["thread_id"], len(state["messages"])
        return {
            "messages": [
                ToolMessage(content=text(seed, index), id=_id(seed, index), name=one["name"], tool_call_id=one["id"])
                for one in call.tool_calls
            ]
        }

    def after_agent(state: MessagesState) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", after_agent, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=saver)


@dataclass(slots=True)
class Dialogue:
    """One thread of a compiled graph, advanced turn by turn.

    Attributes:
        graph: The graph.
        thread_id: The thread; also the seed of its texts.
        length: Messages so far, those of the turn in hand included.
        supersteps: Checkpoints of the turn in hand: the input, and each node, `__start__` included.
    """

    graph: CompiledStateGraph[Any, Any, Any, Any]
    thread_id: str
    length: int = 0
    supersteps: int = 0

    @property
    def config(self) -> RunnableConfig:
        """The config that names the thread."""
        return {"configurable": {"thread_id": self.thread_id}}

    def question(self) -> dict[str, list[AnyMessage]]:
        """The input of the next turn. Its texts are made here, outside of what is timed."""
        start = self.length
        is_plain = start in _PLAIN_STARTS
        self.length += 2 if is_plain else 4
        self.supersteps = 3 if is_plain else 5
        for index in range(start, self.length):
            message(self.thread_id, index)
        return {"messages": [human(self.thread_id, start)]}

    def take(self, question: Mapping[str, Any]) -> None:
        """Take a turn."""
        self.graph.invoke(question, self.config)

    def take_until(self, length: int) -> None:
        """Take turns until the conversation has at least `length` messages."""
        while self.length < length:
            self.take(self.question())


@dataclass(frozen=True, slots=True)
class Put:
    """The arguments of one `put`."""

    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions

    def arguments(self) -> tuple[RunnableConfig, Checkpoint, CheckpointMetadata, ChannelVersions]:
        """For `saver.put(*put.arguments())`."""
        return self.config, self.checkpoint, self.metadata, self.new_versions


class Chain:
    """The checkpoints of one thread, each the child of the one before, made without a graph.

    The same checkpoints are given to every contestant, so that what they return can be compared whole.
    """

    def __init__(self, thread_id: str) -> None:
        self.config: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        self._parent_id: str | None = None
        self._step = -1
        self._versions: ChannelVersions = {}
        self._rng = _rng("versions", thread_id)
        self._run_id = _id(thread_id, 0)

    def next(self, channel: str, value: Any) -> Put:
        """The put of the next checkpoint, in which only `channel` is new."""
        self._step += 1
        version = f"{self._step + 1:032}.{self._rng.random():016}"
        versions = {**self._versions, "__start__": f"{1:032}.0", channel: version}
        checkpoint: Checkpoint = {
            "v": 4,
            "id": str(uuid6(clock_seq=self._step)),
            "ts": datetime.now(UTC).isoformat(),
            "channel_values": {channel: value},
            "channel_versions": versions,
            "versions_seen": {
                "__input__": {},
                "__start__": {"__start__": versions["__start__"]},
                "agent": {"branch:to:agent": self._versions.get(channel, version)},
            },
            "updated_channels": [channel],
        }
        metadata: CheckpointMetadata = {"source": "loop", "step": self._step, "parents": {}, "run_id": self._run_id}
        config: RunnableConfig = {"configurable": dict(self.config["configurable"])}
        if self._parent_id is not None:
            config["configurable"]["checkpoint_id"] = self._parent_id
        self._versions, self._parent_id = versions, checkpoint["id"]
        return Put(config, checkpoint, metadata, {channel: version})
