"""Leases that a claim has taken: runs write under them, and somebody else renews and releases them."""

from __future__ import annotations

import asyncio
import gc
import queue

import pytest
from support import APIS, config_of, invoke, loop_graph, open_saver

from langgraph_pgstate.db.database import Database
from langgraph_pgstate.errors import LeaseLostError
from langgraph_pgstate.leases import api as listing
from langgraph_pgstate.leases import holding as leases
from langgraph_pgstate.leases import registry
from langgraph_pgstate.leases.registry import HeldLease
from langgraph_pgstate.process_identity import lease_clock
from langgraph_pgstate.schema.queries import queries


@pytest.mark.parametrize("api", APIS)
async def test_a_run_writes_under_a_claimed_lease_and_keeps_it(api: type, dsn: str, schema: str) -> None:
    known = queries(schema)
    with Database.open(dsn, schema=schema, pool=False) as database:
        async with open_saver(api, dsn, schema, guard="lease", lease_ttl=600) as saver:
            lease = database.run(leases.take, known, "t", "worker", 60.0)
            with saver.lease_manager.hold_claimed(HeldLease(lease, lease_clock() + 60, is_read_first=True)):
                graph = loop_graph(3).compile(checkpointer=saver)
                assert (await invoke(graph, saver, {"count": 0}, config_of("t")))["count"] == 3
            found = database.read(known, listing.list_leases(10, None)).items
            assert [(one.thread_id, one.fencing_token) for one in found] == [("t", lease.fencing_token)]
        # Nor does the saver release it when it is closed.
        assert database.run(leases.renew, known, [("t", lease.fencing_token)], 60.0)


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("api", APIS)
async def test_nothing_is_written_under_a_lost_claim(api: type, is_told: bool, dsn: str, schema: str) -> None:
    known = queries(schema)
    with Database.open(dsn, schema=schema, pool=False) as database:
        async with open_saver(api, dsn, schema, guard="lease") as saver:
            lease = database.run(leases.take, known, "t", "worker", 60.0)
            held = HeldLease(lease, lease_clock() + 60, is_read_first=True)
            with saver.lease_manager.hold_claimed(held):

                def lose(count: int) -> None:
                    if count == 1:
                        if is_told:
                            held.is_lost = True
                        else:
                            database.run(leases.take, known, "t", "other", 60.0, [lease.fencing_token])

                graph = loop_graph(3, lose).compile(checkpointer=saver)
                # The write that finds the loss cancels a node that is still running. A worker knows why.
                with pytest.raises((LeaseLostError, asyncio.CancelledError)):
                    await invoke(graph, saver, {"count": 0}, config_of("t"), durability="sync")
            state = await saver.aget_tuple(config_of("t"))
            assert state is not None
            assert state.checkpoint["channel_values"]["count"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
async def test_a_saver_of_a_worker_forgets_runs_that_have_ended(
    api: type, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: no lease of a worker is renewed by its saver, so the renewal forgets none of its runs."""
    monkeypatch.setattr(registry, "_MOST_ENDED", 4)
    with Database.open(dsn, schema=schema, pool=False) as database:
        async with open_saver(api, dsn, schema, guard="lease") as saver:
            graph, manager = loop_graph(1).compile(checkpointer=saver), saver.lease_manager
            for number in range(12):
                lease = database.run(leases.take, queries(schema), f"t{number}", "worker", 60.0)
                with manager.hold_claimed(HeldLease(lease, lease_clock() + 60, is_read_first=True)):
                    assert (await invoke(graph, saver, {"count": 0}, config_of(f"t{number}")))["count"] == 1
                gc.collect()
            assert len(manager._runs) < 6
            assert not isinstance(manager._wake, queue.SimpleQueue) or manager._wake.empty()
