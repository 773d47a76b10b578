"""Errors are also the builtin ones, those that LangGraph's own savers raise in the same place."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from psycopg.rows import dict_row
from support import config_of, put_arguments
from support.official import official_saver

from langgraph_pgstate import AsyncPGStateSaver, PGStateSaver, ThreadKeys, errors
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.arguments import json_of
from langgraph_pgstate.errors import (
    ArgumentTypeError,
    BlockingCallError,
    ConfigurationError,
    MissingKeyError,
    PGStateError,
    SerializationError,
)

pytestmark = pytest.mark.smoke


def classes() -> list[type[PGStateError]]:
    found = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, PGStateError)]
    return [one for one in found if one.__module__ == errors.__name__]


# A line of the tree: how far it is indented, the class, the builtin classes it is as well.
LINE = re.compile(r"^([ │├└─]*)(\w+Error)(?: \(([\w., ]+)\))?(?: |$)", re.MULTILINE)


def test_the_tree_above_the_errors_is_the_truth() -> None:
    """Which class is below which, and which builtin one each is as well."""
    drawn: dict[str, tuple[str | None, set[str]]] = {}
    above: dict[int, str] = {}
    tree = (errors.__doc__ or "").partition("In parentheses")[0]
    for indent, name, builtins in LINE.findall(tree):
        above[len(indent)] = name
        drawn[name] = (above.get(len(indent) - 4), {one.split(".")[-1] for one in builtins.split(", ") if one})
    for one in classes():
        ours = [base.__name__ for base in one.__bases__ if issubclass(base, PGStateError)]
        others = {base.__name__ for base in one.__bases__ if base.__module__ in ("builtins", "asyncio.exceptions")}
        assert drawn[one.__name__] == (ours[0] if ours else None, others - {"Exception"})
    assert drawn.keys() == {one.__name__ for one in classes()}


class Faulty(JsonPlusSerializer):
    """A serializer of the user's own that fails."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        raise ValueError("faulty serializer")


def unnamed(saver: Any) -> None:
    """Store a checkpoint without an id."""
    config, checkpoint, metadata, versions = put_arguments(config_of("t"), 0)
    del checkpoint["id"]
    saver.put(config, checkpoint, metadata, versions)


WRONG: dict[str, tuple[Callable[[Any], Any], type[PGStateError]]] = {
    "prune one string": (lambda saver: saver.prune("thread"), ArgumentTypeError),
    "prune by no strategy": (lambda saver: saver.prune(["t"], strategy="all"), ConfigurationError),
    "get without a thread": (lambda saver: saver.get_tuple({"configurable": {"checkpoint_ns": ""}}), MissingKeyError),
    "put without an id": (unnamed, MissingKeyError),
    "writes without a checkpoint": (
        lambda saver: saver.put_writes(config_of("t"), [("a", 1)], "task"),
        MissingKeyError,
    ),
    "delta history of one string": (
        lambda saver: saver.get_delta_channel_history(config=config_of("t"), channels="messages"),
        ArgumentTypeError,
    ),
}


@contextmanager
def official(dsn: str, schema: str) -> Iterator[PostgresSaver]:
    with official_saver(dsn, f"{schema}_theirs") as saver:
        try:
            yield saver
        finally:
            saver.conn.execute(f'DROP SCHEMA "{schema}_theirs" CASCADE')  # type: ignore[union-attr]


def raised_by(call: Callable[[Any], Any], saver: Any) -> Exception | None:
    try:
        call(saver)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_as_by_langgraphs_own_saver(name: str, dsn: str, schema: str) -> None:
    call, kind = WRONG[name]
    with PGStateSaver.from_conn_string(dsn, schema=schema) as ours, pytest.raises(kind) as refused:
        call(ours)
    assert isinstance(refused.value, ValueError)
    assert not str(refused.value).startswith(("'", '"'))
    with official(dsn, schema) as saver:
        theirs = raised_by(call, saver)
    assert theirs is None or isinstance(refused.value, type(theirs))


