"""The guards of a saver: which settings make sense."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support import APIS, config_of, open_saver, put_arguments

from langgraph_pgstate import PGState
from langgraph_pgstate.errors import ConfigurationError
from tests.leases.test_guards import rows


@pytest.mark.parametrize("guard", [True, False, 1, 0.5, {}, {"head": True}, b"head", object(), ("head", True), "both"])
def test_nonsense_for_a_guard_is_refused(guard: Any, dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="guard must be"), PGState.open(dsn, guard=guard):
        pass


@pytest.mark.parametrize("api", APIS)
async def test_without_a_guard_nothing_is_refused(
    api: type, dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    async with open_saver(api, dsn, schema) as saver:
        config = await saver.aput(*put_arguments(config_of("t"), 0))
        for _ in range(2):
            await saver.aput(*put_arguments(config, 1))
        await saver.aput_writes(config, [("messages", "late")], "task")
        await saver.adelete_thread("t")
        assert rows(connection, schema) == {}
        await saver.aput(*put_arguments(config, 1))


@pytest.mark.parametrize(
    "options",
    [
        {"guard": "tail"},
        {"guard": ("head", "tail")},
        {"guard": "lease", "lease_ttl": 0},
        {"guard": "lease", "on_busy": "steal"},
        {"guard": "lease", "wait_timeout": -1},
        {"tombstones_for": 3},
        {"tombstones_for": timedelta(seconds=-1)},
    ],
)
@pytest.mark.parametrize("api", APIS)
async def test_arguments_that_make_no_sense(api: type, options: dict[str, Any], dsn: str, schema: str) -> None:
    with pytest.raises(ConfigurationError):
        async with open_saver(api, dsn, schema, **options):
            pass
