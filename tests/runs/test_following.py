"""Following of runs: a reader's place, many readers with one statement, and readers that go away."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from support import GUARD_SECONDS, wait_until
from support.queue import STATES, Queue, call, open_state

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import ConfigurationError, NotFoundError, PGStateError
from langgraph_pgstate.runs import ending, streams
from langgraph_pgstate.runs.following import _ReadTimes
from langgraph_pgstate.runs.types import ClaimedRun, StreamEvent, ThreadEvent
from tests.runs.test_streams import batch


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


class Producer:
    """A claimed run whose events a test stores."""

    def __init__(self, queue: Queue, thread_id: str = "t") -> None:
        self.queue, self.position = queue, 0
        queue.add(thread_id)
        self.run: ClaimedRun = queue.claim_one()

    def send(self, *data: Any) -> None:
        self.queue.do(streams.append, [batch(self.run, self.position, *data)])
        self.position += len(data)

    def end(self, status: str = "success") -> None:
        self.queue.finish(self.run, status)


@pytest.fixture
def producer(queue: Queue) -> Producer:
    return Producer(queue)


async def read(state: Any, run: Any, **options: Any) -> list[StreamEvent]:
    """The events of a run, of either API."""
    if isinstance(state, PGState):
        return await asyncio.to_thread(lambda: [*state.runs.join(run, **options)])
    return [event async for event in state.runs.join(run, **options)]


def told(events: list[StreamEvent]) -> list[Any]:
    """What a test has sent, and the kinds of other events."""
    return [event.data if event.event == "custom" else event.event for event in events]


def test_a_stream_cut_at_any_event_and_joined_again_is_the_whole_one(producer: Producer, dsn: str) -> None:
    for data in ("abc", "d", "ef"):
        producer.send(*data)
    producer.end("error")
    with PGState.open(dsn, schema=producer.queue.schema) as state:
        whole = [*state.runs.join(producer.run)]
        assert told(whole) == [*"abcdef", "error", "end"]
        assert whole[-1].data == {"status": "error"}
        assert len({event.id for event in whole}) == len(whole)
        for cut in range(len(whole)):
            rest = [*state.runs.join(producer.run, last_event_id=whole[cut].id)]
            assert rest == whole[cut + 1 :]
        for start in ("-1", -1, 0, "", None):
            assert [*state.runs.join(producer.run, last_event_id=start)] == whole


@pytest.mark.parametrize("api", STATES)
async def test_events_come_as_they_are_stored(api: type, producer: Producer, dsn: str) -> None:
    async with open_state(api, dsn, producer.queue.schema) as state:
        reading = asyncio.create_task(read(state, producer.run))
        for data in "abc":
            await asyncio.sleep(0.1)
            await asyncio.to_thread(producer.send, data)
        await asyncio.to_thread(producer.end)
        assert told(await asyncio.wait_for(reading, GUARD_SECONDS)) == [*"abc", "end"]


@pytest.mark.parametrize("api", STATES)
async def test_a_late_reader_gets_all_of_a_run_that_has_deleted_its_thread(
    api: type, producer: Producer, dsn: str
) -> None:
    producer.send(*"ab")
    events = [batch(producer.run, 2, "c")]
    async with open_state(api, dsn, producer.queue.schema) as state:
        reading = asyncio.create_task(read(state, producer.run))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(producer.queue.finish, producer.run, deletes_thread=True, events=events)
        whole = await asyncio.wait_for(reading, 10)
        assert told(whole) == [*"abc", "end"]
        assert whole[-1].data == {"status": "success"}
        assert await read(state, producer.run) == whole
        assert await read(state, producer.run, last_event_id=whole[0].id) == whole[1:]
        handle = state.runs.handle(producer.run.thread_id, producer.run.run_id)
        assert await call(handle.wait) == {}
        # Whoever has a thread of the same id now sees nothing of it.
        thread_id, run_id = producer.run.thread_id, producer.run.run_id
        await call(state.threads.create, thread_id)
        assert (await call(state.runs.list, thread_id=thread_id)).items == ()
        assert await call(state.runs.get, thread_id, run_id) is None
        assert (await call(state.runs.list)).items == ()
        producer.queue.execute("UPDATE {}.runs SET delete_at = now()")
        producer.queue.do(ending.sweep)
        with pytest.raises(NotFoundError, match="has no run"):
            await read(state, producer.run)
        assert [event.data for event in await read(state, producer.run, last_event_id=whole[0].id)] == [
            {"status": "deleted"}
        ]


@pytest.mark.parametrize("api", STATES)
@pytest.mark.parametrize("end", ["cancel", "rollback", "thread", "timeout", "interrupted", "discard"])
async def test_there_is_always_an_end(api: type, end: str, queue: Queue, dsn: str) -> None:
    run_id = queue.add("t")
    statuses = {"cancel": "cancelled", "rollback": "deleted", "thread": "deleted", "discard": "error"}
    async with open_state(api, dsn, queue.schema) as state:
        reading = asyncio.create_task(read(state, state.runs.handle("t", run_id)))
        await asyncio.sleep(0.2)
        if end in ("cancel", "rollback"):
            await call(state.runs.cancel, "t", run_id, end)
        elif end == "thread":
            await call(state.saver.adelete_thread if api is AsyncPGState else state.saver.delete_thread, "t")
        else:
            queue.finish(queue.claim_one(), "error" if end == "discard" else end)
            if end == "discard":
                await call(state.runs.discard, "t", run_id)
        events = await asyncio.wait_for(reading, GUARD_SECONDS)
        assert events[-1].event == "end"
        assert events[-1].data == {"status": statuses.get(end, end)}
        # Also for whoever was away meanwhile.
        assert (await read(state, state.runs.handle("t", run_id), last_event_id="0"))[-1].event == "end"


@pytest.mark.parametrize("api", STATES)
async def test_what_does_not_exist_is_refused(api: type, producer: Producer, dsn: str) -> None:
    producer.send("a")
    async with open_state(api, dsn, producer.queue.schema) as state:
        with pytest.raises(NotFoundError):
            await read(state, state.runs.handle("t", "nobody"))
        # The statement of all readers would fail with a number that PostgreSQL does not have.
        for wrong in ("x", str(2**63)):
            with pytest.raises(ConfigurationError, match="last_event_id"):
                state.runs.join(producer.run, last_event_id=wrong)
        with pytest.raises(ConfigurationError, match="no event 2"):
            await read(state, producer.run, last_event_id="2")


def test_dropped_events_leave_a_gap(producer: Producer, dsn: str) -> None:
    for data in ("ab", "cd", "ef"):
        producer.send(*data)
    with PGState.open(dsn, schema=producer.queue.schema) as state:
        producer.queue.execute("DELETE FROM {}.stream_batches WHERE first_seq < 5")
        live = state.runs.join(producer.run, last_event_id="1")
        gap = next(live)
        assert (gap.event, gap.id, gap.data) == ("gap", "4", {"first": "2", "last": "4"})
        assert [next(live).data for _ in range(2)] == ["e", "f"]
        producer.end()
        assert told([*live]) == ["end"]
        producer.queue.execute("DELETE FROM {}.stream_batches")
        gone = [*state.runs.join(producer.run, last_event_id="6")]
        assert told(gone) == ["end"]
        gone = [*state.runs.join(producer.run)]
        assert told(gone) == ["gap", "end"]
        assert gone[0].data == {"first": "1", "last": "6"}
        with pytest.raises(ConfigurationError, match="no event 7"):
            [*state.runs.join(producer.run, last_event_id="7")]


class Counting:
    """Counts the statements that read streams."""

    def __init__(self, database: Any) -> None:
        self.inner, self.count, self.run = database, 0, self._run
        if asyncio.iscoroutinefunction(database.run):
            self.run = self._arun  # type: ignore[assignment]

    def _run(self, operation: Any, *arguments: Any) -> Any:
        self.count += operation is streams.read
        return self.inner.run(operation, *arguments)

    async def _arun(self, operation: Any, *arguments: Any) -> Any:
        self.count += operation is streams.read
        return await self.inner.run(operation, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("api", STATES)
async def test_a_hundred_readers_of_a_run_are_one_statement(api: type, producer: Producer, dsn: str) -> None:
    readers = 100
    async with open_state(api, dsn, producer.queue.schema) as state:
        follower = state.runs._follower
        counting = follower._database = Counting(follower._database)
        with ThreadPoolExecutor(readers) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            reading = [asyncio.create_task(read(state, producer.run)) for _ in range(readers)]
            for data in "abcd":
                await asyncio.sleep(0.1)
                producer.send(data)
            producer.end()
            found = await asyncio.wait_for(asyncio.gather(*reading), GUARD_SECONDS)
        assert [told(one) for one in found] == [[*"abcd", "end"]] * readers
        assert counting.count < 100
        assert not (follower._waiters if api is PGState else follower._futures)


async def test_a_cancelled_reader_leaves_nothing_behind(producer: Producer, dsn: str) -> None:
    async with open_state(AsyncPGState, dsn, producer.queue.schema) as state:
        stays = asyncio.create_task(read(state, producer.run))
        leaves = [asyncio.create_task(read(state, producer.run)) for _ in range(10)]
        await asyncio.sleep(0.2)
        for task in leaves:
            task.cancel()
        await asyncio.gather(*leaves, return_exceptions=True)
        assert len(state.runs._follower._futures) == 1
        producer.send("a")
        producer.end()
        assert told(await asyncio.wait_for(stays, GUARD_SECONDS)) == ["a", "end"]
        await asyncio.sleep(0.1)
        assert state.runs._follower._futures == {}
        assert state.runs._follower._task.done()


def test_the_thread_that_reads_for_others_may_leave(producer: Producer, dsn: str) -> None:
    """An iterator that is abandoned waits for nothing; one whose thread is interrupted hands over."""
    with PGState.open(dsn, schema=producer.queue.schema) as state:
        follower = state.runs._follower
        interrupted = threading.Event()
        inner = follower._database

        class Interrupted:
            def run(self, operation: Any, *arguments: Any) -> Any:
                if threading.current_thread().name == "leader" and not interrupted.is_set():
                    interrupted.set()
                    raise KeyboardInterrupt
                return inner.run(operation, *arguments)

        follower._database = Interrupted()  # type: ignore[assignment]
        ends: dict[str, Any] = {}

        def work(name: str) -> None:
            try:
                ends[name] = told([*state.runs.join(producer.run)])
            except KeyboardInterrupt:
                ends[name] = "interrupted"

        threads = [threading.Thread(target=work, args=(name,), name=name) for name in ("leader", "other", "third")]
        for thread in threads:
            thread.start()
        wait_until(interrupted.is_set, "the interruption")
        producer.send("a")
        producer.end()
        for thread in threads:
            thread.join(GUARD_SECONDS)
        assert ends == {"leader": "interrupted", "other": ["a", "end"], "third": ["a", "end"]}
        assert follower._waiters == []


@pytest.mark.parametrize("api", STATES)
async def test_an_error_of_the_database_reaches_each_reader(api: type, producer: Producer, dsn: str) -> None:
    async with open_state(api, dsn, producer.queue.schema) as state:
        reading = [asyncio.create_task(read(state, producer.run)) for _ in range(3)]
        await asyncio.sleep(0.2)
        producer.queue.execute("ALTER TABLE {}.stream_batches RENAME TO away")
        for task in reading:
            with pytest.raises(PGStateError):
                await asyncio.wait_for(task, GUARD_SECONDS)
        producer.queue.execute("ALTER TABLE {}.away RENAME TO stream_batches")
        producer.end()
        assert told(await read(state, producer.run)) == ["end"]


class ThreadReader:
    """A reader of a thread, of either API."""

    def __init__(self, state: Any, **options: Any) -> None:
        self.events = state.runs.join_thread("t", **options)
        self.found: list[ThreadEvent] = []

    async def next(self, count: int) -> list[Any]:
        """Its next events: what a test has sent, and the kinds of others."""
        found = []
        async with asyncio.timeout(GUARD_SECONDS):
            for _ in range(count):
                one = (
                    await anext(self.events)
                    if hasattr(self.events, "__anext__")
                    else await asyncio.to_thread(next, self.events)
                )
                found.append(one)
        self.found += found
        return told([one.event for one in found])


@pytest.mark.slow
@pytest.mark.parametrize("api", STATES)
async def test_the_runs_of_a_thread_are_followed_one_after_another(api: type, queue: Queue, dsn: str) -> None:
    async with open_state(api, dsn, queue.schema) as state:
        for text in ("a", "b"):
            old = Producer(queue)
            old.send(text)
            old.end()
        late = ThreadReader(state)
        # The run that ended last: whoever opens a stream may have started it just before.
        assert await late.next(2) == ["b", "end"]
        first, second = Producer(queue), queue.add("t")
        early = ThreadReader(state)
        first.send("c", "d")
        assert await early.next(2) == await late.next(2) == ["c", "d"]
        cancelled = queue.add("t")
        queue.cancel("t", cancelled)
        first.end("interrupted")
        # A pending run that was cancelled has ended before the one that ran, which a reader follows to its end.
        assert await early.next(2) == await late.next(2) == ["end", "end"]
        assert [one.run_id for one in early.found[2:]] == [first.run.run_id, cancelled]
        run = queue.claim_one()
        assert run.run_id == second
        queue.do(streams.append, [batch(run, 0, "e")])
        queue.finish(run)
        assert await early.next(2) == await late.next(2) == ["e", "end"]
        assert early.found[-1].graph == "graph"
        times = [one.event.stored_at for one in late.found]
        assert None not in times
        place = next(one for one in late.found if one.event.data == "c")
        again = ThreadReader(state, last_event_id=f"{place.run_id}:{place.event.id}")
        assert await again.next(5) == ["d", "end", "end", "e", "end"]
        assert [one.run_id for one in again.found] == [one.run_id for one in early.found[1:]]
        again = ThreadReader(state, last_event_id=f"{cancelled}:0.end")
        assert await again.next(2) == ["e", "end"]
        again = ThreadReader(state, since=times[3])
        await again.next(6)
        assert [one.run_id for one in again.found] == [one.run_id for one in early.found]


@pytest.mark.parametrize("api", STATES)
async def test_a_reader_that_was_away_gets_all_that_ended_since(api: type, queue: Queue, dsn: str) -> None:
    for minutes, text in ((50, "a"), (40, "b"), (30, "c"), (20, "d")):
        old = Producer(queue)
        old.send(text)
        old.end()
        started, ended = (f"now() - interval '{ago} minutes'" for ago in (minutes, minutes - 15))
        queue.execute(
            f"UPDATE {{}}.runs SET started_at = {started}, ended_at = {ended} WHERE run_id = '{old.run.run_id}'"
        )
        if text == "b":
            place = f"{old.run.run_id}:1"
    async with open_state(api, dsn, queue.schema) as state:
        since = ThreadReader(state, since=datetime.now(UTC) - timedelta(minutes=27))
        assert await since.next(6) == ["b", "end", "c", "end", "d", "end"]
        assert await ThreadReader(state, last_event_id=place).next(5) == ["end", "c", "end", "d", "end"]


@pytest.mark.slow
@pytest.mark.parametrize("api", STATES)
async def test_a_thread_without_runs_is_followed(api: type, queue: Queue, dsn: str) -> None:
    async with open_state(api, dsn, queue.schema) as state:
        reader = ThreadReader(state)
        waiting = asyncio.create_task(reader.next(2))
        await asyncio.sleep(0.3)
        # A run that is over between two looks.
        run = Producer(queue)
        run.send("a")
        run.end("error")
        assert await waiting == ["a", "error"]
        assert await reader.next(1) == ["end"]
        # It is tried again, under the same id.
        assert queue.retry("t", run.run.run_id)
        again = queue.claim_one()
        queue.do(streams.append, [batch(again, 0, "b")])
        assert await reader.next(1) == ["b"]
        queue.finish(again)
        assert await reader.next(1) == ["end"]


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_run_that_ended_again_while_its_reader_was_away_is_read_on(
    is_open: bool, queue: Queue, dsn: str
) -> None:
    async with open_state(PGState, dsn, queue.schema) as state:
        run = Producer(queue)
        run.send("a")
        run.end("error")
        reader = ThreadReader(state)
        assert await reader.next(3) == ["a", "error", "end"]
        place = reader.found[-1]
        assert queue.retry("t", run.run.run_id)
        again = queue.claim_one()
        queue.do(streams.append, [batch(again, 0, "b")])
        queue.finish(again)
        if not is_open:
            reader = ThreadReader(state, last_event_id=f"{place.run_id}:{place.event.id}")
        assert await reader.next(2) == ["b", "end"]
        # Nothing comes twice.
        other = Producer(queue)
        other.send("c")
        place = reader.found[-1]
        last = ThreadReader(state, last_event_id=f"{place.run_id}:{place.event.id}")
        assert await reader.next(1) == await last.next(1) == ["c"]


def test_the_place_of_a_reader_in_a_thread_names_a_run(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        for wrong in ("7", "run:", ":7", "run:x", f"run:{2**63}"):
            with pytest.raises(ConfigurationError, match=r"RUN:12|the id of an event"):
                state.runs.join_thread("t", last_event_id=wrong)


def test_a_look_that_takes_long_delays_the_next_by_no_more() -> None:
    """500 streams on two cores: with pauses of five times as long, tokens came seconds late."""
    schedule = _ReadTimes()
    assert schedule.delay(is_urgent=False) < 0
    for took, pause in ((0.3, 0.3), (0.001, 0.05), (60.0, 1.0)):
        schedule.note(time.monotonic() - took)
        assert pause - 0.02 < schedule.delay(is_urgent=False) <= pause + 0.02
