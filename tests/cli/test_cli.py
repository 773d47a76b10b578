"""The console script: each command on the test server, its exit codes, and errors without a stack trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import kinds
import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from official import Account
from psycopg.conninfo import make_conninfo
from samples import config_of, put_values, values_of
from typer.testing import CliRunner

import langgraph_pgstate
from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.cli import options
from langgraph_pgstate.cli.agent import FIRST_WISH, build_agent, follow_up, offline_model
from langgraph_pgstate.cli.app import app
from langgraph_pgstate.cli.output import bytes_in_words, shorten
from langgraph_pgstate.cli.weigh import WholeValues
from langgraph_pgstate.errors import ConfigurationError
from langgraph_pgstate.operations.record import runs, statistics
from langgraph_pgstate.operations.threads import prune, search
from langgraph_pgstate.settings import AgentServerSettings, age
from langgraph_pgstate.sql import migrations
from langgraph_pgstate.tools.interrupts import DECISIONS
from langgraph_pgstate.types import PruneResult

pytestmark = pytest.mark.smoke

Run = Any


@pytest.fixture
def run(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `pgstate` on the test server, in this process."""
    monkeypatch.delenv("PGSTATE_DSN", raising=False)

    def run(*arguments: str, code: int = 0, input: str | None = None) -> Any:
        result = CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, *arguments], input=input)
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result

    return run


def words(result: Any) -> str:
    """What was printed, whatever the line breaks."""
    return " ".join(result.output.split())


@pytest.fixture
def conversation(saver: PGStateSaver) -> PGStateSaver:
    """Two threads, `one` and `two`, with a few turns each."""
    _converse(saver, "one", 3)
    _converse(saver, "two", 1)
    return saver


def _converse(saver: Any, thread_id: str, turns: int) -> None:
    graph = build_agent(offline_model(), saver, lambda *_: None, hotel_seconds=0)
    config: Any = {"configurable": {"thread_id": thread_id}}
    graph.invoke({"messages": [HumanMessage(FIRST_WISH)]}, config)
    for turn in range(2, turns + 1):
        graph.invoke({"messages": [HumanMessage(follow_up(turn))]}, config)


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
        _converse(saver, "one", 1)
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


def test_tree_shows_forks(run: Run, conversation: PGStateSaver) -> None:
    graph = build_agent(offline_model(), conversation, lambda *_: None, hotel_seconds=0)
    past = list(conversation.list({"configurable": {"thread_id": "two"}}))[-4]
    graph.update_state(past.config, {"messages": [HumanMessage("something else")]}, as_node="__start__")
    shown = run("tree", "two").output
    assert "branch 1" in shown
    assert "branch 2" in shown
    assert "something else" in shown
    assert "there is no thread 'nobody'" in words(run("tree", "nobody", code=1))


def test_tree_shows_types_that_it_does_not_build(run: Run, saver: PGStateSaver) -> None:
    """What they hold, as plain data; and nothing of the application is imported or built for it."""
    elsewhere = type("Order", (Account,), {"__module__": "never.imported"})
    config = put_values(saver, config_of("t"), {"messages": [HumanMessage("a table for two")]}, step=1)
    put_values(saver, config, {"order": elsewhere(7), "account": Account(8)}, step=2)
    Account.constructed = 0
    shown = words(run("tree", "t"))
    assert Account.constructed == 0
    for part in ("a table for two", "order={'number': 7", "account={'number'"):
        assert part in shown


def test_tree_says_what_it_does_not_show(run: Run, saver: PGStateSaver) -> None:
    config: Any = config_of("t")
    for step in range(6):
        config = put_values(saver, config, {"n": step}, step=step)
    assert "… 4 older, not shown (--limit)" in words(run("tree", "t", "--limit", "2"))
    for limit in ("6", "7"):
        assert "not shown" not in words(run("tree", "t", "--limit", limit))


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


@pytest.fixture
def upstream_schema(dsn: str, schema: str, connection: psycopg.Connection[Any]) -> Iterator[str]:
    """A schema for the tables of LangGraph's own saver."""
    name = f"{schema}_upstream"
    connection.execute(f'CREATE SCHEMA "{name}"')
    yield name
    connection.execute(f'DROP SCHEMA "{name}" CASCADE')


def test_threads_move_in_and_out(run: Run, dsn: str, upstream_schema: str, saver: PGStateSaver) -> None:
    theirs = make_conninfo(dsn, options=f"-csearch_path={upstream_schema}")
    with PostgresSaver.from_conn_string(theirs) as upstream:
        upstream.setup()
        _converse(upstream, "one", 2)
        _converse(upstream, "two", 1)
        moved = words(run("import-langgraph", "--from", dsn, "--from-schema", upstream_schema, "--thread", "one"))
        assert "imported 1 thread:" in moved
        ours = [item.checkpoint for item in saver.list({"configurable": {"thread_id": "one"}})]
        assert ours == [item.checkpoint for item in upstream.list({"configurable": {"thread_id": "one"}})]
        assert saver.get_tuple({"configurable": {"thread_id": "two"}}) is None
        _converse(saver, "three", 1)
        run("export-langgraph", "--to", dsn, "--to-schema", upstream_schema, "--thread", "three")
        assert upstream.get_tuple({"configurable": {"thread_id": "three"}}) is not None


