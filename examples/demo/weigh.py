"""The storage of a thread with a whole value for each version of a channel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


class WholeValues:
    """A count of the bytes that a saver writes if it stores the whole value of each new version.

    Every version counts once, however many checkpoints share it. Only values count: not the checkpoints' own rows,
    their metadata or their pending writes.

    Attributes:
        versions: Versions of channels that hold a value.
        bytes: Their bytes with LangGraph's own serializer.
    """

    def __init__(self) -> None:
        self.versions = self.bytes = 0
        self._seen: set[tuple[str, str, str]] = set()
        self._serializer = JsonPlusSerializer()

    def counted(self, checkpoints: Iterable[CheckpointTuple]) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, and count each."""
        for item in checkpoints:
            namespace = item.config["configurable"].get("checkpoint_ns", "")
            for channel, value in item.checkpoint["channel_values"].items():
                key = (namespace, channel, str(item.checkpoint["channel_versions"].get(channel)))
                if key not in self._seen:
                    self._seen.add(key)
                    self.versions += 1
                    self.bytes += len(self._serializer.dumps_typed(value)[1])
            yield item
