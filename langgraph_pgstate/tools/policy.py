"""Policies of tools and settings of a ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

_MAX_DOUBLINGS: Final = 1000
_KeyFunction = Callable[[Mapping[str, Any]], Any]
"""A function that returns an action's key from the tool's arguments."""


@dataclass(frozen=True, slots=True)
class Happened:
    """The value that a `check` returns if the effect took place.

    Attributes:
        result: The result that the tool would have returned.
    """

    result: Any = "done"


@dataclass(frozen=True, slots=True)
class ToolRetry:
    """The number of attempts of a failing tool and the delays between them.

    Attributes:
        attempts: Maximum number of attempts, the first included, counted in the ledger across processes.
        delay: Seconds before the second attempt; doubles with each further attempt.
        max_delay: Maximum seconds between two attempts.
    """

    attempts: int = 3
    delay: float = 0.5
    max_delay: float = 30.0

    def seconds(self, attempt: int) -> float:
        """Return the seconds to wait after the failed attempt number `attempt`, from 1."""
        return min(self.max_delay, self.delay * 2.0 ** min(attempt - 1, _MAX_DOUBLINGS))


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """The policy of a tool: what identifies its actions, when they are repeated, and how long they may take.

    Attributes:
        key: Function that returns the action's key from the arguments; by default the model's tool call id.
        on_error: Handling of an error: `raise` raises it now and at every further call of the same action, `retry` runs
            the tool again.
        retry: Attempts and delays for `on_error="retry"`.
        on_unknown: Handling of an unknown outcome, after a timeout or the death of the process: `raise`, `retry`
            (for a tool that is idempotent, or passes its token to the external system), `check`, or `ask`, which asks a
            person through an interrupt.
        check: For `on_unknown="check"`, a function that takes the `ToolExecution` and queries the external system. It
            returns `Happened(result)` or `True` if the effect happened, `False` if it did not, and `None` if this is
            unknown.
        on_replay: For a run repeated from another checkpoint, whether the same call reuses the recorded outcome
            (`reuse`) or is a new action (`rerun`).
        timeout: Seconds after which a call raises `ToolTimeoutError`. A blocking tool cannot be stopped. It continues
            in its thread, other calls wait for it, and its outcome is recorded when it ends; with `on_unknown="retry"`
            the next call runs it again at once. A transactional tool loses its connection and is rolled back, so it had
            no effect and may be run again.
        result_limit: Size of a result in bytes, artifact included, above which the state gets only a summary with a
            reference to the result; by default the ledger's setting.
        transactional: Whether the tool's writes and its outcome are one transaction; set by `@ledger.transactional`.

    Raises:
        ConfigurationError: If two attributes conflict.
    """

    key: _KeyFunction | None = None
    on_error: Literal["raise", "retry"] = "raise"
    retry: ToolRetry = ToolRetry()
    on_unknown: Literal["raise", "retry", "check", "ask"] = "raise"
    check: Callable[[Any], Any] | None = None
    on_replay: Literal["reuse", "rerun"] = "reuse"
    timeout: float | None = None
    result_limit: int | None = None
    transactional: bool = False

    def __post_init__(self) -> None:
        choices = {
            "on_error": ("raise", "retry"),
            "on_unknown": ("raise", "retry", "check", "ask"),
            "on_replay": ("reuse", "rerun"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigurationError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        if (self.on_unknown == "check") != (self.check is not None):
            raise ConfigurationError('on_unknown="check" and check=... must be given together')
        if self.key is not None and not callable(self.key):
            raise ArgumentTypeError(f"key must be a function of the arguments, not {self.key!r}")
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigurationError(f"timeout must be a positive number of seconds, not {self.timeout!r}")
        if self.retry.attempts < 1:
            raise ConfigurationError(f"retry.attempts must be at least 1, not {self.retry.attempts}")

    @property
    def may_repeat(self) -> bool:
        """Whether an action without outcome may be run again. A transactional one may, because it had no effect."""
        return self.transactional or self.on_unknown == "retry"


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The settings of a ledger for all its tools.

    Attributes:
        ttl_seconds: Seconds for which a process is considered alive after its last renewal. It renews after each third
            of this time.
        wait_seconds: Seconds for which a call waits while the same action is running, before `ToolBusyError`; and for
            which `close` waits for tools whose callers have stopped waiting.
        result_limit: Size of a result in bytes, artifact included, above which the state gets only a summary with a
            reference to the result; `None` for no limit.
        preview_length: Characters of a result that are kept as readable text and in a summary.
        redact: Called as `redact(kind, value)` before a value is stored as readable JSON (kind `arguments`) or text
            (`preview`); returns the value to store. The exact result, which later calls return, is never redacted.
    """

    ttl_seconds: float = 15.0
    wait_seconds: float = 60.0
    result_limit: int | None = None
    preview_length: int = 500
    redact: Callable[[str, Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.ttl_seconds <= 0 or self.wait_seconds < 0:
            given = f"{self.ttl_seconds} and {self.wait_seconds}"
            raise ConfigurationError(f"ttl_seconds must be more than 0 and wait_seconds 0 or more, not {given}")
        if self.preview_length < 0 or (self.result_limit is not None and self.result_limit < 0):
            given = f"{self.result_limit} and {self.preview_length}"
            raise ConfigurationError(f"result_limit and preview_length must be 0 or more, not {given}")
