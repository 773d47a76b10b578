"""`check`: it reads everything, and names each kind of damage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, TypedDict

import kinds
import numpy
import ormsgpack
import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from support.official import Account, fill, talk
from support.samples import config_of, message, messages, put_values

from langgraph_pgstate import PGState, PGStateSaver
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.admin.types import CheckReport
from langgraph_pgstate.codec import frames
from langgraph_pgstate.codec.values import PLAIN_MARK
from langgraph_pgstate.errors import SchemaMissingError
from langgraph_pgstate.record.types import Problem
from langgraph_pgstate.threads.types import Progress
from tests.interrupts.test_api import asking as _asking

COLUMNS = {"checkpoints": "state", "segments": "data", "writes": "data"}


@pytest.fixture
def admin(dsn: str, schema: str, saver: PGStateSaver) -> Iterator[Admin]:
    with Admin.open(dsn, schema=schema) as admin:
        yield admin


@pytest.fixture
def thread(saver: PGStateSaver) -> list[dict[str, Any]]:
    """A thread of four checkpoints whose list is in four segments, with a large value and pending writes."""
    configs: list[Any] = []
    config: Any = config_of("t")
    for step in range(4):
        values = {"messages": messages(0, 3 * step + 3), "document": f"{step}".encode() * 3000, "small": {"a": [1]}}
        config = put_values(saver, config, values, step=step)
        configs.append(config)
    saver.put_writes(config, [("messages", message(99)), ("small", {"b": 2})], "task", "~path")
    saver.put_writes(config, [("__interrupt__", "why")], "task", "~path")
    return configs


@pytest.fixture
def damage(connection: psycopg.Connection, schema: str) -> Any:
    """Run a statement behind the saver's back; `{schema}` stands for the schema."""

    def damage(statement: str, parameters: Any = ()) -> int:
        return connection.execute(statement.replace("{schema}", f'"{schema}"'), parameters).rowcount

    return damage


def ids_of(configs: list[Any]) -> list[str]:
    return [config["configurable"]["checkpoint_id"] for config in configs]


def named(problem: Problem, checkpoint_id: str) -> bool:
    return problem.thread_id == "t" and checkpoint_id in problem.where


def segments_of(connection: psycopg.Connection, schema: str) -> list[int]:
    rows = connection.execute(f'SELECT segment_id FROM "{schema}".segments ORDER BY segment_id').fetchall()
    return [row[0] for row in rows]


@pytest.mark.slow
def test_a_healthy_schema_has_no_problems(saver: PGStateSaver, admin: Admin, connection: Any, schema: str) -> None:
    fill(saver)
    seen: list[Progress] = []
    report = admin.check(progress=seen.append)

    def count(table: str) -> int:
        row = connection.execute(f'SELECT count(*) FROM "{schema}".{table}').fetchone()
        return int(row[0])

    orphans = f"""
        SELECT count(*) FROM "{schema}".writes WHERE (thread_id, checkpoint_ns, checkpoint_id) NOT IN
            (SELECT thread_id, checkpoint_ns, checkpoint_id FROM "{schema}".checkpoints)
    """
    (orphaned,) = connection.execute(orphans).fetchone()
    expected = CheckReport(5, count("checkpoints"), count("segments"), count("writes"), orphan_writes=orphaned)
    assert report == expected
    assert [(step.threads, step.total) for step in seen] == [(number, 5) for number in range(1, 6)]
    assert admin.check(deep=True) == report


def test_one_thread_alone(saver: PGStateSaver, admin: Admin) -> None:
    for thread_id in ("one", "two"):
        put_values(saver, config_of(thread_id), {"messages": messages(0, 3)})
    assert (admin.check("one").threads, admin.check("one").checkpoints) == (1, 1)
    assert admin.check("unknown") == CheckReport(threads=1)


@pytest.mark.bare
def test_check_needs_a_schema(dsn: str, schema: str) -> None:
    with Admin.open(dsn, schema=schema) as admin, pytest.raises(SchemaMissingError):
        admin.check()


