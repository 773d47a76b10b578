"""The console script: each command on the test server, its exit codes, and errors without a stack trace."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import kinds
import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.conninfo import make_conninfo
from samples import config_of, put_values, values_of
from support_cli import Run, converse, words
from typer.testing import CliRunner

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.agent_server import AgentServerSettings
from langgraph_pgstate.cli import options
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.operations.record import runs, statistics
from langgraph_pgstate.operations.threads import prune, search
from langgraph_pgstate.tools.interrupts import DECISIONS
from langgraph_pgstate.types import PruneResult

pytestmark = pytest.mark.smoke


def test_help_names_every_command(run: Run) -> None:
    result = run("--help")
    for command in (
        "demo", "setup", "migrate", "status", "check", "prune", "tree", "import-langgraph", "export-langgraph",
        "threads", "runs", "trace", "tools", "cost", "diff", "label", "fork", "show", "conversation", "search",
        "events", "executions", "settle", "delete", "leases",
    ):  # fmt: skip
        assert command in result.output
        assert run(command, "--help").output.count("Usage: pgstate") <= 1


@pytest.mark.bare
def test_setup_says_what_it_did_and_can_be_repeated(run: Run) -> None:
    assert "applied 0001_create_checkpoints" in words(run("setup"))
    again = words(run("setup"))
    assert "applied" not in again
    assert "up to date" in again


@pytest.mark.bare
def test_printed_sql_sets_up_an_empty_database(
    run: Run, schema: str, dsn: str, connection: psycopg.Connection[Any]
) -> None:
    script = run("setup", "--sql").output
    connection.execute(script.encode())
    assert "pending" not in words(run("status"))
    with PGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        converse(saver, "one", 1)
        assert saver.get_tuple({"configurable": {"thread_id": "one"}}) is not None


def test_setup_sql_needs_no_database(schema: str) -> None:
    result = CliRunner().invoke(app, ["--dsn", "host=/nowhere", "--schema", schema, "setup", "--sql"])
    assert result.exit_code == 0
    assert f'"{schema}".checkpoints' in result.output


def test_migrate_asks_before_it_goes_down(run: Run) -> None:
    run("setup")
    assert "loses data of the tables" in words(run("migrate", "--to", "0", input="n\n", code=1))
    assert "pending" not in words(run("status"))
    assert "down 0001_create_checkpoints" in words(run("migrate", "--to", "0", "--yes"))
    assert "pending: 0001_create_checkpoints" in words(run("status"))
    assert "up 0001_create_checkpoints" in words(run("migrate"))


def test_status_counts_rows(run: Run, conversation: PGStateSaver) -> None:
    shown = words(run("status"))
    assert "threads: 2" in shown
    checkpoints = sum(1 for _ in conversation.list(None, metadata_only=True))
    assert f"checkpoints {checkpoints} " in shown


@pytest.mark.bare
def test_status_of_a_schema_that_was_never_set_up(run: Run) -> None:
    assert "not set up" in words(run("status"))


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
    assert "there is no thread 'nobody'" in words(run("check", "--thread", "nobody", code=1))


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
    assert "say what to remove" in words(run("prune", code=1))
    assert "is no age" in words(run("prune", "--older-than", "soon", code=1))
    run("prune", "--strategy", "delete", input="n\n", code=1)
    assert "threads: 2" in words(run("status"))
    run("prune", "--strategy", "delete", "--yes")
    assert "threads: 0" in words(run("status"))


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["prune", "--strategy", "delte"], 2, "'delte' is not one of"),
        (["prune", "--strategy", "delete", "--keep-last", "2"], 1, "keep_last goes with"),
        (["prune", "--strategy", "delete", "--older-than", "soon"], 1, "is no age"),
        (["--schema", "no name", "prune", "--strategy", "delete"], 1, "must be a lower-case"),
        (["--schema", "nobodys", "prune", "--strategy", "delete"], 1, "setup"),
        (["--dsn", "host=/nowhere", "prune", "--strategy", "delete"], 1, "/nowhere"),
        (["migrate", "--to", "-1"], 2, "Invalid value for '--to'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_asked(
    arguments: list[str], code: int, why: str, run: Run, conversation: PGStateSaver
) -> None:
    """Whoever answers `y` must not find that something else was meant; and nothing goes."""
    shown = words(run(*arguments, code=code, input="y\n"))
    assert why in " ".join(shown.replace("│", "").split())
    assert "[y/N]" not in shown
    assert "threads: 2" in words(run("status"))


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
    allowing = PGStateSaver._over(database, {"schema": saver.schema, "strict": True, "allowed_types": named})
    assert values_of(allowing, config_of("t")) == values


def test_threads_move_in_and_out(run: Run, dsn: str, upstream_schema: str, saver: PGStateSaver) -> None:
    theirs = make_conninfo(dsn, options=f"-csearch_path={upstream_schema}")
    with PostgresSaver.from_conn_string(theirs) as upstream:
        upstream.setup()
        converse(upstream, "one", 2)
        converse(upstream, "two", 1)
        moved = words(run("import-langgraph", "--from", dsn, "--from-schema", upstream_schema, "--thread", "one"))
        assert "imported 1 thread:" in moved
        ours = [item.checkpoint for item in saver.list({"configurable": {"thread_id": "one"}})]
        assert ours == [item.checkpoint for item in upstream.list({"configurable": {"thread_id": "one"}})]
        assert saver.get_tuple({"configurable": {"thread_id": "two"}}) is None
        converse(saver, "three", 1)
        run("export-langgraph", "--to", dsn, "--to-schema", upstream_schema, "--thread", "three")
        assert upstream.get_tuple({"configurable": {"thread_id": "three"}}) is not None


@pytest.mark.bare
@pytest.mark.parametrize(
    "arguments", [("tree", "one"), ("prune", "--keep-last", "1"), ("check",), ("export-langgraph", "--to", "x")]
)
def test_a_missing_schema_is_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    shown = words(run(*arguments, code=1))
    assert shown.startswith("error:")
    assert "pgstate --schema" in shown
    assert "setup" in shown


def test_an_import_from_where_langgraph_has_no_tables_says_so(run: Run, dsn: str) -> None:
    """Not that tables of ours should be made there."""
    shown = words(run("import-langgraph", "--from", dsn, code=1))
    assert "no LangGraph tables (checkpoints, checkpoint_blobs, checkpoint_writes) in schema 'public'" in shown
    assert "--from-schema" in shown
    assert "setup" not in shown


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_the_script_says_so(missing: str) -> None:
    blocked = f"import sys; sys.modules[{missing!r}] = None; from langgraph_pgstate.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "pgstate needs its `cli` extra: pip install 'langgraph-pgstate[cli]'\n"


def test_choices_are_those_of_the_operations() -> None:
    assert (options.THREAD_STATUSES, options.RUN_STATUSES) == (search.STATUSES, runs.STATUSES)
    assert (options.USAGE_KEYS, options.STRATEGIES) == (statistics.USAGE_KEYS, prune.STRATEGIES)
    assert options.DECISIONS == DECISIONS


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


def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "langgraph_pgstate", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith("pgstate ")
