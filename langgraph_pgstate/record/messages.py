"""Queries for conversations and for full-text search in messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.filters import MessageFilter
from langgraph_pgstate.operations.checkpoints.requests import thread_id_of
from langgraph_pgstate.operations.record import messages as operations
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Message, MessageHit, Page


class AsyncMessages:
    """Read access to `messages`. Reads no checkpoint state.

    Args:
        database: The database.
        queries: The queries of its schema.
    """

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    async def conversation(
        self,
        thread_id: str,
        last: int | None = None,
        max_tokens: int | None = None,
        checkpoint_id: str | None = None,
        *,
        channel: str | None = None,
    ) -> tuple[Message, ...]:
        """Return the messages of a branch at its end, in the channel's order. Two round trips.

        The result equals the channel's messages in the state. It also has messages older than the oldest checkpoint
        that a prune left. With `last` or `max_tokens`, the opening system messages come first, followed by the latest
        messages. The first of these may be a tool's answer without its tool call.

        Args:
            thread_id: The thread.
            last: Number of messages besides the opening system messages.
            max_tokens: Token limit, opening system messages included. A model's message counts the reported output
                tokens, any other one token per four bytes; each message counts three more.
            checkpoint_id: The branch's end; by default the newest checkpoint of the root namespace.
            channel: The channel; by default `messages`, or the last changed channel if the graph has no `messages`.

        Returns:
            The messages; empty if the thread has none.

        Raises:
            NotFoundError: If the checkpoint does not exist.
            ConfigurationError: If an argument is invalid.
        """
        filter = operations.request_conversation(thread_id_of(thread_id), channel, checkpoint_id, last, max_tokens)
        return await self._database.run(operations.get_conversation, self._queries, filter)

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
        request = operations.request_search(query, **filters)
        return await self._database.run(operations.search_messages, self._queries, request)

    async def find_hits(self, query: str, thread_ids: Sequence[str]) -> tuple[MessageHit, ...]:
        """Return for each of some threads the newest message that matches a search. One round trip.

        Args:
            query: As for `search`.
            thread_ids: The threads, at most 1,000. Those without such a message are left out.

        Raises:
            ConfigurationError: If the query is empty or an argument is invalid.
        """
        request = operations.request_hits(query, thread_ids)
        return await self._database.run(operations.find_hits, self._queries, request)


class Messages:
    """Blocking twin of `AsyncMessages`."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = BlockingRunner(database)
        self._queries = queries

    conversation = blocking(AsyncMessages.conversation)
    search = blocking(AsyncMessages.search)
    find_hits = blocking(AsyncMessages.find_hits)
