"""Damaged checkpoints: refused by default, passed by on demand."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from support.official import Account
from support.samples import config_of, forget, id_of, message, messages, put_values

from langgraph_pgstate import AsyncPGStateSaver, PGState, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.errors import ConfigurationError, CorruptStateError, UnreadableFormatError, UnsafeTypeError
from tests.checkpoints.test_versions import START_ONE, One, T


@pytest.fixture
def chain(saver: PGStateSaver) -> list[Any]:
    """Four checkpoints, each with a large value of its own and pending writes."""
    configs: list[Any] = []
    config: Any = T
    for step in range(4):
        values = {"document": f"{step}".encode() * 5000, "messages": messages(0, step + 1)}
        config = put_values(saver, config, values, step=step)
        saver.put_writes(config, [("messages", message(step + 1))], f"task {step}")
        configs.append(config)
    return configs


def break_state(connection: psycopg.Connection, schema: str, *configs: Any) -> None:
    """Change the last byte of the checkpoints' rows: their checksums."""
    for config in configs:
        done = connection.execute(
            f'UPDATE "{schema}".checkpoints SET state = set_byte(state, length(state) - 1, '
            "255 - get_byte(state, length(state) - 1)) WHERE checkpoint_id = %s",
            [id_of(config)],
        )
        assert done.rowcount == 1


def break_segments(connection: psycopg.Connection, schema: str, config: Any, older: Any) -> None:
    """Take away the segments that one checkpoint has and another does not."""
    done = connection.execute(
        f'DELETE FROM "{schema}".segments WHERE segment_id = ANY ('
        f'SELECT unnest(segment_ids) FROM "{schema}".checkpoints WHERE checkpoint_id = %s EXCEPT '
        f'SELECT unnest(segment_ids) FROM "{schema}".checkpoints WHERE checkpoint_id = %s)',
        [id_of(config), id_of(older)],
    )
    assert done.rowcount >= 1


def break_writes(connection: psycopg.Connection, schema: str, config: Any) -> None:
    done = connection.execute(
        f"UPDATE \"{schema}\".writes SET data = '\\xee00'::bytea WHERE checkpoint_id = %s", [id_of(config)]
    )
    assert done.rowcount == 1


def passing(saver: PGStateSaver) -> PGStateSaver:
    """Another program over the same connections that passes damage by."""
    return PGStateSaver.over(saver._database, {"schema": saver.schema, "on_corrupt": "previous"})


def test_only_the_two_ways_there_are(connection: psycopg.Connection) -> None:
    with pytest.raises(ConfigurationError, match="on_corrupt"):
        PGStateSaver(connection, on_corrupt="ignore")


@pytest.mark.parametrize("how", ["state", "segments", "writes"])
@pytest.mark.parametrize("named", [True, False])
async def test_the_nearest_good_ancestor_is_used(
    saver: PGStateSaver,
    async_saver: AsyncPGStateSaver,
    chain: list[Any],
    connection: Any,
    schema: str,
    how: str,
    named: bool,
    caplog: Any,
) -> None:
    asked = chain[3] if named else T
    good = saver.get_tuple(chain[2])
    if how == "state":
        break_state(connection, schema, chain[3])
    elif how == "segments":
        break_segments(connection, schema, chain[3], chain[2])
    else:
        break_writes(connection, schema, chain[3])
    # What this process wrote itself it would not fetch again.
    forget(saver)
    with pytest.raises(CorruptStateError):
        saver.get_tuple(asked)
    with pytest.raises(CorruptStateError):
        list(saver.list(T))
    with caplog.at_level(logging.ERROR, "langgraph_pgstate"):
        assert passing(saver).get_tuple(asked) == good
    assert id_of(chain[3]) in caplog.text
    assert id_of(chain[2]) in caplog.text
    assert [id_of(item.config) for item in passing(saver).list(T)] == [id_of(config) for config in chain[2::-1]]
    other = put_values(saver, config_of("other"), {"n": 1})
    given = {"schema": schema, "on_corrupt": "previous"}
    passing_by = AsyncPGStateSaver.over(async_saver._database, given)
    latest = await passing_by.read_latest(["t", "other"])
    found = {id: await passing_by.load_latest(latest, id) for id in [*latest.found]}
    assert found == {"t": good, "other": saver.get_tuple(other)}
    with pytest.raises(CorruptStateError):
        await async_saver.load_latest(await async_saver.read_latest(["t"]), "t")
    # What is good is read as ever.
    assert passing(saver).get_tuple(chain[1]) == saver.get_tuple(chain[1])


