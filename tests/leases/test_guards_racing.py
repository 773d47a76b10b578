"""Runs that race for one head in one process: one advances and is never refused for what it has done itself."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from support import APIS, config_of, counted, open_saver, put_arguments

from langgraph_pgstate.errors import StaleHeadError
from tests.leases.test_guards import is_linear, rows


class Runtime:
    """What LangGraph gives the nodes of one run."""

    def __init__(self) -> None:
        self.control = object()


def of_run(config: dict[str, Any], runtime: Runtime) -> dict[str, Any]:
    """A config as the saver gets it from a run."""
    return {"configurable": {**config["configurable"], "__pregel_runtime": runtime}}


@pytest.mark.parametrize("api", APIS)
async def test_a_refused_run_does_not_hide_what_the_winner_has_done(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """The writes of the winner's tasks may come after its checkpoint, and after another run tried the same."""
    async with open_saver(api, dsn, schema, guard="head") as saver:
        head = await saver.aput(*put_arguments(config_of("t"), 0))
        winner, loser = of_run(head, Runtime()), of_run(head, Runtime())
        await saver.aput(*put_arguments(winner, 1))
        with pytest.raises(StaleHeadError):
            await saver.aput(*put_arguments(loser, 1))
        await saver.aput_writes(winner, [("messages", "late")], "task")
        with pytest.raises(StaleHeadError):
            await saver.aput_writes(loser, [("messages", "late")], "task of the other")
        assert rows(connection, schema)["writes"] == 1
        assert is_linear(connection, schema)


@pytest.mark.parametrize("api", APIS)
async def test_a_put_whose_answer_was_lost_passes_though_its_parent_is_pruned_meanwhile(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with counted(dsn) as proxy:
        async with (
            open_saver(api, proxy.dsn, schema, guard="head", pool=1) as saver,
            open_saver(api, dsn, schema) as other,
        ):
            head = await saver.aput(*put_arguments(config_of("t"), 0))
            arguments = put_arguments(head, 1)
            stored = await saver.aput(*arguments)
            await other.aprune(["t"])
            assert rows(connection, schema)["checkpoints"] == 1
            assert await saver.aput(*arguments) == stored
