"""Imports: a saver loads little, every part's names are there, and nothing is imported in the middle of a call."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from support.server import ROOT

HEAVY = (
    *("langgraph.types", "langgraph.graph", "langgraph.pregel", "langgraph.channels", "langgraph.prebuilt"),
    *("langsmith", "langgraph_sdk", "langchain_core.runnables.base", "langchain_core.tools", "langchain_core.tracers"),
    *("langgraph_pgstate.state", "langgraph_pgstate.agent_server", "langgraph_pgstate.admin.api"),
    *("langgraph_pgstate.record.recorder", "langgraph_pgstate.tools"),
    *("langgraph_pgstate.threads.api", "langgraph_pgstate.cli"),
    *("langgraph_pgstate.admin.types", "langgraph_pgstate.record.filters"),
    *("langgraph_pgstate.runs", "langgraph_pgstate.worker"),
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


def test_a_part_imports_no_other() -> None:
    """One after the other, in one process: what a statement imports includes what those before it did."""
    statements = (
        "import langgraph_pgstate; langgraph_pgstate.__version__",
        "from langgraph_pgstate import PoolSettings, PruneResult, RecorderSettings, RetryPolicy, ThreadKeys",
        "from langgraph_pgstate import PGStateSaver, AsyncPGStateSaver",
        "from langgraph_pgstate.saver import PGStateSaver, AsyncPGStateSaver, Guard",
    )
    program = "import sys\n" + "".join(f"{statement}\nprint(*sys.modules)\n" for statement in statements)
    package, settings, *savers = (set(line.split()) for line in run_apart(program).splitlines())
    assert {name for name in package if name.startswith("langgraph_pgstate")} == {
        "langgraph_pgstate",
        "langgraph_pgstate._lazy",
    }
    assert not package & {"langgraph", "langchain_core", "psycopg", "asyncio"}
    assert not settings & {"langgraph", "langchain_core", "psycopg", *HEAVY}
    assert [saver & set(HEAVY) for saver in savers] == [set(), set()]


@pytest.mark.slow
def test_an_open_saver_and_an_open_state_import_nothing_more(dsn: str, schema: str) -> None:
    """An import in the middle of a call would block the event loop. One after the other, in one process."""
    program = """
        import sys
        from langgraph_pgstate import PGStateSaver

        def put(saver, config, step):
            id = f"1f0a0000-0000-6000-8000-00000000000{step}"
            values = {"v": 4, "id": id, "ts": "", "channel_values": {"a": step}, "channel_versions": {"a": step},
                      "versions_seen": {}, "updated_channels": None}
            return saver.put(config, values, {"source": "loop", "step": step, "run_id": "r"}, {"a": step})

        for guard in (None, "lease"):
            with PGStateSaver.from_conn_string(sys.argv[1], schema=sys.argv[2], guard=guard) as saver:
                saver.setup()
                before = set(sys.modules)
                config = put(saver, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, 1)
                saver.put_writes(config, [("a", {1, 2})], "task")
                put(saver, config, 2)
                found = saver.get_tuple({"configurable": {"thread_id": "t"}})
                assert found.checkpoint["channel_values"] == {"a": 2}
                assert saver.get_tuple(config).pending_writes
                assert len(list(saver.list(None, filter={"source": "loop"}))) == 2
                saver.get_delta_channel_history(config=config, channels=["a"])
                saver.copy_thread("t", "u")
                saver.prune()
                saver.delete_for_runs(["r"])
                saver.delete_thread("u")
                saver.revive_thread("u")
                print(*sorted(name for name in set(sys.modules) - before if name.startswith("lang")))

        from langgraph_pgstate import PGState

        with PGState.open(sys.argv[1], schema=sys.argv[2], project=["a"]) as state:
            state.setup()
            before = set(sys.modules)
            for name in ("threads", "runs", "spans", "messages", "events", "prices", "leases", "tools"):
                getattr(state, name)
            state.threads.list()
            state.interrupts.threads()
            state.runs.list()
            state.messages.search("a")
            state.maintain()
            state.backfill()
            state.flush()
            print(*sorted(name for name in set(sys.modules) - before if name.startswith("lang")))
    """
    assert run_apart(program, dsn, schema).split() == []
