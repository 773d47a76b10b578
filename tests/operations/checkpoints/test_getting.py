"""Reading of one checkpoint by its id, or of the latest."""

from __future__ import annotations

import psycopg
from samples import config_of, put_values

from langgraph_pgstate import PGStateSaver
from langgraph_pgstate.codec.values import ValueCodec
from langgraph_pgstate.db.adapters import BlockingConnection
from langgraph_pgstate.db.protocol import run_blocking
from langgraph_pgstate.operations.checkpoints.addresses import address_of
from langgraph_pgstate.operations.checkpoints.getting import get_tuple
from langgraph_pgstate.sql import queries


def test_the_row_is_that_of_the_given_id_and_else_the_newest(
    saver: PGStateSaver, schema: str, connection: psycopg.Connection
) -> None:
    """The newest id comes with the row of another checkpoint; it is not taken for its own."""
    first = put_values(saver, config_of(), {"n": 1})
    last = put_values(saver, first, {"n": 2})
    db, codec = BlockingConnection(connection), ValueCodec(None)
    for given, expected in ((first, first), (last, last), (config_of(), last)):
        found = run_blocking(get_tuple(db, queries(schema), codec, address_of(given)))
        assert found is not None
        assert found[0].address == address_of(expected)
        assert not found[0].is_cut
    connection.execute(f"DELETE FROM {schema}.checkpoints WHERE parent_checkpoint_id IS NULL")
    for given in (last, config_of()):
        found = run_blocking(get_tuple(db, queries(schema), codec, address_of(given)))
        assert found is not None
        assert found[0].is_cut
    assert run_blocking(get_tuple(db, queries(schema), codec, address_of(first))) is None
