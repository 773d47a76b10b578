"""Branches of a thread: lineage, labels, forks and differences."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from langgraph_pgstate.db.runners import blocking
from langgraph_pgstate.operations.checkpoints import differences
from langgraph_pgstate.operations.checkpoints.requests import address_of, identifier, thread_id_of
from langgraph_pgstate.operations.threads import branches, trees
from langgraph_pgstate.settings import ThreadOwner
from langgraph_pgstate.threads.common import AsyncThreadsBase, ThreadsBase
from langgraph_pgstate.types.branches import Branch, CheckpointState, CheckpointTree, Difference, Label, LineageStep


class AsyncBranches(AsyncThreadsBase):
    """Access to a thread's branches, labels, forks and differences."""

    async def branches(self, thread_id: str, *, checkpoint_ns: str = "", limit: int = 1000) -> tuple[Branch, ...]:
        """Return the leaves of a thread's history, newest first, each with its path. One query; reads no state.

        Args:
            thread_id: The thread.
            checkpoint_ns: Namespace of a subgraph; by default the root's.
            limit: Maximum number of leaves, 1,000 at most.

        Returns:
            The branches; empty for a thread without checkpoints. The first is the head, unless clocks disagreed.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        filter = branches.request_branches(thread_id, checkpoint_ns, limit)
        return await self._database.run(branches.list_branches, self._queries, filter)

    async def tree(
        self, thread_id: str, checkpoint_id: str | None = None, *, checkpoint_ns: str = "", limit: int = 200
    ) -> CheckpointTree:
        """Return the part of a thread's tree of checkpoints around one, newest first. One query; reads no state.

        Args:
            thread_id: The thread.
            checkpoint_id: The checkpoint in the middle; by default the newest are returned.
            checkpoint_ns: Namespace of a subgraph; by default the root's.
            limit: Maximum number of checkpoints, 1,000 at most.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        request = trees.request_tree(thread_id, checkpoint_id, checkpoint_ns, limit)
        return await self._database.run(trees.list_tree, self._queries, request)

    async def find_step(self, thread_id: str, step: int, *, checkpoint_ns: str = "") -> str | None:
        """Return the newest checkpoint of a superstep, or of the last one before it. One query; reads no state.

        Args:
            thread_id: The thread.
            step: The superstep.
            checkpoint_ns: Namespace of a subgraph; by default the root's.

        Returns:
            Its id; that of the first checkpoint if all are of later supersteps, `None` if there are none.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        request = trees.request_step(thread_id, step, checkpoint_ns)
        return await self._database.run(trees.find_step, self._queries, request)

    async def state_at(self, config: Mapping[str, Any]) -> CheckpointState:
        """Return a checkpoint with its state, by default the newest. One round trip, two more with DeltaChannels.

        For people who look at it: types of the application are plain data, and none is imported. A DeltaChannel's value
        is rebuilt as by `diff`.

        Raises:
            NotFoundError: If there is no such checkpoint.
            CorruptStateError: If it is damaged.
        """
        codec = self._codec.without_types()
        return await self._database.run(trees.read_checkpoint, self._queries, codec, address_of(config), self._versions)

    async def lineage(self, config: Mapping[str, Any]) -> tuple[LineageStep, ...]:
        """Return the ancestors of a checkpoint, root first, and itself last; by default of the newest. One query.

        Raises:
            NotFoundError: If the config names a checkpoint that does not exist.
            ConfigurationError: If the config names no thread.
        """
        return await self._database.run(branches.get_lineage, self._queries, address_of(config))

    async def label(
        self,
        config: Mapping[str, Any],
        text: str,
        *,
        by: str | None = None,
        unless_done_within: timedelta | None = None,
    ) -> dict[str, Any]:
        """Label a checkpoint, like `"before refund"`; by default the newest. Safe to repeat.

        A checkpoint has at most one label; a new one replaces it. A prune keeps labelled checkpoints.

        Args:
            config: Config of the checkpoint.
            text: The label.
            by: Name of the person who does it, for an event of the kind `action`.
            unless_done_within: Refuse it if a person has labelled the checkpoint within this time: since the caller
                looked at it. `None`: label it in any case.

        Returns:
            The checkpoint's config.

        Raises:
            NotFoundError: If there is no such checkpoint.
            AlreadyDoneError: If a person has labelled it within that time.
            ConfigurationError: If the text is empty, longer than 200 characters, or has several lines.
        """
        request = branches.request_label(config, text)
        return await self._database.run(branches.put_label, self._queries, *request, by, unless_done_within)

    async def unlabel(
        self, config: Mapping[str, Any], *, by: str | None = None, unless_done_within: timedelta | None = None
    ) -> bool:
        """Remove the label of a checkpoint. Safe to repeat. The options are those of `label`.

        Returns:
            Whether the checkpoint had a label.

        Raises:
            ConfigurationError: If the config names no checkpoint.
            AlreadyDoneError: As `label` does.
        """
        address = branches.request_unlabel(config)
        return await self._database.run(branches.delete_label, self._queries, address, by, unless_done_within)

    async def labels(self, thread_id: str) -> tuple[Label, ...]:
        """Return a thread's labelled checkpoints, newest first. One query."""
        return await self._database.run(branches.list_labels, self._queries, thread_id_of(thread_id))

    async def find(self, thread_id: str, name: str) -> dict[str, Any]:
        """Return the config of the checkpoint with a label, an id, or a unique part of an id.

        Args:
            thread_id: The thread.
            name: The label, the id, or at least four characters of the id.

        Raises:
            NotFoundError: If there is no such checkpoint in the root namespace.
            ConfigurationError: If several checkpoints match.
        """
        parameters = thread_id_of(thread_id), identifier("name", name)
        return (await self._database.run(branches.find_checkpoint, self._queries, *parameters)).config

    async def fork(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        to: str | None = None,
        *,
        by: str | None = None,
        unless_done_within: timedelta | None = None,
        owner: ThreadOwner | None = None,
    ) -> dict[str, Any]:
        """Create a thread that starts from a checkpoint of another one. One transaction; safe to repeat.

        Copies the checkpoint's ancestors with their subgraphs, writes, messages, labels and tool executions (so that
        results are reused), under the same ids. Other branches, runs, spans and events are not copied. Pending writes
        and interrupted subgraphs of the checkpoint itself are copied while the thread has not advanced from it.
        Otherwise the fork begins its superstep again. The fork expires as its source does: after the same time without
        access, or at the same date. The cost is that of the copied rows plus a read of the metadata of the thread's
        subgraph checkpoints.

        Args:
            thread_id: The thread.
            checkpoint_id: The checkpoint in the root namespace; by default the newest.
            to: The new thread's id; by default a random one.
            by: Name of the person who does it, for an event of the kind `action` of both threads.
            unless_done_within: Refuse it if a person has forked the checkpoint to another thread within this time:
                since the caller looked at it. `None`: fork it in any case.
            owner: Whose the new thread is, with all its metadata; by default the source's owner, with the source's.

        Returns:
            The checkpoint's config in the new thread. `Thread.forked_from_thread_id` and an event of both threads
            record the origin.

        Raises:
            NotFoundError: If there is no such checkpoint.
            ConfigurationError: If `to` already has a history other than this fork's. Nothing was written.
            AlreadyDoneError: If a person has forked the checkpoint within that time. Nothing was written.
        """
        request = branches.request_fork(thread_id, checkpoint_id, to, by, unless_done_within, owner)
        return (await self._database.run(branches.fork_thread, self._queries, self._codec, request)).config

    async def diff(self, first: Mapping[str, Any], second: Mapping[str, Any], *, plain: bool = False) -> Difference:
        """Return the difference between the states of two checkpoints, of one thread or of two. Two round trips.

        A DeltaChannel's value is rebuilt by its reducer if this process has recorded a graph with it. Otherwise
        LangGraph's own reducer merges messages, and other values are appended.

        Args:
            first: Config of the first checkpoint; the thread's newest if it names none.
            second: Config of the second checkpoint.
            plain: Whether types of the application are compared as plain data, and none is built.

        Raises:
            NotFoundError: If a checkpoint does not exist.
            UnsafeTypeError: If a state holds a type that may not be built.
            CorruptStateError: If a state is damaged.
        """
        addresses = address_of(first), address_of(second)
        codec = self._codec.without_types() if plain else self._codec
        states = await self._database.run(differences.read_states, self._queries, codec, *addresses, self._versions)
        return differences.compare(states)


class Branches(ThreadsBase):
    """Blocking twin of `AsyncBranches`."""

    branches = blocking(AsyncBranches.branches)
    tree = blocking(AsyncBranches.tree)
    find_step = blocking(AsyncBranches.find_step)
    state_at = blocking(AsyncBranches.state_at)
    lineage = blocking(AsyncBranches.lineage)
    label = blocking(AsyncBranches.label)
    unlabel = blocking(AsyncBranches.unlabel)
    labels = blocking(AsyncBranches.labels)
    find = blocking(AsyncBranches.find)
    fork = blocking(AsyncBranches.fork)
    diff = blocking(AsyncBranches.diff)
