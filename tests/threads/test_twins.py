"""What is done to a thread beside a copy of it that has gone on: the same ids, with other rows."""

from __future__ import annotations

import psycopg
import pytest
from support.keep import answer, config_of, make_rich_thread, rows_of

from langgraph_pgstate import PGState

# The copy's own: its name, its times, where it comes from.
_OWN = {"threads", "events"}


@pytest.mark.slow
def test_a_thread_is_copied_forked_and_pruned_as_if_it_had_no_twin(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    with PGState.open(dsn, schema=schema, recover_journal=False) as state:
        graph = make_rich_thread(state, "one")
        head = graph.get_state(config_of("one")).config["configurable"]["checkpoint_id"]
        (waiting,) = [one for one in graph.get_state_history(config_of("one")) if one.interrupts]
        asked = waiting.config["configurable"]["checkpoint_id"]

        def act(suffix: str) -> dict[str, dict[str, list[str]]]:
            names = [f"{name}-{suffix}" for name in ("copy", "head", "asked", "pruned")]
            state.saver.copy_thread("one", names[0])
            state.threads.fork("one", head, names[1])
            state.threads.fork("one", asked, names[2])
            state.saver.copy_thread("one", names[3])
            state.saver.prune([names[3]], keep_last=2)
            return {name.partition("-")[0]: rows(name) for name in names}

        def rows(name: str) -> dict[str, list[str]]:
            found = rows_of(dsn, schema, name)
            tables = found.keys() - _OWN
            return {table: [row.replace(name, "T") for row in found[table]] for table in tables}

        alone = act("1")
        status = [state.threads.get(f"{name}-1").status for name in alone]
        # Twins of the thread that go on, and of its forks; and a stranger.
        state.saver.copy_thread("one", "twin")
        answer(graph, "twin")
        past = [*graph.get_state_history(config_of("twin"))]
        for one in past[::2]:
            state.threads.label(one.config, "twin's")
        graph.update_state(past[1].config, {"messages": [("user", "Twin's.")]})
        graph.update_state(config_of("twin", checkpoint_id=head), {"messages": [("user", "Twin's.")]})
        make_rich_thread(state, "stranger")
        paid = "(thread_id, idempotency_key, tool, status, arguments) VALUES ('twin', 'twin', 'pay', 'success', '{}')"
        connection.execute(f"INSERT INTO {schema}.tool_executions {paid}".encode())
        state.flush()
        others = {name: rows_of(dsn, schema, name) for name in ("twin", "stranger")}
        assert act("2") == alone
        assert [state.threads.get(f"{name}-2").status for name in alone] == status
        assert {name: rows_of(dsn, schema, name) for name in others} == others
