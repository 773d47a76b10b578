"""What a caller asks to be stored, checked and made ready to be planned or sent. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from langgraph.checkpoint.base import CheckpointMetadata, get_serializable_checkpoint_metadata

from langgraph_pgstate.codec.metadata import split_metadata
from langgraph_pgstate.codec.states import Manifest
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import MissingKeyError
from langgraph_pgstate.langgraph_compat import DELTA_COUNTERS
from langgraph_pgstate.operations.checkpoints.addresses import Address, address_of, check_key_size, identifier
from langgraph_pgstate.operations.checkpoints.versions import UNVERSIONED, StateVersions
from langgraph_pgstate.settings import ThreadKeys

_DEFAULT_KEYS: Final = ThreadKeys()
# What LangGraph's server hands along in `configurable` of one HTTP request, and keeps in no checkpoint of its own.
_OF_THE_REQUEST: Final = frozenset(
    {"langgraph_request_id", "langgraph_auth_user", "langgraph_auth_user_id", "langgraph_auth_permissions"}
)
_INT4_MAX = 2**31 - 1
# What a typed column of text takes.
_TEXT_BYTES: Final = 512


@dataclass(slots=True)
class PutRequest:
    """A put as LangGraph made it, checked and with its metadata ready.

    Attributes:
        address: The checkpoint to store.
        parent: Its parent, if the config named one.
        checkpoint: LangGraph's checkpoint.
        new_versions: The channels whose values are to be stored, with their versions.
        metadata: JSON text.
        exact_metadata: Encoded values of metadata keys that JSON does not say exactly.
        labels: The merged metadata, of which the typed columns are made.
        keys: Which of the labels say whose the thread is.
        root: Manifest of the root namespace's checkpoint that a subgraph's belongs to, if it is known and wanted.
        is_unaccompanied: Whether the database refused what a hook wanted stored with it.
        states: The version the state is written with, and how older ones are read.
    """

    address: Address
    parent: Address | None
    checkpoint: Mapping[str, Any]
    new_versions: Mapping[str, Any]
    metadata: str
    exact_metadata: dict[str, tuple[str, bytes]]
    labels: Mapping[str, Any]
    keys: ThreadKeys
    root: Manifest | None = None
    is_unaccompanied: bool = False
    states: StateVersions = UNVERSIONED
    _columns: dict[str, Any] | None = None

    @property
    def rests_on_parent(self) -> bool:
        """Whether it holds a DeltaChannel without its value, which is rebuilt from what its ancestors received."""
        counters = self.labels.get(DELTA_COUNTERS)
        if self.parent is None or not counters or not isinstance(counters, Mapping):
            return False
        checkpoint = self.checkpoint
        return any(
            channel in checkpoint["channel_versions"] and channel not in checkpoint["channel_values"]
            for channel in counters
        )

    @property
    def columns(self) -> dict[str, Any]:
        """Values of the typed columns, and whose the thread is; a hook may fill in what it knows better.

        Raises:
            ConfigurationError: If a name is too long to be indexed with the thread's id.
        """
        columns = self.columns_without_owner
        if "agent" not in columns:
            columns.update(_owner(self))
        return columns

    @property
    def columns_without_owner(self) -> dict[str, Any]:
        """The same for less, where the thread's row is left alone."""
        if self._columns is None:
            labels = self.labels
            step = labels.get("step")
            self._columns = {
                "run_id": _text_or_none(labels.get("run_id")),
                "source": _text_or_none(labels.get("source")),
                "step": step if type(step) is int and abs(step) <= _INT4_MAX else None,
            }
        return self._columns


def request_put(
    codec: ValueCodec,
    config: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
    metadata: CheckpointMetadata,
    new_versions: Mapping[str, Any],
    keys: ThreadKeys = _DEFAULT_KEYS,
) -> PutRequest:
    """Check a put's arguments and prepare what does not depend on other checkpoints.

    Raises:
        ConfigurationError: If an id is missing or cannot be stored.
        SerializationError: If metadata cannot be stored.
    """
    thread_id, checkpoint_ns, parent_id = parent = address_of(config)
    checkpoint_id = identifier("checkpoint id", checkpoint.get("id") or "")
    if not checkpoint_id:
        raise MissingKeyError("the checkpoint has no id")
    check_key_size(
        "thread_id, checkpoint_ns, checkpoint_id and the parent's", thread_id, checkpoint_ns, checkpoint_id, parent_id
    )
    for channel in checkpoint["channel_versions"]:
        if not channel.isascii() or "\0" in channel:
            identifier("channel name", channel)
    merged = get_serializable_checkpoint_metadata(config, metadata)  # type: ignore[arg-type]
    # Whose a thread is may be told by the request; the request itself is not kept.
    kept = merged if _OF_THE_REQUEST.isdisjoint(merged) else _without(merged, _OF_THE_REQUEST)
    text, exact = split_metadata(kept)
    return PutRequest(
        address=Address(thread_id, checkpoint_ns, checkpoint_id),
        parent=parent if parent_id else None,
        checkpoint=checkpoint,
        new_versions=new_versions,
        metadata=text,
        exact_metadata=exact and {key: codec.dumps(f"metadata[{key!r}]", value) for key, value in exact.items()},
        labels=merged,
        keys=keys,
    )


def _without(metadata: Mapping[str, Any], keys: frozenset[str]) -> Any:
    return {key: value for key, value in metadata.items() if key not in keys}


def root_of(request: PutRequest, metadata: CheckpointMetadata) -> Address | None:
    """The root namespace's checkpoint that a subgraph's belongs to, if its metadata tells."""
    root_id = (metadata.get("parents") or {}).get("")
    return Address(request.address.thread_id, "", root_id) if type(root_id) is str else None


def run_id_of(config: Mapping[str, Any]) -> str | None:
    """The run a config belongs to, if the metadata tells."""
    for part in ("metadata", "configurable"):
        found = (config.get(part) or {}).get("run_id")
        if found is not None:
            return _text_or_none(str(found))
    return None


def _owner(request: PutRequest) -> dict[str, str | None]:
    labels, keys = request.labels, request.keys
    owner = {
        "agent": _first_text(labels, keys.agent),
        "user_id": _first_text(labels, keys.user),
        "tenant_id": _first_text(labels, keys.tenant),
    }
    for name in ("tenant_id", "user_id"):
        check_key_size(f"thread_id and {name}", request.address.thread_id, owner[name])
    return owner


def _first_text(metadata: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    for key in keys:
        value = metadata.get(key)
        if type(value) is int:
            value = str(value)
        if value is not None and (text := _text_or_none(value)):
            return text
    return None


def _text_or_none(value: Any) -> str | None:
    if type(value) is not str or "\0" in value:
        return None
    if value.isascii():
        return value if len(value) <= _TEXT_BYTES else None
    try:
        return value if len(value.encode()) <= _TEXT_BYTES else None
    except UnicodeEncodeError:
        return None


def end_to_end(parts: Sequence[bytes], data: str, starts: str, lengths: str) -> dict[str, Any]:
    """Byte strings as one, with the place of each as SQL's `substr` counts it, under the given parameter names."""
    sizes = [len(part) for part in parts]
    return {
        data: parts[0] if len(parts) == 1 else b"".join(parts),
        starts: [1 + before for before in accumulate(sizes[:-1], initial=0)] if parts else [],
        lengths: sizes,
    }
