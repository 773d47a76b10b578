"""The part of both savers that needs no connection."""

from __future__ import annotations

import copy
import logging
import random
import time
from collections.abc import (
    Collection,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from langgraph_pgstate.arguments import Address, several
from langgraph_pgstate.call_site import CallSite
from langgraph_pgstate.checkpoints import getting
from langgraph_pgstate.checkpoints.hooks import PutHook, PutHooks, forget_thread
from langgraph_pgstate.checkpoints.listing import Page
from langgraph_pgstate.checkpoints.planning import PutPlan
from langgraph_pgstate.checkpoints.reading import load_tuple
from langgraph_pgstate.checkpoints.requests import PutRequest, request_put, root_of
from langgraph_pgstate.checkpoints.versions import StateVersions
from langgraph_pgstate.codec.serializer import state_serializer
from langgraph_pgstate.codec.states import Manifest
from langgraph_pgstate.codec.values import ValueCodec, encodes_as_utf8
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.errors import CheckpointOrderError, ConfigurationError
from langgraph_pgstate.langgraph_compat import advance_ids_past, warn_if_untested
from langgraph_pgstate.leases import guards
from langgraph_pgstate.options import DEFAULT_CACHE_BYTES, GuardSettings, SaverOptions, ThreadKeys, schema_of
from langgraph_pgstate.saver.cache import Cache
from langgraph_pgstate.saver.guarding import GuardPolicy
from langgraph_pgstate.schema.queries import Queries, queries

# `threads.updated_at` follows the newest checkpoint within this many seconds.
_TOUCH_SECONDS = 5.0
_MAX_TOUCHES = 100_000

_logger = logging.getLogger("langgraph_pgstate")


@dataclass(slots=True)
class SaverCache:
    """State that the clones of one saver share.

    Attributes:
        cache: Checkpoints that were stored or read.
        touch_due: For each thread, the time (monotonic, in seconds) from which a put updates the thread's row again.
        schema_checked: Whether the schema has this package's version.
    """

    cache: Cache
    touch_due: dict[str, float] = field(default_factory=dict)
    schema_checked: bool = False


class CommonSaver(BaseCheckpointSaver[str]):
    """The base class of both savers, which needs no connection."""

    _database: Database | AsyncDatabase
    _codec: ValueCodec
    _queries: Queries
    _saver_cache: SaverCache
    _hook: PutHook | None
    _thread_keys: ThreadKeys
    _states: StateVersions
    _passes_damage: bool
    _guards: GuardSettings
    _guard_policy: GuardPolicy | None
    # Whether a failed task's output is dropped, so that a worker that resumes the run repeats the task.
    _drops_failed_output: bool = False

    def _prepare(self, options: SaverOptions, hook: PutHook | None) -> None:
        states = StateVersions(options.get("state_version"), options.get("upcasters"))
        guards = GuardSettings.of(options)
        serde = state_serializer(options.get("serde"), options.get("allowed_types", ()), options.get("strict", False))
        on_corrupt = options.get("on_corrupt", "raise")
        cache_bytes = options.get("cache_bytes", DEFAULT_CACHE_BYTES)
        if on_corrupt not in ("raise", "previous"):
            raise ConfigurationError(f'on_corrupt must be "raise" or "previous", not {on_corrupt!r}')
        if type(cache_bytes) is not int or cache_bytes < 0:
            raise ConfigurationError(f"cache_bytes must be a number of bytes, 0 or more, not {cache_bytes!r}")
        warn_if_untested()
        self._codec = ValueCodec(serde)
        super().__init__(serde=self._codec.serde)
        self._queries = queries(schema_of(options))
        self._saver_cache = SaverCache(Cache(cache_bytes))
        self._hook = hook
        self._thread_keys = options.get("thread_keys") or ThreadKeys()
        self._states = states
        self._passes_damage = on_corrupt == "previous"
        self._guards = guards
        self._guard_policy = GuardPolicy(guards) if guards.is_on else None

    @property
    def schema(self) -> str:
        """The PostgreSQL schema of the tables."""
        return self._queries.schema

    def stores_in(self, database: Database | AsyncDatabase, schema: str) -> bool:
        """Return whether the saver stores in `schema` through the connections of `database`."""
        return self._database is database and self.schema == schema

    def share_cache_of(self, other: CommonSaver, tenant: str) -> None:
        """Use one tenant's part of another saver's cache."""
        self._saver_cache = SaverCache(other._saver_cache.cache.of_tenant(tenant))

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the version after `current`, in the form that LangGraph's own PostgreSQL saver uses."""
        number = 0 if current is None else current if isinstance(current, int) else int(current.split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # nosec B311 # a version is no secret

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return a shallow clone that may also build the given types, each as `(module, name)`.

        Return this saver if its serializer already allows all of the types.
        """
        codec = self._codec.with_allowlist(extra_allowlist)
        if codec is self._codec:
            return self
        clone = copy.copy(self)
        clone._codec = codec
        clone.serde = codec.serde
        return clone

    def _guarded(self, guards: GuardSettings, hook: PutHook) -> Self:
        clone = copy.copy(self)
        clone._hook = PutHooks(*filter(None, (self._hook, hook)))
        clone._guards, clone._guard_policy = guards, GuardPolicy(guards)
        clone._drops_failed_output = True
        return clone

    def _request(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[PutRequest, Manifest | None]:
        """Check the arguments of a put. Return the request, and the parent's manifest if it is cached.

        Raises:
            CheckpointOrderError: Under a guard, if the checkpoint's id does not sort after its parent's id.
            ConfigurationError: If the checkpoint would be its own parent.
        """
        cache = self._saver_cache.cache
        request = request_put(self._codec, config, checkpoint, metadata, new_versions, self._thread_keys)
        request.states = self._states
        if self._hook is not None and request.address.checkpoint_ns and (root := root_of(request, metadata)):
            request.root = cache.manifest(root)
        if request.parent is None:
            request.touches_thread = True
            return request, None
        parent_id = str(request.parent.checkpoint_id)
        parent = cache.manifest(request.parent)
        is_in_order = str(request.address.checkpoint_id) > parent_id
        if parent is None or not is_in_order:
            # Another process may have made the parent, by a clock that is ahead.
            advance_ids_past(parent_id)
        if not is_in_order:
            self._refuse_order(request.address, parent_id)
        request.touches_thread = self._saver_cache.touch_due.get(request.address.thread_id, 0) <= time.monotonic()
        return request, parent

    def _refuse_order(self, address: Address, parent_id: str) -> None:
        """Refuse a checkpoint that does not sort after its parent. Without a guard, log a wrong order."""
        checkpoint_id = str(address.checkpoint_id)
        if checkpoint_id == parent_id:
            raise ConfigurationError(
                f"config must name the parent of checkpoint {checkpoint_id}, not the checkpoint itself: pass the "
                "`parent_config` of its tuple"
            )
        error = CheckpointOrderError(address.thread_id, address.checkpoint_ns, checkpoint_id, parent_id)
        if self._guard_policy is None or not (self._guards.head or self._guards.lease):
            _logger.warning("%s", error)
            return
        self._guard_policy.note_refused(address, error)
        raise error

    def _note_put(self, plan: PutPlan) -> RunnableConfig:
        """Add a stored checkpoint to the cache, call the hook, and return the checkpoint's config."""
        address = plan.request.address
        self._saver_cache.cache.note_put(address, plan.manifest, plan.contents, plan.base_revisions)
        if plan.request.touches_thread:
            if len(self._saver_cache.touch_due) >= _MAX_TOUCHES:
                self._saver_cache.touch_due.clear()
            self._saver_cache.touch_due[address.thread_id] = time.monotonic() + _TOUCH_SECONDS
        if self._hook is not None and not plan.hook_refused:
            self._hook.after_put(plan)
        config: RunnableConfig = address.config  # type: ignore[assignment]
        return config

    def _load(self, found: getting.Found) -> CheckpointTuple:
        """Return a checkpoint, upcast to the current state version, and cache its segments."""
        loaded, manifest = load_tuple(self._codec, *found)
        row = found[0]
        if self._states.is_current(row.state_version):
            manifest.reuse_cached(self._saver_cache.cache.manifest(row.address))
            self._saver_cache.cache.note_read(row.address, manifest, found[1].contents)
            return loaded
        # Do not cache values of another state version, because the next put must not inherit such values.
        return self._states.upcast(loaded, row.state_version)

    def _load_uncached(self, found: getting.Found) -> CheckpointTuple:
        """Return a checkpoint without caching it, because it would displace checkpoints that runs need."""
        return self._states.upcast(load_tuple(self._codec, *found)[0], found[0].state_version)

    def _load_page(self, page: Page) -> Iterator[CheckpointTuple]:
        loaded = page.load(self._codec, self._states, skip_damaged=self._passes_damage)
        # A run that starts from a listed checkpoint forks deliberately, so the checkpoints are marked for the guards.
        return loaded if self._guard_policy is None else map(guards.as_past, loaded)

    def _call_site(self) -> CallSite | None:
        return CallSite.here() if self._guards.lease else None

    def _forget(self, *thread_ids: str) -> None:
        for thread_id in thread_ids:
            self._saver_cache.cache.discard_thread(thread_id)
            if self._database.keys is not None:
                self._database.keys.forget_thread(thread_id)
            # The thread's row may have been deleted, so the next put inserts it.
            self._saver_cache.touch_due.pop(thread_id, None)
            if self._hook is not None:
                forget_thread(self._hook, thread_id)


def run_ids_of(run_ids: Sequence[str]) -> list[str]:
    """Return the run ids without ids that PostgreSQL cannot store as text.

    Raises:
        ArgumentTypeError: If `run_ids` is one string instead of several.
    """
    return [id for id in map(str, several("run_ids", run_ids)) if id and "\0" not in id and encodes_as_utf8(id)]
