"""The methods of both stores that remember, recall and forget memories, and return versions of items."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from langgraph_pgstate.arguments import identifier, text_of
from langgraph_pgstate.call_site import RunOf
from langgraph_pgstate.db.protocol import read
from langgraph_pgstate.db.runners import Runner, blocking
from langgraph_pgstate.errors import ConfigurationError, NotFoundError
from langgraph_pgstate.memory import browsing, memories
from langgraph_pgstate.memory.indexes import OpenIndex
from langgraph_pgstate.memory.items import Embedded, Origin, Put, Search, Traits, current_origin, limit_of
from langgraph_pgstate.memory.memories import NOTES, Forgetting, digest_of, owner_of
from langgraph_pgstate.memory.namespaces import Namespace, labels_of
from langgraph_pgstate.memory.notes import AsyncNotes, Notes
from langgraph_pgstate.memory.options import Settings
from langgraph_pgstate.memory.spans import recorded
from langgraph_pgstate.memory.texts import json_value, texts_of
from langgraph_pgstate.memory.types import Caused, FoundItem, Memory, MemoryVersion, StoredItem
from langgraph_pgstate.paging import Page
from langgraph_pgstate.schema.queries import Queries


class AsyncMemories:
    """The methods of `AsyncPGMemoryStore` on memories, and on versions of items."""

    queries: Queries
    settings: Settings
    runner: Runner
    _run_of: RunOf | None

    async def _embed(self, puts: Sequence[Put]) -> tuple[list[Embedded], bool]:
        raise NotImplementedError

    async def _put(self, puts: Sequence[Put], origin: Origin, traits: Traits) -> None:
        raise NotImplementedError

    async def _find(self, search: Search, *, refreshes: bool) -> list[FoundItem]:
        raise NotImplementedError

    async def _indexes(self) -> tuple[OpenIndex, ...]:
        raise NotImplementedError

    @recorded("upsert_memory", lambda content, kind="fact", *, key=None, **_: (key, None))
    async def remember(
        self,
        content: str,
        kind: str = "fact",
        *,
        key: str | None = None,
        user_id: str | None = None,
        agent: str | None = None,
        tenant_id: str | None = None,
        importance: float | None = None,
        expires_at: datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        thread_id: str | None = None,
        run_id: str | None = None,
        checkpoint_id: str | None = None,
        message_id: str | None = None,
        namespace: Sequence[str] | None = None,
        by: str | None = None,
    ) -> Memory:
        """Store a memory, or count a duplicate of a stored memory.

        A duplicate has the namespace and kind of a stored memory, and differs at most in case, spaces and punctuation.
        The stored memory gets the greater importance and the later end. A similar content (`merge_similarity`) replaces
        the stored memory, and the old version is kept. One transaction: of two equal calls at once, one stores the
        memory, and the other counts a duplicate.

        Args:
            content: The text of the memory.
            kind: `fact`, `preference`, `interaction`, `summary`, or a kind of your own.
            key: A name, such as `diet`. The memory replaces an earlier memory of this name. By default, a digest of
                kind and content; with encryption, a random text.
            user_id: User whom the memory is about.
            agent: Agent that stores the memory.
            tenant_id: Tenant whose memory it is.
            importance: From 0 to 1.
            expires_at: Time at which the memory ends; by default after the `default_ttl` of the store, or never.
            metadata: Further data, as JSON.
            thread_id: Thread in which the memory is stored; by default the thread of the running graph.
            run_id: Run that stores the memory; by default the calling run, if it runs on this thread.
            checkpoint_id: Checkpoint from which the storing superstep starts; by default that of the running superstep.
            message_id: Message that caused the memory.
            namespace: The namespace; by default `("memories", "tenant", …, "user", …, "agent", …)` with the given ids.
            by: Name of the person or service that stores the memory; by default the user of the running graph.

        Raises:
            InvalidNamespaceError: If the namespace is invalid.
            ConfigurationError: If another argument is invalid.
            SerializationError: If the metadata cannot be stored.
        """
        owner, end = owner_of(tenant_id, user_id, agent), memories.end_of(expires_at)
        where = memories.where_of(owner, namespace)
        ttl = None if end is not None else self._default_ttl(where)
        told = await self.runner.compute(
            metadata,
            memories.told_of,
            content,
            kind,
            owner,
            key=key,
            namespace=where,
            importance=importance,
            expires_at=end,
            metadata=metadata,
            ttl=ttl,
        )
        origin = self.origin(by)
        if thread_id is not None and thread_id != origin.thread_id:
            # Leave out the current run and checkpoint, which belong to another thread.
            origin = Origin(origin.changed_by, text_of("thread_id", thread_id))
        if run_id is not None:
            origin = origin._replace(run_id=text_of("run_id", run_id))
        if checkpoint_id is not None:
            origin = origin._replace(checkpoint_id=text_of("checkpoint_id", checkpoint_id))
        origin = origin._replace(message_id=text_of("message_id", message_id))
        embedded, is_unindexed = await self._embed([told.put])
        return await self.runner.run(
            memories.remember,
            self.queries,
            told,
            embedded,
            language=self.settings.language,
            history=self.settings.history,
            similarity=self.settings.merge_similarity,
            origin=origin,
            is_unindexed=is_unindexed,
        )

    async def recall(
        self,
        query: str | None = None,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        tenant_id: str | None = None,
        kinds: Sequence[str] | None = None,
        limit: int = 5,
        as_of: datetime | None = None,
        half_lives: Mapping[str, timedelta] | None = None,
        importance_weight: float = 0.0,
        namespace: Sequence[str] | None = None,
    ) -> list[Memory]:
        """Return memories, best match of a query first; without a query, last remembered first.

        The namespace of a memory must begin with the given ids, in the order tenant, user, agent. `user_id` alone finds
        the user's memories of all agents, except memories that were stored with a tenant.

        Args:
            query: The text to search for.
            user_id: User whom the memories are about.
            agent: Agent that stored the memories.
            tenant_id: Tenant.
            kinds: Only these kinds.
            limit: Maximum number of memories.
            as_of: Return versions that were valid at this time and are still kept. Such versions are found by words
                only. Memories that have expired by now are left out.
            half_lives: By kind, the time in which the rank score of a memory halves, from when the memory was last
                remembered. Memories of other kinds keep their score.
            importance_weight: Weight of the importance, from 0, the default, to 1. With 1, a memory of importance 1
                counts three times as much as a memory of importance 0.
            namespace: Labels with which the namespaces begin, instead of labels made from the ids.

        Raises:
            InvalidNamespaceError: If the namespace is invalid.
            ConfigurationError: If another argument is invalid.
        """
        owner, moment = owner_of(tenant_id, user_id, agent), memories.as_of_of(as_of)
        asked = memories.recall_of(query, owner, namespace, kinds, limit, half_lives, importance_weight)
        if moment is not None:
            return await self.runner.run(memories.recall_as_of, self.queries, asked, moment, self.settings.language)
        search = Search(
            asked.prefix,
            None,
            asked.limit,
            0,
            asked.query,
            asked.kinds,
            asked.importance_weight,
            asked.half_lives,
        )
        refreshes = (self.settings.ttl or {}).get("refresh_on_read", True)
        found = await self._find(search, refreshes=refreshes)
        return await self.runner.run(memories.complete, self.queries, found)

    async def forget(
        self,
        key: str | None = None,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        tenant_id: str | None = None,
        kinds: Sequence[str] | None = None,
        namespace: Sequence[str] | None = None,
        purge: bool = False,
        by: str | None = None,
    ) -> int:
        """Delete memories, and return their number. Items that are not memories are kept. Safe to repeat.

        Args:
            key: Only the memory with this key, in exactly the namespace that the other arguments name. Without a key,
                memories of all namespaces that begin with this namespace are deleted.
            user_id: User whom the memories are about.
            agent: Agent that stored the memories.
            tenant_id: Tenant.
            kinds: Only these kinds.
            namespace: The namespace, instead of a namespace made from the ids.
            purge: Whether to delete all versions, including those of memories that were forgotten earlier. If false,
                `restore` can store the memories again.
            by: Name of the person or service that deletes the memories; by default the user of the running graph.

        Raises:
            ConfigurationError: If an argument is invalid, or no key, owner or namespace is given.
        """
        owner = owner_of(tenant_id, user_id, agent)
        return await self.forget_asked(memories.forgetting_of(owner, namespace, key, kinds, purge), by)

    @recorded("delete_memory", lambda asked, _: (asked.key, None))
    async def forget_asked(self, asked: Forgetting, by: str | None) -> int:
        """Delete memories as `forget` does, by validated arguments."""
        total = 0
        options: Any = {"history": self.settings.history, "deleted_by": self.origin(by).changed_by}
        indexes, run = await self._indexes(), self.runner.run
        while (count := await run(memories.forget_some, self.queries, asked, indexes, **options)) is not None:
            total += count
        if asked.purges:
            await run(memories.purge_versions, self.queries, asked)
        return total

    async def history(
        self, namespace: Sequence[str], key: str, *, limit: int = 100, before: int | None = None
    ) -> list[MemoryVersion]:
        """Return the versions of an item, newest first, each with its value, author, time and run.

        The store's option `history` limits the number of earlier versions, except of progress notes. An expired item
        has no versions.

        Args:
            namespace: Namespace of the item, or of the memory.
            key: The key.
            limit: Maximum number of versions.
            before: Only versions before this one.

        Raises:
            InvalidNamespaceError: If the namespace is invalid.
            ConfigurationError: If another argument is invalid.
        """
        labels, name = labels_of(namespace), identifier("key", key)
        oldest = None if before is None else memories.version_of(before, name="before")
        options: Any = {"limit": limit_of(limit), "before": oldest}
        return await self.runner.run(memories.list_versions, self.queries, labels, name, **options)

    async def restore(
        self,
        namespace: Sequence[str],
        key: str,
        version: int,
        *,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> MemoryVersion:
        """Store an earlier version of an item as a new version, even if the item was deleted.

        The new version expires when the current version would expire.

        Args:
            namespace: Namespace of the item, or of the memory.
            key: The key.
            version: Number of the version to store again.
            expected_version: Restore only if this is the current version; 0 to restore only a deleted item. By default,
                restore in any case.
            by: Name of the person or service that restores the item; by default the user of the running graph.

        Raises:
            NotFoundError: If there is no such version, or the item has expired.
            StaleMemoryError: If the item has another version than expected.
            ConfigurationError: If an argument is invalid.
        """
        labels, name = labels_of(namespace), identifier("key", key)
        row = await self.runner.run(
            memories.version_to_restore, self.queries, labels, name, memories.version_of(version)
        )
        put, traits = await self.runner.compute(row[0], self._restored, labels, name, row)
        if expected_version is not None:
            expected = memories.version_of(expected_version, name="expected_version", least=0)
            return await self._replace(put, traits, expected, by)
        await self._put([put], self.origin(by), traits)
        found = await self.runner.run(memories.list_versions, self.queries, labels, name, limit=1)
        if not found:
            raise NotFoundError(f"{name!r} in namespace {labels} was restored, but then another call purged it")
        return found[0]

    async def edit(
        self,
        namespace: Sequence[str],
        key: str,
        value: Mapping[str, Any],
        *,
        expected_version: int,
        by: str | None = None,
    ) -> MemoryVersion:
        """Replace the value of an item. The item keeps its kind, owner, importance, indexed fields and end.

        Args:
            namespace: Namespace of the item, or of the memory.
            key: The key.
            value: The new value. The text of a memory is under the key `content`.
            expected_version: The version that must be current.
            by: Name of the person or service that changes the item; by default the user of the running graph.

        Raises:
            StaleMemoryError: If another writer has changed or deleted the item. The error names writer and time.
            ConfigurationError: If an argument is invalid.
            SerializationError: If the value cannot be stored.
        """
        labels, name = labels_of(namespace), identifier("key", key)
        expected = memories.version_of(expected_version, name="expected_version")
        content = await self.runner.compute(value, json_value, value)
        row = await self.runner.run(memories.version_to_change, self.queries, labels, name, expected)
        text = value.get(memories.CONTENT)
        if row[1] not in (None, NOTES) and not (isinstance(text, str) and text.strip()):
            raise ConfigurationError("value must have a text as its content, because the item is a memory")
        put, traits = await self.runner.compute(
            value, lambda: self._restored(labels, name, (json.loads(content), *row[1:]))
        )
        return await self._replace(put, traits, expected, by)

    async def remove(
        self, namespace: Sequence[str], key: str, *, expected_version: int, purge: bool = False, by: str | None = None
    ) -> None:
        """Delete an item, a memory or progress notes, if it has the expected version.

        Args:
            namespace: The namespace.
            key: The key.
            expected_version: The version that must be current.
            purge: Whether to delete the item's versions, too. If false, `restore` can store the item again.
            by: Name of the person or service that deletes the item; by default the user of the running graph.

        Raises:
            StaleMemoryError: If another writer has changed or deleted the item. The error names writer and time. With
                `purge`, an item without any version counts as purged already.
            ConfigurationError: If an argument is invalid.
        """
        labels, name = labels_of(namespace), identifier("key", key)
        await self.runner.run(
            memories.remove,
            self.queries,
            labels,
            name,
            await self._indexes(),
            history=self.settings.history,
            purges=purge,
            deleted_by=self.origin(by).changed_by,
            expected_version=memories.version_of(expected_version, name="expected_version"),
        )

    async def _replace(self, put: Put, traits: Traits, expected_version: int, by: str | None) -> MemoryVersion:
        embedded, is_unindexed = await self._embed([put])
        return await self.runner.run(
            memories.put_if_unchanged,
            self.queries,
            put,
            embedded,
            language=self.settings.language,
            history=self.settings.history,
            origin=self.origin(by),
            traits=traits,
            is_unindexed=is_unindexed,
            expected_version=expected_version,
        )

    async def browse(
        self,
        *,
        user_id: str | None = None,
        namespace: Sequence[str] | None = None,
        kind: str | None = None,
        agent: str | None = None,
        tenant_id: str | None = None,
        text: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[StoredItem]:
        """Return a page of stored items, memories and notes, last stored first. One round trip.

        This does not count as a read, and does not extend times to live.

        Args:
            user_id: Only items about this user.
            namespace: Only items whose namespace begins with these labels.
            kind: Only memories of this kind; `notes` for progress notes.
            agent: Only items that this agent stored.
            tenant_id: Only items of this tenant.
            text: Only items whose value contains this text, regardless of case.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid, or neither a user nor a namespace is given.
        """
        return await self.runner.run(
            read,
            self.queries,
            browsing.read_items(user_id, namespace, kind, agent, tenant_id, text, limit, cursor),
        )

    async def inspect(self, namespace: Sequence[str], key: str) -> StoredItem | None:
        """Return a stored item with the message that caused it, or `None`. One round trip; not counted as a read."""
        asked = browsing.read_item(labels_of(namespace), identifier("key", key))
        return await self.runner.run(read, self.queries, asked)

    async def caused_by(
        self, thread_id: str, *, run_id: str | None = None, message_ids: Sequence[str] | None = None, limit: int = 100
    ) -> tuple[Caused, ...]:
        """Return the versions of items that were stored in a thread, newest first. One round trip.

        Args:
            thread_id: The thread. With `message_ids`, also the threads from which it was forked.
            run_id: Only versions that this run has stored.
            message_ids: Only versions that these messages have caused.
            limit: Maximum number of versions.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self.runner.run(read, self.queries, browsing.read_caused(thread_id, run_id, message_ids, limit))

    async def notes(
        self, task_id: str, *, user_id: str | None = None, agent: str | None = None, tenant_id: str | None = None
    ) -> AsyncNotes:
        """Return the progress notes of a task; empty notes if none are stored. One round trip.

        Args:
            task_id: Id of the task, chosen by the caller.
            user_id: User whose task it is.
            agent: Agent of the task.
            tenant_id: Tenant whose task it is.

        Raises:
            ConfigurationError: If an id is invalid.
        """
        notes = AsyncNotes(self, task_id, owner_of(tenant_id, user_id, agent))
        await notes.read()
        return notes

    def _restored(self, namespace: Namespace, key: str, row: Any) -> tuple[Put, Traits]:
        value, kind, user_id, agent, tenant_id, importance, fields, ttl, expires_at, is_there = row
        if not is_there:
            ttl, fields = self._default_ttl(namespace), {None: None, NOTES: ()}.get(kind, (memories.CONTENT,))
        indexed = None if fields is None else tuple(fields)
        texts = texts_of(value, self.settings.fields if indexed is None else indexed)
        content = value.get(memories.CONTENT)
        is_memory = kind not in (None, NOTES) and isinstance(content, str)
        digest = digest_of(kind, content) if is_memory else None
        put = Put(namespace, key, json_value(value), ttl, indexed, texts)
        return put, Traits(kind, user_id, agent, tenant_id, importance, expires_at, digest)

    def origin(self, by: str | None) -> Origin:
        """Return the origin of a memory that is stored now: the running graph, and `by` or else the graph's user."""
        origin = current_origin(self._run_of)
        return origin if by is None else origin._replace(changed_by=text_of("by", by))

    def _default_ttl(self, namespace: Namespace) -> float | None:
        minutes = self.settings.default_ttl_in(namespace)
        return None if minutes is None else minutes * 60


class Memories:
    """Blocking twin of `AsyncMemories`."""

    remember = blocking(AsyncMemories.remember)
    recall = blocking(AsyncMemories.recall)
    forget = blocking(AsyncMemories.forget)
    history = blocking(AsyncMemories.history)
    restore = blocking(AsyncMemories.restore)
    edit = blocking(AsyncMemories.edit)
    remove = blocking(AsyncMemories.remove)
    browse = blocking(AsyncMemories.browse)
    inspect = blocking(AsyncMemories.inspect)
    caused_by = blocking(AsyncMemories.caused_by)

    def notes(
        self, task_id: str, *, user_id: str | None = None, agent: str | None = None, tenant_id: str | None = None
    ) -> Notes:
        """Blocking twin of `AsyncMemories.notes`."""
        notes = Notes(self, task_id, owner_of(tenant_id, user_id, agent))
        notes.read()
        return notes

    _restored = AsyncMemories._restored
    forget_asked = AsyncMemories.forget_asked
    _replace = AsyncMemories._replace
    origin = AsyncMemories.origin
    _default_ttl = AsyncMemories._default_ttl
