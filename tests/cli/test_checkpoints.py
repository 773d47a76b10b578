"""All checkpoints checked and pruned from the command line."""

from __future__ import annotations

from typing import Any

import kinds
import psycopg
import pytest
from langchain_core.messages import HumanMessage
from support.cli import Run, words
from support.samples import config_of, put_values, values_of

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.server.langgraph_platform import AgentServerSettings
from langgraph_pgstate.threads import prune
from langgraph_pgstate.threads.types import PruneResult

pytestmark = pytest.mark.smoke


def test_check_passes_and_then_names_the_damage(
    run: Run, schema: str, conversation: PGStateSaver, connection: psycopg.Connection[Any]
) -> None:
    assert "nothing is broken" in words(run("check"))
    assert "nothing is broken" in words(run("check", "--thread", "two", "--deep"))
    connection.execute(f"DELETE FROM \"{schema}\".segments WHERE thread_id = 'one'")
    broken = words(run("check", code=1))
    assert "broken" in broken
    assert "thread one" in broken
    assert "thread two" not in broken
    assert "nothing is broken" in words(run("check", "--thread", "two"))


def test_check_of_an_unknown_thread_is_an_error(run: Run, conversation: PGStateSaver) -> None:
    assert "there are no checkpoints of thread 'nobody'" in words(run("check", "--thread", "nobody", code=1))


def test_prune_counts_first_and_removes_then(run: Run, conversation: PGStateSaver) -> None:
    before = sum(1 for _ in conversation.list(None, metadata_only=True))
    assert "would remove" in words(run("prune", "--keep-last", "1", "--dry-run"))
    assert sum(1 for _ in conversation.list(None, metadata_only=True)) == before
    planned = words(run("prune", "--keep-last", "2", "--thread", "one", "--dry-run"))
    assert planned.replace("would remove", "removed") == words(run("prune", "--keep-last", "2", "--thread", "one"))
    assert sum(1 for _ in conversation.list({"configurable": {"thread_id": "one"}})) == 2
    assert sum(1 for _ in conversation.list({"configurable": {"thread_id": "two"}})) > 2


def test_prune_keeps_what_is_young(run: Run, conversation: PGStateSaver) -> None:
    assert "0 checkpoints" in words(run("prune", "--older-than", "30d"))


def test_prune_names_damaged_threads_and_does_the_rest(
    run: Run, schema: str, conversation: PGStateSaver, connection: psycopg.Connection[Any]
) -> None:
    connection.execute(
        f"UPDATE \"{schema}\".checkpoints SET state = '\\xee00' WHERE thread_id = 'one' AND checkpoint_id = "
        f"(SELECT max(checkpoint_id) FROM \"{schema}\".checkpoints WHERE thread_id = 'one')"
    )
    before = sum(1 for _ in conversation.list({"configurable": {"thread_id": "one"}}, metadata_only=True))
    for flags, done in ((("--dry-run",), "would remove"), ((), "removed")):
        shown = words(run("prune", "--keep-last", "1", *flags, code=1))
        assert done in shown
        assert "of 1 thread:" in shown
        assert "1 thread left as damaged; see `pgstate check`: one" in shown
    assert sum(1 for _ in conversation.list({"configurable": {"thread_id": "one"}}, metadata_only=True)) == before
    assert sum(1 for _ in conversation.list({"configurable": {"thread_id": "two"}})) == 1


def test_prune_needs_a_rule_and_asks_before_it_deletes_everything(run: Run, conversation: PGStateSaver) -> None:
    assert "prune requires" in words(run("prune", code=1))
    assert "must be a number and s, m" in words(run("prune", "--older-than", "soon", code=1))
    run("prune", "--strategy", "delete", input="n\n", code=1)
    assert "threads: 2" in words(run("status"))
    run("prune", "--strategy", "delete", "--yes")
    assert "threads: 0" in words(run("status"))


def test_check_lists_types_ready_to_be_pasted(run: Run, saver: PGStateSaver) -> None:
    assert "no types besides LangGraph's own" in words(run("check", "--types"))
    values = {"a": kinds.Order(1, [kinds.Color.RED]), "b": HumanMessage("x"), "c": kinds.Place(1)}
    put_values(saver, config_of("t"), values)
    lines = run("check", "--types").output.splitlines()
    assert "PGSTATE_ALLOWED_TYPES=kinds:Color,kinds:Order,kinds:Place" in lines
    assert "allowed_types=['kinds:Color', 'kinds:Order', 'kinds:Place']" in lines
    variables = dict([one.split("=") for one in lines if one.startswith("PGSTATE_")])
    named = AgentServerSettings.from_environment(variables).allowed
    database: Any = saver._database
    allowing = PGStateSaver.over(database, {"schema": saver.schema, "strict": True, "allowed_types": named})
    assert values_of(allowing, config_of("t")) == values


def test_ctrl_c_says_how_far_a_job_came(run: Run, conversation: PGStateSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[str] = []

    async def interrupted(db: Any, queries: Any, request: Any, thread_id: str) -> PruneResult:
        if visited:
            raise KeyboardInterrupt
        visited.append(thread_id)
        return PruneResult()

    monkeypatch.setattr(prune, "prune_thread", interrupted)
    shown = words(run("prune", "--keep-last", "1", code=130))
    assert shown == "stopped at 1 of 2 threads; run it again to go on"
