"""Pruning: what goes, what stays, and that nobody who works on the thread notices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import psycopg
import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, StateSnapshot, interrupt
from support import GUARD_SECONDS, spread, wait_until
from support.samples import config_of, exact_tuple, forget, id_of, messages, put_values, values_of
from typing_extensions import TypedDict

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver
from langgraph_pgstate.checkpoints.planning import MERGE_AT
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.threads.types import Progress, PruneResult

HOUR = timedelta(hours=1)


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Tables:
    """What is in the tables, and how to make it older."""

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self._connection, self._schema = connection, schema

    def count(self, table: str, thread_id: str = "t") -> int:
        row = self._connection.execute(
            f'SELECT count(*) FROM "{self._schema}".{table} WHERE thread_id = %s', (thread_id,)
        ).fetchone()
        assert row is not None
        return int(row[0])

    def counts(self, thread_id: str = "t") -> tuple[int, int, int, int]:
        """Rows of threads, checkpoints, writes and segments."""
        threads, checkpoints, writes, segments = (
            self.count(table, thread_id) for table in ("threads", "checkpoints", "writes", "segments")
        )
        return threads, checkpoints, writes, segments

    def age(self, config: RunnableConfig, by: timedelta) -> None:
        self._connection.execute(
            f'UPDATE "{self._schema}".checkpoints SET created_at = now() - %s WHERE checkpoint_id = %s',
            (by, id_of(config)),
        )

    def unreferenced(self) -> int:
        row = self._connection.execute(
            f"""SELECT count(*) FROM "{self._schema}".segments s WHERE NOT EXISTS (
                SELECT 1 FROM "{self._schema}".checkpoints c
                WHERE c.thread_id = s.thread_id AND s.segment_id = ANY(c.segment_ids))"""
        ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def tables(connection: psycopg.Connection, schema: str) -> Tables:
    return Tables(connection, schema)


def grow(saver: PGStateSaver, length: int, thread_id: str = "t", namespace: str = "") -> list[RunnableConfig]:
    """A conversation that grew by two messages with each checkpoint; oldest first."""
    configs = []
    config = config_of(thread_id, namespace)
    for step in range(1, length + 1):
        config = put_values(saver, config, {"messages": messages(0, 2 * step)}, step=step)
        configs.append(config)
    return configs


def ids(saver: PGStateSaver, config: RunnableConfig) -> list[str]:
    return [id_of(item.config) for item in saver.list(config)]


def gone(result: PruneResult) -> tuple[int, ...]:
    return result.threads, result.checkpoints, result.writes, result.segments, result.bytes


# How much stays.


def whole(saver: PGStateSaver, config: RunnableConfig) -> Any:
    """Return all of a checkpoint but the name of its parent, which a prune may take."""
    found = exact_tuple(saver.get_tuple(config))
    del found["parent_config"]
    return found


def without_parents(state: StateSnapshot) -> StateSnapshot:
    """Return a state, and those of its subgraphs, without the names of their parents."""
    tasks = tuple(
        task._replace(state=without_parents(task.state)) if isinstance(task.state, StateSnapshot) else task
        for task in state.tasks
    )
    return state._replace(parent_config=None, tasks=tasks)


@pytest.mark.parametrize("keep_last", [1, 3, 10, 11])
def test_the_newest_checkpoints_stay(keep_last: int, saver: PGStateSaver, tables: Tables) -> None:
    """As many as asked for, whole, in each namespace."""
    configs = grow(saver, 10) + grow(saver, 10, namespace="agent")
    kept = [*configs[10 - min(keep_last, 10) : 10], *configs[20 - min(keep_last, 10) :]]
    before = [whole(saver, config) for config in kept]
    result = saver.prune(["t"], keep_last=keep_last)
    forget(saver)
    assert result.checkpoints == 20 - len(kept)
    assert [whole(saver, config) for config in kept] == before
    assert tables.count("checkpoints") == len(kept)


def test_a_thread_goes_on_after_a_prune(saver: PGStateSaver) -> None:
    """The next put builds on what stayed."""
    configs = grow(saver, 10)
    saver.prune(["t"])
    following = put_values(saver, configs[-1], {"messages": messages(0, 30)})
    assert values_of(saver, following)["messages"] == messages(0, 30)


def test_only_what_is_older_goes(saver: PGStateSaver, tables: Tables) -> None:
    """`older_than` protects the young; the newest stays however old it is."""
    configs = grow(saver, 6)
    for config in configs[:4]:
        tables.age(config, 2 * HOUR)
    saver.prune(["t"], older_than=HOUR)
    assert ids(saver, config_of()) == [id_of(config) for config in reversed(configs[4:])]
    for config in configs[4:]:
        tables.age(config, 2 * HOUR)
    saver.prune(["t"], older_than=HOUR)
    assert ids(saver, config_of()) == [id_of(configs[5])]


def test_age_and_number_protect_independently(saver: PGStateSaver, tables: Tables) -> None:
    """What is among the last N stays, and what is young stays."""
    configs = grow(saver, 6)
    for config in configs[:5]:
        tables.age(config, 2 * HOUR)
    saver.prune(["t"], keep_last=3, older_than=HOUR)
    assert ids(saver, config_of()) == [id_of(config) for config in reversed(configs[3:])]


@pytest.mark.parametrize("strategy", ["delete", "delete_all"])
def test_delete_takes_the_whole_thread(strategy: str, saver: PGStateSaver, tables: Tables) -> None:
    """No row is left of it, and every row of the others."""
    grow(saver, 4)
    config = grow(saver, 4, namespace="agent")[-1]
    saver.put_writes(config, [("messages", "x")], "task")
    grow(saver, 4, "other")
    others = tables.counts("other")
    result = saver.prune(["t"], strategy=strategy)
    assert (result.threads, result.checkpoints, result.writes) == (1, 8, 1)
    assert tables.counts() == (0, 0, 0, 0)
    assert tables.counts("other") == others


def test_delete_by_age_spares_a_thread_with_anything_young(saver: PGStateSaver, tables: Tables) -> None:
    """A thread goes when all of it is old."""
    configs = grow(saver, 3)
    for config in configs[:2]:
        tables.age(config, 2 * HOUR)
    assert saver.prune(["t"], strategy="delete", older_than=HOUR).checkpoints == 0
    assert tables.count("checkpoints") == 3
    tables.age(configs[2], 2 * HOUR)
    assert saver.prune(["t"], strategy="delete", older_than=HOUR).checkpoints == 3
    assert tables.counts() == (0, 0, 0, 0)


def test_all_threads_are_meant_when_none_is_named(saver: PGStateSaver, tables: Tables) -> None:
    """`thread_ids=None` goes through all of them; an empty list through none."""
    for name in ("a", "b", "c"):
        grow(saver, 5, name)
    assert saver.prune([]).checkpoints == 0
    result = saver.prune()
    assert (result.threads, result.checkpoints) == (3, 12)
    assert [tables.count("checkpoints", name) for name in ("a", "b", "c")] == [1, 1, 1]


@pytest.mark.parametrize("named", [True, False])
def test_progress_is_told_after_each_thread(named: bool, saver: PGStateSaver) -> None:
    for thread_id in ("a", "b"):
        put_values(saver, put_values(saver, config_of(thread_id), {"n": 1}), {"n": 2}, step=1)
    told: list[Progress] = []
    saver.prune(["a", "b"] if named else None, progress=told.append)
    assert told == [Progress(1, 2, 1, "a"), Progress(2, 2, 2, "b")]


def test_more_threads_than_a_page_are_pruned(
    saver: PGStateSaver, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of threads follow one another, also while the threads read go."""
    monkeypatch.setattr("langgraph_pgstate.threads.prune._THREAD_PAGE", 3)
    for number in range(8):
        put_values(saver, config_of(f"t{number}"), {"x": 1})
    assert saver.prune(strategy="delete", dry_run=True).threads == 8
    assert saver.prune(strategy="delete").threads == 8
    assert not [*saver.list(None)]


