"""Versions of an application's state. Channel values of older versions are upcast when they are read. No I/O."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from langgraph.checkpoint.base import CheckpointTuple

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, StateVersionError, UpcastError
from langgraph_pgstate.langgraph_compat import DeltaSnapshot
from langgraph_pgstate.options import Upcaster

FIRST_VERSION: Final = 1
"""The version of a checkpoint that was written without one."""

_INT4_MAX: Final = 2**31 - 1
# Prefixes of LangGraph's own channels, for scheduling and pending input.
_OWN: Final = ("__", "branch:", "join:")
# The version of a channel that was never written to; LangGraph's own versions start at 1.
_NO_WRITE: Final = f"{0:032}.{0:016}"


class StateVersions:
    """The current version of a program's state, and the upcasters of older versions. Immutable.

    Args:
        version: The version to write with checkpoints. `None` writes no version, and means version 1.
        upcasters: Functions by target version. Each function takes channel values of the version before.

    Raises:
        ConfigurationError: If the version is not a positive integer, or the upcasters have a gap.
    """

    def __init__(self, version: int | None = None, upcasters: Mapping[int, Upcaster] | None = None) -> None:
        if version is not None and (type(version) is not int or not FIRST_VERSION <= version <= _INT4_MAX):
            raise ConfigurationError(f"state_version must be an integer from {FIRST_VERSION} on, not {version!r}")
        if not isinstance(upcasters, Mapping | None):
            raise ArgumentTypeError(f"upcasters must be a mapping, not {type(upcasters).__name__}")
        given = dict(upcasters or {})
        if given and version is None:
            raise ConfigurationError("state_version must be given with upcasters, as their greatest version")
        for target, function in given.items():
            if type(target) is not int or not callable(function):
                raise ConfigurationError("upcasters must map each new version to a function, like {2: f, 3: g}")
        self.version = version
        self.current = version or FIRST_VERSION
        self.oldest = min(given, default=self.current + 1) - 1
        if sorted(given) != list(range(self.oldest + 1, self.current + 1)) or self.oldest < FIRST_VERSION:
            raise ConfigurationError(
                f"upcasters must lead from version {FIRST_VERSION + 1} or a later one to state_version {self.current} "
                f"without a gap, got {sorted(given)}: a version without changes needs a function, too"
            )
        self._steps = {target: (function, _takes_namespace(function)) for target, function in given.items()}

    def is_current(self, found: int | None) -> bool:
        """Return whether a checkpoint of this version needs no upcaster."""
        return (FIRST_VERSION if found is None else found) == self.current

    def upcast(self, loaded: CheckpointTuple, found: int | None) -> CheckpointTuple:
        """Return a checkpoint with channel values of the current version.

        An upcaster with one parameter is called for the root namespace only. LangGraph's own channels (`__…`,
        `branch:…`, `join:…`) are kept even if the upcaster leaves them out. Snapshots of DeltaChannels are kept
        unchanged, because the stored writes that follow them are not upcast either. A new channel triggers no node that
        has run before.

        Args:
            loaded: The checkpoint. Its values may be changed in place.
            found: The version with which the checkpoint was written.

        Raises:
            StateVersionError: If the version is newer than this program knows, or too old for its upcasters.
            UpcastError: If an upcaster fails.
        """
        version = FIRST_VERSION if found is None else found
        if version == self.current:
            return loaded
        configurable = loaded.config["configurable"]
        namespace = configurable.get("checkpoint_ns", "")
        where = f"checkpoint {configurable.get('checkpoint_id')!r} of thread {configurable.get('thread_id')!r}"
        if namespace:
            where += f" namespace {namespace!r}"
        if not self.oldest <= version < self.current:
            raise StateVersionError(where, version, self.version, self.oldest)
        before: dict[str, Any] = loaded.checkpoint["channel_values"]
        snapshots = {name: value for name, value in before.items() if type(value) is DeltaSnapshot}
        values = {name: value for name, value in before.items() if name not in snapshots}
        names = set(values)
        own = {name: value for name, value in values.items() if name.startswith(_OWN)}
        path = _path_of(namespace)
        for target in range(version + 1, self.current + 1):
            function, takes_namespace = self._steps[target]
            if not values or (path and not takes_namespace):
                continue
            try:
                made = function(dict(values), path) if takes_namespace else function(dict(values))
            except Exception as error:
                raise UpcastError(where, target, f"{type(error).__name__}: {error}") from error
            if not isinstance(made, Mapping):
                raise UpcastError(where, target, f"it returned {type(made).__name__}, not a dict of channel values")
            if odd := [name for name in made if type(name) is not str]:
                raise UpcastError(where, target, f"it returned the key {odd[0]!r}; keys must be strings")
            if taken := sorted(made.keys() & snapshots.keys()):
                raise UpcastError(where, target, f"{taken[0]!r} is a DeltaChannel here, which cannot be replaced")
            values = {**{name: value for name, value in own.items() if name not in made}, **made}
        return loaded._replace(checkpoint=_with_values(loaded.checkpoint, {**snapshots, **values}, names))


UNVERSIONED: Final = StateVersions()


def _with_values(checkpoint: Any, values: dict[str, Any], before: set[str]) -> Any:
    """Return a checkpoint with other values. Mark new channels as seen by every node."""
    versions: dict[str, Any] = checkpoint["channel_versions"]
    added = [name for name in values if name not in before and name not in versions]
    changed = {**checkpoint, "channel_values": values}
    if added:
        # LangGraph takes the channels with the highest version for the latest writes, so use the lowest version.
        known = next(iter(versions.values()), "")
        new = dict.fromkeys(added, _NO_WRITE if isinstance(known, str) else type(known)(0))
        changed["channel_versions"] = {**versions, **new}
        changed["versions_seen"] = {
            node: {**seen, **new} if seen else seen for node, seen in checkpoint["versions_seen"].items()
        }
        if checkpoint.get("updated_channels") is not None:
            changed["updated_channels"] = [*checkpoint["updated_channels"], *added]
    return changed


def _path_of(namespace: str) -> str:
    """Return a namespace without task ids: `agent|research` for `agent:1f0…|research:1f1…`."""
    return "|".join(part.partition(":")[0] for part in namespace.split("|") if not part.isdigit())


def _takes_namespace(function: Upcaster) -> bool:
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(item.kind in positional and item.default is inspect.Parameter.empty for item in found) > 1


__all__ = ["FIRST_VERSION", "UNVERSIONED", "StateVersions", "Upcaster"]
