"""The record of runs that wait for the lease of one thread."""

from __future__ import annotations

import operator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

from langgraph_pgstate import PGState


class Talk(TypedDict):
    said: Annotated[list[int], operator.add]


def test_a_checkpoint_belongs_to_the_run_with_the_lease_not_to_one_that_waits(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema, guard="lease", on_busy="wait", wait_timeout=60) as state:
        state.setup()
        builder = StateGraph(Talk)
        builder.add_node("node", lambda current: {"said": []})
        builder.add_edge(START, "node")
        graph = state.record(builder.compile(checkpointer=state.saver))
        config: Any = {"configurable": {"thread_id": "t"}}
        with ThreadPoolExecutor(6) as pool:
            [*pool.map(lambda number: graph.invoke({"said": [number]}, config), range(6))]
        given = {run.run_id: run.input for run in state.runs.list(thread_id="t").items}
        history = list(graph.get_state_history(config))
        said = {one.config["configurable"]["checkpoint_id"]: one.values["said"] for one in history}
        steps = [step for step in state.threads.lineage(config) if step.source == "loop"]
        assert len(steps) == 12
        for step in steps:
            assert given[step.run_id] == {"said": said[step.checkpoint_id][-1:]}