def test_a_thread_named_twice_is_counted_once(saver: PGStateSaver) -> None:
    """Unknown ones count nothing."""
    grow(saver, 4)
    assert saver.prune(["t", "t", "unknown"], dry_run=True).checkpoints == 3
    result = saver.prune(["t", "t", "unknown"])
    assert (result.threads, result.checkpoints) == (1, 3)


# What is promised about it.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keep_last": 3},
        {"older_than": HOUR},
        {"strategy": "delete"},
        {"strategy": "delete_all", "older_than": timedelta(0)},
        {"keep_last": 50},
    ],
    ids=str,
)
def test_a_dry_run_counts_what_then_goes(options: dict[str, Any], saver: PGStateSaver, tables: Tables) -> None:
    """Threads, checkpoints, writes, segments and bytes; and it changes nothing."""
    for thread_id in ("t", "u"):
        configs = grow(saver, 12, thread_id)
        for config in configs[:7]:
            tables.age(config, 2 * HOUR)
        fork = put_values(saver, configs[3], {"messages": [*messages(0, 8), HumanMessage("fork" * 30)]})
        for config in (configs[2], configs[-1], fork):
            saver.put_writes(config, [("messages", "x" * 100), ("__interrupt__", 1)], "task")
        grow(saver, 3, thread_id, "agent")
    before = [tables.counts(thread_id) for thread_id in ("t", "u")]
    dry = saver.prune(["t", "u"], dry_run=True, **options)
    assert dry.dry_run
    assert [tables.counts(thread_id) for thread_id in ("t", "u")] == before
    result = saver.prune(["t", "u"], **options)
    assert not result.dry_run
    assert gone(result) == gone(dry)
    after = [tables.counts(thread_id) for thread_id in ("t", "u")]
    lost = [sum(one[at] - two[at] for one, two in zip(before, after, strict=True)) for at in range(4)]
    assert lost[1:] == [result.checkpoints, result.writes, result.segments]
    assert tables.unreferenced() == 0


