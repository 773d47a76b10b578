"""The blocking saver: many threads on one, and listings that are left."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import GUARD_SECONDS, config_of, put_arguments

from langgraph_pgstate import PGStateSaver, PoolSettings
from langgraph_pgstate.errors import ConfigurationError


def test_a_blocking_listing_left_half_read_holds_nothing(dsn: str, schema: str) -> None:
    with PGStateSaver.from_conn_string(
        dsn, schema=schema, pool=PoolSettings(max_size=1, timeout=GUARD_SECONDS)
    ) as saver:
        saver.setup()
        config: Any = config_of("t")
        for step in range(3):
            config = saver.put(*put_arguments(config, step))
        listing = saver.list(config_of("t"))
        next(listing)
        assert saver.get_tuple(config) is not None
        assert len(list(listing)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("pool", [4, False], ids=["pool", "single"])
def test_eight_threads_hammer_one_blocking_saver(pool: int | bool, dsn: str, schema: str) -> None:
    """Each reads back exactly what it wrote."""

    def work(number: int) -> None:
        config: Any = config_of(f"t{number}")
        for step in range(25):
            arguments = put_arguments(config, step, messages=[f"{number} {index}" for index in range(step + 1)])
            config = saver.put(*arguments)
            saver.put_writes(config, [("messages", f"{number} {step}")], f"task {number}")
            found = saver.get_tuple(config_of(f"t{number}"))
            assert found is not None
            assert found.config == config
            assert found.checkpoint["channel_values"] == arguments[1]["channel_values"]
            assert found.pending_writes == [(f"task {number}", "messages", f"{number} {step}")]
        assert len(list(saver.list(config_of(f"t{number}")))) == 25

    with PGStateSaver.from_conn_string(dsn, schema=schema, pool=pool) as saver, ThreadPoolExecutor(8) as executor:
        saver.setup()
        for done in [executor.submit(work, number) for number in range(8)]:
            done.result(GUARD_SECONDS)


def test_a_saver_made_before_a_fork_is_refused_in_the_child(dsn: str, schema: str) -> None:
    """Two processes on one connection would read each other's threads."""
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        child = os.fork()
        if child == 0:
            try:
                saver.get_tuple({"configurable": {"thread_id": "t"}})
            except ConfigurationError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
