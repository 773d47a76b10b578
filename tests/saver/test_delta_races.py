"""DeltaChannels whose runs race: what LangGraph's own rules make of it, and that a prune makes nothing worse of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint import base
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import UUID
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import _checkpoint as pregel
from support import GUARD_SECONDS, config_of, examples

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import StaleHeadError
from tests.saver.test_hazards import Elsewhere

THREAD = config_of("t")


def joined(value: list[str], writes: Any) -> list[str]:
    return [*value, *(item for write in writes for item in write)]


def graph_of(saver: Any, frequency: int = 3, supersteps: int = 1, hook: Callable[[str], Any] = lambda who: None) -> Any:
    """A graph whose node notes who ran it, some times in each run; two callers write different channels, too."""

    items = Annotated[list[str], DeltaChannel(joined, snapshot_frequency=frequency)]
    State = TypedDict("State", {"items": items, "count": int, "extra": int})  # noqa: UP013

    def node(state: Any, config: RunnableConfig) -> dict[str, Any]:
        who = config["configurable"].get("who", "nobody")
        hook(who)
        more = {"extra": 1} if who == "B" else {}
        return {"items": [f"{who} {len(state['items'])}"], "count": state.get("count", 0) + 1, **more}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: "node" if state["count"] % supersteps else END)
    return graph


def by(who: str) -> Any:
    return {"configurable": {**THREAD["configurable"], "who": who}}


# A prune beside a race.


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("guard", [None, "head"])
def test_a_run_whose_head_was_pruned_away_is_refused(guard: Any, durability: Any, dsn: str, schema: str) -> None:
    """Another run was faster, and a prune removed what the slower one's DeltaChannels rest on: stored, they were short.

    Guard: a checkpoint with DeltaChannels rests on its parent (`plan_put`), and is refused where that is gone.
    """
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        # Each run makes two updates: the slow one starts at a snapshot, and makes none.
        fast = graph_of(saver, 4).compile(checkpointer=saver)
        for _ in range(4):
            fast.invoke({"items": ["asked"]}, by("fast"))

        returned: list[Any] = []

        def overtake(who: str) -> None:
            if who == "slow":
                for _ in range(3):
                    returned.append(fast.invoke({"items": ["asked"]}, by("fast")))
                saver.prune(["t"])

        with PGStateSaver.from_conn_string(dsn, schema=schema, guard=guard) as other:
            slow = graph_of(other, 4, hook=overtake).compile(checkpointer=other)
            with pytest.raises(StaleHeadError, match="no longer exists"):
                slow.invoke({"items": ["late"]}, by("slow"), durability=durability)
        assert fast.get_state(THREAD).values == returned[-1]


def test_what_an_uncommitted_put_rebuilds_its_state_from_is_not_removed(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """A prune that meets a put on what it is about to remove waits, and keeps what that put rests on.

    Guard: `lock_checkpoints` in a prune, which then decides anew.
    """
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        graph = graph_of(saver).compile(checkpointer=saver)
        graph.invoke({"items": ["asked"]}, by("one"))
        past = graph.get_state(THREAD)
        for _ in range(3):
            graph.invoke({"items": ["asked"]}, by("one"))
        with psycopg.connect(dsn) as transaction:
            transaction.execute("SELECT 1")
            writer = PGStateSaver(transaction, schema=schema)
            found = writer.get_tuple(past.config)
            assert found is not None
            checkpoint = {**found.checkpoint, "id": str(base.uuid6(clock_seq=1))}
            child = writer.put(found.config, checkpoint, found.metadata, {})
            removal = Elsewhere(dsn, schema, lambda other: other.prune(["t"]))
            removal.settle(connection)
            transaction.commit()
            removal.join()
        assert graph.get_state(child).values["items"] == past.values["items"]


# Races without a prune.


class Turns:
    """Lets the calls of several runs through one at a time, in a given order; then as they come."""

    def __init__(self, order: str) -> None:
        self._order = list(order)
        self._changed = threading.Condition()
        self._ended: set[str] = set()
        self._is_busy = False
        self.log: list[tuple[str, str]] = []

    @contextmanager
    def turn(self, who: str, call: str) -> Iterator[None]:
        """Wait for the turn of a run, and keep others waiting."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._is_turn_of(who), GUARD_SECONDS), "nobody's turn"
            self._is_busy = True
            self.log.append((who, call))
        try:
            yield
        finally:
            with self._changed:
                self._is_busy = False
                if self._order and self._order[0] == who:
                    self._order.pop(0)
                self._changed.notify_all()

    def _is_turn_of(self, who: str) -> bool:
        while self._order and self._order[0] in self._ended:
            self._order.pop(0)
        return not self._is_busy and (not self._order or self._order[0] == who)

    def end(self, who: str) -> None:
        """Wait no more for a run."""
        with self._changed:
            self._ended.add(who)
            self._changed.notify_all()