def test_the_weight_of_whole_values_is_what_the_official_saver_writes(
    dsn: str, upstream_schema: str, connection: psycopg.Connection[Any]
) -> None:
    with PostgresSaver.from_conn_string(make_conninfo(dsn, options=f"-csearch_path={upstream_schema}")) as upstream:
        upstream.setup()
        _converse(upstream, "one", 5)
        counted = WholeValues()
        assert list(counted.counted(upstream.list({"configurable": {"thread_id": "one"}})))
    written = connection.execute(
        f'SELECT sum(octet_length(blob))::bigint FROM "{upstream_schema}".checkpoint_blobs'
    ).fetchone()
    # The official saver keeps empty branch markers (null) in the checkpoint's own row.
    assert written is not None
    assert written[0] <= counted.bytes <= written[0] + counted.versions


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


def test_an_unreachable_server_is_one_line() -> None:
    result = _pgstate("--dsn", "postgresql://nobody@127.0.0.1:1/nothing", "status")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_bad_schema_name_is_one_line() -> None:
    result = CliRunner().invoke(app, ["--dsn", "host=/nowhere", "--schema", "No Schema", "status"])
    assert result.exit_code == 1
    assert "must be a lower-case PostgreSQL identifier" in words(result)


def test_without_a_database_nothing_is_made(tmp_path: Path) -> None:
    result = _pgstate("status", cwd=tmp_path)
    assert result.returncode == 1
    assert "no database: give --dsn or set PGSTATE_DSN" in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_option_wins_over_the_environment(
    dsn: str, schema: str, saver: PGStateSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGSTATE_DSN", dsn)
    version = f"version {migrations()[-1].version}"
    assert version in words(CliRunner().invoke(app, ["--schema", schema, "status"]))
    monkeypatch.setenv("PGSTATE_DSN", "postgresql://nobody@127.0.0.1:1/nothing")
    assert version in words(CliRunner().invoke(app, ["--dsn", dsn, "--schema", schema, "status"]))
    assert CliRunner().invoke(app, ["--schema", schema, "status"]).exit_code == 1


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_the_script_says_so(missing: str) -> None:
    blocked = f"import sys; sys.modules[{missing!r}] = None; from langgraph_pgstate.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "pgstate needs its `cli` extra: pip install 'langgraph-pgstate[cli]'\n"


@pytest.mark.parametrize("module", ["app", "output", "target", "options"])
def test_help_imports_no_langgraph(module: str) -> None:
    """With a package that imports nothing itself, the commands import only typer."""
    code = f"""
import sys, types
package = types.ModuleType("langgraph_pgstate")
package.__path__, package.__version__ = [{str(Path(langgraph_pgstate.__file__).parent)!r}], "0"
sys.modules["langgraph_pgstate"] = package
import langgraph_pgstate.cli.{module}
print(*{{"langgraph", "langchain_core", "psycopg", "pydantic", "rich"}} & sys.modules.keys())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


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
    result = _pgstate("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("pgstate ")


def test_a_real_model_without_its_package_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain", None)
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    assert "pip install langchain langchain-nobody" in words(run("demo", "--model", "nobody:model", code=1))


def test_words_for_sizes_ages_and_long_lines() -> None:
    assert [bytes_in_words(size) for size in (0, 999, 1000, 26_700_000)] == ["0 B", "999 B", "1.0 kB", "26.7 MB"]
    assert age("30d") == timedelta(days=30)
    assert age("1.5h") == timedelta(minutes=90)
    with pytest.raises(ConfigurationError):
        age("30")
    with pytest.raises(ConfigurationError, match="longer than any calendar"):
        age("99999999999d")
    assert shorten("a  b\nc", 10) == "a b c"
    assert shorten("abcdefgh", 5) == "abcd…"


@pytest.mark.parametrize("schema_option", [["--schema", "no_such"], ["--schema=no_such"]])
def test_dsn_and_schema_are_taken_after_the_command_too(dsn: str, schema_option: list[str]) -> None:
    result = _pgstate("check", "--dsn", dsn, "--thread", "t", *schema_option)
    assert result.returncode == 1
    assert "no_such" in result.stdout + result.stderr


def test_json_is_taken_after_the_command_too(dsn: str, schema: str) -> None:
    result = _pgstate("status", "--dsn", dsn, f"--schema={schema}", "--json")
    assert json.loads(result.stdout)["schema"] == schema


def _pgstate(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PGSTATE_DSN"}
    return subprocess.run(
        [sys.executable, "-m", "langgraph_pgstate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
    )
