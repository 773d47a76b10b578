"""HTTP responses for errors. Responses contain no internals, like tracebacks or addresses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from langgraph.errors import EmptyInputError, InvalidUpdateError
from langgraph.store.base import InvalidNamespaceError
from langgraph_sdk.auth.exceptions import HTTPException as AuthError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from langgraph_pgstate.errors import (
    AlreadyAnsweredError,
    AlreadyDoneError,
    AlreadySettledError,
    AssistantExistsError,
    AssistantInUseError,
    ConfigurationError,
    ConflictError,
    LeaseError,
    NotFoundError,
    PGStateError,
    RunFailedError,
    SerializationError,
    StaleHeadError,
    StaleMemoryError,
    StalePolicyError,
    StaleVersionError,
    ThreadArchivedError,
    ThreadBusyError,
    ThreadDeletedError,
    ThreadExistsError,
    ThreadHeldError,
    UnavailableError,
)
from langgraph_pgstate.record.types import Run
from langgraph_pgstate.server.json import answer

_log = logging.getLogger("langgraph_pgstate.server")

STATUSES: Final[Mapping[type[Exception], int]] = {
    NotFoundError: 404,
    ThreadExistsError: 409,
    AssistantExistsError: 409,
    AssistantInUseError: 409,
    ThreadBusyError: 409,
    ThreadDeletedError: 409,
    ThreadHeldError: 409,
    ThreadArchivedError: 409,
    StaleVersionError: 409,
    StaleMemoryError: 409,
    StalePolicyError: 409,
    StaleHeadError: 409,
    AlreadyAnsweredError: 409,
    AlreadyDoneError: 409,
    AlreadySettledError: 409,
    LeaseError: 409,
    ConflictError: 409,
    ConfigurationError: 422,
    SerializationError: 422,
    InvalidNamespaceError: 422,
    InvalidUpdateError: 400,
    EmptyInputError: 400,
}
"""HTTP statuses of errors whose messages are shown. Other errors give 500, or 503 if the database is unavailable."""


class ServerStoppingError(ConnectionError):
    """The server ends a response early, so that the client asks another server."""


class ServerBusyError(ServerStoppingError):
    """The requests in progress use all the memory that the server allows for requests. The client should try again."""


class Budget:
    """A limit on the memory that all requests of this process use together.

    A request may exceed the limit while no other request holds memory.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0

    def claim(self, size: int, own: int = 0) -> None:
        """Count more bytes for a request that holds `own` bytes. The caller releases the bytes later."""
        if self._held > own and self._held + size > self._most:
            raise ServerBusyError("other requests hold too much of the server's memory: try again")
        self._held += size

    def release(self, size: int) -> None:
        """Release bytes that `claim` has taken."""
        self._held -= size

    @contextmanager
    def claiming(self) -> Iterator[Callable[[int], None]]:
        """Provide a function that claims bytes until the end of the block."""
        own = 0

        def claim(size: int) -> None:
            nonlocal own
            self.claim(size, own)
            own += size

        try:
            yield claim
        finally:
            self.release(own)


def refuse(status: int, detail: str, headers: Mapping[str, str] | None = None) -> HTTPException:
    """Return an exception that makes a response with a status and a message."""
    return HTTPException(status, detail, dict(headers) if headers else None)


def missing(what: str, id: str) -> HTTPException:
    """Return an exception for a thread, run or assistant that does not exist, or that the caller may not see."""
    return refuse(404, f"there is no {what} {id!r}")


def error_of(failed: RunFailedError | Run) -> dict[str, Any]:
    """Return the error of a run for clients, without its traceback."""
    message = failed.error_message or f"the run ended as {failed.status}"
    return short_error({"error": failed.error_type or failed.status, "message": message})


def short_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return an error's text with the name of its type, without the module."""
    return {**error, "error": str(error.get("error") or "Error").rpartition(".")[2]}


async def answer_refusal(_: Request, error: Exception) -> Response:
    """Respond to a request that was refused."""
    assert isinstance(error, HTTPException | AuthError)
    return answer({"detail": error.detail}, error.status_code, error.headers)


async def answer_invalid(_: Request, error: Exception) -> Response:
    """Respond to a request whose body or query is invalid, with a sentence for each invalid value."""
    assert isinstance(error, ValidationError)
    return answer({"detail": "; ".join(sentences(error))}, 422)


async def answer_failure(request: Request, error: Exception) -> Response:
    """Respond to a request that failed. Only messages of expected errors are shown."""
    for kind in type(error).__mro__:
        if kind is UnavailableError:
            # The message contains the address of the database server, so it is logged but not sent.
            _log.warning("%s %s failed: %s", request.method, request.url.path, error)
            return answer({"detail": "the database is not available"}, 503, {"Retry-After": "1"})
        if kind in STATUSES:
            return answer({"detail": str(error)}, STATUSES[kind])
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer({"detail": "internal error"}, 500)


async def answer_busy(_: Request, error: Exception) -> Response:
    """Respond to a request for which the server has no memory left."""
    return answer({"detail": str(error)}, 503, {"Retry-After": "1"})


HANDLERS: Final[Mapping[Any, Any]] = {
    HTTPException: answer_refusal,
    AuthError: answer_refusal,
    ValidationError: answer_invalid,
    ServerBusyError: answer_busy,
    PGStateError: answer_failure,
    InvalidUpdateError: answer_failure,
    EmptyInputError: answer_failure,
    Exception: answer_failure,
}
"""Exception handlers of the application."""


def sentences(error: ValidationError) -> list[str]:
    """Return a sentence for each place where a value is invalid."""
    found = []
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(part) for part in one["loc"])
        found.append(f"{place}: {one['msg']}" if place else one["msg"])
    return found
