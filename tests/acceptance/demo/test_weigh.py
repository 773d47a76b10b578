"""The weight of whole values is what LangGraph's own saver writes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.conninfo import make_conninfo
from support.cli import converse

from examples.demo.weigh import WholeValues
from tests.cli.conftest import upstream_schema

__all__ = ["upstream_schema"]

pytestmark = pytest.mark.smoke


@pytest.mark.slow
def test_the_weight_of_whole_values_is_what_the_official_saver_writes(
    dsn: str, upstream_schema: str, connection: psycopg.Connection[Any]
) -> None:
    with PostgresSaver.from_conn_string(make_conninfo(dsn, options=f"-csearch_path={upstream_schema}")) as upstream:
        upstream.setup()
        converse(upstream, "one", 5)
        counted = WholeValues()
        assert list(counted.counted(upstream.list({"configurable": {"thread_id": "one"}})))
    written = connection.execute(
        f'SELECT sum(octet_length(blob))::bigint FROM "{upstream_schema}".checkpoint_blobs'
    ).fetchone()
    # The official saver keeps empty branch markers (null) in the checkpoint's own row.
    assert written is not None
    assert written[0] <= counted.bytes <= written[0] + counted.versions