def test_several_damaged_ones_are_passed_by_and_each_way_is_noted_once(
    saver: PGStateSaver, chain: list[Any], connection: Any, schema: str, dsn: str
) -> None:
    break_state(connection, schema, chain[3], chain[1])
    break_segments(connection, schema, chain[2], chain[0])
    for _ in range(3):
        found = passing(saver).get_tuple(T)
        assert found is not None
        assert found.config == chain[0]
    with PGState.open(dsn, schema=schema) as state:
        (event,) = state.events.list("t", kind="corrupt").items
    assert (event.checkpoint_ns, event.checkpoint_id) == ("", id_of(chain[3]))
    assert event.payload["used"] == id_of(chain[0])
    assert event.payload["why"]
    # The damaged rows stay as they are, for whoever repairs them.
    row = connection.execute(f'SELECT count(*) FROM "{schema}".checkpoints').fetchone()
    assert row == (4,)


def test_without_a_good_ancestor_the_damage_is_raised(
    saver: PGStateSaver, chain: list[Any], connection: Any, schema: str
) -> None:
    break_state(connection, schema, *chain)
    with pytest.raises(CorruptStateError) as raised:
        passing(saver).get_tuple(T)
    assert id_of(chain[3]) in raised.value.where
    assert list(passing(saver).list(T)) == []
    # An ancestor that was pruned is none.
    connection.execute(f'DELETE FROM "{schema}".checkpoints WHERE checkpoint_id <> %s', [id_of(chain[3])])
    with pytest.raises(CorruptStateError):
        passing(saver).get_tuple(T)


def test_only_damage_is_passed_by(saver: PGStateSaver, chain: list[Any]) -> None:
    """A type that may not be built is the program's mistake, not the database's."""
    put_values(saver, chain[3], {"account": Account(7)})
    database: Any = saver._database
    with pytest.raises(UnsafeTypeError):
        PGStateSaver.over(database, {"schema": saver.schema, "on_corrupt": "previous", "strict": True}).get_tuple(T)
    assert passing(saver).get_tuple(config_of("unknown")) is None


@pytest.mark.parametrize("table", ["checkpoints", "segments", "writes"])
def test_what_a_newer_version_wrote_is_not_passed_by(
    saver: PGStateSaver, chain: list[Any], connection: Any, schema: str, table: str
) -> None:
    """Guard: an older program would go back behind checkpoints that are whole, and go on from there."""
    column = "state" if table == "checkpoints" else "data"
    connection.execute(f'UPDATE "{schema}".{table} SET {column} = set_byte({column}, 0, 5)')
    forget(saver)
    for reading in (saver, passing(saver)):
        with pytest.raises(UnreadableFormatError, match="newer version of langgraph_pgstate"):
            reading.get_tuple(T)
        with pytest.raises(UnreadableFormatError):
            list(reading.list(T))
    report = Admin(saver._database).check("t")
    assert report.problems
    assert all("newer version of langgraph_pgstate" in problem.why for problem in report.problems)


def test_a_thread_goes_on_from_the_good_ancestor(saver: PGStateSaver, connection: Any, schema: str) -> None:
    """Its pending writes make up for the damaged superstep, without running its tasks again."""
    ran: list[int] = []

    def talking(place: PGStateSaver) -> Any:
        builder = StateGraph(One)
        builder.add_node("work", lambda state: ran.append(1) or {"log": [f"worked {len(state['log'])}"]})
        builder.add_node("ask", lambda state: {"log": [interrupt("?")]})
        builder.add_edge(START, "work")
        builder.add_edge("work", "ask")
        return builder.compile(checkpointer=place)

    talking(saver).invoke(START_ONE, T)
    head = saver.get_tuple(T)
    assert head is not None
    break_state(connection, schema, head.config)
    graph = talking(passing(saver))
    assert graph.get_state(T).values["log"] == ["begun", "worked 1"]
    graph.invoke(None, T)
    assert len(ran) == 1
    assert graph.invoke(Command(resume="yes"), T)["log"] == ["begun", "worked 1", "yes"]
    # The new head is good, so from now on everybody can read the thread.
    assert talking(saver).get_state(T).values["log"] == ["begun", "worked 1", "yes"]


def test_in_a_database_that_cannot_be_written_reading_works(
    saver: PGStateSaver, chain: list[Any], connection: Any, schema: str, dsn: str
) -> None:
    break_state(connection, schema, chain[3])
    with (
        psycopg.connect(dsn, autocommit=True, options="-c default_transaction_read_only=on") as reader,
    ):
        found = PGStateSaver(reader, schema=schema, on_corrupt="previous").get_tuple(T)
    assert found is not None
    assert found.config == chain[2]


async def test_the_asynchronous_colour(chain: list[Any], connection: Any, schema: str, dsn: str) -> None:
    break_state(connection, schema, chain[3])
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema, on_corrupt="previous") as saver:
        found = await saver.aget_tuple(T)
        assert found is not None
        assert found.config == chain[2]
        assert [id_of(item.config) async for item in saver.alist(T)] == [id_of(config) for config in chain[2::-1]]
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        with pytest.raises(CorruptStateError):
            await saver.aget_tuple(T)
