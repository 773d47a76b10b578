"""How often a put, a put_writes and a get_tuple wait for the server, counted on the wire."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg_pool import ConnectionPool

from benchmarks.contestants import OUR_OPTIONS, UPSTREAM_OPTIONS, Saver
from benchmarks.conversation import Chain, messages
from benchmarks.measure import OURS, UPSTREAM, CaseResult, Plan
from benchmarks.proxy import Proxy, open_proxy
from benchmarks.server import Server, with_search_path
from langgraph_pgstate import PGStateSaver

NAME = "round_trips"
TITLE = "Round trips of one call, counted by a proxy"
_WARM_UP = 8
_CALLS = 5


def run(server: Server, plan: Plan) -> CaseResult:
    """The greatest count of a few calls, once with a pool in autocommit and once with psycopg's default."""
    result = CaseResult(NAME, TITLE)
    result.notes.append("LangGraph's own saver requires autocommit; ours takes either kind of pool.")
    for mode in ("autocommit", "no autocommit"):
        for name in (OURS, UPSTREAM):
            if name == UPSTREAM and mode != "autocommit":
                continue
            with ExitStack() as stack:
                proxy = stack.enter_context(open_proxy(server.address()))
                schema = stack.enter_context(server.schema(name))
                dsn = server.dsn_through(proxy.port)
                ours = OUR_OPTIONS if mode == "autocommit" else {}
                pool: ConnectionPool[Any] = stack.enter_context(
                    ConnectionPool(
                        dsn if name == OURS else with_search_path(dsn, schema),
                        kwargs=ours if name == OURS else UPSTREAM_OPTIONS,
                        min_size=1,
                        max_size=1,
                        open=True,
                    )
                )
                saver: Saver = PGStateSaver(pool, schema=schema) if name == OURS else PostgresSaver(pool)
                saver.setup()  # type: ignore[attr-defined]
                for what, trips in _count(saver, proxy).items():
                    result.metric(f"{mode}/{what}", f"{what}, pool with {mode}", "").add(name, trips)
    return result


def _count(saver: Saver, proxy: Proxy) -> dict[str, int]:
    chain = Chain("round-trips")
    conversation = messages("round-trips", _WARM_UP + _CALLS)
    most = {"put": 0, "put_writes": 0, "get_tuple": 0}
    for length in range(1, _WARM_UP + _CALLS + 1):
        put = chain.next("messages", conversation[:length])
        parent: RunnableConfig = {
            "configurable": {**chain.config["configurable"], "checkpoint_id": put.checkpoint["id"]}
        }
        writes = [("messages", conversation[length - 1]), ("branch:to:agent", None)]
        calls: dict[str, Callable[[], Any]] = {
            "put": partial(saver.put, *put.arguments()),
            "put_writes": partial(saver.put_writes, parent, writes, f"task-{length}"),
            "get_tuple": partial(saver.get_tuple, chain.config),
        }
        for what, call in calls.items():
            _, before = proxy.count()
            call()
            if length > _WARM_UP:
                most[what] = max(most[what], proxy.count()[1] - before)
    return most
