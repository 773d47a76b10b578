"""Interrupts of threads: which threads are interrupted, what they ask, and what they are answered."""

from __future__ import annotations

from typing import Any

from langgraph.types import Command

from langgraph_pgstate.operations.checkpoints.addresses import thread_id_of
from langgraph_pgstate.operations.threads import interrupts
from langgraph_pgstate.threads.common import AsyncThreadsBase, ThreadsBase
from langgraph_pgstate.types import Answer, InterruptedThread, Page, PendingInterrupt


class Interrupts(ThreadsBase):
    """The interrupts that graphs made with `interrupt()`, each answered once."""

    def interrupted(
        self,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        answered: bool = False,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[InterruptedThread]:
        """A page of interrupted threads, which wait for answers to what their graphs asked with `interrupt()`.

        Those asked last come first. It needs no recorder. Breakpoints (`interrupt_before`) ask nothing and are not
        listed. A page may hold less than `limit` and still have a next one: answered interrupts are read over, some
        thousand at a time, until a prune removes them.

        Args:
            user_id: Only this user's threads.
            tenant_id: Only this tenant's.
            agent: Only this agent's.
            answered: Threads with answers that no graph was resumed with yet, instead of those with open interrupts.
            limit: Threads of a page, 1,000 at most.
            cursor: Where the page begins.

        Raises:
            ConfigurationError: If an argument cannot be searched for.
        """
        filter = interrupts.request_interrupted(
            user_id=user_id, tenant_id=tenant_id, agent=agent, answered=answered, limit=limit, cursor=cursor
        )
        return self._database.run(interrupts.list_interrupted, self._queries, self._codec, filter)

    def interrupts(self, thread_id: str) -> tuple[PendingInterrupt, ...]:
        """What one thread waits for and nobody has answered, oldest first. Three round trips."""
        found = self._database.run(interrupts.get_interrupted, self._queries, self._codec, thread_id_of(thread_id))
        return found.interrupts if found else ()

    def answer(
        self, thread_id: str, value: Any, *, by: str | None = None, interrupt_id: str | None = None
    ) -> Command[Any]:
        """Record the answer to an interrupt, and an event that says who gave it. Atomic; each interrupt takes one.

        The interrupt is no longer listed. The graph does not run yet: pass what this returns to it, or let any process
        fetch it with `resume`. A call repeated after a lost connection finds its own answer.

        Args:
            thread_id: The thread.
            value: The answer; anything but `None` that the serializer can store.
            by: Who answers.
            interrupt_id: Which interrupt, when the thread waits for several.

        Returns:
            What resumes the graph with this answer: `graph.invoke(command, config)`.

        Raises:
            NotFoundError: If the thread waits for no such answer. Nothing was written.
            AlreadyAnsweredError: If somebody was faster. Nothing was written.
            ConfigurationError: If it waits for several and none is named; it lists them. Nothing was written.
            SerializationError: If the value cannot be stored. Nothing was written.
            UnsafeTypeError: If it is of a type that may not be built when it is read. Nothing was written.
        """
        request = interrupts.request_answer(self._codec, value, by, interrupt_id)
        found = self._database.run(interrupts.answer, self._queries, self._codec, thread_id_of(thread_id), request)
        return interrupts.command_for(found)

    def answers(self, thread_id: str) -> tuple[Answer, ...]:
        """The answers that a thread was given and has not been resumed with, oldest first. Three round trips."""
        found = self._database.run(interrupts.get_interrupted, self._queries, self._codec, thread_id_of(thread_id))
        return found.answers if found else ()

    def resume(self, thread_id: str) -> Command[Any] | None:
        """What resumes a thread's graph with all answers it was given so far; `None` if there are none.

        Interrupts that are still open are asked again by the graph. Calling it takes nothing away: after a crash it
        answers the same, until the tasks that asked have written their results.
        """
        return interrupts.command_of(self.answers(thread_id))


class AsyncInterrupts(AsyncThreadsBase):
    """Async twin of `Interrupts`."""

    async def interrupted(
        self,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        agent: str | None = None,
        answered: bool = False,
        limit: int = 20,
        cursor: str | None = None,
    ) -> Page[InterruptedThread]:
        """Async twin of `Threads.interrupted`."""
        filter = interrupts.request_interrupted(
            user_id=user_id, tenant_id=tenant_id, agent=agent, answered=answered, limit=limit, cursor=cursor
        )
        return await self._database.run(interrupts.list_interrupted, self._queries, self._codec, filter)

    async def interrupts(self, thread_id: str) -> tuple[PendingInterrupt, ...]:
        """Async twin of `Threads.interrupts`."""
        found = await self._database.run(
            interrupts.get_interrupted, self._queries, self._codec, thread_id_of(thread_id)
        )
        return found.interrupts if found else ()

    async def answer(
        self, thread_id: str, value: Any, *, by: str | None = None, interrupt_id: str | None = None
    ) -> Command[Any]:
        """Async twin of `Threads.answer`."""
        request = interrupts.request_answer(self._codec, value, by, interrupt_id)
        found = await self._database.run(
            interrupts.answer, self._queries, self._codec, thread_id_of(thread_id), request
        )
        return interrupts.command_for(found)

    async def answers(self, thread_id: str) -> tuple[Answer, ...]:
        """Async twin of `Threads.answers`."""
        found = await self._database.run(
            interrupts.get_interrupted, self._queries, self._codec, thread_id_of(thread_id)
        )
        return found.answers if found else ()

    async def resume(self, thread_id: str) -> Command[Any] | None:
        """Async twin of `Threads.resume`."""
        return interrupts.command_of(await self.answers(thread_id))
