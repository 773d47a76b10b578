"""Messages: the conversation of a thread, and searches in what was said."""

from __future__ import annotations

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.operations.checkpoints.addresses import thread_id_of
from langgraph_pgstate.operations.record import messages as operations
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Message, MessageHit, Page


class Messages:
    """Answers questions about messages. Reads no state.

    Args:
        database: Where the tables are.
        queries: The queries of their schema.
    """

    def __init__(self, database: Database, queries: Queries) -> None:
        self._database = database
        self._queries = queries

    def conversation(
        self,
        thread_id: str,
        last: int | None = None,
        max_tokens: int | None = None,
        checkpoint_id: str | None = None,
        *,
        channel: str | None = None,
    ) -> tuple[Message, ...]:
        """What was said on a branch, as it stands at its end, in the channel's order. Two round trips.

        They are those the state has there. Messages that are older than the oldest checkpoint a prune has left are
        there, too. With `last` or `max_tokens` the system messages that open the conversation
        come first, then what is nearest to its end; that may begin with a tool's answer whose question is cut off.

        Args:
            thread_id: The thread.
            last: So many messages besides the opening system messages.
            max_tokens: As many messages as fit these tokens together with the opening ones. An answer of a model
                counts what the model said, any other message a token for four bytes, and each three more.
            checkpoint_id: The branch's end; the newest checkpoint of the root namespace if not given.
            channel: The channel; if not given, `messages`, or the last that changed in a graph that has no such.

        Returns:
            The messages; none if the thread has none.

        Raises:
            NotFoundError: If the checkpoint does not exist.
            ConfigurationError: If an argument cannot be searched for.
        """
        filter = operations.request_conversation(thread_id_of(thread_id), channel, checkpoint_id, last, max_tokens)
        return self._database.run(operations.get_conversation, self._queries, filter)

    def search(
        self,
        query: str,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        thread_id: str | None = None,
        best_first: bool = False,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[MessageHit]:
        """A page of messages that hold some words, newest first, from every branch. One round trip.

        Removed messages are found: what was said was said. What an edit has replaced is not.

        Args:
            query: Words, all of which a message must hold; `"a phrase"`, `or` and `-without` as in web searches.
                Words are compared whole, without regard to case or grammar.
            user_id: Only in this user's threads.
            tenant_id: Only in this tenant's threads.
            thread_id: Only in this thread.
            best_first: The best fitting first.
            limit: Messages of a page, 1,000 at most.
            cursor: Where the page begins: `next` of the one before.

        Raises:
            ConfigurationError: If there is nothing to search for, or an argument cannot be searched for.
        """
        filter = operations.request_search(
            query,
            user_id=user_id,
            tenant_id=tenant_id,
            thread_id=None if thread_id is None else thread_id_of(thread_id),
            best_first=best_first,
            limit=limit,
            cursor=cursor,
        )
        return self._database.run(operations.search_messages, self._queries, filter)


class AsyncMessages:
    """Async twin of `Messages`."""

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
        """Async twin of `Messages.conversation`."""
        filter = operations.request_conversation(thread_id_of(thread_id), channel, checkpoint_id, last, max_tokens)
        return await self._database.run(operations.get_conversation, self._queries, filter)

    async def search(
        self,
        query: str,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        thread_id: str | None = None,
        best_first: bool = False,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[MessageHit]:
        """Async twin of `Messages.search`."""
        filter = operations.request_search(
            query,
            user_id=user_id,
            tenant_id=tenant_id,
            thread_id=None if thread_id is None else thread_id_of(thread_id),
            best_first=best_first,
            limit=limit,
            cursor=cursor,
        )
        return await self._database.run(operations.search_messages, self._queries, filter)
