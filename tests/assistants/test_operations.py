"""Assistants: stored in versions, of which one is current, and seen by who may see them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support.queue import CODEC, Queue

from langgraph_pgstate.assistants import operations as assistants
from langgraph_pgstate.assistants.operations import (
    Access,
    request_fields,
)
from langgraph_pgstate.assistants.types import Assistant
from langgraph_pgstate.db.database import Database
from langgraph_pgstate.db.protocol import read
from langgraph_pgstate.errors import AssistantExistsError, ConfigurationError, NotFoundError, SerializationError
from langgraph_pgstate.runs.requests import request_run
from langgraph_pgstate.schedules import rows as schedules

SCOPE = ['{"owner": "eve"}']
EVES = Access(SCOPE, None)


@pytest.fixture
def queue(connection: psycopg.Connection, schema: str) -> Queue:
    return Queue(connection, schema)


def make(
    queue: Queue, id: str | None = "a", scope: list[str] | None = None, *, refuses: bool = True, **fields: Any
) -> Assistant:
    given = request_fields(CODEC, {"graph": "graph", **fields}, is_new=True)  # type: ignore[typeddict-item]
    found: Assistant = queue.do(assistants.create, CODEC, id, given, Access(scope, None), refuses)
    return found


def change(queue: Queue, id: str = "a", scope: list[str] | None = None, **fields: Any) -> Assistant:
    found: Assistant = queue.do(
        assistants.update,
        CODEC,
        id,
        request_fields(CODEC, fields),  # type: ignore[arg-type]
        Access(scope, None),
    )
    return found


def names(queue: Queue, **filters: Any) -> list[str]:
    return [one.assistant_id for one in queue.do(read, assistants.list_sorted(CODEC, **filters))]


def test_each_change_is_a_version(queue: Queue) -> None:
    made = make(queue, config={"tags": ["x"]}, context={"c": 1}, metadata={"m": 1}, name="mine", description="d")
    assert (made.version, made.config, made.context, made.metadata) == (1, {"tags": ["x"]}, {"c": 1}, {"m": 1})
    second = change(queue, context={"c": 2}, metadata={"n": 2})
    assert (second.version, second.config, second.context) == (2, {"tags": ["x"]}, {"c": 2})
    assert (second.metadata, second.name, second.created_at) == ({"m": 1, "n": 2}, "mine", made.created_at)
    assert change(queue, graph="other", name="yours").graph == "other"
    first = queue.do(assistants.set_version, CODEC, "a", 1)
    assert (first.version, first.context, first.name, first.graph) == (1, {"c": 1}, "mine", "graph")
    assert change(queue, description=None).version == 4
    found = queue.do(read, assistants.list_versions(CODEC, "a", limit=3))
    assert [(one.version, one.name) for one in found] == [(4, "mine"), (3, "yours"), (2, "mine")]
    found = queue.do(read, assistants.list_versions(CODEC, "a", metadata={"n": 2}, offset=1))
    assert [one.version for one in found] == [2]
    with pytest.raises(NotFoundError, match="no version 9"):
        queue.do(assistants.set_version, CODEC, "a", 9)


def test_an_id_names_one_assistant(queue: Queue) -> None:
    made = make(queue, metadata={"owner": "eve"})
    with pytest.raises(AssistantExistsError, match="'a'") as refused:
        make(queue, name="other")
    assert refused.value.assistant_id == "a"
    assert make(queue, name="other", refuses=False) == made
    assert make(queue, scope=SCOPE, refuses=False) == made
    with pytest.raises(AssistantExistsError):
        make(queue, scope=['{"owner": "adam"}'], refuses=False)
    assert make(queue, None).assistant_id != make(queue, None).assistant_id


def test_what_a_caller_may_not_see_is_neither_found_nor_changed(queue: Queue) -> None:
    for id, owner in (("a", "eve"), ("b", "adam")):
        make(queue, id, metadata={"owner": owner}, name=f"Name of {id}")
    assert names(queue, scope={"owner": "eve"}) == ["a"]
    assert names(queue, name="OF B") == ["b"]
    assert names(queue, by="name", ascending=True, limit=1, offset=1) == ["b"]
    assert names(queue, graph="none") == names(queue, assistant_id="b", scope={"owner": "eve"}) == []
    other = {"assistant_id": "0", "graph": "graph", "name": "x", "metadata": {}}
    others = [{**other, "created_at": "2026-01-01T00:00:00Z"}]
    assert names(queue, others=others, by="assistant_id", ascending=True) == ["0", "a", "b"]
    assert queue.do(read, assistants.count(others=others)) == 3
    assert queue.do(assistants.get, CODEC, "b", EVES) is None
    for refused in (
        lambda: change(queue, "b", SCOPE, name="mine"),
        lambda: queue.do(assistants.set_version, CODEC, "b", 1, EVES),
        lambda: change(queue, "c", name="mine"),
    ):
        with pytest.raises(NotFoundError, match="no assistant"):
            refused()
    assert not queue.do(assistants.delete, "b", EVES)
    assert [queue.do(assistants.delete, "a", EVES) for _ in range(2)] == [True, False]
    assert queue.execute("SELECT assistant_id FROM {}.assistant_versions") == [("b",)]


def test_its_schedules_are_deleted_with_it(queue: Queue) -> None:
    make(queue)
    for name, id in (("s", "a"), ("t", "other")):
        options: Any = {"metadata": {"assistant_id": id}}
        request = schedules.request_schedule(name, request_run(CODEC, "graph", **options), options, cron="0 * * * *")
        queue.do(schedules.put, request)
    queue.do(assistants.delete, "a")
    assert queue.execute("SELECT name FROM {}.schedules") == [("t",)]


def test_changes_at_once_are_versions_of_their_own(queue: Queue, dsn: str) -> None:
    make(queue, metadata={"n": 0})

    def change_often(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            database = Database(connection, schema=queue.schema)
            for one in range(5):
                fields = request_fields(CODEC, {"metadata": {f"{number} {one}": 1}})
                database.run(assistants.update, queue.queries, CODEC, "a", fields)

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(change_often, range(4)))
    found = queue.do(assistants.get, CODEC, "a")
    assert (found.version, len(found.metadata)) == (21, 21)


@pytest.mark.parametrize(
    "fields", [{"graph": ""}, {"name": ""}, {"config": []}, {"metadata": []}, {"nonsense": 1}, {"description": 7}]
)
def test_what_is_no_assistant_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        request_fields(CODEC, fields)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="graph"):
        request_fields(CODEC, {}, is_new=True)
    with pytest.raises(SerializationError, match="context"):
        request_fields(CODEC, {"context": lambda: None})
    with pytest.raises(ConfigurationError, match="by must be one of"):
        assistants.list_sorted(CODEC, by="data")  # type: ignore[arg-type]
