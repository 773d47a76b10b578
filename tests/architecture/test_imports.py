"""Imports: a saver loads little, every part's names are there, and nothing is imported in the middle of a call."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from support_server import ROOT

HEAVY = (
    *("langgraph.types", "langgraph.graph", "langgraph.pregel", "langgraph.channels", "langgraph.prebuilt"),
    *("langsmith", "langgraph_sdk", "langchain_core.runnables.base", "langchain_core.tools", "langchain_core.tracers"),
    *("langgraph_pgstate.state", "langgraph_pgstate.agent_server", "langgraph_pgstate.admin"),
    *("langgraph_pgstate.record", "langgraph_pgstate.tools", "langgraph_pgstate.threads", "langgraph_pgstate.cli"),
    *("langgraph_pgstate.types.reports", "langgraph_pgstate.types.runs", "langgraph_pgstate.types.threads"),
)


def run_apart(program: str, *arguments: str) -> str:
    """What a program prints in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_by(statement: str) -> set[str]:
    return set(run_apart(f"{statement}\nimport sys\nprint(*sys.modules)").split())


def test_the_package_alone_imports_none_of_its_parts() -> None:
    found = imported_by("import langgraph_pgstate; langgraph_pgstate.__version__")
    assert {name for name in found if name.startswith("langgraph_pgstate")} == {
        "langgraph_pgstate",
        "langgraph_pgstate._lazy",
    }
    assert not found & {"langgraph", "langchain_core", "psycopg", "asyncio"}


@pytest.mark.parametrize(
    "statement",
    [
        "from langgraph_pgstate import PGStateSaver",
        "from langgraph_pgstate import AsyncPGStateSaver",
        "from langgraph_pgstate.saver import PGStateSaver, AsyncPGStateSaver, Guard",
    ],
)
def test_a_saver_imports_no_other_part(statement: str) -> None:
    assert imported_by(statement) & set(HEAVY) == set()


def test_settings_and_results_import_no_part() -> None:
    found = imported_by(
        "from langgraph_pgstate import PoolSettings, PruneResult, RecorderSettings, RetryPolicy, ThreadKeys"
    )
    assert not found & {"langgraph", "langchain_core", "psycopg", *HEAVY}


@pytest.mark.parametrize("guard", ["None", '"lease"'])
def test_an_open_saver_imports_nothing_more(dsn: str, schema: str, guard: str) -> None:
    """An import in the middle of a call would block the event loop."""
    program = f"""
        import sys
        from langgraph_pgstate import PGStateSaver

        def put(saver, config, step):
            id = f"1f0a0000-0000-6000-8000-00000000000{{step}}"
            values = {{"v": 4, "id": id, "ts": "", "channel_values": {{"a": step}}, "channel_versions": {{"a": step}},
                      "versions_seen": {{}}, "updated_channels": None}}
            return saver.put(config, values, {{"source": "loop", "step": step, "run_id": "r"}}, {{"a": step}})

        with PGStateSaver.from_conn_string(sys.argv[1], schema=sys.argv[2], guard={guard}) as saver:
            saver.setup()
            before = set(sys.modules)
            config = put(saver, {{"configurable": {{"thread_id": "t", "checkpoint_ns": ""}}}}, 1)
            saver.put_writes(config, [("a", {{1, 2}})], "task")
            put(saver, config, 2)
            assert saver.get_tuple({{"configurable": {{"thread_id": "t"}}}}).checkpoint["channel_values"] == {{"a": 2}}
            assert saver.get_tuple(config).pending_writes
            assert len(list(saver.list(None, filter={{"source": "loop"}}))) == 2
            saver.get_delta_channel_history(config=config, channels=["a"])
            saver.copy_thread("t", "u")
            saver.prune()
            saver.delete_for_runs(["r"])
            saver.delete_thread("u")
            saver.revive_thread("u")
            print(*sorted(name for name in set(sys.modules) - before if name.startswith("lang")))
    """
    assert run_apart(program, dsn, schema).split() == []


def test_an_open_state_imports_nothing_more(dsn: str, schema: str) -> None:
    program = """
        import sys
        from langgraph_pgstate import PGState

        with PGState.open(sys.argv[1], schema=sys.argv[2], project=["a"]) as state:
            state.setup()
            before = set(sys.modules)
            for name in ("threads", "runs", "spans", "messages", "events", "prices", "leases", "tools"):
                getattr(state, name)
            state.threads.list()
            state.threads.interrupted()
            state.runs.list()
            state.messages.search("a")
            state.maintain()
            state.backfill()
            state.flush()
            print(*sorted(name for name in set(sys.modules) - before if name.startswith("lang")))
    """
    assert run_apart(program, dsn, schema).split() == []