def test_a_second_prune_finds_nothing(saver: PGStateSaver, tables: Tables) -> None:
    """Pruning twice is pruning once."""
    for config in grow(saver, 10):
        saver.put_writes(config, [("messages", "x")], "task")
    assert saver.prune(["t"], keep_last=2).checkpoints == 8
    before = tables.counts()
    assert gone(saver.prune(["t"], keep_last=2)) == (0, 0, 0, 0, 0)
    assert tables.counts() == before


def test_segments_without_reference_go(saver: PGStateSaver, tables: Tables) -> None:
    """Only what the kept checkpoint is read from stays in the table."""
    first = put_values(saver, config_of(), {"messages": messages(0, 30)})
    put_values(saver, first, {"messages": messages(100, 130)})
    assert tables.count("segments") == 2
    assert saver.prune(["t"]).segments == 1
    assert tables.count("segments") == 1
    assert tables.unreferenced() == 0


def test_the_space_of_a_long_conversation_is_given_back(saver: PGStateSaver, tables: Tables) -> None:
    """What merges superseded goes with the checkpoints that read it."""
    configs = grow(saver, 100)
    assert tables.count("segments") >= 100
    saver.prune(["t"])
    assert tables.count("segments") < MERGE_AT
    forget(saver)
    assert values_of(saver, configs[-1])["messages"] == messages(0, 200)


@pytest.mark.parametrize(
    "arguments",
    spread(
        [
            {"strategy": "keep_newest"},
            {"strategy": ""},
            {"keep_last": 0},
            {"keep_last": -1},
            {"keep_last": True},
            {"keep_last": "1"},
            {"keep_last": 2, "strategy": "delete"},
            {"older_than": 5},
            {"older_than": timedelta(seconds=-1)},
            {"thread_ids": "t"},
            {"thread_ids": [None]},
            {"thread_ids": [""]},
            {"thread_ids": ["t", b"x"]},
        ]
    ),
    ids=str,
)
async def test_bad_arguments_remove_nothing(arguments: dict[str, Any], saver: PGStateSaver, tables: Tables) -> None:
    """They are refused before the first thread is looked at, in both APIs."""
    grow(saver, 3)
    given = {"thread_ids": ["t"], **arguments}
    with pytest.raises(ConfigurationError):
        saver.prune(**given)
    with pytest.raises(ConfigurationError):
        await saver.aprune(**given)
    assert tables.count("checkpoints") == 3


async def test_the_asynchronous_saver_prunes_the_same(
    async_saver: AsyncPGStateSaver, saver: PGStateSaver, tables: Tables
) -> None:
    """Counts and all."""
    for name in ("a", "b"):
        grow(saver, 5, name)
    dry = await async_saver.aprune(dry_run=True, keep_last=2)
    result = await async_saver.aprune(keep_last=2)
    assert gone(dry) == gone(result)
    assert (result.threads, result.checkpoints) == (2, 6)
    assert (await async_saver.aprune(["a"], strategy="delete_all")).checkpoints == 2
    assert tables.counts("a") == (0, 0, 0, 0)


# What must survive.


