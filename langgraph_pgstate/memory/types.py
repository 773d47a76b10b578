"""Types of items and memories that are returned."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langgraph.store.base import SearchItem


class FoundItem(SearchItem):
    """An item that a search found, with its ranks.

    Attributes:
        score: Similarity to the query by the index's distance; `None` if the item was found by words alone.
        vector_rank: The rank by similarity, from 1; `None` if the item has no embedding.
        words_rank: The rank by words, from 1; `None` if the item has no word of the query.
        kind: Kind of the memory; `None` for an item that is not a memory.
        importance: Importance of the memory, if it was given.
        rank_score: The score by which items are sorted: the fused ranks, with importance and age.
        is_tracked: Whether reads of the item are counted.
    """

    __slots__ = ("importance", "is_tracked", "kind", "rank_score", "vector_rank", "words_rank")

    def __init__(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: dict[str, Any],
        created_at: datetime,
        updated_at: datetime,
        score: float | None = None,
        *,
        vector_rank: int | None = None,
        words_rank: int | None = None,
        kind: str | None = None,
        importance: float | None = None,
        rank_score: float | None = None,
        is_tracked: bool = False,
    ) -> None:
        super().__init__(namespace, key, value, created_at, updated_at, score)
        self.vector_rank, self.words_rank = vector_rank, words_rank
        self.kind, self.importance, self.rank_score = kind, importance, rank_score
        self.is_tracked = is_tracked


@dataclass(frozen=True, slots=True)
class MemoryVersion:
    """One version of an item.

    Attributes:
        namespace: The namespace.
        key: The key.
        version: The number, from 1.
        value: The stored value.
        kind: Kind of the memory.
        importance: Importance of the memory in this version.
        valid_from: Time from which this version was valid.
        valid_to: Time at which this version was replaced or deleted; `None` for the current version.
        is_deleted: Whether the item was deleted at `valid_to`.
        deleted_by: User or service that deleted the item.
        changed_by: User or service that stored this version.
        thread_id: Thread in which this version was stored.
        run_id: Run that stored this version.
        checkpoint_id: Checkpoint of the superstep that stored this version.
        message_id: Message that caused this version.
    """

    namespace: tuple[str, ...]
    key: str
    version: int
    value: dict[str, Any]
    kind: str | None
    importance: float | None
    valid_from: datetime
    valid_to: datetime | None
    is_deleted: bool
    deleted_by: str | None
    changed_by: str | None
    thread_id: str | None
    run_id: str | None
    checkpoint_id: str | None
    message_id: str | None


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory: a text that an agent keeps beyond a conversation.

    Attributes:
        namespace: The namespace.
        key: The key within the namespace.
        version: Number of the version, from 1.
        content: The remembered text.
        metadata: Further data of the application.
        kind: `fact`, `preference`, `interaction`, `summary`, or the application's own.
        user_id: User whom the memory is about.
        agent: Agent that stored the memory.
        tenant_id: Tenant.
        importance: From 0 to 1; `None` if it was not given.
        duplicates: Number of times the memory was remembered again.
        created_at: Time at which the memory was first remembered; for an earlier version, its `valid_from`.
        updated_at: Time at which the memory was last remembered; for an earlier version, its `valid_from`.
        valid_from: Time from which this version is valid.
        valid_to: Time until which this version was valid; `None` for the current version.
        expires_at: Time at which the memory ends; `None` for never.
        changed_by: User or service that stored this version.
        thread_id: Thread in which this version was stored.
        run_id: Run that stored this version.
        checkpoint_id: Checkpoint of the superstep that stored this version.
        message_id: Message that caused this version.
        score: Similarity to the query; `None` without embeddings.
        vector_rank: The rank by similarity, from 1.
        words_rank: The rank by words, from 1.
        rank_score: The score by which memories are sorted: relevance, importance and age.
    """

    namespace: tuple[str, ...]
    key: str
    version: int
    content: str
    metadata: dict[str, Any]
    kind: str
    user_id: str | None
    agent: str | None
    tenant_id: str | None
    importance: float | None
    duplicates: int
    created_at: datetime
    updated_at: datetime
    valid_from: datetime
    valid_to: datetime | None
    expires_at: datetime | None
    changed_by: str | None
    thread_id: str | None
    run_id: str | None
    checkpoint_id: str | None
    message_id: str | None
    score: float | None = None
    vector_rank: int | None = None
    words_rank: int | None = None
    rank_score: float | None = None


@dataclass(frozen=True, slots=True)
class StoredItem:
    """A stored item, memory or progress notes.

    Attributes:
        namespace: The namespace.
        key: The key.
        version: Number of the version, from 1.
        value: The stored value.
        kind: Kind of the memory; `notes` for progress notes, `None` for other items.
        user_id: User whom the item is about.
        agent: Agent that stored the item.
        tenant_id: Tenant.
        importance: From 0 to 1; `None` if it was not given.
        duplicates: Number of times the item was remembered again.
        created_at: Time at which the item was first stored.
        updated_at: Time at which the item was last stored.
        valid_from: Time from which this version is valid.
        expires_at: Time at which the item ends; `None` for never.
        changed_by: User or service that stored this version.
        thread_id: Thread in which this version was stored.
        run_id: Run that stored this version.
        checkpoint_id: Checkpoint of the superstep that stored this version.
        message_id: Message that caused this version.
        accessed_at: Time at which the item was last read.
        access_count: Number of reads.
        message: The message that caused this version, if the message is recorded. Only `inspect` returns the message.
    """

    namespace: tuple[str, ...]
    key: str
    version: int
    value: dict[str, Any]
    kind: str | None
    user_id: str | None
    agent: str | None
    tenant_id: str | None
    importance: float | None
    duplicates: int
    created_at: datetime
    updated_at: datetime
    valid_from: datetime
    expires_at: datetime | None
    changed_by: str | None
    thread_id: str | None
    run_id: str | None
    checkpoint_id: str | None
    message_id: str | None
    accessed_at: datetime | None
    access_count: int
    message: Cause | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """A message that has caused a memory.

    Attributes:
        role: Role of the message.
        text: The beginning of the message's text.
        checkpoint_ns: Namespace of the checkpoint that added the message.
        checkpoint_id: Id of this checkpoint.
        channel: Channel of the message.
    """

    role: str | None
    text: str
    checkpoint_ns: str
    checkpoint_id: str
    channel: str


@dataclass(frozen=True, slots=True)
class Caused:
    """A version of an item, with its cause.

    Attributes:
        namespace: Namespace of the item.
        key: The key.
        version: Number of the version.
        value: The stored value.
        kind: Kind of the memory.
        valid_from: Time from which this version was valid.
        valid_to: Time at which this version was replaced or deleted; `None` for the current version.
        is_deleted: Whether the item was deleted at `valid_to`.
        changed_by: User or service that stored this version.
        thread_id: Thread in which this version was stored.
        run_id: Run that stored this version.
        message_id: Message that caused this version.
    """

    namespace: tuple[str, ...]
    key: str
    version: int
    value: dict[str, Any]
    kind: str | None
    valid_from: datetime
    valid_to: datetime | None
    is_deleted: bool
    changed_by: str | None
    thread_id: str | None
    run_id: str | None
    message_id: str | None
