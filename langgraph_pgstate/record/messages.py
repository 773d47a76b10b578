"""Chat messages: conversations, full-text search, and windows, for which messages are read page by page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Unpack

import orjson
from langchain_core.messages import BaseMessage

from langgraph_pgstate.arguments import Address, text_of, texts_of, thread_id_of
from langgraph_pgstate.checkpoints.differences import read_state
from langgraph_pgstate.checkpoints.reading import CheckpointRow, Segments, load_value
from langgraph_pgstate.checkpoints.versions import UNVERSIONED, StateVersions
from langgraph_pgstate.codec.states import Elements, Entry, Run, Slice
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection, Read, read_all
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.errors import ConfigurationError, ConflictError, NotFoundError
from langgraph_pgstate.heavy import HEAVY_BYTES, MANY_COMPARED
from langgraph_pgstate.langgraph_compat import DELTA_COUNTERS, DeltaSnapshot
from langgraph_pgstate.leases.guards import refuse_archived
from langgraph_pgstate.paging import MAX_PAGE, Page, check_filters, decode_cursor, read_page
from langgraph_pgstate.record.filters import MessageFilter
from langgraph_pgstate.record.types import Message, MessageHit
from langgraph_pgstate.record.windows import Budget, WindowOptions, budget_of, choose, needs_more
from langgraph_pgstate.schema.queries import Queries

_KINDS = {False: "messages, newest first", True: "messages, best first"}
_BYTES_PER_TOKEN, _TOKENS_PER_MESSAGE = 4, 3
_HIGHEST = 1e300
_CHANNEL = "messages"
_ATTEMPTS = 4
_PAGE: Final = 100


class Change(NamedTuple):
    """The last change of a message on a branch, without its text. `depth` is the number of checkpoints since then."""

    message_id: str
    checkpoint_id: str
    change: str
    role: str | None
    size: int
    output_tokens: int | None
    channel: str
    depth: int

    @property
    def tokens(self) -> int:
        """The message's tokens in a prompt: as reported by its model, else one token per four bytes."""
        if self.role == "ai" and self.output_tokens:
            return self.output_tokens + _TOKENS_PER_MESSAGE
        return -(-self.size // _BYTES_PER_TOKEN) + _TOKENS_PER_MESSAGE


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """The checked arguments of `conversation`."""

    thread_id: str
    channel: str | None
    checkpoint_id: str | None
    last: int | None
    max_tokens: int | None


def request_conversation(
    thread_id: str, channel: str | None, checkpoint_id: str | None, last: int | None, max_tokens: int | None
) -> ConversationFilter:
    """Check the arguments of `conversation`, and return them.

    Raises:
        ConfigurationError: If an argument is invalid or negative.
    """
    for name, value in (("last", last), ("max_tokens", max_tokens)):
        if value is not None and value < 0:
            raise ConfigurationError(f"{name} must be 0 or more, not {value}")
    return ConversationFilter(
        thread_id,
        text_of("channel", channel),
        text_of("checkpoint_id", checkpoint_id or None),
        last,
        max_tokens,
    )


async def get_conversation(db: Connection, queries: Queries, filter: ConversationFilter) -> tuple[Message, ...]:
    """Return the messages at the end of a branch. Two round trips; reads texts only of the returned messages.

    Raises:
        NotFoundError: If the named checkpoint does not exist.
    """
    key = {"thread_id": filter.thread_id, "checkpoint_id": filter.checkpoint_id}
    found = await last_changes(db, queries, filter.thread_id, filter.checkpoint_id, filter.channel)
    if not found:
        await refuse_archived(db, queries, filter.thread_id)
        if filter.checkpoint_id is not None and not (await db.fetch(queries.has_checkpoint, key))[0][0]:
            raise NotFoundError(f"there is no checkpoint {filter.checkpoint_id!r} of thread {filter.thread_id!r}")
    changes = _of_one_channel(found)
    present = [change for change in changes if change.change != "removed"]
    chosen = _window(present, filter.last, filter.max_tokens)
    if not chosen:
        return ()
    rows = await db.fetch(
        queries.get_messages,
        {
            "thread_id": filter.thread_id,
            "message_ids": [change.message_id for change in chosen],
            "checkpoint_ids": [change.checkpoint_id for change in chosen],
            "channel": chosen[0].channel,
        },
    )
    return tuple(Message(*row) for row in rows)


async def last_changes(
    db: Connection, queries: Queries, thread_id: str, checkpoint_id: str | None, channel: str | None = None
) -> list[Change]:
    """Return the last change of each message of a branch, or of one of its channels, in order. One round trip."""
    key = {"thread_id": thread_id, "checkpoint_id": checkpoint_id, "channel": channel}
    return [Change(*row) for row in await db.fetch(queries.get_message_outline, key)]


def _of_one_channel(changes: Sequence[Change]) -> Sequence[Change]:
    """Return the changes of the channel `messages`, or else of the channel that changed last."""
    channels = {change.channel for change in changes}
    if len(channels) <= 1:
        return changes
    newest = min(changes, key=lambda change: change.depth)
    channel = _CHANNEL if _CHANNEL in channels else newest.channel
    return [change for change in changes if change.channel == channel]


def _window(messages: Sequence[Change], last: int | None, max_tokens: int | None) -> list[Change]:
    """Return the opening system messages of a conversation, and the newest other messages within the limits.

    `last` limits only the other messages. The opening messages are never left out.
    """
    opening = 0
    while opening < len(messages) and messages[opening].role == "system":
        opening += 1
    head, rest = list(messages[:opening]), list(messages[opening:])
    if last is not None:
        rest = rest[max(0, len(rest) - last) :]
    if max_tokens is not None:
        left = max_tokens - sum(message.tokens for message in head)
        start = len(rest)
        while start and rest[start - 1].tokens <= left:
            start -= 1
            left -= rest[start].tokens
        rest = rest[start:]
    return head + rest


def search_messages(query: str, **filters: Unpack[MessageFilter]) -> Read[Page[MessageHit]]:
    """Return a `Read` of a page of messages that match a search, newest or best first.

    Raises:
        ConfigurationError: If the query is empty or an argument is invalid.
    """
    check_filters(filters, MessageFilter)
    best_first, thread_id = filters.get("best_first", False), filters.get("thread_id")
    beyond = decode_cursor(_KINDS[best_first], filters.get("cursor"), (_HIGHEST, "", "", "", ""))
    score, cursor_thread, message_id, checkpoint_id, cursor_channel = beyond
    parameters = {
        "query": _words(query),
        "by_rank": best_first,
        **texts_of(filters, "user_id", "tenant_id"),
        "thread_id": None if thread_id is None else thread_id_of(thread_id),
        "cursor_score": score,
        "cursor_thread": cursor_thread,
        "cursor_message": message_id,
        "cursor_id": checkpoint_id,
        "cursor_channel": cursor_channel,
    }
    return read_page("search_messages", parameters, filters.get("limit", 20), _hit, _KINDS[best_first], _position)


def find_hits(query: str, thread_ids: Sequence[str]) -> Read[tuple[MessageHit, ...]]:
    """Return a `Read` that finds, for each given thread, the newest message that matches a search.

    Raises:
        ConfigurationError: If the query is empty, or there are too many threads.
    """
    if len(thread_ids) > MAX_PAGE:
        raise ConfigurationError(f"thread_ids must have at most {MAX_PAGE} ids, got {len(thread_ids)}")
    ids = [thread_id_of(one) for one in thread_ids]
    return read_all("find_hits", {"query": _words(query), "thread_ids": ids}, _hit)


def _words(query: str) -> str:
    if not text_of("query", query) or not query.strip():
        raise ConfigurationError(f"query must contain a word to search for, got {query!r}")
    return query


def _hit(*columns: Any) -> MessageHit:
    return MessageHit(Message(*columns[:-2]), *columns[-2:])


def _position(hit: MessageHit) -> Sequence[Any]:
    message = hit.message
    return hit.score, message.thread_id, message.message_id, message.checkpoint_id, message.channel


@dataclass(slots=True)
class Pages:
    """The part of a conversation that is read so far: the first messages (`head`) and the last messages (`tail`).

    Attributes:
        left: The messages between `head` and `tail`, in groups of adjacent messages.
        page: Minimum number of messages that the next reading adds.
    """

    address: Address
    channel: str
    revision: int = 0
    left: list[Run] = field(default_factory=list)
    head: list[BaseMessage] = field(default_factory=list)
    tail: list[BaseMessage] = field(default_factory=list)
    page: int = _PAGE

    @property
    def where(self) -> str:
        """The channel and its checkpoint, for errors."""
        return f"channel {self.channel!r} of {self.address}"


async def open_pages(
    db: Connection,
    queries: Queries,
    codec: ValueCodec,
    versions: StateVersions | None,
    address: Address,
    channel: str,
    keep: Collection[str],
) -> Pages | None:
    """Return the first and the last page of a channel, or the whole channel if it is not stored message by message.

    Return `None` if the checkpoint was deleted or replaced meanwhile.

    Raises:
        NotFoundError: If the address names a checkpoint that does not exist.
        ConfigurationError: If the channel is not a list of messages.
    """
    rows = await db.fetch(queries.get_bare_checkpoint, address._asdict())
    if not rows:
        await refuse_archived(db, queries, address.thread_id)
        if address.checkpoint_id is not None:
            raise NotFoundError(f"there is no {address}")
        return Pages(address, channel)
    checkpoint_id, parent_id, metadata, data, segment_ids, revision, state_version = rows[0]
    address = address._replace(checkpoint_id=checkpoint_id)
    pages = Pages(address, channel, revision)
    row = CheckpointRow(address, parent_id, metadata, data, segment_ids, revision, state_version)
    entry = row.decode().manifest.entries.get(channel)
    is_delta = entry is None and channel in (orjson.loads(metadata).get(DELTA_COUNTERS) or {})
    if is_delta or not (versions or UNVERSIONED).is_current(state_version):
        _, values = await read_state(db, queries, codec, address, versions)
        pages.tail = _messages(pages, values.get(channel, []))
    elif isinstance(entry, Elements):
        pages.left = [*entry.runs]
        if not await read_older(db, queries, codec, pages):
            return None
        while pages.left and needs_more(pages.head, keep):
            if not await _read(db, queries, codec, pages, pages.left[:1], at_head=True):
                return None
    elif entry is not None and not await _read_whole(db, queries, codec, pages, entry):
        return None
    return pages


async def read_older(db: Connection, queries: Queries, codec: ValueCodec, pages: Pages) -> bool:
    """Read another page, twice as long as the page before. Return whether the checkpoint is unchanged."""
    first, count = len(pages.left), 0
    while first and count < pages.page:
        first -= 1
        count += pages.left[first].count
    pages.page *= 2
    return await _read(db, queries, codec, pages, pages.left[first:], at_head=False)


async def _read(
    db: Connection, queries: Queries, codec: ValueCodec, pages: Pages, runs: list[Run], *, at_head: bool
) -> bool:
    found = await _load(db, queries, codec, pages, Elements(tuple(runs)))
    if found is None:
        return False
    if at_head:
        pages.head, pages.left = pages.head + found, pages.left[len(runs) :]
    else:
        pages.tail, pages.left = found + pages.tail, pages.left[: len(pages.left) - len(runs)]
    return True


async def _read_whole(db: Connection, queries: Queries, codec: ValueCodec, pages: Pages, entry: Entry) -> bool:
    found = await _load(db, queries, codec, pages, entry)
    if found is None:
        return False
    pages.tail = found
    return True


async def _load(
    db: Connection, queries: Queries, codec: ValueCodec, pages: Pages, entry: Entry
) -> list[BaseMessage] | None:
    """Return the messages of an entry; `None` if its checkpoint was deleted or replaced."""
    ids = {run.segment_id for run in entry.runs} if isinstance(entry, Elements) else set()
    if isinstance(entry, Slice):
        ids.add(entry.segment_id)
    key = {**pages.address._asdict(), "revision": pages.revision, "segment_ids": sorted(ids)}
    rows = await db.fetch(queries.get_segments_of, key) if ids else []
    if ids and not rows:
        return None
    segments = Segments((id, data) for id, data in rows if id is not None)
    count = sum(run.count for run in entry.runs) if isinstance(entry, Elements) else 0
    load = partial(load_value, codec, entry, segments, pages.where)
    is_heavy = segments.size > HEAVY_BYTES or count > MANY_COMPARED
    value, _ = await db.compute(load) if is_heavy else load()
    return _messages(pages, value)


def _messages(pages: Pages, value: Any) -> list[BaseMessage]:
    value = value.value if type(value) is DeltaSnapshot else value
    if not isinstance(value, list) or not all(isinstance(message, BaseMessage) for message in value):
        raise ConfigurationError(f"{pages.where} must be a list of messages")
    return value


class AsyncMessages:
    """Recorded conversations, and windows of conversations for models: `state.messages`.

    Args:
        codec: Decodes states, for `window`; by default with LangGraph's serializer.
        versions: Converts states of older versions, for `window`.
        states: The database from which `window` reads states; by default `database`.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        queries: Queries,
        codec: ValueCodec | None = None,
        versions: StateVersions | None = None,
        states: AsyncDatabase | None = None,
    ) -> None:
        self._database, self._states = database, states or database
        self._queries, self._codec, self._versions = queries, codec or ValueCodec(), versions

    async def conversation(
        self,
        thread_id: str,
        last: int | None = None,
        max_tokens: int | None = None,
        checkpoint_id: str | None = None,
        *,
        channel: str | None = None,
    ) -> tuple[Message, ...]:
        """Return the messages at the end of a branch, in the channel's order. Two round trips.

        The messages are those of the state, also after a prune. With `last` or `max_tokens`, the opening system
        messages come first, followed by the latest messages. A tool's result may lack its call; `window` avoids that.

        Args:
            thread_id: The thread.
            last: Number of messages besides the opening system messages.
            max_tokens: Token limit, opening system messages included. A model's message counts as the output tokens
                that the model reported, any other message as one token per four bytes. Each counts three tokens more.
            checkpoint_id: The branch's end; by default the newest checkpoint of the root namespace.
            channel: The channel; by default `messages`, or the last changed channel if the graph has no `messages`.

        Returns:
            The messages; empty if the thread has none.

        Raises:
            NotFoundError: If the checkpoint does not exist.
            ConfigurationError: If an argument is invalid.
        """
        filter = request_conversation(thread_id_of(thread_id), channel, checkpoint_id, last, max_tokens)
        return await self._database.run(get_conversation, self._queries, filter)

    async def window(
        self,
        thread_id: str,
        *,
        checkpoint_id: str | None = None,
        channel: str = _CHANNEL,
        **options: Unpack[WindowOptions],
    ) -> list[BaseMessage]:
        """Return the newest messages of a thread that fit a budget, chosen as by the function `window`.

        Messages are read from the state, newest first, a page at a time, until no more fit. A DeltaChannel is read as a
        whole.

        Args:
            thread_id: The thread.
            checkpoint_id: The checkpoint; by default the newest of the root namespace.
            channel: The channel.
            **options: See `WindowOptions`.

        Returns:
            The messages as they are in the state; empty if there are none.

        Raises:
            NotFoundError: If the checkpoint does not exist.
            ConfigurationError: If an argument is invalid, or the channel is not a list of messages.
            ConflictError: If the state is deleted or replaced during each of four attempts.
        """
        address = Address(thread_id_of(thread_id), "", text_of("checkpoint_id", checkpoint_id or None))
        budget = budget_of(options)
        for _ in range(_ATTEMPTS):
            found = await self._window(address, channel, budget)
            if found is not None:
                return found
        raise ConflictError(f"{address} could not be read: other calls keep deleting or replacing this checkpoint")

    async def _window(self, address: Address, channel: str, budget: Budget) -> list[BaseMessage] | None:
        run, parts = self._states.run, (self._queries, self._codec)
        pages = await run(open_pages, *parts, self._versions, address, channel, budget.keep)
        while pages is not None:
            # No connection is held while tokens are counted.
            head, tail, is_whole = pages.head, pages.tail, not pages.left
            if is_whole:
                head, tail = [], head + tail
            weighed = [message.content for message in tail]
            found = await self._states.compute(weighed, choose, head, tail, budget, is_whole=is_whole)
            if found is not None:
                return found
            if not await run(read_older, *parts, pages):
                return None
        return None

    async def search(self, query: str, **filters: Unpack[MessageFilter]) -> Page[MessageHit]:
        """Return a page of messages that match a search, newest first, from every branch. One round trip.

        The search includes removed messages, and excludes text that an edit replaced.

        Args:
            query: Words that a message must all contain; `"a phrase"`, `or` and `-without` work as in web searches.
                Whole words are matched, without regard to case. There is no stemming.
            **filters: See `MessageFilter`.

        Raises:
            ConfigurationError: If the query is empty or an argument is invalid.
        """
        return await self._database.read(self._queries, search_messages(query, **filters))

    async def find_hits(self, query: str, thread_ids: Sequence[str]) -> tuple[MessageHit, ...]:
        """Return, for each given thread, the newest message that matches a search. One round trip.

        Args:
            query: As for `search`.
            thread_ids: The threads, at most 1,000. Threads without such a message are left out.

        Raises:
            ConfigurationError: If the query is empty or an argument is invalid.
        """
        return await self._database.read(self._queries, find_hits(query, thread_ids))


class Messages:
    """Blocking twin of `AsyncMessages`."""

    def __init__(
        self,
        database: Database,
        queries: Queries,
        codec: ValueCodec | None = None,
        versions: StateVersions | None = None,
        states: Database | None = None,
    ) -> None:
        self._database, self._states = BlockingRunner(database), BlockingRunner(states or database)
        self._queries, self._codec, self._versions = queries, codec or ValueCodec(), versions

    conversation = blocking(AsyncMessages.conversation)
    window = blocking(AsyncMessages.window)
    _window = AsyncMessages._window
    search = blocking(AsyncMessages.search)
    find_hits = blocking(AsyncMessages.find_hits)
