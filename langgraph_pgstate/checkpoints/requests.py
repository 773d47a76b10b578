"""Arguments of the saver's `put`, validated and encoded. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final
from uuid import UUID

from langgraph.checkpoint.base import CheckpointMetadata, get_serializable_checkpoint_metadata

from langgraph_pgstate.arguments import Address, address_of, check_key_size, identifier, text_or_none
from langgraph_pgstate.checkpoints.versions import UNVERSIONED, StateVersions
from langgraph_pgstate.codec.metadata import split_metadata
from langgraph_pgstate.codec.states import Manifest
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.errors import MissingKeyError
from langgraph_pgstate.langgraph_compat import DELTA_COUNTERS
from langgraph_pgstate.options import ThreadKeys

DEFAULT_KEYS: Final = ThreadKeys()
# Keys that LangGraph's server adds to `configurable` for one HTTP request, and does not store with checkpoints.
_REQUEST_KEYS: Final = frozenset(
    {"langgraph_request_id", "langgraph_auth_user", "langgraph_auth_user_id", "langgraph_auth_permissions"}
)
_INT4_MAX = 2**31 - 1

_RUN_KEYS: Final = ("run_id",)


def check_names(metadata: Mapping[str, Any], keys: ThreadKeys) -> None:
    """Check that the names of run, user, tenant and agent can be stored unchanged.

    Raises:
        ConfigurationError: If a name cannot be stored.
    """
    for names in (_RUN_KEYS, keys.user, keys.tenant, keys.agent):
        for name in names:
            value = metadata.get(name)
            if type(value) is str and ("\0" in value or not value.isascii()):
                identifier(name, value)


@dataclass(slots=True)
class PutRequest:
    """The arguments of the saver's `put`, validated and with the metadata encoded.

    Attributes:
        address: The checkpoint to store.
        parent: The checkpoint's parent, if the config named one.
        checkpoint: LangGraph's checkpoint.
        new_versions: Versions of the channels whose values are to be stored.
        metadata: JSON text.
        exact_metadata: Encoded values of metadata keys that JSON does not represent exactly.
        merged_metadata: The config's metadata merged with the checkpoint's, from which the typed columns are taken.
        columns: Values of the checkpoint's typed columns. A hook may replace them.
        keys: The metadata keys that name the thread's agent, user and tenant.
        root: For a subgraph's checkpoint, the manifest of the root checkpoint, if it is known and needed.
        touches_thread: Whether the thread's row is inserted or updated, too.
        states: The current state version, and the upcasters of older versions.
        span_id: Id of the run in LangGraph's callbacks, if the run has the thread's lease.
    """

    address: Address
    parent: Address | None
    checkpoint: Mapping[str, Any]
    new_versions: Mapping[str, Any]
    metadata: str
    exact_metadata: dict[str, tuple[str, bytes]]
    merged_metadata: Mapping[str, Any]
    columns: dict[str, Any]
    keys: ThreadKeys
    root: Manifest | None = None
    touches_thread: bool = False
    states: StateVersions = UNVERSIONED
    span_id: UUID | None = None
    _owner: dict[str, str | None] | None = None

    @property
    def needs_parent(self) -> bool:
        """Whether a DeltaChannel's value is missing, so that the ancestors are needed to rebuild it."""
        counters = self.merged_metadata.get(DELTA_COUNTERS)
        if self.parent is None or not counters or not isinstance(counters, Mapping):
            return False
        checkpoint = self.checkpoint
        return any(
            channel in checkpoint["channel_versions"] and channel not in checkpoint["channel_values"]
            for channel in counters
        )

    @property
    def owner(self) -> dict[str, str | None]:
        """The thread's agent, user and tenant, for a put that updates the thread's row. A hook may replace the agent.

        Raises:
            ConfigurationError: If a name is too long to be indexed with the thread's id.
        """
        if self._owner is None:
            owner = _owner_in(self.merged_metadata, self.keys)
            for name in ("tenant_id", "user_id"):
                check_key_size(f"thread_id and {name}", self.address.thread_id, owner[name])
            self._owner = owner
        return self._owner


