"""Guards of the head and of deleted threads: who is overtaken writes nothing, who forks on purpose passes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.types import Command, interrupt
from support import APIS, config_of, counted, holding, invoke, loop_graph, open_saver, put_arguments, usual

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.errors import LeaseHeldError, StaleHeadError, ThreadDeletedError
from langgraph_pgstate.leases.guards import PastId, broken_condition
from tests.checkpoints.test_hooks import Diary
from tests.test_state import APIS as STATES
from tests.test_state import open_state

INPUT: dict[str, Any] = {"items": [], "count": 0}


GUARDS = ["head", "lease", ("head", "lease")]


@pytest.mark.parametrize(
    "message",
    [
        'invalid input syntax for type integer: "pgstate-guard:head:a";b;"',
        "ungültige Eingabesyntax für Typ integer: »pgstate-guard:head:a»;b;«",
        "syntaxe en entrée invalide pour le type integer : « pgstate-guard:head:a »;b; »",
        '型integerの入力構文が不正です: "pgstate-guard:head:a;b;"',
    ],
)
def test_a_refusal_is_known_in_each_language_of_the_server(message: str) -> None:
    """Guard: the mark's own end. `lc_messages` chooses the quotation marks around it."""
    assert broken_condition(psycopg.errors.InvalidTextRepresentation(message)) == "head"


def rows(connection: psycopg.Connection, schema: str, thread_id: str = "t") -> dict[str, int]:
    """How many rows of a thread each table has; only those that have any."""
    tables = connection.execute(
        "SELECT table_name FROM information_schema.columns WHERE table_schema = %s AND column_name = 'thread_id'",
        [schema],
    ).fetchall()
    found = {}
    for (table,) in tables:
        query = f'SELECT count(*) FROM "{schema}"."{table}" WHERE thread_id = %s'
        found[table] = connection.execute(query, [thread_id]).fetchone()[0]  # type: ignore[index]
    return {table: count for table, count in found.items() if count}


def parents(connection: psycopg.Connection, schema: str) -> dict[str, str | None]:
    query = f"SELECT checkpoint_id, parent_checkpoint_id FROM {schema}.checkpoints WHERE checkpoint_ns = ''"
    return dict(connection.execute(query).fetchall())  # type: ignore[arg-type]


def is_linear(connection: psycopg.Connection, schema: str) -> bool:
    found = list(parents(connection, schema).values())
    return len(found) == len(set(found))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("api", APIS)
async def test_a_run_that_was_overtaken_is_refused(
    api: type, durability: str, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with (
        open_saver(api, dsn, schema, guard="head") as slow,
        open_saver(api, dsn, schema, guard="head") as fast,
    ):
        quick = loop_graph(2).compile(checkpointer=fast)
        await invoke(quick, fast, INPUT, config_of("t"))
        loop = asyncio.get_running_loop()

        def overtake(count: int) -> None:
            if count == 0:
                other = invoke(quick, fast, {"count": 1}, config_of("t"))
                asyncio.run_coroutine_threadsafe(other, loop).result()

        graph = loop_graph(2, overtake).compile(checkpointer=slow)
        with pytest.raises(StaleHeadError) as raised:
            await asyncio.to_thread(
                lambda: asyncio.run_coroutine_threadsafe(
                    invoke(graph, slow, INPUT, config_of("t"), durability=durability), loop
                ).result()
            ) if api is PGStateSaver else await asyncio.to_thread(
                graph.invoke, INPUT, config_of("t"), durability=durability
            )
        assert raised.value.winner_id in parents(connection, schema)
        assert parents(connection, schema)[raised.value.winner_id] == raised.value.checkpoint_id  # type: ignore[index]
        assert is_linear(connection, schema)
        if durability == "async":
            # Which of the two is overtaken depends on when the first one's input is stored.
            return
        state = await fast.aget_tuple(config_of("t"))
        assert state.checkpoint["channel_values"]["count"] == 2


@pytest.mark.parametrize("api", APIS)
async def test_of_two_that_begin_a_thread_one_does(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, guard="head") as saver:
        puts = [saver.aput(*put_arguments(config_of("t"), 0)) for _ in range(4)]
        answers = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(answer) for answer in answers if not isinstance(answer, dict)] == [StaleHeadError] * 3
        assert len(parents(connection, schema)) == 1


