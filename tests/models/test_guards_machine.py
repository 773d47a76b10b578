"""Guarded runs in every order Hypothesis finds: started, advanced, cancelled, abandoned, raced, from two processes.

The runs are LangGraph's, blocking and asynchronous, with parallel nodes, and stop at a gate in each superstep. Leases
last for an hour and expire only where a rule says so: what is free was given back.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing.connection
import operator
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import anyio
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from langgraph.graph import END, START, StateGraph
from support import FORK, GUARD_SECONDS, config_of, terminate, wait_until

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.errors import LeaseHeldError, LeaseLostError, StaleHeadError, ThreadDeletedError

GUARDS: list[Any] = ["head", "lease", ("head", "lease")]
REFUSALS = (LeaseHeldError, LeaseLostError, StaleHeadError, ThreadDeletedError)
APPLICATION = "guards-machine"

numbers = itertools.count(1)


class State(TypedDict):
    items: Annotated[list[str], operator.add]
    word: Annotated[str, lambda old, new: new or old]


def build(step: Callable[[State], Any], **options: Any) -> Any:
    """A graph that goes round until the word is `end`, with another node at its step's side."""
    graph = StateGraph(State)
    graph.add_node("step", step)
    graph.add_node("side", lambda state: {"items": ["side"]})
    graph.add_node("again", lambda state: {})
    graph.add_edge(START, "step")
    graph.add_edge(START, "side")
    graph.add_edge(["step", "side"], "again")
    graph.add_conditional_edges(
        "again", lambda s: END if s["word"] == "end" else ["step", "side"], ["step", "side", END]
    )
    return graph.compile(**options)


def quick(saver: Any) -> Any:
    return build(lambda state: {"items": ["quick"], "word": "end"}, checkpointer=saver)


def new_input() -> dict[str, Any]:
    return {"items": ["input"], "word": "go"}


def config_for(thread_id: str, tag: int) -> dict[str, Any]:
    return {**config_of(thread_id), "metadata": {"tag": tag}}


@dataclass(eq=False)
class Run:
    """A run that stops at a gate in each superstep."""

    thread_id: str
    is_async: bool
    is_stream: bool
    tag: int = field(default_factory=lambda: next(numbers))
    gate: Any = None
    changed: threading.Event = field(default_factory=threading.Event)
    is_done: bool = False
    error: BaseException | None = None
    is_disturbed: bool = False
    stop: Callable[[], Any] = lambda: None
    pieces: Any = None

    def end(self, error: BaseException | None) -> None:
        self.is_done, self.error = True, error
        self.changed.set()

    def wait(self) -> None:
        assert self.changed.wait(GUARD_SECONDS), "the run neither ends nor goes on"


