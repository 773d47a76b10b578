"""The API of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Unpack

from langgraph.types import Command

from langgraph_pgstate.arguments import request_scope
from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.runners import BlockingRunner, blocking
from langgraph_pgstate.errors import PGStateError
from langgraph_pgstate.paging import Page
from langgraph_pgstate.runs.api import AsyncRuns, Runs
from langgraph_pgstate.runs.arguments import name_of, run_id_of
from langgraph_pgstate.runs.handles import AsyncRunHandle, RunHandle
from langgraph_pgstate.runs.locking import is_locked
from langgraph_pgstate.runs.notifying import AsyncNotifier, Notifier
from langgraph_pgstate.runs.types import EnqueuedRun
from langgraph_pgstate.schedules import firing
from langgraph_pgstate.schedules import rows as schedules
from langgraph_pgstate.schedules.types import (
    Schedule,
    ScheduleChanges,
    ScheduleOptions,
    ScheduleSelection,
    SortedSchedules,
)
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.scopes import Scope


class AsyncSchedules:
    """Schedules. A schedule enqueues a run of a graph at each tick, a time of the schedule's cron expression.

    Every worker fires the schedules of all graphs. An application without a worker calls `fire`.

    Args:
        database: The database.
        queries: The queries of the schema.
        runs: The queue, which encodes the runs.
    """

    def __init__(
        self,
        database: AsyncDatabase,
        queries: Queries,
        runs: AsyncRuns,
    ) -> None:
        self._database, self._queries, self._runs = database, queries, runs
        self._notifier = AsyncNotifier(database, queries)

    async def put(
        self,
        name: str,
        graph: str,
        input: Any = None,
        *,
        cron: str,
        command: Command[Any] | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Store a schedule, or replace the schedule of this name. Safe to repeat at each start of an application.

        A paused schedule stays paused. The next tick is kept unless the expression or the time zone changes.

        Args:
            name: Name of the schedule.
            graph: Name of the graph, as in the workers.
            input: The graph's input.
            cron: Five fields for minute, hour, day of month, month and day of week, like `0 9 * * 1-5`.
            command: A command instead of an input.
            options: See `ScheduleOptions` and `EnqueueOptions`, without `run_id`, `run_after` and `expected_head`.
                Without a `thread_id`, each run has a new thread with the schedule's metadata. The metadata of a run
                also have `schedule`, the name, and `scheduled_at`, the tick.

        Raises:
            ConfigurationError: If an argument is invalid. Nothing was written.
            SerializationError: If a value cannot be stored. The error names the value. Nothing was written.
        """
        given = schedules.options_of_runs(options)
        weighed = (input, command, [*given.values()])
        run = await self._database.compute(weighed, self._runs.encoder.one, graph, input, command, given)
        request = schedules.request_schedule(name, run, options, cron=cron)
        return await self._database.run(schedules.put, self._queries, request)

    async def update(self, name: str, **changes: Unpack[ScheduleChanges]) -> Schedule:
        """Change the named fields of a schedule. One transaction; safe to repeat.

        Metadata are merged into the earlier metadata. The next tick is kept unless the expression or the time zone
        changes.

        Args:
            name: Name of the schedule.
            changes: See `ScheduleChanges`, `ScheduleOptions` and `EnqueueOptions`.

        Raises:
            NotFoundError: If there is no schedule of this name with metadata that contain `scope`.
            ConfigurationError: If an argument is invalid. Nothing was written.
            SerializationError: If a value cannot be stored. The error names the value. Nothing was written.
        """
        codec = self._runs.encoder.codec
        weighed = [*changes.values()]
        request = await self._database.compute(weighed, schedules.request_changes, codec, name, changes)
        return await self._database.run(schedules.change, self._queries, self._runs.encoder.codec, request)

    async def sorted(self, **filters: Unpack[SortedSchedules]) -> tuple[Schedule, ...]:
        """Return schedules from an offset, with the arguments of their runs. One round trip.

        Args:
            filters: See `SortedSchedules` and `ScheduleSelection`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._database.read(self._queries, schedules.list_sorted(self._runs.encoder.codec, **filters))

    async def count(self, **filters: Unpack[ScheduleSelection]) -> int:
        """Return the number of schedules. One round trip.

        Args:
            filters: See `ScheduleSelection`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        return await self._database.read(self._queries, schedules.count(**filters))

    async def list(self, *, graph: str | None = None, limit: int = 20, cursor: str | None = None) -> Page[Schedule]:
        """Return a page of schedules, by name. One round trip.

        Args:
            graph: Only schedules of this graph.
            limit: Page size, 1,000 at most.
            cursor: `next` of the previous page.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        found = schedules.list_schedules(graph=graph, limit=limit, cursor=cursor)
        return await self._database.read(self._queries, found)

    async def get(self, name: str) -> Schedule | None:
        """Return the schedule of a name, or `None`. One round trip."""
        return await self._database.run(schedules.get, self._queries, name_of("name", name))

    async def pause(self, name: str, *, by: str | None = None) -> Schedule:
        """Pause a schedule. A paused schedule enqueues no runs at its ticks. Safe to repeat.

        Args:
            name: Name of the schedule.
            by: Name of the person who pauses the schedule, stored in an event of the kind `action` on the thread
                `schedule:NAME`.

        Raises:
            NotFoundError: If there is no schedule of this name.
        """
        return await self._database.run(schedules.pause, self._queries, name_of("name", name), by)

    async def resume(self, name: str, *, by: str | None = None) -> Schedule:
        """Resume a paused schedule. Missed ticks are skipped. Safe to repeat.

        Args:
            name: Name of the schedule.
            by: Name of the person who resumes the schedule, stored in an event of the kind `action` on the thread
                `schedule:NAME`.

        Raises:
            NotFoundError: If there is no schedule of this name.
        """
        return await self._database.run(schedules.resume, self._queries, name_of("name", name), by)

    async def trigger(
        self,
        name: str,
        *,
        run_id: str | None = None,
        by: str | None = None,
        unless_done_within: timedelta | None = None,
    ) -> AsyncRunHandle:
        """Enqueue a run of a schedule now, even if the schedule is paused. The ticks are not changed.

        Args:
            name: Name of the schedule.
            run_id: Id of the run. By default, a new id. A run that was enqueued under this id is not enqueued again.
            by: Name of the person who triggers the run, stored in events of the kind `action` on the run's thread and
                on the thread `schedule:NAME`.
            unless_done_within: Refuse the run if a person has triggered another run within this time. Pass the time
                since the caller read the schedule.

        Raises:
            NotFoundError: If there is no schedule of this name.
            AlreadyDoneError: If a person has triggered another run within `unless_done_within`.
            ThreadBusyError: If the strategy is `reject` and the thread has another run.
        """
        run = await self._trigger(name, run_id, by, unless_done_within)
        return AsyncRunHandle(self._runs, run.thread_id, run.run_id, run.is_new)

    async def _trigger(
        self, name: str, run_id: str | None, by: str | None, unless_done_within: timedelta | None
    ) -> EnqueuedRun:
        codec, checked = self._runs.encoder.codec, (name_of("name", name), run_id_of(run_id))
        run = await self._database.run(firing.trigger, self._queries, codec, *checked, by, unless_done_within)
        await self._notifier.notify()
        return run

    async def delete(self, name: str, *, scope: Scope | None = None) -> bool:
        """Delete a schedule. Its runs stay. Safe to repeat.

        Args:
            name: Name of the schedule.
            scope: Delete the schedule only if its metadata contain these items.

        Returns:
            Whether a schedule was deleted.
        """
        return await self._database.run(schedules.delete, self._queries, name_of("name", name), request_scope(scope))

    async def fire(self) -> tuple[AsyncRunHandle, ...]:
        """Enqueue runs for the due ticks of at most 100 schedules, and return the runs. Workers do this twice a second.

        Safe in many processes at once, because each tick has one run. Locked schedules and threads are left to the next
        call. If this machine does not know the time zone of a schedule, or cannot decrypt the schedule, the schedule is
        left to another machine. The reason is in `last_error`.
        """
        fired = await self._fire()
        return tuple(AsyncRunHandle(self._runs, run.thread_id, run.run_id, run.is_new) for run in fired)

    async def _fire(self) -> Sequence[EnqueuedRun]:
        found: Sequence[EnqueuedRun] = ()
        for name in await self._database.run(firing.find_due, self._queries):
            try:
                fired = await self._database.run(firing.fire, self._queries, self._runs.encoder.codec, name)
            except PGStateError as error:
                if firing.is_of_schedule(error):
                    await self._database.run(firing.set_error, self._queries, name, str(error))
                elif not is_locked(error):
                    raise
            else:
                found = (*found, *fired)
        return found


class Schedules:
    """Blocking twin of `AsyncSchedules`."""

    def __init__(
        self,
        database: Database,
        queries: Queries,
        runs: Runs,
    ) -> None:
        self._database, self._queries, self._runs = BlockingRunner(database), queries, runs
        self._notifier = Notifier(database, queries)

    put = blocking(AsyncSchedules.put)
    update = blocking(AsyncSchedules.update)
    sorted = blocking(AsyncSchedules.sorted)
    count = blocking(AsyncSchedules.count)
    list = blocking(AsyncSchedules.list)
    get = blocking(AsyncSchedules.get)
    pause = blocking(AsyncSchedules.pause)
    resume = blocking(AsyncSchedules.resume)

    def trigger(
        self,
        name: str,
        *,
        run_id: str | None = None,
        by: str | None = None,
        unless_done_within: timedelta | None = None,
    ) -> RunHandle:
        """Blocking twin of `AsyncSchedules.trigger`."""
        run = self._trigger(name, run_id, by, unless_done_within)
        return RunHandle(self._runs, run.thread_id, run.run_id, run.is_new)

    _trigger = blocking(AsyncSchedules._trigger)
    delete = blocking(AsyncSchedules.delete)

    def fire(self) -> tuple[RunHandle, ...]:
        """Blocking twin of `AsyncSchedules.fire`."""
        return tuple(RunHandle(self._runs, run.thread_id, run.run_id, run.is_new) for run in self._fire())

    _fire = blocking(AsyncSchedules._fire)