def test_a_leaf_with_pending_writes_stays(saver: PGStateSaver) -> None:
    """A branch that somebody may go on with is kept with what its tasks wrote, however old it is."""
    configs = grow(saver, 6)
    fork = put_values(saver, configs[1], {"messages": [*messages(0, 4), HumanMessage("fork" * 30)]})
    newest = put_values(saver, configs[-1], {"messages": messages(0, 14)})
    saver.put_writes(fork, [("__interrupt__", "well?"), ("messages", "x")], "task")
    before = whole(saver, fork)
    saver.prune(["t"])
    forget(saver)
    assert ids(saver, config_of()) == [id_of(newest), id_of(fork)]
    assert whole(saver, fork) == before


def test_an_ancestor_with_pending_writes_goes(saver: PGStateSaver, tables: Tables) -> None:
    """Writes that a child has taken in protect nothing, and go with their checkpoint."""
    configs = grow(saver, 4)
    for config in configs:
        saver.put_writes(config, [("messages", "x")], "task")
    assert saver.prune(["t"]).writes == 3
    assert ids(saver, config_of()) == [id_of(configs[-1])]
    assert tables.count("writes") == 1


def ask(number: int, calls: list[str]) -> Callable[[Any], Any]:
    def node(state: Any) -> Any:
        calls.append(f"before {number}")
        answer = interrupt(f"question {number}")
        calls.append(f"after {number}")
        return {"messages": [HumanMessage(f"{number}: {answer}", id=f"answer-{number}")]}

    return node


def test_a_half_answered_interrupt_survives(saver: PGStateSaver) -> None:
    """Five tasks ask, two are answered, the thread is pruned, the rest is answered: nothing runs twice."""
    calls: list[str] = []
    builder = StateGraph(Chat)
    for number in range(5):
        builder.add_node(f"ask{number}", ask(number, calls))
        builder.add_edge(START, f"ask{number}")
    graph = builder.compile(checkpointer=saver)
    config = config_of()
    graph.invoke({"messages": [HumanMessage("warm up")]}, {**config, "configurable": {"thread_id": "t"}})
    pending = graph.get_state(config).interrupts
    assert len(pending) == 5
    graph.invoke(Command(resume={item.id: "yes" for item in pending[:2]}), config)
    before = graph.get_state(config)
    calls.clear()
    saver.prune(["t"])
    forget(saver)
    after = graph.get_state(config)
    assert (after.values, after.next, after.interrupts, after.tasks) == (
        before.values,
        before.next,
        before.interrupts,
        before.tasks,
    )
    assert len(after.interrupts) == 3
    graph.invoke(Command(resume={item.id: "yes" for item in after.interrupts}), config)
    assert sorted(call for call in calls if call.startswith("after")) == ["after 2", "after 3", "after 4"]
    answers = {item.id for item in graph.get_state(config).values["messages"]}
    assert answers >= {f"answer-{number}" for number in range(5)}


def test_an_interrupt_inside_a_subgraph_survives(saver: PGStateSaver) -> None:
    """The namespace of a subgraph call that waits is kept with its root."""
    calls: list[str] = []
    inner = StateGraph(Chat)
    inner.add_node("prepare", lambda state: {"messages": [HumanMessage("prepared", id="p")]})
    inner.add_node("ask", ask(1, calls))
    inner.add_edge(START, "prepare")
    inner.add_edge("prepare", "ask")
    builder = StateGraph(Chat)
    builder.add_node("first", lambda state: {"messages": [HumanMessage("first", id="f")]})
    builder.add_node("inner", inner.compile())
    builder.add_edge(START, "first")
    builder.add_edge("first", "inner")
    graph = builder.compile(checkpointer=saver)
    config = config_of()
    graph.invoke({"messages": [HumanMessage("hello", id="h")]}, config)
    before = without_parents(graph.get_state(config, subgraphs=True))
    saver.prune(["t"])
    forget(saver)
    assert without_parents(graph.get_state(config, subgraphs=True)) == before
    result = graph.invoke(Command(resume="yes"), config)
    assert [item.content for item in result["messages"]] == ["hello", "first", "prepared", "1: yes"]


def sub_put(saver: PGStateSaver, root: RunnableConfig, namespace: str, parent: RunnableConfig | None) -> RunnableConfig:
    return put_values(
        saver,
        parent or config_of(checkpoint_ns=namespace),
        {"messages": messages(0, 10)},
        parents={"": id_of(root)},
    )


