"""Errors as HTTP answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langgraph.errors import InvalidUpdateError
from starlette.requests import Request
from support.http import http, serving

from langgraph_pgstate import errors
from langgraph_pgstate.server.errors import STATUSES, answer_failure, error_of, missing, refuse

REQUEST = Request({"type": "http", "method": "GET", "path": "/threads", "headers": [], "query_string": b""})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.NotFoundError("gone"), 404),
        (errors.ThreadExistsError("t"), 409),
        (errors.ThreadBusyError("t", "r", None), 409),
        (errors.LeaseLostError("t", 7), 409),
        (errors.ArgumentTypeError("wrong"), 422),
        (InvalidUpdateError("wrong"), 400),
    ],
)
async def test_an_expected_error_says_why(error: Exception, status: int) -> None:
    response = await answer_failure(REQUEST, error)
    assert (response.status_code, json.loads(response.body)) == (status, {"detail": str(error)})


@pytest.mark.parametrize(
    "error", [errors.DatabaseError("secret"), RuntimeError("secret"), errors.PGStateError("secret")]
)
async def test_an_unexpected_error_stays_in_the_log(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    response = await answer_failure(REQUEST, error)
    assert (response.status_code, response.body) == (500, b'{"detail":"internal error"}')
    assert "GET /threads failed" in caplog.text


async def test_a_database_that_is_away_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    response = await answer_failure(REQUEST, errors.UnavailableError("no connection to db.internal"))
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert b"internal" not in response.body
    assert "db.internal" in caplog.text


def test_every_status_is_one_of_an_error() -> None:
    assert all(400 <= status < 600 and issubclass(kind, Exception) for kind, status in STATUSES.items())


def test_a_refusal_has_a_status_and_a_message() -> None:
    refused: Any = refuse(403, "no", {"X-A": "1"})
    assert (refused.status_code, refused.detail, refused.headers) == (403, "no", {"X-A": "1"})
    gone = missing("thread", "t")
    assert (gone.status_code, gone.detail) == (404, "there is no thread 't'")


def test_the_error_of_a_run_is_its_name_and_message() -> None:
    failed = errors.RunFailedError("t", "r", "error", "shop.errors.SoldOut", "no")
    assert error_of(failed) == {"error": "SoldOut", "message": "no"}
    assert error_of(errors.RunFailedError("t", "r", "timeout", None, None))["error"] == "timeout"


async def test_unknown_paths_and_methods_are_json(dsn: str, schema: str) -> None:
    async with serving(dsn, schema) as server, http(server) as client:
        for method, path, status in (("GET", "/nothing", 404), ("PUT", "/threads", 405)):
            answered = await client.request(method, path)
            assert (answered.status_code, [*answered.json()]) == (status, ["detail"])