class World:
    """What all examples share: savers, an event loop in a thread, another process."""

    def __init__(self, dsn: str, schema: str, stack: ExitStack) -> None:
        self.schema = schema
        named = psycopg.conninfo.make_conninfo(dsn, application_name=APPLICATION)
        self.pipe, theirs = FORK.Pipe()
        self.other = FORK.Process(target=serve, args=(theirs, named, schema), daemon=True)
        self.other.start()
        self.connection = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.blocking: dict[Any, PGStateSaver] = {}
        self.suspending: dict[Any, AsyncPGStateSaver] = {}
        for guard in GUARDS:
            options: dict[str, Any] = {"schema": schema, "guard": guard, "lease_ttl": 3600, "pool": 6}
            self.blocking[guard] = stack.enter_context(PGStateSaver.from_conn_string(named, **options))
            opening = AsyncPGStateSaver.from_conn_string(named, **options)
            self.suspending[guard] = self.on_loop(opening.__aenter__())
            stack.callback(lambda opening=opening: self.on_loop(opening.__aexit__(None, None, None)))

    def on_loop(self, work: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(wait(), self.loop).result(GUARD_SECONDS)

    def elsewhere(self, guard: Any, thread_id: str) -> str:
        """Run a graph in the other process; the name of what it raised."""
        self.pipe.send((guard, thread_id, next(numbers)))
        assert self.pipe.poll(GUARD_SECONDS)
        return str(self.pipe.recv())


def serve(pipe: multiprocessing.connection.Connection, dsn: str, schema: str) -> None:
    """The other process."""
    with ExitStack() as stack:
        savers: dict[Any, PGStateSaver] = {}
        while (order := pipe.recv()) is not None:
            guard, thread_id, tag = order
            if guard not in savers:
                savers[guard] = stack.enter_context(
                    PGStateSaver.from_conn_string(dsn, schema=schema, guard=guard, lease_ttl=3600, pool=2)
                )
            try:
                quick(savers[guard]).invoke(new_input(), config_for(thread_id, 10**9 + tag))
                pipe.send("")
            except BaseException as error:
                pipe.send(type(error).__name__)


@contextmanager
def world_of(dsn: str, schema: str) -> Iterator[World]:
    with ExitStack() as stack:
        world = World(dsn, schema, stack)
        yield world
        world.pipe.send(None)
        world.other.join(GUARD_SECONDS)
    world.loop.call_soon_threadsafe(world.loop.stop)


class Guarded(RuleBasedStateMachine):
    """Two threads, and what happens to them."""

    world: World

    @initialize(guard=st.sampled_from(GUARDS))
    def begin(self, guard: Any) -> None:
        self.guard = guard
        self.has_lease, self.has_head = "lease" in guard, "head" in guard
        self.threads = [f"{name}{next(numbers)}" for name in "ab"]
        self.runs: list[Run] = []
        self.forks: set[str] = set()
        self.deleted: set[str] = set()
        self.expired: set[str] = set()
        # By thread, the run that has taken its lease last.
        self.holders: dict[str, Run] = {}
        self.tokens: dict[str, int] = {}
        # Checkpoints that were acknowledged to a run that succeeded.
        self.acknowledged: dict[str, set[str]] = {}

    # Looking

    def rows(self, query: str, *parameters: Any) -> list[Any]:
        return self.world.connection.execute(
            query.replace("FROM ", f"FROM {self.world.schema}.").encode(), parameters
        ).fetchall()

    def of_thread(self, thread_id: str) -> list[Run]:
        return [run for run in self.runs if run.thread_id == thread_id]

    def is_held(self, thread_id: str) -> bool:
        holds = self.holders.get(thread_id) in self.runs
        return self.has_lease and holds and thread_id not in self.expired | self.deleted

    def note_taken(self, thread_id: str, run: Run | None = None) -> None:
        """Note that somebody else has taken a thread's lease, if there is one."""
        self.expired.discard(thread_id)
        self.holders.pop(thread_id, None)
        if run is not None:
            self.holders[thread_id] = run

    def disturb(self, thread_id: str, but: Run | None = None) -> None:
        for run in self.of_thread(thread_id):
            if run is not but:
                run.is_disturbed = True

    def see_end(self, run: Run) -> None:
        """Check how a run ended, if it did."""
        if not run.is_done:
            return
        self.runs.remove(run)
        error = run.error
        if error is None:
            if not self.of_thread(run.thread_id) and run.thread_id not in self.deleted:
                self.acknowledge(run.thread_id, run.tag)
            return
        if isinstance(error, asyncio.CancelledError | LookupError | GeneratorExit):
            return
        assert isinstance(error, REFUSALS), repr(error)
        assert run.is_disturbed, f"a lone run was refused: {error!r}"
        if isinstance(error, StaleHeadError) and error.winner_id is not None:
            query = "SELECT metadata ->> 'tag' FROM checkpoints WHERE thread_id = %s AND checkpoint_id = %s"
            for (tag,) in self.rows(query, run.thread_id, error.winner_id):
                assert tag != str(run.tag), "overtaken by its own checkpoint"

    def acknowledge(self, thread_id: str, tag: int) -> None:
        query = "SELECT checkpoint_id FROM checkpoints WHERE thread_id = %s AND metadata ->> 'tag' = %s"
        found = {id for (id,) in self.rows(query, thread_id, str(tag))}
        assert found, "a run has succeeded, and nothing is stored"
        self.acknowledged.setdefault(thread_id, set()).update(found)

    # Runs

    def saver(self, is_async: bool) -> Any:
        return (self.world.suspending if is_async else self.world.blocking)[self.guard]

    @rule(
        number=st.integers(0, 1),
        is_async=st.booleans(),
        is_stream=st.booleans(),
        durability=st.sampled_from(["sync", "async", "exit"]),
    )
    def start(self, number: int, is_async: bool, is_stream: bool, durability: str) -> None:
        assume(len(self.runs) < 3)
        thread_id = self.threads[number]
        run = Run(thread_id, is_async, is_stream)
        others = self.of_thread(thread_id)
        is_held = self.is_held(thread_id)
        run.is_disturbed = bool(others) or thread_id in self.deleted
        self.runs.append(run)
        if is_async:
            self.start_async(run, durability)
        else:
            self.start_blocking(run, durability)
        run.wait()
        if thread_id in self.deleted:
            # It may be at its gate: what it writes is refused.
            pass
        elif is_held:
            assert isinstance(run.error, LeaseHeldError), run.error
        elif self.has_lease:
            assert not run.is_done, run.error
            self.note_taken(thread_id, run)
        if not isinstance(run.error, LeaseHeldError):
            self.disturb(thread_id, run)
        self.see_end(run)

    def start_async(self, run: Run, durability: Any) -> None:
        async def step(state: State) -> Any:
            run.changed.set()
            return answer(await run.gate.get())

        async def work() -> None:
            run.gate = asyncio.Queue()
            graph = build(step, checkpointer=self.saver(True))
            config = config_for(run.thread_id, run.tag)
            error: BaseException | None = None
            try:
                with anyio.CancelScope() as scope:
                    run.stop = scope.cancel
                    if run.is_stream:
                        async for _ in graph.astream(new_input(), config, durability=durability):
                            pass
                    else:
                        await graph.ainvoke(new_input(), config, durability=durability)
                if scope.cancelled_caught:
                    error = asyncio.CancelledError()
            except BaseException as raised:
                error = raised.with_traceback(None)
            run.end(error)

        async def begin() -> None:
            run.pieces = asyncio.get_running_loop().create_task(work())

        self.world.on_loop(begin())

    def start_blocking(self, run: Run, durability: Any) -> None:
        run.gate = queue.SimpleQueue()

        def step(state: State) -> Any:
            run.changed.set()
            return answer(run.gate.get(timeout=GUARD_SECONDS))

        def work() -> None:
            graph = build(step, checkpointer=self.saver(False))
            config = config_for(run.thread_id, run.tag)
            error: BaseException | None = None
            try:
                if run.is_stream:
                    for _ in graph.stream(new_input(), config, durability=durability):
                        pass
                else:
                    graph.invoke(new_input(), config, durability=durability)
            except BaseException as raised:
                error = raised.with_traceback(None)
            run.end(error)

        threading.Thread(target=work, daemon=True).start()

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), word=st.sampled_from(["go", "end", "raise"]))
    def advance(self, data: st.DataObject, word: str) -> None:
        run = data.draw(st.sampled_from(self.runs))
        run.changed.clear()
        if run.is_async:
            self.world.loop.call_soon_threadsafe(run.gate.put_nowait, word)
        else:
            run.gate.put(word)
        run.wait()
        if not run.is_done and word != "go":
            run.changed.clear()
            run.wait()
        self.see_end(run)

    @precondition(lambda self: any(run.is_async for run in self.runs))
    @rule(data=st.data(), by_task=st.booleans(), rounds=st.sampled_from([0, 1, 3, 10, 40]), going=st.booleans())
    def cancel(self, data: st.DataObject, by_task: bool, rounds: int, going: bool) -> None:
        """At the gate, or so many rounds of the event loop after it was opened."""
        run = data.draw(st.sampled_from([run for run in self.runs if run.is_async]))

        async def stop() -> None:
            if going:
                run.gate.put_nowait("go")
            for _ in range(rounds):
                await asyncio.sleep(0)
            run.changed.clear()
            (run.pieces.cancel if by_task else run.stop)()
            await asyncio.wait([run.pieces])

        self.world.on_loop(stop())
        assert run.is_done
        if not isinstance(run.error, REFUSALS):
            run.error = asyncio.CancelledError()
        self.see_end(run)

    @rule(number=st.integers(0, 1), is_async=st.booleans(), pulls=st.integers(0, 3), closes=st.booleans())
    def abandon(self, number: int, is_async: bool, pulls: int, closes: bool) -> None:
        """A stream that is not read to its end."""
        thread_id = self.threads[number]
        assume(not self.of_thread(thread_id) and thread_id not in self.deleted)
        graph = build(lambda state: {"items": ["step"], "word": "go"}, checkpointer=self.saver(is_async))
        config = config_for(thread_id, next(numbers))

        async def read() -> None:
            pieces = graph.astream(new_input(), config)
            for _ in range(pulls):
                await anext(pieces)
            if closes:
                await pieces.aclose()

        if is_async:
            self.world.on_loop(read())
        else:
            pieces = graph.stream(new_input(), config)
            for _ in range(pulls):
                next(pieces)
            if closes:
                pieces.close()
            del pieces
        self.note_taken(thread_id)

    @rule(
        number=st.integers(0, 1),
        kinds=st.lists(st.booleans(), min_size=2, max_size=3),
        durability=st.sampled_from(["sync", "async", "exit"]),
        is_resumed=st.booleans(),
        terminates=st.booleans(),
    )
    def race(self, number: int, kinds: list[bool], durability: Any, is_resumed: bool, terminates: bool) -> None:
        """Several runs that begin at once, from one head."""
        thread_id = self.threads[number]
        assume(not self.of_thread(thread_id) and thread_id not in self.deleted)
        options: dict[str, Any] = {"interrupt_before": ["step", "side"]} if is_resumed else {}
        if is_resumed:
            stopping = build(lambda state: {}, checkpointer=self.saver(False), **options)
            stopping.invoke(new_input(), config_for(thread_id, next(numbers)))
        given = None if is_resumed else new_input()
        start = threading.Barrier(len(kinds))
        answers: list[tuple[int, BaseException | None]] = []

        def work(is_async: bool, tag: int) -> None:
            graph, config = quick(self.saver(is_async)), config_for(thread_id, tag)
            start.wait(GUARD_SECONDS)
            error: BaseException | None = None
            try:
                if is_async:
                    self.world.on_loop(graph.ainvoke(given, config, durability=durability))
                else:
                    graph.invoke(given, config, durability=durability)
            except BaseException as raised:
                error = raised.with_traceback(None)
            answers.append((tag, error))

        tags = [next(numbers) for _ in kinds]
        workers = [threading.Thread(target=work, args=pair) for pair in zip(kinds, tags, strict=True)]
        for worker in workers:
            worker.start()
        if terminates:
            terminate(self.world.connection, APPLICATION)
        for worker in workers:
            worker.join(GUARD_SECONDS)
        self.note_taken(thread_id)
        won = [tag for tag, error in answers if error is None]
        assert won, answers
        for tag, error in answers:
            if error is not None:
                run = Run(thread_id, False, False, tag, is_disturbed=True)
                self.runs.append(run)
                run.end(error)
                self.see_end(run)
            elif not is_resumed:
                # Who resumes what was ended meanwhile has nothing to do.
                self.acknowledge(thread_id, tag)

    # What others do

    @rule(number=st.integers(0, 1))
    def run_elsewhere(self, number: int) -> None:
        thread_id = self.threads[number]
        is_held, others = self.is_held(thread_id), self.of_thread(thread_id)
        answer = self.world.elsewhere(self.guard, thread_id)
        if thread_id in self.deleted:
            assert answer == "ThreadDeletedError"
        elif is_held:
            assert answer == "LeaseHeldError"
        elif not others or self.has_lease:
            assert answer == ""
            self.note_taken(thread_id)
        else:
            assert answer in ("", "StaleHeadError")
        if answer != "LeaseHeldError":
            self.disturb(thread_id)

    @rule(number=st.integers(0, 1))
    def lone_run(self, number: int) -> None:
        """Nobody else is there: it is refused nothing, and what it answers is what is stored."""
        thread_id = self.threads[number]
        assume(not self.of_thread(thread_id) and thread_id not in self.deleted)
        tag = next(numbers)
        graph = quick(self.saver(False))
        answer = graph.invoke(new_input(), config_for(thread_id, tag))
        self.note_taken(thread_id)
        assert graph.get_state(config_of(thread_id)).values == answer
        self.acknowledge(thread_id, tag)

    @rule()
    def terminate_backends(self) -> None:
        terminate(self.world.connection, APPLICATION)

    @rule(number=st.integers(0, 1))
    def expire(self, number: int) -> None:
        """More time passes than a lease lasts, for a process that stood still."""
        thread_id = self.threads[number]
        query = f"UPDATE {self.world.schema}.leases SET expires_at = now() WHERE thread_id = %s"
        self.world.connection.execute(query.encode(), [thread_id])
        self.expired.add(thread_id)

    @rule(number=st.integers(0, 1))
    def delete(self, number: int) -> None:
        thread_id = self.threads[number]
        self.disturb(thread_id)
        self.acknowledged.pop(thread_id, None)
        self.saver(False).delete_thread(thread_id)
        self.deleted.add(thread_id)
        self.note_taken(thread_id)

    @precondition(lambda self: self.deleted)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        thread_id = data.draw(st.sampled_from(sorted(self.deleted)))
        # A run that began before would find a thread without it.
        assume(not self.of_thread(thread_id))
        assert self.saver(False).revive_thread(thread_id)
        self.deleted.discard(thread_id)

    @rule(number=st.integers(0, 1), which=st.integers(0, 99))
    def fork(self, number: int, which: int) -> None:
        """On purpose, from any checkpoint: nothing refuses it but a lease of somebody else's."""
        thread_id = self.threads[number]
        query = "SELECT checkpoint_id FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = '' ORDER BY 1"
        ids = [id for (id,) in self.rows(query, thread_id)]
        assume(ids)
        # How many there are depends on time, which a strategy may not.
        chosen = ids[which % len(ids)]
        config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": chosen}}
        graph = quick(self.saver(False))
        is_held, others = self.is_held(thread_id), self.of_thread(thread_id)
        try:
            made = graph.update_state(config, {"items": ["forked"]}, as_node="again")
        except LeaseHeldError:
            assert is_held
            return
        except StaleHeadError:
            # It named the head, and a run that was there has put another one.
            assert others
            return
        self.note_taken(thread_id)
        self.disturb(thread_id)
        self.forks.add(made["configurable"]["checkpoint_id"])

    # What always holds

    @invariant()
    def at_most_one_advances_a_head(self) -> None:
        for thread_id in getattr(self, "threads", ()):
            query = "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = %s"
            advanced = [parent for id, parent in self.rows(query, thread_id) if id not in self.forks]
            assert len(advanced) == len(set(advanced)), "one head was advanced by two"

    @invariant()
    def what_was_acknowledged_is_stored(self) -> None:
        for thread_id, ids in getattr(self, "acknowledged", {}).items():
            found = {id for (id,) in self.rows("SELECT checkpoint_id FROM checkpoints WHERE thread_id = %s", thread_id)}
            assert ids <= found

    @invariant()
    def leases_are_free_when_nobody_runs(self) -> None:
        for thread_id in getattr(self, "threads", ()):
            if not self.of_thread(thread_id):
                query = "SELECT FROM leases WHERE thread_id = %s AND holder_id IS NOT NULL AND expires_at > now()"
                wait_until(lambda query=query, thread_id=thread_id: not self.rows(query, thread_id), "a free lease")

    @invariant()
    def tokens_only_grow(self) -> None:
        for thread_id in getattr(self, "threads", ()):
            for (token,) in self.rows("SELECT fencing_token FROM leases WHERE thread_id = %s", thread_id):
                assert token >= self.tokens.get(thread_id, 0)
                self.tokens[thread_id] = token

    @invariant()
    def nothing_is_left_of_deleted_threads(self) -> None:
        for thread_id in getattr(self, "deleted", ()):
            for table in ("checkpoints", "writes"):
                assert self.rows(f"SELECT FROM {table} WHERE thread_id = %s", thread_id) == []

    def teardown(self) -> None:
        for run in [*getattr(self, "runs", ())]:
            if run.is_async:
                self.world.loop.call_soon_threadsafe(run.pieces.cancel)
            else:
                run.gate.put("raise")
        for run in [*getattr(self, "runs", ())]:
            wait_until(lambda run=run: run.is_done, "the end of a run")
        self.runs = []
        with suppress(AttributeError):
            self.leases_are_free_when_nobody_runs()


def answer(word: str) -> dict[str, Any]:
    if word == "raise":
        raise LookupError("as it was told")
    return {"items": ["step"], "word": word}


def play(dsn: str, schema: str, examples: int, steps: int) -> None:
    with world_of(dsn, schema) as world:
        run_state_machine_as_test(
            type("Guarded", (Guarded,), {"world": world}),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=examples < 20,
                database=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_guarded_runs_in_any_order(dsn: str, schema: str) -> None:
    play(dsn, schema, 4, 14)


@pytest.mark.long
def test_guarded_runs_in_many_orders(dsn: str, schema: str) -> None:
    play(dsn, schema, 150, 30)
