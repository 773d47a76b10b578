"""Rows of leases: who takes one."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest
from support import APIS, FORK, GUARD_SECONDS, config_of, loop_graph, open_saver, put_arguments

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.errors import LeaseLostError
from tests.leases.test_api import hold, leases
from tests.leases.test_guards import INPUT, rows
from tests.test_state import APIS as STATES
from tests.test_state import open_state


def test_what_a_dead_process_held_is_free_at_once(
    dsn: str, schema: str, saver: PGStateSaver, connection: psycopg.Connection
) -> None:
    def die(dsn: str, schema: str) -> None:
        with PGStateSaver.from_conn_string(dsn, schema=schema, guard="lease", lease_ttl=3600) as own:
            loop_graph(3, lambda count: os.kill(os.getpid(), signal.SIGKILL)).compile(checkpointer=own).invoke(
                INPUT, config_of("t")
            )

    child = FORK.Process(target=die, args=(dsn, schema), daemon=True)
    child.start()
    child.join(GUARD_SECONDS)
    assert leases(connection, schema) == [("t", True)]
    with PGStateSaver.from_conn_string(dsn, schema=schema, guard="lease") as other:
        assert loop_graph(2).compile(checkpointer=other).invoke(INPUT, config_of("t"))["count"] == 2


@pytest.mark.parametrize("api", STATES)
async def test_a_block_whose_lease_was_taken_over_is_told(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with (
        open_state(api, dsn, schema, guard="lease") as state,
        open_saver(APIS[0], dsn, schema, guard="lease") as other,
    ):
        with pytest.raises(LeaseLostError):  # noqa: PT012
            async with hold(state.leases, "t"):
                connection.execute(f"UPDATE {schema}.leases SET expires_at = now()")
                async with hold(other.lease_manager, "t"):
                    pass
        with pytest.raises(LeaseLostError):  # noqa: PT012
            async with hold(state.leases, "t"):
                connection.execute(f"UPDATE {schema}.leases SET expires_at = now()")
                await other.aput(*put_arguments(config_of("t"), 0))
                await state.saver.aput(*put_arguments(config_of("t"), 0))
        assert rows(connection, schema)["checkpoints"] == 1