@pytest.mark.parametrize("api", APIS)
async def test_of_many_that_go_on_from_one_head_one_does(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, guard="head") as saver:
        config = await saver.aput(*put_arguments(config_of("t"), 0))
        for step in range(1, 6):
            puts = [saver.aput(*put_arguments(config, step)) for _ in range(4)]
            answers = await asyncio.gather(*puts, return_exceptions=True)
            (config,) = (answer for answer in answers if isinstance(answer, dict))
            refused = [answer for answer in answers if not isinstance(answer, dict)]
            assert {error.winner_id for error in refused} == {config["configurable"]["checkpoint_id"]}
        assert is_linear(connection, schema)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("api", APIS)
async def test_a_put_whose_answer_was_lost_passes(
    api: type, guard: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with counted(dsn) as proxy:
        async with open_saver(api, proxy.dsn, schema, guard=guard, pool=1) as saver:
            config: Any = config_of("t")
            for step in range(4):
                arguments = put_arguments(config, step)
                if guard == "head":
                    proxy.answers_to_lose = 1
                config = await saver.aput(*arguments)
                # It is sent again as it was.
                assert await saver.aput(*arguments) == config
    assert len(parents(connection, schema)) == 4
    assert is_linear(connection, schema)


@pytest.mark.parametrize("guard", ["head", ("head", "lease")])
@pytest.mark.parametrize("api", APIS)
async def test_forks_on_purpose_pass(
    api: type, guard: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, guard=guard) as saver:
        graph = loop_graph(3).compile(checkpointer=saver)
        await invoke(graph, saver, INPUT, config_of("t"))
        past = [item async for item in saver.alist(config_of("t"))][2].config
        assert type(past["configurable"]["checkpoint_id"]) is PastId
        plain = {"configurable": {**past["configurable"], "checkpoint_id": str(past["configurable"]["checkpoint_id"])}}
        for named in (past, plain):
            before = len(parents(connection, schema))
            await invoke(graph, saver, None, named)
            await graph.aupdate_state(named, {"count": 7}, as_node="step") if saver is not None else None
            await graph.aupdate_state(named, None, as_node="__copy__")
            assert len(parents(connection, schema)) >= before + 3
        assert await invoke(graph, saver, INPUT, config_of("t"))


@pytest.mark.parametrize("api", APIS)
async def test_whoever_names_the_head_goes_on_from_it(api: type, dsn: str, schema: str) -> None:
    """It forks nothing: of two that name the same head one wins."""
    async with open_saver(api, dsn, schema, guard="head") as saver:
        head = await saver.aput(*put_arguments(config_of("t"), 0))
        first, second = await saver.aget_tuple(head), await saver.aget_tuple(head)
        winner = await saver.aput(*put_arguments(first.config, 1))
        with pytest.raises(StaleHeadError):
            await saver.aput(*put_arguments(second.config, 1))
        again = await saver.aget_tuple(head)
        assert again.config == head
        assert await saver.aput(*put_arguments(again.config, 1)) != winner


@pytest.mark.parametrize("api", APIS)
async def test_a_child_of_an_unguarded_writer_counts(api: type, dsn: str, schema: str) -> None:
    async with open_saver(api, dsn, schema, guard="head") as saver, open_saver(api, dsn, schema) as free:
        config = await saver.aput(*put_arguments(config_of("t"), 0))
        await free.aput(*put_arguments(config, 1))
        with pytest.raises(StaleHeadError):
            await saver.aput(*put_arguments(config, 1))


@pytest.mark.parametrize("api", APIS)
async def test_where_the_winner_was_taken_back_the_branch_goes_on(api: type, dsn: str, schema: str) -> None:
    async with open_saver(api, dsn, schema, guard="head") as saver:
        config = await saver.aput(*put_arguments(config_of("t"), 0))
        of_run = {**config, "metadata": {"run_id": "rolled-back"}}
        gone = await saver.aput(*put_arguments(of_run, 1))
        await saver.adelete_for_runs(["rolled-back"])
        with pytest.raises(StaleHeadError) as raised:
            await saver.aput(*put_arguments(gone, 2))
        assert raised.value.winner_id is None
        assert await saver.aput(*put_arguments(config, 1))


@pytest.mark.parametrize("api", APIS)
async def test_the_writes_of_a_superseded_task_are_refused(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, guard="head") as saver:
        config = await saver.aput(*put_arguments(config_of("t"), 0))
        await saver.aput_writes(config, [("messages", "early")], "task")
        await saver.aput(*put_arguments(config, 1))
        for writes in ([("messages", "late")], [("__error__", "late")], [("messages", "late"), ("__error__", "x")]):
            with pytest.raises(StaleHeadError):
                await saver.aput_writes(config, writes, "other task")
        with pytest.raises(StaleHeadError):
            await saver.aput_writes(config, [("messages", 1), ("messages", 2)], "task")
        assert rows(connection, schema)["writes"] == 1


@pytest.mark.parametrize("api", APIS)
async def test_the_late_writes_of_the_winners_own_tasks_pass(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """With asynchronous durability they may come after the checkpoint that has them in its state."""

    class Runtime:
        control = object()

    async with open_saver(api, dsn, schema, guard="head") as saver:
        config = await saver.aput(*put_arguments(config_of("t"), 0))
        mine = {"configurable": {**config["configurable"], "__pregel_runtime": Runtime()}}
        await saver.aput(*put_arguments(mine, 1))
        await saver.aput_writes(mine, [("messages", "late")], "task")
        with pytest.raises(StaleHeadError):
            await saver.aput_writes(config, [("messages", "late")], "another's task")
        assert rows(connection, schema)["writes"] == 1


@pytest.mark.parametrize("api", APIS)
async def test_the_writes_of_a_refused_checkpoint_go(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, guard="head") as saver:
        config = await saver.aput(*put_arguments(config_of("t"), 0))
        await saver.aput(*put_arguments(config, 1))
        arguments = put_arguments(config, 1)
        refused = {"configurable": {**config["configurable"], "checkpoint_id": arguments[1]["id"]}}
        await saver.aput_writes(refused, [("messages", "before its checkpoint")], "task")
        with pytest.raises(StaleHeadError):
            await saver.aput(*arguments)
        with pytest.raises(StaleHeadError):
            await saver.aput_writes(refused, [("messages", "after it")], "task")
        assert "writes" not in rows(connection, schema)


@pytest.mark.parametrize("api", APIS)
async def test_companions_write_nothing_for_a_refused_put(
    api: type, dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    connection.execute(f"CREATE TABLE {schema}.diary (thread_id text, checkpoint_id text, PRIMARY KEY (checkpoint_id))")
    diary = Diary(schema)
    async with open_saver(api, dsn, schema, guard="head", hook=diary) as guarded:
        config = await guarded.aput(*put_arguments(config_of("t"), 0))
        await guarded.aput(*put_arguments(config, 1))
        with pytest.raises(StaleHeadError):
            await guarded.aput(*put_arguments(config, 1))
    assert rows(connection, schema)["diary"] == rows(connection, schema)["checkpoints"] == 2
    assert len(diary.after) == 2


@pytest.mark.parametrize("api", APIS)
async def test_what_a_companion_is_refused_is_left_out_under_a_guard_too(
    api: type, dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    diary = Diary(schema, "SELECT ('x' || $1 || $2)::integer")
    async with open_saver(api, dsn, schema, guard="head", hook=diary) as guarded:
        config = await guarded.aput(*put_arguments(config_of("t"), 0))
        await guarded.aput(*put_arguments(config, 1))
        with pytest.raises(StaleHeadError):
            await guarded.aput(*put_arguments(config, 1))
    assert len(parents(connection, schema)) == 2
    assert diary.after == []


@pytest.mark.parametrize("guard", [*GUARDS, None])
@pytest.mark.parametrize("api", APIS)
async def test_a_guarded_write_takes_one_round_trip(api: type, guard: Any, dsn: str, schema: str) -> None:
    with counted(dsn) as proxy:
        async with open_saver(api, proxy.dsn, schema, pool=1, guard=guard) as saver:
            if isinstance(saver, PGStateSaver):
                block: Any = saver.lease_manager.hold("t")
                held = block.__enter__()
            else:
                block = saver.lease_manager.hold("t")
                held = await block.__aenter__()
            config: Any = config_of("t")
            puts, writes = [], []
            for step in range(15):
                before = proxy.count
                config = await saver.aput(*put_arguments(config, step))
                puts.append(proxy.count - before)
                before = proxy.count
                await saver.aput_writes(config, [("messages", step)], f"task {step}")
                writes.append(proxy.count - before)
            assert held is not None
            assert (usual(puts[8:]), usual(writes[8:])) == (1, 1)
            if isinstance(saver, PGStateSaver):
                block.__exit__(None, None, None)
            else:
                await block.__aexit__(None, None, None)


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("api", APIS)
async def test_what_a_late_run_writes_to_a_deleted_thread_leaves_no_row(
    api: type, guard: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with (
        open_saver(api, dsn, schema, guard=guard) as saver,
        open_saver(api, dsn, schema, guard=guard) as other,
    ):
        loop = asyncio.get_running_loop()

        def delete(count: int) -> None:
            if count == 1:
                asyncio.run_coroutine_threadsafe(other.adelete_thread("t"), loop).result()

        graph = loop_graph(3, delete).compile(checkpointer=saver)
        with pytest.raises(ThreadDeletedError) as raised:
            await asyncio.to_thread(graph.invoke, INPUT, config_of("t"))
        assert raised.value.deleted_at is not None
        assert rows(connection, schema) == {"tombstones": 1}
        with pytest.raises(ThreadDeletedError):
            await invoke(graph, saver, INPUT, config_of("t"))
        assert rows(connection, schema) == {"tombstones": 1}
        assert await saver.arevive_thread("t")
        assert not await saver.arevive_thread("t")
        fresh = loop_graph(3).compile(checkpointer=saver)
        assert (await invoke(fresh, saver, INPUT, config_of("t")))["count"] == 3


@pytest.mark.parametrize("api", APIS)
async def test_deleting_waits_for_who_is_writing(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Whatever was let through before is deleted with the rest."""
    async with open_saver(api, dsn, schema, guard="head") as saver:
        await saver.aput(*put_arguments(config_of("t"), 0))
        with holding(dsn, f"SELECT 1 FROM {schema}.threads WHERE thread_id = 't' FOR KEY SHARE") as writer:
            deleting = asyncio.create_task(saver.adelete_thread("t"))
            writer.execute(
                f"INSERT INTO {schema}.writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, data) "
                "VALUES ('t', '', 'x', 'x', 0, '', '')"
            )
            await asyncio.sleep(0.2)
            assert not deleting.done()
            writer.commit()
            await deleting
        assert rows(connection, schema) == {"tombstones": 1}


def test_nothing_else_begins_on_a_deleted_thread(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """Neither a tool of a run that is still going, nor a copy or a fork that would need its id."""
    with PGState.open(dsn, schema=schema, guard="head") as state:
        state.setup()
        for thread_id in ("t", "other"):
            state.saver.put(*put_arguments(config_of(thread_id), 0))
        state.saver.delete_thread("t")
        before = rows(connection, schema)
        called: list[str] = []

        @state.tools.once(key=lambda arguments: arguments["order"])
        def ship(order: str) -> None:
            called.append(order)

        inside = RunnableLambda(lambda _: ship(order="17"))
        for attempt in (
            lambda: inside.invoke(None, config_of("t")),
            lambda: state.saver.copy_thread("other", "t"),
            lambda: state.threads.fork("other", to="t"),
        ):
            with pytest.raises(ThreadDeletedError):
                attempt()
        assert called == []
        assert rows(connection, schema) == before
        assert state.threads.revive("t")
        assert state.threads.fork("other", to="t")["configurable"]["thread_id"] == "t"


@pytest.mark.slow
@pytest.mark.parametrize("api", STATES)
async def test_tombstones_go_when_their_time_has_passed(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_state(api, dsn, schema, tombstones_for=timedelta(hours=1)) as state:
        graph = state.record(loop_graph(2).compile(checkpointer=state.saver))
        await invoke(graph, state.saver, INPUT, config_of("t"))
        await state.saver.adelete_thread("t")
        with pytest.raises(ThreadDeletedError):
            await invoke(graph, state.saver, INPUT, config_of("t"))
        found = state.flush()
        if found is not None:
            await found
        assert rows(connection, schema) == {"tombstones": 1}
        connection.execute(f"UPDATE {schema}.tombstones SET expires_at = now()")
        assert (await invoke(graph, state.saver, INPUT, config_of("t")))["count"] == 2
        report = state.maintain()
        report = await report if asyncio.iscoroutine(report) else report
        assert report.guards_swept == 1
        assert "tombstones" not in rows(connection, schema)
        await state.saver.adelete_thread("t")
        revived = state.threads.revive("t")
        assert (await revived if asyncio.iscoroutine(revived) else revived) is True


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("api", APIS)
async def test_interrupts_answered_differently(
    api: type, guard: Any, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"items": [interrupt("?")], "count": 9}

    builder = loop_graph(9)
    builder.nodes.pop("step")
    builder.add_node("step", ask)
    async with open_saver(api, dsn, schema, guard=guard) as saver:
        graph = builder.compile(checkpointer=saver)
        await invoke(graph, saver, INPUT, config_of("t"))
        asked = (await saver.aget_tuple(config_of("t"))).config
        for answer in ("yes", "no", "perhaps"):
            await invoke(graph, saver, None, asked)
            assert (await invoke(graph, saver, Command(resume=answer), config_of("t")))["items"] == [answer]


def test_errors_say_whether_to_try_again() -> None:
    assert LeaseHeldError("t", None, None).retryable
    assert not StaleHeadError("t", "", "1", "2").retryable
