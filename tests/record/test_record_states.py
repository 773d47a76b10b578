"""A conversation is what the state holds at its checkpoint, whatever was done to the thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from support import GUARD_SECONDS, config_of, put_arguments

from langgraph_pgstate import PGState
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.langgraph_compat import DeltaSnapshot
from langgraph_pgstate.record.message_hook import message_row
from langgraph_pgstate.record.options import RecorderSettings

COLUMNS = ("role", "agent", "content", "tool_calls", "tool_call_id")


# The writer does nothing by itself: what is not flushed waits in the journal.
IDLE = RecorderSettings(interval=1_000_000.0)


Said = list[tuple[Any, ...]]


def said_in(messages: Sequence[BaseMessage]) -> Said:
    """What the columns say of some messages."""
    return [tuple(message_row(message)[name] for name in COLUMNS) for message in messages]


def recorded(state: PGState, thread_id: str, checkpoint_id: str | None = None, **options: Any) -> Said:
    """A conversation, as `said_in` has it."""
    found = state.messages.conversation(thread_id, checkpoint_id=checkpoint_id, channel="messages", **options)
    return [tuple(getattr(message, name) for name in COLUMNS) for message in found]


def viewed(connection: psycopg.Connection, schema: str, thread_id: str) -> Said:
    """The conversation by the view."""
    query = (
        f"SELECT {', '.join(COLUMNS)} FROM {schema}.conversations "
        "WHERE thread_id = %s AND channel = 'messages' ORDER BY number"
    )
    return connection.execute(query.encode(), [thread_id]).fetchall()


def stored(state: PGState, thread_id: str) -> dict[str, list[BaseMessage]]:
    """The messages channel of each checkpoint, newest first."""
    found = state.saver.list(config_of(thread_id))
    return {one.config["configurable"]["checkpoint_id"]: one.checkpoint["channel_values"]["messages"] for one in found}


def put(state: PGState, config: Any, messages: Sequence[BaseMessage], run_id: str | None = None) -> Any:
    """A checkpoint with these messages."""
    config, checkpoint, metadata, versions = put_arguments(config, 0, messages=list(messages))
    version = f"{next(_versions):032}.{0:016}"
    checkpoint["channel_versions"] = versions = {"messages": version}
    return state.saver.put(config, checkpoint, {**metadata, **({"run_id": run_id} if run_id else {})}, versions)


_versions = itertools.count(1)


def human(*ids: str) -> list[BaseMessage]:
    return [HumanMessage(f"text of {id}", id=id) for id in ids]


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema, recording=IDLE) as state:
        state.setup()
        yield state


def assert_equal(state: PGState, connection: psycopg.Connection, *thread_ids: str) -> None:
    """The record of each thread is that of its states, and a check says so."""
    admin = Admin(Database(connection, schema=state.saver.schema))
    for thread_id in thread_ids:
        assert admin.check(thread_id).problems == []
        found = stored(state, thread_id)
        for checkpoint_id, messages in found.items():
            assert recorded(state, thread_id, checkpoint_id) == said_in(messages), checkpoint_id
        newest = said_in(next(iter(found.values()))) if found else []
        assert viewed(connection, state.saver.schema, thread_id) == newest


@pytest.mark.parametrize(
    "after",
    [
        ["c", "b", "a"],
        ["a", "x", "b", "c"],
        ["x", "a", "b", "c"],
        ["b", "c", "a", "x"],
        ["c", "x"],
        ["a", "c", "b*"],
        ["b*", "a", "c"],
        [],
    ],
    ids="-".join,
)
@pytest.mark.parametrize("is_cold", [False, True], ids=["warm", "cold"])
def test_the_order_is_the_states(
    after: list[str], is_cold: bool, dsn: str, state: PGState, connection: psycopg.Connection
) -> None:
    config = put(state, config_of("t"), human("a", "b"))
    config = put(state, config, human("a", "b", "c"))
    changed = [HumanMessage(f"text of {id}", id=id[0]) for id in after]
    with PGState.open(dsn, schema=state.saver.schema) as other:
        config = put(other if is_cold else state, config, changed)
    put(state, config, [*changed, *human("z")])
    assert_equal(state, connection, "t")
    state.saver.prune(["t"])
    assert_equal(state, connection, "t")


def test_messages_that_share_an_id_are_all_there(state: PGState, connection: psycopg.Connection) -> None:
    first, second, third = (HumanMessage(text, id="same") for text in ("one", "two", "three"))
    config = put(state, config_of("t"), [first])
    config = put(state, config, [first, second])
    config = put(state, config, [first, second, third])
    config = put(state, config, [second, third])
    put(state, config, [third])
    assert_equal(state, connection, "t")


def test_a_channel_that_holds_no_list_any_more_is_empty(state: PGState) -> None:
    config = put(state, config_of("t"), human("a", "b"))
    arguments = put_arguments(config, 5, messages=None)
    state.saver.put(*arguments)
    assert recorded(state, "t") == []


def test_what_is_in_the_journal_when_a_prune_comes_is_not_lost(state: PGState, connection: psycopg.Connection) -> None:
    """The prune moves it before, but a fork may be put in between."""
    root = put(state, config_of("t"), human("a", "b"))
    put(state, root, human("a", "b", "c"))
    fork = put(state, root, human("a"))
    put(state, fork, human("a", "z"))
    state.saver.prune(["t"], keep_last=2)
    assert_equal(state, connection, "t")


def test_a_checkpoint_that_does_not_name_its_delta_channel_is_not_compared(
    state: PGState, connection: psycopg.Connection
) -> None:
    """LangGraph stores such a one where a run with `durability="exit"` is cancelled."""
    config, checkpoint, metadata, _ = put_arguments(config_of("t"), 0, messages=DeltaSnapshot(human("a", "b")))
    counters = {"counters_since_delta_snapshot": {"messages": [0, 1]}}
    config = state.saver.put(config, checkpoint, {**metadata, **counters}, checkpoint["channel_versions"])
    config, checkpoint, metadata, versions = put_arguments(config, 1)
    state.saver.put(config, {**checkpoint, "channel_values": {}}, metadata, versions)
    state.flush()
    assert len(recorded(state, "t")) == 2
    assert Admin(Database(connection, schema=state.saver.schema)).check("t").problems == []


def test_messages_that_a_prune_removed_are_found_by_their_words_once(state: PGState) -> None:
    root = put(state, config_of("t"), human("ocelot", "b"))
    config = put(state, root, human("b", "c"))
    put(state, root, human("b", "ocelot"))
    put(state, config, human("b", "c", "d"))
    for _ in range(2):
        hits = state.messages.search("ocelot").items
        assert [hit.message.message_id for hit in hits] == ["ocelot"]
        state.saver.prune(["t"], keep_last=2)


@pytest.mark.slow
def test_branches_that_grow_while_a_prune_runs_lose_nothing(
    state: PGState, connection: psycopg.Connection, dsn: str
) -> None:
    """Each fork is put on a checkpoint that the prune may just be taking away."""
    root = put(state, config_of("t"), human("a"))
    trunk = put(state, root, human("a", "b"))
    done = threading.Event()
    pruned = []

    def keep_pruning() -> None:
        with PGState.open(dsn, schema=state.saver.schema, recording=IDLE) as other:
            while not done.is_set():
                pruned.append(other.saver.prune(["t"], keep_last=3).checkpoints)

    pruner = threading.Thread(target=keep_pruning)
    pruner.start()
    try:
        for number in range(60):
            older = trunk
            trunk = put(state, trunk, human("a", "b", f"trunk {number}"))
            fork = put(state, older, human("a", f"fork {number}"))
            put(state, fork, human(f"fork {number}", "a"))
    finally:
        done.set()
        pruner.join(GUARD_SECONDS)
    assert sum(pruned) > 0
    assert_equal(state, connection, "t")
    state.saver.prune(["t"], keep_last=2)
    assert_equal(state, connection, "t")


class Conversations(RuleBasedStateMachine):
    """Two processes on a few threads; whatever they do, the record says what the states say."""

    dsn: str
    schema: str
    is_second_recorded = True
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        self.states: list[Any] = [None, None]
        self.processes: list[PGState] = [self.start(0), self.start(1)]
        number = next(self.numbers)
        self.threads = [f"{number}"]
        self.ids = itertools.count()

    def teardown(self) -> None:
        self.compare(0)
        for state in self.states:
            state.__exit__(None, None, None)
        self.connection.close()

    def start(self, process: int) -> PGState:
        self.states[process] = PGState.open(self.dsn, schema=self.schema, recording=IDLE, pool=2)
        state: PGState = self.states[process].__enter__()
        if process and not self.is_second_recorded:
            state.saver._hook = None
        return state

    @initialize()
    def begin(self) -> None:
        put(self.processes[0], config_of(self.threads[0]), self.new(2), "run-0")

    def new(self, count: int) -> list[BaseMessage]:
        kinds = [HumanMessage, AIMessage, SystemMessage]
        numbers = itertools.islice(self.ids, count)
        return [kinds[number % 3](f"message {number}", id=f"m{number}") for number in numbers]

    @rule(
        process=st.integers(0, 1),
        thread=st.integers(0, 9),
        back=st.integers(0, 3),
        run=st.integers(0, 3),
        change=st.sampled_from(
            ["append", "append", "edit", "remove", "insert", "prepend", "shuffle", "replace", "again", "plain", "same"]
        ),
        place=st.integers(0, 20),
    )
    def advance(self, process: int, thread: int, back: int, run: int, change: str, place: int) -> None:
        """A checkpoint on the newest one, or on an older one."""
        state = self.processes[process]
        thread_id = self.threads[thread % len(self.threads)]
        found = list(stored(state, thread_id).items())
        if not found:
            put(state, config_of(thread_id), self.new(2), f"run-{run}")
            return
        checkpoint_id, _ = found[min(back, len(found) - 1)]
        # As a graph does: it reads before it writes, and changes what it was given.
        config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}
        loaded = state.saver.get_tuple(config)
        assert loaded is not None
        messages = list(loaded.checkpoint["channel_values"]["messages"])
        at = place % (len(messages) + 1)
        changed = messages[at : at + 1]
        if change == "append":
            messages += self.new(1 + place % 2)
        elif change == "edit" and changed:
            messages[at] = type(changed[0])(f"edited {next(self.ids)}", id=changed[0].id)
        elif change == "remove":
            messages[at : at + 2] = []
        elif change == "insert":
            messages[at:at] = self.new(1)
        elif change == "prepend":
            messages[:0] = self.new(1)
        elif change == "shuffle":
            messages = messages[at:] + messages[:at]
        elif change == "replace":
            messages = [*self.new(1), *messages[-2:]]
        elif change == "again" and changed:
            messages += changed
        elif change == "plain":
            messages.append(HumanMessage("yes"))
        put(state, config, messages, f"run-{run}")

    @rule(process=st.integers(0, 1))
    def flush(self, process: int) -> None:
        self.processes[process].flush()

    @rule(process=st.integers(0, 1))
    def restart(self, process: int) -> None:
        """A process that remembers nothing takes its place."""
        self.states[process].__exit__(None, None, None)
        self.processes[process] = self.start(process)

    @rule(process=st.integers(0, 1), thread=st.integers(0, 9), back=st.integers(0, 5))
    def label(self, process: int, thread: int, back: int) -> None:
        state, thread_id = self.processes[process], self.threads[thread % len(self.threads)]
        if found := [*stored(state, thread_id)]:
            config = {"configurable": {"thread_id": thread_id, "checkpoint_id": found[min(back, len(found) - 1)]}}
            state.threads.label(config, "a label")

    @rule(process=st.integers(0, 1), keep_last=st.integers(1, 3), by_age=st.booleans())
    def prune(self, process: int, keep_last: int, by_age: bool) -> None:
        older_than = timedelta(0) if by_age else None
        self.processes[process].saver.prune(self.threads, keep_last=keep_last, older_than=older_than)

    @rule(process=st.integers(0, 1), run=st.integers(0, 3))
    def delete_runs(self, process: int, run: int) -> None:
        self.processes[process].saver.delete_for_runs([f"run-{run}"])

    @rule(process=st.integers(0, 1), thread=st.integers(0, 9), back=st.integers(0, 3), whole=st.booleans())
    def fork(self, process: int, thread: int, back: int, whole: bool) -> None:
        state, thread_id = self.processes[process], self.threads[thread % len(self.threads)]
        found = [*stored(state, thread_id)]
        target = f"{self.threads[0]}-{next(self.ids)}"
        if whole:
            state.saver.copy_thread(thread_id, target)
            self.threads.append(target)
        elif found:
            state.threads.fork(thread_id, found[min(back, len(found) - 1)], to=target)
            self.threads.append(target)

    @rule(process=st.integers(0, 1))
    def compare(self, process: int) -> None:
        # What the other process has noted is in the journal: moved as by anybody who comes later.
        self.processes[process].recorder().recover()
        if not self.is_second_recorded:
            self.processes[process].backfill(self.threads)
            again = self.processes[process].backfill(self.threads)
            assert (again.filled, again.messages, again.problems) == (0, 0, [])
        assert_equal(self.processes[process], self.connection, *self.threads)


@pytest.mark.parametrize("examples", [3, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("is_second_recorded", [True, False], ids=["recorded", "backfilled"])
def test_no_sequence_of_operations_parts_the_record_from_the_states(
    is_second_recorded: bool, examples: int, dsn: str, schema: str
) -> None:
    """Both processes record what they do, or one does not and what it did is made up for."""
    known = {"dsn": dsn, "schema": schema, "is_second_recorded": is_second_recorded}
    machine = type("Machine", (Conversations,), known)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            derandomize=examples < 100,
            database=None,
            suppress_health_check=list(HealthCheck),
            # To make a failing example smaller takes minutes.
            phases=[Phase.generate],
        ),
    )
