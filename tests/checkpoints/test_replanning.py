"""Planning of a put whose parent this process does not know."""

from __future__ import annotations

import psycopg
from support import put_arguments
from support.samples import config_of, forget, id_of, messages, put_values

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.checkpoints.planning import plan_put
from langgraph_pgstate.checkpoints.requests import request_put
from langgraph_pgstate.checkpoints.sending import plan_from_database
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.adapters import BlockingConnection, run_blocking
from langgraph_pgstate.schema.queries import queries


def test_only_what_the_stored_parent_lacks_is_written(
    saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    parent = put_values(saver, config_of(), {"messages": messages(0, 20)})
    forget(saver)
    codec = ValueCodec(None)
    request = request_put(codec, *put_arguments(parent, 1, messages=messages(0, 21)))
    assert plan_put(codec, request, None).state is None
    plan = run_blocking(plan_from_database(BlockingConnection(connection), queries(schema), codec, request))
    assert plan.state is not None
    assert [*plan.base_revisions] == [id_of(parent)]
    assert sum(map(len, plan.contents.values())) < 1_000


def test_a_parent_that_is_gone_leaves_nothing_to_inherit(
    saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    parent = put_values(saver, config_of(), {"messages": messages(0, 20)})
    connection.execute(f"DELETE FROM {schema}.checkpoints")
    codec = ValueCodec(None)
    request = request_put(codec, *put_arguments(parent, 1, messages=messages(0, 21)))
    plan = run_blocking(plan_from_database(BlockingConnection(connection), queries(schema), codec, request))
    assert (plan.base_revisions, plan.parent) == ({}, None)