@pytest.mark.parametrize("how", ["flip", "truncate", "empty", "kind"])
@pytest.mark.parametrize("table", ["checkpoints", "segments", "writes"])
def test_altered_bytes_are_noticed(
    table: str, how: str, admin: Admin, thread: Any, connection: Any, schema: str
) -> None:
    """In every row, and anywhere in it."""
    column = COLUMNS[table]

    def replace(row: str, data: bytes) -> str:
        statement = f'UPDATE "{schema}".{table} SET {column} = %s WHERE ctid = %s::tid RETURNING ctid::text'
        return str(connection.execute(statement, [data, row]).fetchone()[0])

    rows = connection.execute(f'SELECT ctid::text, {column} FROM "{schema}".{table}').fetchall()
    assert len(rows) >= 2
    for row, data in rows:
        # A bit of zstd's second byte means nothing; the last bytes are its checksum.
        places = range(2, len(data), max(1, len(data) // 7)) if how in ("flip", "truncate") else [0]
        for at in places:
            altered = {
                "flip": data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :],
                "truncate": data[:at],
                "empty": b"",
                "kind": b"\xee" + data[1:],
            }[how]
            row = replace(row, altered)
            problems = admin.check().problems
            assert problems, (table, how, at)
            assert all(problem.thread_id == "t" and problem.where and problem.why for problem in problems)
            row = replace(row, data)
    assert admin.check().problems == []


def test_a_missing_segment_is_named_with_all_who_need_it(
    admin: Admin, thread: Any, damage: Any, connection: Any, schema: str
) -> None:
    first, *_ = segments_of(connection, schema)
    needing = connection.execute(
        f'SELECT checkpoint_id FROM "{schema}".checkpoints WHERE %s = ANY(segment_ids)', [first]
    ).fetchall()
    assert damage("DELETE FROM {schema}.segments WHERE segment_id = %s", [first]) == 1
    report = admin.check()
    assert len(report.problems) == len(needing)
    for problem, (checkpoint_id,) in zip(report.problems, sorted(needing), strict=True):
        assert named(problem, checkpoint_id)
        assert f"segment {first}" in problem.why
        assert "missing" in problem.why
        assert "channel" in problem.why


@pytest.mark.parametrize("metadata", ["[]", "1", "null"])
def test_metadata_that_are_no_object_are_named(metadata: str, admin: Admin, thread: Any, damage: Any) -> None:
    last = ids_of(thread)[-1]
    damage("UPDATE {schema}.checkpoints SET metadata = %s::jsonb WHERE checkpoint_id = %s", [metadata, last])
    (problem,) = admin.check().problems
    assert named(problem, last)
    assert "its metadata" in problem.why


def test_a_segment_with_too_few_elements(admin: Admin, thread: Any, damage: Any) -> None:
    """Its frame is whole, but it is not what the checkpoint refers to."""
    short = frames.pack(ormsgpack.packb(["one"]))
    assert damage("UPDATE {schema}.segments SET data = %s", [short]) > 2
    problems = admin.check().problems
    assert any("elements" in problem.why for problem in problems)
    assert any("too short" in problem.why for problem in problems)
    assert {id for id in ids_of(thread) for problem in problems if named(problem, id)} == set(ids_of(thread))


def test_a_segment_the_row_names_but_does_not_use(admin: Admin, thread: Any, damage: Any) -> None:
    damage("UPDATE {schema}.checkpoints SET segment_ids = segment_ids || 42 WHERE step = 1")
    (problem,) = admin.check().problems
    assert named(problem, ids_of(thread)[1])
    assert "42" in problem.why


def test_writes_are_named_by_task_and_checkpoint(admin: Admin, thread: Any, damage: Any) -> None:
    assert damage("UPDATE {schema}.writes SET data = substr(data, 1, 9) WHERE idx = -3") == 1
    (problem,) = admin.check().problems
    assert "task 'task'" in problem.where
    assert "-3" in problem.where
    assert named(problem, ids_of(thread)[-1])


def test_values_that_do_not_decode_are_found_by_a_deep_check(
    admin: Admin, thread: Any, damage: Any, connection: Any, schema: str
) -> None:
    """Whole frames around nonsense: checksums cannot tell."""
    rows = connection.execute(f'SELECT segment_id, data FROM "{schema}".segments').fetchall()
    for segment_id, data in rows:
        content = frames.unpack(data, "")
        start = 1 + content.startswith(PLAIN_MARK)
        nonsense = frames.pack(content[:start] + b"\xc1" * (len(content) - start))
        damage("UPDATE {schema}.segments SET data = %s WHERE segment_id = %s", [nonsense, segment_id])
    damage(
        "UPDATE {schema}.writes SET data = %s WHERE idx = 0",
        [frames.pack(ormsgpack.packb([[0, "a", "msgpack", b"\xc1"]]))],
    )
    assert admin.check().problems == []
    problems = admin.check(deep=True).problems
    assert {id for id in ids_of(thread) for problem in problems if named(problem, id)} == set(ids_of(thread))
    assert any("task 'task'" in problem.where for problem in problems)


def test_other_threads_are_still_checked(saver: PGStateSaver, admin: Admin, damage: Any) -> None:
    for thread_id in ("a", "b", "c"):
        put_values(saver, config_of(thread_id), {"messages": messages(0, 3)})
    damage("UPDATE {schema}.checkpoints SET state = '' WHERE thread_id = 'b'")
    report = admin.check()
    assert report.threads == 3
    assert {problem.thread_id for problem in report.problems} == {"b"}


def test_rows_without_a_thread_are_visited(saver: PGStateSaver, admin: Admin, damage: Any) -> None:
    put_values(saver, config_of("t"), {"messages": messages(0, 3)})
    lost: Any = config_of("lost", "", "1f0-never")
    saver.put_writes(lost, [("a", 1)], "task")
    damage("DELETE FROM {schema}.threads")
    damage("INSERT INTO {schema}.segments (thread_id, segment_id, data) VALUES ('orphan', 7, '\\x00')")
    report = admin.check()
    assert (report.threads, report.checkpoints, report.writes, report.unreferenced) == (3, 1, 1, 1)
    assert report.problems == []


def test_segments_nobody_refers_to_are_counted(saver: PGStateSaver, admin: Admin, thread: Any, damage: Any) -> None:
    before = admin.check()
    gone = damage("DELETE FROM {schema}.checkpoints WHERE step = 3")
    after = admin.check()
    assert gone == 1
    assert after.problems == []
    assert after.unreferenced == before.segments - after.segments > 0
    saver.prune(["t"], strategy="keep_latest", keep_last=2)
    assert admin.check().unreferenced == 0


def test_types_of_the_application_are_no_damage(saver: PGStateSaver, admin: Admin) -> None:
    put_values(saver, config_of("t"), {"account": Account(1), "accounts": [Account(2), Account(3)]})
    Account.constructed = 0
    assert admin.check(deep=True).problems == []
    assert Account.constructed == 0


@pytest.mark.slow
def test_pages_are_followed_to_the_end(saver: PGStateSaver, admin: Admin, damage: Any) -> None:
    """More checkpoints, writes and segments than one page holds, the damage in the last."""
    talk(saver, "chat", 40)
    for number in range(120):
        saver.put_writes(config_of("chat", "", "1f0-x"), [("turn", number)], f"task{number:03}")  # type: ignore[arg-type]
    damage("UPDATE {schema}.writes SET data = '' WHERE task_id = 'task119'")
    damage(
        "UPDATE {schema}.checkpoints SET state = '' "
        "WHERE checkpoint_id = (SELECT max(checkpoint_id) FROM {schema}.checkpoints)"
    )
    report = admin.check()
    assert report.checkpoints == 120
    assert report.writes == 200
    assert len(report.problems) == 2


@pytest.mark.slow
def test_a_thread_that_is_being_written_to_is_whole(saver: PGStateSaver, admin: Admin, dsn: str, schema: str) -> None:
    """The check reads one moment of a thread; pruning and appending don't look like damage."""
    done = threading.Event()

    def keep_writing() -> None:
        with PGStateSaver.from_conn_string(dsn, schema=schema) as mine:
            config: Any = config_of("t")
            step = 0
            while not done.is_set():
                step += 1
                config = put_values(
                    mine, config, {"messages": [HumanMessage("x" * 200, id=str(n)) for n in range(step)]}
                )
                if step % 5 == 0:
                    mine.prune(["t"])

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        for _ in range(60):
            report = admin.check(deep=True)
            assert report.problems == []
            # What a put wrote before it noticed that its parent was gone would be here.
            assert report.unreferenced == 0
    finally:
        done.set()
        writer.join()


class Bought(TypedDict):
    number: int


def test_the_types_that_are_stored_are_listed(dsn: str, schema: str, saver: PGStateSaver, admin: Admin) -> None:
    """From every place a value is stored in, wherever it stands there, built nowhere; of each thread or of one."""
    with PGState.open(dsn, schema=schema) as state:
        values = {
            "list": [HumanMessage("x", additional_kwargs={"level": kinds.Level.HIGH}), kinds.Frozen([kinds.Money(1)])],
            "large": {"text": "x" * 50_000, "box": kinds.IntBox(content=1)},
        }
        put_values(saver, config_of("a"), values, own={"rights": kinds.Rights.READ})
        saver.put_writes(config_of("b", "", "1f0-x"), [("channel", kinds.Place(1)), ("array", numpy.zeros(3))], "task")
        graph = _asking(state.saver, "go on?")
        graph.invoke({"said": []}, config_of("c"))
        state.interrupts.answer("c", {"mood": kinds.Mood.CALM})
        buy = state.tools.once(lambda: kinds.Order(1, [kinds.Person(name="x")]), name="buy")
        builder = StateGraph(Bought)
        builder.add_node("buy", lambda state: {"number": buy().number})
        builder.add_edge(START, "buy")
        builder.compile(checkpointer=state.saver).invoke({"number": 0}, config_of("d"))
    assert admin.check().types == ()
    names = {"a": "Rights Level Frozen Money Box[int]", "b": "Place", "c": "Mood", "d": "Order Person"}
    expected = {id: {f"kinds:{name}" for name in found.split()} for id, found in names.items()}
    expected["b"].add("numpy:ndarray")
    for id, found in expected.items():
        assert set(admin.check(id, types=True).types) == found
    report = admin.check(types=True)
    assert list(report.types) == sorted(set().union(*expected.values()))
    assert (report.problems, report.others) == ([], 0)


def test_types_of_another_serializer_are_counted(dsn: str, schema: str, admin: Admin) -> None:
    class Other(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return "msgpack+aes", b"secret"

    with PGStateSaver.from_conn_string(dsn, schema=schema, serde=Other()) as saver:
        put_values(saver, config_of("t"), {"a": 1, "b": [2]})
    report = admin.check(types=True)
    assert (report.types, report.others, report.problems) == ((), 2, [])