@pytest.mark.parametrize("name", WRONG)
async def test_so_it_is_by_the_asynchronous_saver(name: str, dsn: str, schema: str) -> None:
    call, kind = WRONG[name]
    async with AsyncPGStateSaver.from_conn_string(dsn, schema=schema) as saver:
        await saver.aget_tuple(config_of("t"))
        with pytest.raises(kind):
            await asyncio.to_thread(call, saver)


async def test_one_string_is_no_list_of_runs(saver: PGStateSaver) -> None:
    with pytest.raises(TypeError, match="run_ids"):
        saver.delete_for_runs("run")
    with pytest.raises(ArgumentTypeError, match="run_ids"):
        await saver.adelete_for_runs("run")


def test_one_string_is_no_list_of_threads_to_copy(dsn: str, schema: str) -> None:
    with Admin.open(dsn, schema=schema) as admin, official(dsn, schema) as theirs:
        options: dict[str, Any] = {"thread_ids": "thread"}
        calls: tuple[Callable[[], Any], ...] = (
            lambda: admin.upcast(1, {}, **options),
            lambda: admin.import_langgraph(dsn, source_schema=f"{schema}_theirs", **options),
            lambda: admin.export_langgraph(dsn, target_schema=f"{schema}_theirs", **options),
        )
        assert theirs
        for call in calls:
            with pytest.raises(TypeError, match="thread_ids"):
                call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: PGStateSaver("postgresql://localhost/app"),  # type: ignore[arg-type]
        lambda: AsyncPGStateSaver("postgresql://localhost/app"),  # type: ignore[arg-type]
        lambda: ThreadKeys(user="user_id"),  # type: ignore[arg-type]
        lambda: json_of("metadata", [("a", 1)]),  # type: ignore[arg-type]
    ],
)
async def test_what_is_of_the_wrong_type_is_a_type_error(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError) as refused:
        call()
    assert isinstance(refused.value, ConfigurationError)


BLOCKING: dict[str, Callable[[Any], Any]] = {
    "get_tuple": lambda saver: saver.get_tuple(config_of("t")),
    "list": lambda saver: next(saver.list(config_of("t"))),
    "delete_thread": lambda saver: saver.delete_thread("t"),
    "prune": lambda saver: saver.prune(["t"]),
    "get_delta_channel_history": lambda saver: saver.get_delta_channel_history(config=config_of("t"), channels=["a"]),
}
# LangGraph's own saver waits for itself for ever.
OURS_ALONE: dict[str, Callable[[Any], Any]] = {
    "put": lambda saver: saver.put(*put_arguments(config_of("t"), 0)),
    "put_writes": lambda saver: saver.put_writes(
        {"configurable": {**config_of("t")["configurable"], "checkpoint_id": "c"}}, [("a", 1)], "task"
    ),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["run"]),
    "copy_thread": lambda saver: saver.copy_thread("t", "u"),
}


@pytest.mark.parametrize("name", [*BLOCKING, *OURS_ALONE])
async def test_a_blocking_call_on_the_loops_own_thread(name: str, dsn: str, async_saver: AsyncPGStateSaver) -> None:
    """It is refused by the class of error that LangGraph's own saver raises."""
    await async_saver.aget_tuple(config_of("t"))
    with pytest.raises(asyncio.InvalidStateError) as refused:
        (BLOCKING | OURS_ALONE)[name](async_saver)
    assert isinstance(refused.value, BlockingCallError)
    if name in BLOCKING:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
            with pytest.raises(asyncio.InvalidStateError):
                BLOCKING[name](AsyncPostgresSaver(connection))


def test_a_serializer_that_fails_does_so_with_its_own_class_of_error(dsn: str, schema: str) -> None:
    for kind, serde in ((ValueError, Faulty()), (TypeError, None)):
        with PGStateSaver.from_conn_string(dsn, schema=schema, serde=serde) as saver:
            with pytest.raises(kind) as refused:
                saver.put(*put_arguments(config_of("t"), 0, value=[object()]))
            assert isinstance(refused.value, SerializationError)
            assert saver.get_tuple(config_of("t")) is None