def request_put(
    codec: ValueCodec,
    config: Mapping[str, Any],
    checkpoint: Mapping[str, Any],
    metadata: CheckpointMetadata,
    new_versions: Mapping[str, Any],
    keys: ThreadKeys = DEFAULT_KEYS,
) -> PutRequest:
    """Return the arguments of the saver's `put`, validated and encoded.

    Raises:
        ConfigurationError: If an id is missing or cannot be stored.
        SerializationError: If metadata cannot be stored.
    """
    thread_id, checkpoint_ns, parent_id = parent = address_of(config)
    checkpoint_id = identifier("checkpoint id", checkpoint.get("id") or "")
    if not checkpoint_id:
        raise MissingKeyError("the checkpoint must have an id")
    check_key_size(
        "thread_id, checkpoint_ns, checkpoint_id and the parent's", thread_id, checkpoint_ns, checkpoint_id, parent_id
    )
    for channel in checkpoint["channel_versions"]:
        if not channel.isascii() or "\0" in channel:
            identifier("channel name", channel)
    merged = get_serializable_checkpoint_metadata(config, metadata)  # type: ignore[arg-type]
    # Check the given names. LangGraph removes NUL from merged metadata, which could make one name equal to another.
    for given in (config.get("metadata"), config.get("configurable"), metadata):
        if given:
            check_names(given, keys)
    # Request keys may name the thread's owner, but are not stored.
    kept = merged if _REQUEST_KEYS.isdisjoint(merged) else _without(merged, _REQUEST_KEYS)
    text, exact = split_metadata(kept)
    step = merged.get("step")
    return PutRequest(
        address=Address(thread_id, checkpoint_ns, checkpoint_id),
        parent=parent if parent_id else None,
        checkpoint=checkpoint,
        new_versions=new_versions,
        metadata=text,
        exact_metadata=exact and {key: codec.dumps(f"metadata[{key!r}]", value) for key, value in exact.items()},
        merged_metadata=merged,
        columns={
            "run_id": text_or_none(merged.get("run_id")),
            "source": text_or_none(merged.get("source")),
            "step": step if type(step) is int and abs(step) <= _INT4_MAX else None,
        },
        keys=keys,
    )


def _without(metadata: Mapping[str, Any], keys: frozenset[str]) -> Any:
    return {key: value for key, value in metadata.items() if key not in keys}


def root_of(request: PutRequest, metadata: CheckpointMetadata) -> Address | None:
    """Return the root checkpoint of a subgraph's checkpoint, if the metadata names it."""
    root_id = (metadata.get("parents") or {}).get("")
    return Address(request.address.thread_id, "", root_id) if type(root_id) is str else None


def owner_of(config: Mapping[str, Any], keys: ThreadKeys) -> dict[str, str | None]:
    """Return the agent, user and tenant that a config names."""
    return _owner_in(get_serializable_checkpoint_metadata(config, {}), keys)  # type: ignore[arg-type]


def _owner_in(metadata: Mapping[str, Any], keys: ThreadKeys) -> dict[str, str | None]:
    return {
        "agent": _first_text(metadata, keys.agent),
        "user_id": _first_text(metadata, keys.user),
        "tenant_id": _first_text(metadata, keys.tenant),
    }


def _first_text(metadata: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    for key in keys:
        value = metadata.get(key)
        if type(value) is int:
            value = str(value)
        if type(value) is str and value:
            return text_or_none(value)
    return None


def concatenate(parts: Sequence[bytes], data: str, starts: str, lengths: str) -> dict[str, Any]:
    """Return joined byte strings, and the offset and length of each part for SQL's `substr`, as parameters."""
    sizes = [len(part) for part in parts]
    return {
        data: parts[0] if len(parts) == 1 else b"".join(parts),
        starts: [1 + before for before in accumulate(sizes[:-1], initial=0)] if parts else [],
        lengths: sizes,
    }
