"""Leases: one run at a time on a thread, and none that writes with a lease it has lost."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context
from typing import Any

import psycopg
import pytest
from langgraph.errors import EmptyInputError
from support import APIS, FORK, GUARD_SECONDS, config_of, invoke, loop_graph, open_saver, put_arguments, wait_until

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.errors import LeaseHeldError, LeaseLostError, ThreadDeletedError
from langgraph_pgstate.process_identity import holder_id
from tests.leases.test_guards import INPUT, is_linear, rows
from tests.test_state import APIS as STATES
from tests.test_state import open_state


def leases(connection: psycopg.Connection, schema: str) -> list[tuple[str, bool]]:
    """Threads that have had a lease, and whether somebody holds it."""
    query = f"SELECT thread_id, holder_id IS NOT NULL AND expires_at > now() FROM {schema}.leases ORDER BY 1"
    return connection.execute(query).fetchall()  # type: ignore[return-value]


@asynccontextmanager
async def hold(leases: Any, *arguments: Any, **options: Any) -> Any:
    """`hold` of either API."""
    block = leases.hold(*arguments, **options)
    if hasattr(block, "__aenter__"):
        async with block as lease:
            yield lease
    else:
        with block as lease:
            yield lease


async def maybe(found: Any) -> Any:
    return await found if asyncio.iscoroutine(found) else found


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("api", APIS)
async def test_a_run_holds_the_lease_until_it_ends(
    api: type, durability: str, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    seen = []

    def look(count: int) -> None:
        seen.append(leases(connection, schema))
        if count == 2:
            raise LookupError("a node fails")

    async with open_saver(api, dsn, schema, guard="lease") as saver:
        graph = loop_graph(9, look).compile(checkpointer=saver)
        with pytest.raises(LookupError):
            await invoke(graph, saver, INPUT, config_of("t"), durability=durability)
        assert seen == [[("t", True)]] * 3
        assert leases(connection, schema) == [("t", False)]
        paused = loop_graph(9).compile(checkpointer=saver, interrupt_before=["step"])
        await invoke(paused, saver, INPUT, config_of("t"), durability=durability)
        assert leases(connection, schema) == [("t", False)]
        # Whoever only reads takes none.
        await saver.aget_tuple(config_of("u"))
        assert leases(connection, schema) == [("t", False)]


@pytest.mark.parametrize("api", APIS)
async def test_a_second_run_is_told_who_holds_the_lease(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with (
        open_saver(api, dsn, schema, guard="lease") as saver,
        open_saver(api, dsn, schema, guard="lease") as other,
    ):
        loop = asyncio.get_running_loop()
        errors = []

        def intrude(count: int) -> None:
            for rival in (saver, other):
                quick = loop_graph(2).compile(checkpointer=rival)
                for attempt in (
                    lambda quick=quick, rival=rival: invoke(quick, rival, INPUT, config_of("t")),
                    lambda rival=rival: rival.aput(*put_arguments(config_of("t"), 1)),
                    lambda quick=quick: quick.aupdate_state(config_of("t"), {"count": 1}),
                ):
                    try:
                        asyncio.run_coroutine_threadsafe(attempt(), loop).result(GUARD_SECONDS)
                    except LeaseHeldError as error:
                        errors.append(error)

        graph = loop_graph(1, intrude).compile(checkpointer=saver)
        await asyncio.to_thread(graph.invoke, INPUT, config_of("t"))
        assert len(errors) == 6
        assert errors[0].holder_id.startswith(holder_id())
        assert errors[0].expires_at is not None
        assert is_linear(connection, schema)
        # And when it is over, it is free.
        await invoke(loop_graph(1).compile(checkpointer=other), other, INPUT, config_of("t"))


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_run_waits_for_its_turn_and_loses_nothing(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    options = {"guard": "lease", "on_busy": "wait", "wait_timeout": GUARD_SECONDS}
    async with open_saver(api, dsn, schema, **options) as saver, open_saver(api, dsn, schema, **options) as other:
        runs = []
        for turn in range(3):
            for each in (saver, other):
                graph = loop_graph(0).compile(checkpointer=each)
                runs.append(invoke(graph, each, {"items": [f"{turn}"], "count": 9}, config_of("t")))
        await asyncio.gather(*runs)
        assert is_linear(connection, schema)
        head = (await saver.aget_tuple(config_of("t"))).checkpoint["channel_values"]
        assert len(head["items"]) == 12


@pytest.mark.parametrize("api", APIS)
async def test_waiting_ends(api: type, dsn: str, schema: str) -> None:
    async with (
        open_saver(api, dsn, schema, guard="lease", on_busy="wait", wait_timeout=0.1) as saver,
        open_saver(api, dsn, schema, guard="lease") as other,
    ):
        async with hold(other.lease_manager, "t"):
            with pytest.raises(LeaseHeldError):
                await saver.aput(*put_arguments(config_of("t"), 0))
        await saver.aput(*put_arguments(config_of("t"), 0))


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_lease_lives_as_long_as_a_node_computes(api: type, dsn: str, schema: str) -> None:
    """Longer than its time, without a write."""
    async with (
        open_saver(api, dsn, schema, guard="lease", lease_ttl=0.6) as saver,
        open_saver(api, dsn, schema, guard="lease") as other,
    ):
        loop = asyncio.get_running_loop()
        errors = []

        def compute(count: int) -> None:
            time.sleep(1.5)
            try:
                rival = other.aput(*put_arguments(config_of("t"), 1))
                asyncio.run_coroutine_threadsafe(rival, loop).result(GUARD_SECONDS)
            except LeaseHeldError as error:
                errors.append(error)

        await asyncio.to_thread(loop_graph(1, compute).compile(checkpointer=saver).invoke, INPUT, config_of("t"))
        assert len(errors) == 1


@pytest.mark.slow
@pytest.mark.parametrize("pool", [False, 1])
@pytest.mark.parametrize("api", APIS)
async def test_a_lease_lives_and_ends_while_others_keep_all_connections(
    api: type, dsn: str, schema: str, connection: psycopg.Connection, pool: bool | int
) -> None:
    async with AsyncExitStack() as stack:
        options = {"guard": "lease", "lease_ttl": 0.6, "pool": pool}
        saver = await stack.enter_async_context(open_saver(api, dsn, schema, **options))
        query = f"SELECT renewed_at > acquired_at + interval '1 s', holder_id IS NULL FROM {schema}.leases"

        def is_kept() -> bool:
            return connection.execute(query).fetchone() == (True, False)

        async with hold(saver.lease_manager, "t"):
            lent = saver._database.lend()
            await stack.enter_async_context(lent) if api is APIS[1] else stack.enter_context(lent)
            await asyncio.to_thread(wait_until, is_kept, "a lease that lives")
        assert connection.execute(query).fetchone() == (True, True)


def compute_in_a_child(dsn: str, schema: str, answers: Any) -> None:
    """A run that reports when it is in its node, and what became of it."""

    def pause(count: int) -> None:
        answers.put(("in the node", os.getpid()))
        time.sleep(1.5)

    with PGStateSaver.from_conn_string(dsn, schema=schema, guard="lease", lease_ttl=0.5) as saver:
        graph = loop_graph(3, pause).compile(checkpointer=saver)
        try:
            graph.invoke(INPUT, config_of("t"))
            answers.put(("done", None))
        except LeaseLostError as error:
            answers.put(("lost", error.fencing_token))


@pytest.mark.slow
def test_a_paused_process_that_wakes_writes_nothing(
    dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    answers = FORK.Queue()
    child = FORK.Process(target=compute_in_a_child, args=(dsn, schema, answers), daemon=True)
    child.start()
    try:
        assert answers.get(timeout=GUARD_SECONDS)[0] == "in the node"
        os.kill(child.pid, signal.SIGSTOP)  # type: ignore[arg-type]
        wait_until(lambda: leases(connection, schema) == [("t", False)], "the lease has expired")
        with PGStateSaver.from_conn_string(dsn, schema=schema, guard="lease") as other:
            loop_graph(2).compile(checkpointer=other).invoke(INPUT, config_of("t"))
        before = (rows(connection, schema), list(saver.list(config_of("t"))))
        os.kill(child.pid, signal.SIGCONT)  # type: ignore[arg-type]
        said = "in the node"
        while said == "in the node":
            # With asynchronous durability the next node has begun before the checkpoint is refused.
            said = answers.get(timeout=GUARD_SECONDS)[0]
        assert said == "lost"
        assert (rows(connection, schema), list(saver.list(config_of("t")))) == before
        assert is_linear(connection, schema)
    finally:
        child.kill()
        child.join(GUARD_SECONDS)


@pytest.mark.parametrize("api", STATES)
async def test_a_block_holds_a_lease(api: type, dsn: str, schema: str, connection: psycopg.Connection) -> None:
    async with (
        open_state(api, dsn, schema, guard="lease") as state,
        open_saver(APIS[0], dsn, schema, guard="lease") as other,
    ):
        graph = state.record(loop_graph(2).compile(checkpointer=state.saver))
        async with hold(state.leases, "t") as lease:
            assert lease.thread_id == "t"
            for _ in range(2):
                await invoke(graph, state.saver, INPUT, config_of("t"))
            await graph.aupdate_state(config_of("t"), {"count": 5})
            async with hold(state.leases, "t") as same:
                assert same.fencing_token == lease.fencing_token
            with pytest.raises(LeaseHeldError):
                await other.aput(*put_arguments(config_of("t"), 0))
            (found,) = (await maybe(state.leases.list())).items
            assert found.fencing_token == lease.fencing_token
        assert (await maybe(state.leases.list())).items == ()
        async with hold(state.leases, "t") as later:
            assert later.fencing_token > lease.fencing_token
        assert is_linear(connection, schema)


def test_a_run_that_failed_is_tried_again_at_once(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    """While its exception, and with it all its objects, is still alive."""
    with PGState.open(dsn, schema=schema, guard=("head", "lease")) as state:
        state.setup()
        tries = []

        def fail(count: int) -> None:
            tries.append(count)
            if len(tries) == 1:
                raise LookupError

        graph = state.record(loop_graph(1, fail).compile(checkpointer=state.saver))
        try:
            graph.invoke(INPUT, config_of("t"))
        except LookupError:
            assert graph.invoke(None, config_of("t"))["count"] == 1
        for config in ({"recursion_limit": 1, **config_of("u")}, config_of("u")):
            try:
                graph.invoke({}, config)
            except Exception:
                continue


@pytest.mark.parametrize("api", APIS)
async def test_a_run_that_is_read_in_pieces_keeps_its_lease(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema, guard="lease") as saver:
        graph = loop_graph(3).compile(checkpointer=saver)
        if api is PGStateSaver:
            pieces = graph.stream(INPUT, config_of("t"), stream_mode="values")
            next(pieces)
            assert leases(connection, schema) == [("t", True)]
            list(pieces)
        else:
            later = graph.astream(INPUT, config_of("t"), stream_mode="values")
            await anext(later)
            assert leases(connection, schema) == [("t", True)]
            _ = [piece async for piece in later]
        assert leases(connection, schema) == [("t", False)]


async def test_runs_of_the_other_colour_give_their_leases_back(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    for api in APIS:
        async with open_saver(api, dsn, schema, guard="lease") as saver:
            graph = loop_graph(2).compile(checkpointer=saver)
            other = asyncio.to_thread(graph.invoke, INPUT, config_of("t"))
            await (graph.ainvoke(INPUT, config_of("t")) if api is PGStateSaver else other)
            assert leases(connection, schema) == [("t", False)]
            other.close()


@pytest.mark.parametrize("api", APIS)
async def test_closing_gives_everything_back(api: type, dsn: str, schema: str, connection: psycopg.Connection) -> None:
    class Runtime:
        control = object()

    config = {"configurable": {**config_of("t")["configurable"], "__pregel_runtime": Runtime()}}
    async with open_saver(api, dsn, schema, guard="lease") as saver:
        await saver.aget_tuple(config)
        assert leases(connection, schema) == [("t", True)]
    assert leases(connection, schema) == [("t", False)]


async def invoke_here(graph: Any, saver: Any, *arguments: Any) -> Any:
    """In this very thread and task."""
    return graph.invoke(*arguments) if isinstance(saver, PGStateSaver) else await graph.ainvoke(*arguments)


@pytest.mark.parametrize("api", APIS)
async def test_a_run_that_failed_before_it_began_is_tried_again_at_once(api: type, dsn: str, schema: str) -> None:
    """While its exception is still alive: LangGraph never unwinds a loop that it could not enter."""
    async with open_saver(api, dsn, schema, guard="lease", lease_ttl=3600) as saver:
        graph = loop_graph(1).compile(checkpointer=saver)
        try:
            await invoke_here(graph, saver, None, config_of("t"))
        except EmptyInputError:
            assert (await invoke_here(graph, saver, INPUT, config_of("t")))["count"] == 1
        else:
            pytest.fail("it has begun")


@pytest.mark.parametrize("api", STATES)
async def test_a_block_may_delete_its_own_thread(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_state(api, dsn, schema, guard="lease") as state:
        graph = loop_graph(1).compile(checkpointer=state.saver)
        async with hold(state.leases, "t"):
            await invoke(graph, state.saver, INPUT, config_of("t"))
            await state.saver.adelete_thread("t")
            with pytest.raises(ThreadDeletedError):
                await state.saver.aput(*put_arguments(config_of("t"), 0))
        assert "checkpoints" not in rows(connection, schema)
        with pytest.raises(LeaseLostError):
            async with hold(state.leases, "u"):
                # Somebody else, who is not in the block.
                await asyncio.get_running_loop().create_task(state.saver.adelete_thread("u"), context=Context())