class TakingTurns(BaseCheckpointSaver[str]):
    """A saver whose calls wait for their run's turn."""

    def __init__(self, saver: BaseCheckpointSaver[str], who: str, turns: Turns) -> None:
        super().__init__(serde=saver.serde)
        self._saver, self._who, self._turns = saver, who, turns

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    def get_tuple(self, config: Any) -> Any:
        with self._turns.turn(self._who, "get_tuple"):
            return self._saver.get_tuple(config)

    def put(self, *arguments: Any) -> Any:
        with self._turns.turn(self._who, "put"):
            return self._saver.put(*arguments)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        with self._turns.turn(self._who, "put_writes"):
            self._saver.put_writes(config, writes, task_id, task_path)

    def get_delta_channel_history(self, **named: Any) -> Any:
        with self._turns.turn(self._who, "get_delta_channel_history"):
            return self._saver.get_delta_channel_history(**named)


_local = threading.local()


def own_id(node: Any = None, clock_seq: Any = None) -> UUID:
    """An id for LangGraph that depends on who draws it and how many he has drawn, not on when."""
    _local.drawn += 1
    text = f"{0x1F0000000000000 + 4 * _local.drawn + 'nAB'.index(_local.who[0]):015x}"
    return UUID(hex=f"{text[:12]}6{text[12:]}8000{0:012x}")


def draw_as(who: str, after: int) -> None:
    _local.who, _local.drawn = who, after


Outcome = tuple[dict[str, Any], list[Any], list[tuple[str, str]]]


def race(saver: Any, thread_id: str, order: str, durability: Any, frequency: int, resumes: bool, steps: int) -> Outcome:
    """Two runs on one thread whose calls on the saver come in a given order.

    Returns:
        What each of them returned, and its last checkpoint's state as it is read; the thread's history; and the calls.
    """
    turns = Turns(order)

    def compiled(checkpointer: Any) -> Any:
        return graph_of(saver, frequency, steps).compile(
            checkpointer=checkpointer, interrupt_before=["node"] if resumes else None
        )

    def config(who: str) -> Any:
        return {"configurable": {**config_of(thread_id)["configurable"], "who": who}}

    draw_as("nobody", 0)
    compiled(saver).invoke({"items": ["start"], "count": 0}, config("nobody"), durability="sync")
    returned: dict[str, Any] = {}

    def run(who: str) -> None:
        draw_as(who, 100)
        try:
            given = None if resumes else {"items": [f"in {who}"]}
            graph = compiled(TakingTurns(saver, who, turns))
            values = last = None
            for mode, chunk in graph.stream(
                given, config(who), stream_mode=["values", "checkpoints"], durability=durability
            ):
                if mode == "checkpoints":
                    last = chunk["config"]
                elif "items" in chunk:
                    values = chunk["items"]
            returned[who] = values, last
        finally:
            turns.end(who)

    runs = [threading.Thread(target=run, args=(who,)) for who in "AB"]
    for one in runs:
        one.start()
    for one in runs:
        one.join(GUARD_SECONDS)
    graph = compiled(saver)
    outcome = {
        who: (values, None if last is None else graph.get_state(last).values.get("items"))
        for who, (values, last) in returned.items()
    }
    history = [(state.metadata["step"], state.values.get("items")) for state in graph.get_state_history(config("n"))]
    return outcome, history, turns.log


@pytest.fixture
def own_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that do not depend on who is faster."""
    for module in (base, pregel):
        monkeypatch.setattr(module, "uuid6", own_id)


ORDERS = {
    # B goes on from the input of A, before A's first task has written: that write is read as if it led to B's state.
    "read between an input and its writes": ("AAABBB" + "A" * 20, "sync", False),
    # Both run the same task of one checkpoint: the first one's writes are kept, for both.
    "the same task twice": ("AABB" + "A" * 20, "sync", True),
    # Both hang all they wrote at the one checkpoint they started from.
    "both at their end": ("AABB" + "A" * 20, "exit", False),
}


@pytest.mark.parametrize("name", ORDERS)
def test_states_that_differ_do_so_in_memory_too(
    name: str, dsn: str, schema: str, own_ids: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Why a state that a racing run returned is not the one that is read: LangGraph stores a DeltaChannel as what was
    written at the ancestors, and does not say which child a write led to. With a guard it does not come about.
    """
    order, durability, resumes = ORDERS[name]
    arguments = order, durability, 1000, resumes, 1
    in_memory = race(InMemorySaver(), "t", *arguments)
    outcome = in_memory[0]
    assert any(returned != stored for returned, stored in outcome.values())
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        assert race(saver, "t", *arguments) == in_memory


@pytest.mark.slow
@given(
    order=st.text("AB", min_size=4, max_size=24),
    durability=st.sampled_from(["sync", "exit"]),
    frequency=st.sampled_from([2, 3, 1000]),
    resumes=st.booleans(),
    steps=st.integers(1, 2),
)
@settings(
    max_examples=examples(25),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_races_end_as_they_do_in_memory(
    order: str, durability: str, frequency: int, resumes: bool, steps: int, dsn: str, schema: str, own_ids: None
) -> None:
    """Whatever the order of two runs' calls, all that is read afterwards is what LangGraph's own saver says."""
    arguments = order, durability, frequency, resumes, steps
    in_memory = race(InMemorySaver(), "t", *arguments)
    with PGStateSaver.from_conn_string(dsn, schema=schema, pool=2) as saver:
        saver.setup()
        saver.delete_thread("t")
        found = race(saver, "t", *arguments)
        # Where a run's own calls came in another order, it is another race.
        if found[2] == in_memory[2]:
            assert found == in_memory
