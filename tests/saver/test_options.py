"""Options: every entry point refuses a wrong name before anything is opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from langgraph_pgstate import AsyncPGState, AsyncPGStateSaver, PGState, PGStateSaver
from langgraph_pgstate.options import ConnectionOptions, SaverOptions
from langgraph_pgstate.state import OpenStateOptions, StateOptions

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
SYNC, ASYNC = (PGStateSaver, PGState), (AsyncPGStateSaver, AsyncPGState)


def entries(cls: Any) -> list[Callable[..., Any]]:
    return [cls.open if hasattr(cls, "open") else cls.from_conn_string, cls.embedded]


@pytest.mark.parametrize("cls", SYNC)
def test_a_wrong_option_is_named_before_anything_is_opened(cls: Any, tmp_path: Path) -> None:
    for entry, where in zip(entries(cls), (NOWHERE, tmp_path / "data"), strict=True):
        with (
            pytest.raises(TypeError, match=rf"{cls.__name__} has no option 'gaurd'; its options are .*, guard,"),
            entry(where, gaurd="head"),
        ):
            pass
    assert not (tmp_path / "data").exists()
    with pytest.raises(TypeError, match="'pool'"):
        cls(ConnectionPool(NOWHERE, open=False), pool=3)


@pytest.mark.parametrize("cls", ASYNC)
async def test_a_wrong_option_of_an_async_class_is_named(cls: Any, tmp_path: Path) -> None:
    for entry, where in zip(entries(cls), (NOWHERE, tmp_path / "data"), strict=True):
        with pytest.raises(TypeError, match=f"{cls.__name__} has no option 'gaurd'"):
            async with entry(where, gaurd="head"):
                pass
    assert not (tmp_path / "data").exists()
    with pytest.raises(TypeError, match="'pool'"):
        cls(AsyncConnectionPool(NOWHERE, open=False), pool=3)


def test_every_option_is_described_once() -> None:
    described = "".join(str(options.__doc__) for options in (SaverOptions, ConnectionOptions, StateOptions))
    for name in OpenStateOptions.__annotations__:
        assert described.count(f"\n        {name}: ") == 1, name


def test_a_database_is_no_connection(dsn: str) -> None:
    with PGStateSaver.from_conn_string(dsn) as saver, pytest.raises(TypeError, match="a psycopg Connection"):
        PGStateSaver(saver._database)  # type: ignore[arg-type]
