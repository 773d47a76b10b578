"""Threads: whose they are, what they are about, which were active last; their branches, and how states differ."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from langgraph.types import Command

from langgraph_pgstate.branches import Branch, Difference, Label, LineageStep
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.operations import branches, differences, guards, reading_runs, reading_threads, waiting
from langgraph_pgstate.operations import expiry as expiries
from langgraph_pgstate.operations.addresses import address_of, identifier, thread_id_of
from langgraph_pgstate.operations.asking import Moment, understanding
from langgraph_pgstate.operations.versions import StateVersions
from langgraph_pgstate.sql import Queries
from langgraph_pgstate.types import Answer, Page, PruneResult, Question, RunawayThread, Thread, WaitingThread


class Threads:
    """Finds threads, changes their title and metadata, knows their branches, and keeps the inbox of those that wait.

    Lists are answered in pages, most recently touched first; `page.next` is the following page's `cursor`. A thread
    that is touched between two pages moves to the front, and may be missed by who is already past it.

    Args:
        database: Where the tables are.
        queries: The queries of their schema.
        codec: Reads states and questions, and stores answers; LangGraph's own serializer when left out.
        versions: Bring states that are compared up to date; without them they are compared as they are stored.
    """

    def __init__(
        self,
        database: Database,
        queries: Queries,
        codec: ValueCodec | None = None,
        versions: StateVersions | None = None,
    ) -> None:
        self._versions = versions
        self._database = database
        self._queries = queries
        self._codec = codec or ValueCodec()

    def list(
        self,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """A page of threads. One round trip; with a user, a tenant or a status an index finds them.

        Args:
            user_id: Only this user's.
            tenant_id: Only this tenant's.
            agent: Only this agent's.
            status: Only `idle`, `busy`, `interrupted` or `error` ones.
            created_after: Only those that began then or later; times need a time zone.
            created_before: Only those that began earlier.
            updated_after: Only those touched then or later.
            updated_before: Only those touched last before.
            limit: Threads of a page, 1,000 at most.
            cursor: Where the page begins.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        question = reading_threads.request_threads(
            user_id=user_id,
            tenant_id=tenant_id,
            agent=agent,
            status=status,
            created_after=created_after,
            created_before=created_before,
            updated_after=updated_after,
            updated_before=updated_before,
            limit=limit,
            cursor=cursor,
        )
        return self._database.run(reading_threads.list_threads, self._queries, question)

    def search(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        where: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """A page of threads that hold something. One round trip.

        An index finds what metadata or state contain, and equalities in `where`; of `where` with nothing but ranges
        every projection is read. The filters of `list` apply as well.

        Args:
            metadata: What a thread's metadata contain, as jsonb's `@>` has it.
            state: What its projected channels contain, like `{"booking": {"hotel": "Astoria"}}`.
            where: A condition on its projected channels, a JSON path of PostgreSQL:
                `$.booking.check_in >= "2027-03-01" && $.booking.check_in < "2027-04-01"`.
            user_id: As for `list`, like all that follow.
            tenant_id: Only this tenant's.
            agent: Only this agent's.
            status: Only those of this status.
            created_after: Only those that began then or later.
            created_before: Only those that began earlier.
            updated_after: Only those touched then or later.
            updated_before: Only those touched last before.
            limit: Threads of a page, 1,000 at most.
            cursor: Where the page begins.

        Raises:
            ConfigurationError: If an argument cannot be searched for, or `where` is no JSON path.
        """
        question = reading_threads.request_threads(
            user_id=user_id,
            tenant_id=tenant_id,
            agent=agent,
            status=status,
            created_after=created_after,
            created_before=created_before,
            updated_after=updated_after,
            updated_before=updated_before,
            limit=limit,
            cursor=cursor,
            metadata=metadata,
            state=state,
            where=where,
        )
        with understanding("where", where):
            return self._database.run(reading_threads.list_threads, self._queries, question)

    def get(self, thread_id: str) -> Thread | None:
        """One thread with its newest checkpoint and its projected channels; `None` if there is none. One round trip."""
        return self._database.run(reading_threads.get_thread, self._queries, thread_id_of(thread_id))

    def update_metadata(
        self, thread_id: str, metadata: Mapping[str, Any], *, expected_version: int | None = None
    ) -> Thread:
        """Merge into a thread's metadata; keys that are not named stay. Atomic; repeating it changes nothing.

        Args:
            thread_id: The thread.
            metadata: What to merge: each key replaces the one of its name, whole.
            expected_version: The version that this rests on; another one is refused.

        Returns:
            The thread as it is then.

        Raises:
            NotFoundError: If there is no such thread.
            StaleVersionError: If somebody else has changed it since. Nothing was written.
            ConfigurationError: If JSON cannot say what to merge. Nothing was written.
        """
        change = reading_threads.request_change(metadata, expected_version)
        return self._database.run(reading_threads.change_thread, self._queries, thread_id_of(thread_id), change)

    def set_title(self, thread_id: str, title: str | None, *, expected_version: int | None = None) -> Thread:
        """Set or take away what people call a thread. Like `update_metadata` in all else."""
        change = reading_threads.request_change({}, expected_version, title)
        return self._database.run(reading_threads.change_thread, self._queries, thread_id_of(thread_id), change)

    def waiting(
        self,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        answered: bool = False,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[WaitingThread]:
        """A page of the inbox: threads that wait for answers to what their graphs asked with `interrupt()`.

        Those asked last come first. It needs no recorder. Breakpoints (`interrupt_before`) ask nothing and are not in
        it. A page may hold less than `limit` and still have a next one: answered questions are read over, some
        thousand at a time, until a prune removes them.

        Args:
            user_id: Only this user's threads.
            tenant_id: Only this tenant's.
            agent: Only this agent's.
            answered: Threads with answers that no graph was resumed with yet, instead of those with open questions.
            limit: Threads of a page, 1,000 at most.
            cursor: Where the page begins.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        question = waiting.request_waiting(
            user_id=user_id, tenant_id=tenant_id, agent=agent, answered=answered, limit=limit, cursor=cursor
        )
        return self._database.run(waiting.list_waiting, self._queries, self._codec, question)

    def questions(self, thread_id: str) -> tuple[Question, ...]:
        """What one thread waits for and nobody has answered, oldest first. Three round trips."""
        found = self._database.run(waiting.get_waiting, self._queries, self._codec, thread_id_of(thread_id))
        return found.questions if found else ()

    def answer(
        self, thread_id: str, value: Any, *, by: str | None = None, interrupt_id: str | None = None
    ) -> Command[Any]:
        """Record the answer to a question, and an event that says who gave it. Atomic; each question takes one.

        The question leaves the inbox. The graph does not run yet: pass what this returns to it, or let any process
        fetch it with `resume`. A call repeated after a lost connection finds its own answer.

        Args:
            thread_id: The thread.
            value: The answer; anything but `None` that the serializer can store.
            by: Who answers.
            interrupt_id: Which question, when the thread waits for several.

        Returns:
            What resumes the graph with this answer: `graph.invoke(command, config)`.

        Raises:
            NotFoundError: If the thread waits for no such answer. Nothing was written.
            AlreadyAnsweredError: If somebody was faster. Nothing was written.
            ConfigurationError: If it waits for several and none is named; it lists them. Nothing was written.
            SerializationError: If the value cannot be stored. Nothing was written.
            UnsafeTypeError: If it is of a type that may not be built when it is read. Nothing was written.
        """
        request = waiting.request_answer(self._codec, value, by, interrupt_id)
        found = self._database.run(waiting.answer, self._queries, self._codec, thread_id_of(thread_id), request)
        return waiting.command_for(found)

    def answers(self, thread_id: str) -> tuple[Answer, ...]:
        """The answers that a thread was given and has not been resumed with, oldest first. Three round trips."""
        found = self._database.run(waiting.get_waiting, self._queries, self._codec, thread_id_of(thread_id))
        return found.answers if found else ()

    def resume(self, thread_id: str) -> Command[Any] | None:
        """What resumes a thread's graph with all answers it was given so far; `None` if there are none.

        Questions that are still open are asked again by the graph. Calling it takes nothing away: after a crash it
        answers the same, until the tasks that asked have written their results.
        """
        return waiting.command_of(self.answers(thread_id))

    def set_ttl(self, thread_id: str, ttl: timedelta | None) -> datetime | None:
        """Keep a thread for so long from now, and from each time it is touched; `None`: for ever. One statement.

        It takes the place of what `expire` said, and of the state's `thread_ttl`. Answers when that is, as of now.

        Raises:
            NotFoundError: If there is no such thread.
            ConfigurationError: If `ttl` is no positive timedelta.
        """
        expiry = expiries.request_ttl(ttl)
        return self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    def expire(self, thread_id: str, *, at: datetime | None = None, after: timedelta | None = None) -> datetime | None:
        """Have a thread expire then, whatever happens to it. One statement; safe to repeat.

        It takes the place of what `set_ttl` said; `set_ttl(thread_id, None)` takes it back. Answers when.

        Args:
            thread_id: The thread.
            at: Then; with a time zone.
            after: So long from now.

        Raises:
            NotFoundError: If there is no such thread.
            ConfigurationError: If both or neither are given, or one is not usable. Nothing was written.
        """
        expiry = expiries.request_expiry(at, after)
        return self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    def sweep(self, *, limit: int | None = None, dry_run: bool = False) -> PruneResult:
        """Delete threads that have expired, longest ago first, with all that was recorded of them.

        Each is a transaction; any number of processes may sweep at once. What is in use stays until a later sweep: what
        was touched in the last half minute, is run by a living process, or leased; not what waits for people. No
        tombstone is left: the id may be used again at once.

        Args:
            limit: At most so many threads; all if left out.
            dry_run: Change nothing, only count.

        Returns:
            What went, or would go.

        Raises:
            ConfigurationError: If `limit` is not positive.
        """
        return self._database.run(expiries.sweep, self._queries, limit, dry_run=dry_run)

    def revive(self, thread_id: str) -> bool:
        """Let a deleted thread's id be used again, for a thread that starts afresh. Atomic; safe to repeat.

        Returns:
            Whether it had left a tombstone.
        """
        return self._database.run(guards.revive_thread, self._queries, thread_id_of(thread_id))

    def runaway(
        self,
        steps: int = reading_runs.LEAST_STEPS,
        *,
        since: Moment | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[RunawayThread]:
        """A page of threads with runs of more than `steps` supersteps, the longest first. One round trip.

        Args:
            steps: How many are still all right; 25 at least.
            since: Only runs that began then or later, or so long ago at most.
            limit: Threads of a page, 1,000 at most.
            cursor: Where the page begins.

        Raises:
            ConfigurationError: If `steps` is less than 25, or another argument cannot be searched for.
        """
        parameters = reading_runs.request_runaways(steps, since, limit, cursor)
        return self._database.run(reading_runs.list_runaway_threads, self._queries, parameters)

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
        question = branches.request_branches(thread_id, checkpoint_ns, limit)
        return self._database.run(branches.list_branches, self._queries, question)

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
        not moved on from it; else the fork stands where its superstep begins, and runs it anew. It costs what it
        copies, and a look at the metadata of the thread's subgraph checkpoints.

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


class AsyncThreads:
    """Async twin of `Threads`."""

    def __init__(
        self,
        database: AsyncDatabase,
        queries: Queries,
        codec: ValueCodec | None = None,
        versions: StateVersions | None = None,
    ) -> None:
        self._versions = versions
        self._database = database
        self._queries = queries
        self._codec = codec or ValueCodec()

    async def list(
        self,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Async twin of `Threads.list`."""
        question = reading_threads.request_threads(
            user_id=user_id,
            tenant_id=tenant_id,
            agent=agent,
            status=status,
            created_after=created_after,
            created_before=created_before,
            updated_after=updated_after,
            updated_before=updated_before,
            limit=limit,
            cursor=cursor,
        )
        return await self._database.run(reading_threads.list_threads, self._queries, question)

    async def search(
        self,
        *,
        metadata: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        where: str | None = None,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        updated_after: datetime | None = None,
        updated_before: datetime | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[Thread]:
        """Async twin of `Threads.search`."""
        question = reading_threads.request_threads(
            user_id=user_id,
            tenant_id=tenant_id,
            agent=agent,
            status=status,
            created_after=created_after,
            created_before=created_before,
            updated_after=updated_after,
            updated_before=updated_before,
            limit=limit,
            cursor=cursor,
            metadata=metadata,
            state=state,
            where=where,
        )
        with understanding("where", where):
            return await self._database.run(reading_threads.list_threads, self._queries, question)

    async def get(self, thread_id: str) -> Thread | None:
        """Async twin of `Threads.get`."""
        return await self._database.run(reading_threads.get_thread, self._queries, thread_id_of(thread_id))

    async def update_metadata(
        self, thread_id: str, metadata: Mapping[str, Any], *, expected_version: int | None = None
    ) -> Thread:
        """Async twin of `Threads.update_metadata`."""
        change = reading_threads.request_change(metadata, expected_version)
        return await self._database.run(reading_threads.change_thread, self._queries, thread_id_of(thread_id), change)

    async def set_title(self, thread_id: str, title: str | None, *, expected_version: int | None = None) -> Thread:
        """Async twin of `Threads.set_title`."""
        change = reading_threads.request_change({}, expected_version, title)
        return await self._database.run(reading_threads.change_thread, self._queries, thread_id_of(thread_id), change)

    async def waiting(
        self,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        answered: bool = False,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[WaitingThread]:
        """Async twin of `Threads.waiting`."""
        question = waiting.request_waiting(
            user_id=user_id, tenant_id=tenant_id, agent=agent, answered=answered, limit=limit, cursor=cursor
        )
        return await self._database.run(waiting.list_waiting, self._queries, self._codec, question)

    async def questions(self, thread_id: str) -> tuple[Question, ...]:
        """Async twin of `Threads.questions`."""
        found = await self._database.run(waiting.get_waiting, self._queries, self._codec, thread_id_of(thread_id))
        return found.questions if found else ()

    async def answer(
        self, thread_id: str, value: Any, *, by: str | None = None, interrupt_id: str | None = None
    ) -> Command[Any]:
        """Async twin of `Threads.answer`."""
        request = waiting.request_answer(self._codec, value, by, interrupt_id)
        found = await self._database.run(waiting.answer, self._queries, self._codec, thread_id_of(thread_id), request)
        return waiting.command_for(found)

    async def answers(self, thread_id: str) -> tuple[Answer, ...]:
        """Async twin of `Threads.answers`."""
        found = await self._database.run(waiting.get_waiting, self._queries, self._codec, thread_id_of(thread_id))
        return found.answers if found else ()

    async def resume(self, thread_id: str) -> Command[Any] | None:
        """Async twin of `Threads.resume`."""
        return waiting.command_of(await self.answers(thread_id))

    async def set_ttl(self, thread_id: str, ttl: timedelta | None) -> datetime | None:
        """Async twin of `Threads.set_ttl`."""
        expiry = expiries.request_ttl(ttl)
        return await self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    async def expire(
        self, thread_id: str, *, at: datetime | None = None, after: timedelta | None = None
    ) -> datetime | None:
        """Async twin of `Threads.expire`."""
        expiry = expiries.request_expiry(at, after)
        return await self._database.run(expiries.set_expiry, self._queries, thread_id_of(thread_id), expiry)

    async def sweep(self, *, limit: int | None = None, dry_run: bool = False) -> PruneResult:
        """Async twin of `Threads.sweep`."""
        return await self._database.run(expiries.sweep, self._queries, limit, dry_run=dry_run)

    async def revive(self, thread_id: str) -> bool:
        """Async twin of `Threads.revive`."""
        return await self._database.run(guards.revive_thread, self._queries, thread_id_of(thread_id))

    async def runaway(
        self,
        steps: int = reading_runs.LEAST_STEPS,
        *,
        since: Moment | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[RunawayThread]:
        """Async twin of `Threads.runaway`."""
        parameters = reading_runs.request_runaways(steps, since, limit, cursor)
        return await self._database.run(reading_runs.list_runaway_threads, self._queries, parameters)

    async def branches(self, thread_id: str, *, checkpoint_ns: str = "", limit: int = 1000) -> tuple[Branch, ...]:
        """Async twin of `Threads.branches`."""
        question = branches.request_branches(thread_id, checkpoint_ns, limit)
        return await self._database.run(branches.list_branches, self._queries, question)

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
