"""Threads copied from and to the tables of LangGraph's saver from the command line."""

from __future__ import annotations

import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.conninfo import make_conninfo
from support.cli import Run, converse, words

from langgraph_pgstate import PGStateSaver

pytestmark = pytest.mark.smoke


@pytest.mark.slow
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


def test_an_import_from_where_langgraph_has_no_tables_says_so(run: Run, dsn: str) -> None:
    """Not that tables of ours should be made there."""
    shown = words(run("import-langgraph", "--from", dsn, code=1))
    assert "no LangGraph tables (checkpoints, checkpoint_blobs, checkpoint_writes) in schema 'public'" in shown
    assert "--from-schema" in shown
    assert "setup" not in shown