def test_a_subgraph_call_goes_with_its_root(saver: PGStateSaver) -> None:
    """The namespace of a call goes when the root checkpoint it was made from goes, and stays when that stays."""
    roots = grow(saver, 3)
    namespaces = [f"tools:task-{number}" for number in range(3)]
    for root, namespace in zip(roots, namespaces, strict=True):
        first = sub_put(saver, root, namespace, None)
        sub_put(saver, root, namespace, first)
        sub_put(saver, root, f"{namespace}|deep:task", None)
    saver.prune(["t"])
    kept = {item.config["configurable"]["checkpoint_ns"] for item in saver.list({"configurable": {"thread_id": "t"}})}
    assert kept == {"", namespaces[2], f"{namespaces[2]}|deep:task"}


def test_a_subgraph_with_its_own_memory_stays(saver: PGStateSaver) -> None:
    """The namespace of a subgraph compiled with `checkpointer=True` outlives the root it was last called from."""
    roots = grow(saver, 3)
    first = sub_put(saver, roots[0], "memory", None)
    second = sub_put(saver, roots[0], "memory", first)
    saver.prune(["t"])
    assert ids(saver, config_of(checkpoint_ns="memory")) == [id_of(second)]


def test_the_memory_of_a_subgraph_survives_in_a_running_graph(saver: PGStateSaver) -> None:
    """A counter that only the subgraph keeps goes on counting after each prune."""

    class Counter(TypedDict):
        count: int

    def remember(state: Any) -> Any:
        return {"count": state.get("count", 0) + 1}

    inner = StateGraph(Counter)
    inner.add_node("remember", remember)
    inner.add_edge(START, "remember")
    memory = inner.compile(checkpointer=True)
    seen = []

    def call(state: Chat) -> Any:
        seen.append(memory.invoke({})["count"])
        return {"messages": [HumanMessage(str(seen[-1]))]}

    builder = StateGraph(Chat)
    builder.add_node("call", call)
    builder.add_edge(START, "call")
    graph = builder.compile(checkpointer=saver)
    for _ in range(4):
        graph.invoke({"messages": [HumanMessage("again")]}, config_of())
        saver.prune(["t"])
        forget(saver)
    assert seen == [1, 2, 3, 4]


def test_a_call_that_was_saved_before_its_root_stays(saver: PGStateSaver) -> None:
    """A subgraph's checkpoint may reach the database before the root's it names."""
    grow(saver, 3)
    early = put_values(
        saver, config_of(checkpoint_ns="tools:task"), {"messages": messages(0, 10)}, parents={"": "not-there-yet"}
    )
    saver.prune(["t"])
    assert values_of(saver, early)["messages"] == messages(0, 10)


def test_pending_sends_survive(saver: PGStateSaver) -> None:
    """Tasks that were sent but have not run yet run after the prune."""
    builder = StateGraph(Chat)
    builder.add_node("fan", lambda state: {"messages": [HumanMessage("fan", id="fan")]})
    builder.add_node("work", lambda state: {"messages": [HumanMessage(f"work {state['n']}", id=f"w{state['n']}")]})
    builder.add_edge(START, "fan")
    builder.add_conditional_edges("fan", lambda state: [Send("work", {"n": number}) for number in range(3)], ["work"])
    graph = builder.compile(checkpointer=saver, interrupt_before=["work"])
    config = config_of()
    graph.invoke({"messages": [HumanMessage("go", id="go")]}, config)
    saver.prune(["t"])
    forget(saver)
    assert graph.get_state(config).next == ("work", "work", "work")
    result = graph.invoke(None, config)
    assert [item.id for item in result["messages"]] == ["go", "fan", "w0", "w1", "w2"]


