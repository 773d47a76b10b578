"""Branches of a thread: its lineage, labels, forks, and how states differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph_pgstate.operations.checkpoints import differences
from langgraph_pgstate.operations.checkpoints.addresses import address_of, identifier, thread_id_of
from langgraph_pgstate.operations.threads import branches
from langgraph_pgstate.threads.common import AsyncThreadsBase, ThreadsBase
from langgraph_pgstate.types.branches import Branch, Difference, Label, LineageStep


class Branches(ThreadsBase):
    """A thread's branches, the names people give to checkpoints, and new threads made from old ones."""

    def branches(self, thread_id: str, *, checkpoint_ns: str = "", limit: int = 1000) -> tuple[Branch, ...]:
        """The leaves of a thread's history, newest first, each with its path. One query; reads no state.

        Args:
            thread_id: The thread.
            checkpoint_ns: A subgraph's namespace instead of the root's.
            limit: At most so many, the newest; 1,000 at most.

        Returns:
            None for a thread without checkpoints. The first is the head, unless clocks disagreed.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        filter = branches.request_branches(thread_id, checkpoint_ns, limit)
        return self._database.run(branches.list_branches, self._queries, filter)

    def lineage(self, config: Mapping[str, Any]) -> tuple[LineageStep, ...]:
        """What led to the checkpoint a config names, or to the newest: root first, itself last. One query.

        Raises:
            NotFoundError: If the config names a checkpoint that does not exist.
            ConfigurationError: If it names no thread.
        """
        return self._database.run(branches.get_lineage, self._queries, address_of(config))

    def label(self, config: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Give the checkpoint a config names, or the newest, a label, like `"before refund"`. Safe to repeat.

        A checkpoint has one label; another takes its place. A prune keeps what has one.

        Returns:
            The checkpoint's config.

        Raises:
            NotFoundError: If there is no such checkpoint.
            ConfigurationError: If the text is empty, longer than 200 characters, or of several lines.
        """
        return self._database.run(branches.put_label, self._queries, *branches.request_label(config, text))

    def unlabel(self, config: Mapping[str, Any]) -> bool:
        """Take away the label of the checkpoint a config names. Safe to repeat.

        Returns:
            Whether it had one.

        Raises:
            ConfigurationError: If the config names no checkpoint.
        """
        return self._database.run(branches.delete_label, self._queries, branches.request_unlabel(config))

    def labels(self, thread_id: str) -> tuple[Label, ...]:
        """A thread's labelled checkpoints, newest first. One query."""
        return self._database.run(branches.list_labels, self._queries, thread_id_of(thread_id))

    def find(self, thread_id: str, name: str) -> dict[str, Any]:
        """The config of the checkpoint that a label means, or an id, or four characters of an id that are its own.

        Args:
            thread_id: The thread.
            name: The label, or else the id or a part of it.

        Raises:
            NotFoundError: If there is no such checkpoint in the root namespace.
            ConfigurationError: If there are several.
        """
        parameters = thread_id_of(thread_id), identifier("name", name)
        return self._database.run(branches.find_checkpoint, self._queries, *parameters).config

    def fork(self, thread_id: str, checkpoint_id: str | None = None, to: str | None = None) -> dict[str, Any]:
        """Make a thread that starts from a checkpoint of another one. One transaction; safe to repeat.

        What led to the checkpoint comes along under the same ids: ancestors, their subgraphs, writes, messages, tool
        executions (so that results are reused) and labels; other branches do not, nor do runs, spans and events. What
        was written at the checkpoint itself, pending writes and subgraphs that wait, comes along while the thread has
        not moved on from it; else the fork stands where its superstep begins, and runs it anew. It is kept as long as
        its source: for the same time from its last touch, or until the same date. It costs what it copies, and a look
        at the metadata of the thread's subgraph checkpoints.

        Args:
            thread_id: The thread.
            checkpoint_id: Where to start from, in the root namespace; the newest when left out.
            to: The new thread's id; a random one when left out.

        Returns:
            The checkpoint's config in the new thread. `Thread.forked_from_thread_id` and an event of both threads tell
            where it came from.

        Raises:
            NotFoundError: If there is no such checkpoint.
            ConfigurationError: If `to` has a history already, other than this fork's. Nothing was written.
        """
        request = branches.request_fork(thread_id, checkpoint_id, to)
        return self._database.run(branches.fork_thread, self._queries, self._codec, request).config

    def diff(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> Difference:
        """How the states of two checkpoints differ, of one thread or of two. Two round trips.

        A DeltaChannel's value is told without its reducer: messages by their ids, other values in a row.

        Args:
            first: Config of the one; of a thread's newest where it names no checkpoint.
            second: Config of the other.

        Raises:
            NotFoundError: If one of them does not exist.
            UnsafeTypeError: If one holds a type that may not be built.
            CorruptStateError: If one is damaged.
        """
        addresses = address_of(first), address_of(second)
        states = self._database.run(differences.read_states, self._queries, self._codec, *addresses, self._versions)
        return differences.compare(states)


class AsyncBranches(AsyncThreadsBase):
    """Async twin of `Branches`."""

    async def branches(self, thread_id: str, *, checkpoint_ns: str = "", limit: int = 1000) -> tuple[Branch, ...]:
        """Async twin of `Threads.branches`."""
        filter = branches.request_branches(thread_id, checkpoint_ns, limit)
        return await self._database.run(branches.list_branches, self._queries, filter)

    async def lineage(self, config: Mapping[str, Any]) -> tuple[LineageStep, ...]:
        """Async twin of `Threads.lineage`."""
        return await self._database.run(branches.get_lineage, self._queries, address_of(config))

    async def label(self, config: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Async twin of `Threads.label`."""
        return await self._database.run(branches.put_label, self._queries, *branches.request_label(config, text))

    async def unlabel(self, config: Mapping[str, Any]) -> bool:
        """Async twin of `Threads.unlabel`."""
        return await self._database.run(branches.delete_label, self._queries, branches.request_unlabel(config))

    async def labels(self, thread_id: str) -> tuple[Label, ...]:
        """Async twin of `Threads.labels`."""
        return await self._database.run(branches.list_labels, self._queries, thread_id_of(thread_id))

    async def find(self, thread_id: str, name: str) -> dict[str, Any]:
        """Async twin of `Threads.find`."""
        parameters = thread_id_of(thread_id), identifier("name", name)
        return (await self._database.run(branches.find_checkpoint, self._queries, *parameters)).config

    async def fork(self, thread_id: str, checkpoint_id: str | None = None, to: str | None = None) -> dict[str, Any]:
        """Async twin of `Threads.fork`."""
        request = branches.request_fork(thread_id, checkpoint_id, to)
        return (await self._database.run(branches.fork_thread, self._queries, self._codec, request)).config

    async def diff(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> Difference:
        """Async twin of `Threads.diff`."""
        addresses = address_of(first), address_of(second)
        states = await self._database.run(
            differences.read_states, self._queries, self._codec, *addresses, self._versions
        )
        return differences.compare(states)