@pytest.mark.slow
def test_pruning_while_another_thread_appends_loses_nothing(
    dsn: str, schema: str, saver: PGStateSaver, tables: Tables
) -> None:
    """A run and a sweeper work on one thread: every state the run wrote was whole, and the last one is there."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def sweep() -> None:
        try:
            with PGStateSaver.from_conn_string(dsn, schema=schema) as other:
                while not stop.is_set():
                    other.prune(["t"], keep_last=2)
        except BaseException as error:
            errors.append(error)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        config = config_of()
        for length in range(1, 200):
            config = put_values(saver, config, {"messages": messages(0, length), "last": length})
            saver.put_writes(config, [("messages", "x")], "task")
            if length % 10 == 0:
                # As after a restart: the parent is read, not remembered.
                forget(saver)
            if length % 7 == 0:
                found = values_of(saver, config)
                assert (found["last"], len(found["messages"])) == (length, length)
    finally:
        stop.set()
        sweeper.join(GUARD_SECONDS)
    assert not errors
    saver.prune(["t"])
    forget(saver)
    assert values_of(saver, config)["messages"] == messages(0, 199)
    assert tables.unreferenced() == 0


def test_a_put_on_a_checkpoint_that_was_pruned_meanwhile_is_whole(
    dsn: str, schema: str, saver: PGStateSaver, tables: Tables
) -> None:
    """A fork from an old checkpoint, planned before the prune, is stored in full."""
    configs = grow(saver, 10)
    with PGStateSaver.from_conn_string(dsn, schema=schema) as other:
        other.prune(["t"])
    fork = put_values(saver, configs[2], {"messages": [*messages(0, 6), HumanMessage("fork")]})
    forget(saver)
    assert values_of(saver, fork)["messages"] == [*messages(0, 6), HumanMessage("fork")]
    assert tables.unreferenced() == 0


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize("everything", [False, True])
async def test_a_damaged_thread_is_left_and_the_others_are_pruned(
    async_saver: AsyncPGStateSaver,
    saver: PGStateSaver,
    tables: Tables,
    connection: psycopg.Connection,
    schema: str,
    caplog: pytest.LogCaptureFixture,
    is_async: bool,
    everything: bool,
) -> None:
    """It is named in the result, and once in the log; counted are the others."""
    for thread_id in "ABC":
        grow(saver, 4, thread_id)
    connection.execute(
        f"UPDATE \"{schema}\".checkpoints SET state = '\\xee00' WHERE thread_id = 'B' AND checkpoint_id = "
        f"(SELECT max(checkpoint_id) FROM \"{schema}\".checkpoints WHERE thread_id = 'B')".encode()
    )
    before = tables.counts("B")
    for dry_run in (True, False):
        caplog.clear()
        named = None if everything else ["A", "B", "C"]
        if is_async:
            result = await async_saver.aprune(named, dry_run=dry_run)
        else:
            result = saver.prune(named, dry_run=dry_run)
        assert result.damaged == ("B",)
        assert (result.threads, result.checkpoints, result.dry_run) == (2, 6, dry_run)
        (line,) = [item.getMessage() for item in caplog.records if item.levelname == "ERROR"]
        assert line.startswith("thread 'B' is not pruned: checkpoint ")
        assert "is damaged" in line
    assert tables.counts("B") == before
    assert [tables.count("checkpoints", thread_id) for thread_id in "AC"] == [1, 1]
    assert saver.prune(["B"], strategy="delete").damaged == ()
    assert tables.counts("B") == (0, 0, 0, 0)


def test_prunes_that_delete_one_thread_take_turns(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """Each in a caller's transaction, which is not repeated after a deadlock."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        grow(saver, 2)
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
        # As a guarded put of another process does, so that both prunes wait for the same row.
        with connection.transaction():
            connection.execute(f"SELECT FROM {schema}.threads FOR KEY SHARE")
            results: list[PruneResult] = []
            callers = [
                threading.Thread(target=lambda caller=caller: results.append(delete_with(caller, schema)))
                for caller in (one, other)
            ]
            for caller in callers:
                caller.start()
            wait_until(lambda: waiting(dsn) == 2, "both prunes wait")
        for caller in callers:
            caller.join()
    assert sorted(result.threads for result in results) == [0, 1]


def delete_with(caller: psycopg.Connection, schema: str) -> PruneResult:
    with caller.transaction():
        return PGStateSaver(caller, schema=schema).prune(["t"], strategy="delete")


def waiting(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        query = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
        return int(connection.execute(query).fetchone()[0])  # type: ignore[index]


def test_what_prunes_counted_is_added_up() -> None:
    one, other = PruneResult(1, 2, 3, 4, 5, damaged=("a",)), PruneResult(1, 1, 1, 1, 1, damaged=("b", "c"))
    assert one + other == PruneResult(2, 3, 4, 5, 6, damaged=("a", "b", "c"))


def test_a_prune_in_the_callers_transaction_is_hers_to_undo(
    dsn: str, schema: str, saver: PGStateSaver, tables: Tables
) -> None:
    """Rolled back, everything is as before."""
    configs = grow(saver, 5)
    before = tables.counts()
    with psycopg.connect(dsn) as lent:
        lent.execute("SELECT 1")
        assert PGStateSaver(lent, schema=schema).prune(["t"]).checkpoints == 4
        lent.rollback()
    assert tables.counts() == before
    assert values_of(saver, configs[0])["messages"] == messages(0, 2)
