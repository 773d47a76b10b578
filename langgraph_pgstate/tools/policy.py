"""What a user may say about a tool: when it may run again, who decides in doubt, how long it may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError

KeyFunction = Callable[[Mapping[str, Any]], Any]
"""From a tool's arguments to what the action is."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What a `check` answers when the effect did take place.

    Attributes:
        result: What the tool would have answered.
    """

    result: Any = "done"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often a tool that fails is run in all, and how patiently.

    Attributes:
        attempts: Runs in all, the first included, counted in the ledger across processes.
        delay: Seconds before the second run; doubles with each further one.
        max_delay: Seconds between two runs at most.
    """

    attempts: int = 3
    delay: float = 0.5
    max_delay: float = 30.0

    def seconds(self, attempt: int) -> float:
        """How long to wait after the failed run number `attempt`, from 1."""
        return min(self.max_delay, self.delay * 2.0 ** (attempt - 1))


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """What may be done with a tool.

    Attributes:
        key: What the action is, as a function of the arguments; the model's tool-call id when left out.
        on_error: What to do about an error: `raise` it, now and whenever the same action comes up again, or `retry`.
        retry: How often and how patiently; counts for `on_error="retry"`.
        on_unknown: What to do when whoever ran the tool is gone without having recorded an outcome, or when it took too
            long: `raise`, `retry` (it is idempotent, or passes its token on to whom it calls), `check`, or `ask` a
            person through an interrupt.
        check: For `on_unknown="check"`: given the `ToolExecution`, asks the outside world. Answers `Happened(result)`
            (or `True`), `False` if it did not happen, `None` if it cannot tell.
        on_replay: Whether a re-run from another checkpoint reuses what is recorded for the same call, or is an action
            of its own: `reuse` or `rerun`.
        timeout: Seconds after which the tool counts as failed with an unknown outcome. A blocking tool cannot be
            stopped: it goes on in its thread, and if it ends after all, its outcome is recorded. A transactional one
            loses its connection and is rolled back, so that it is known to have left nothing, and may be run again.
        result_limit: Bytes above which the state gets a summary with a reference, artifact included; the ledger's
            setting when left out.
        transactional: Whether the tool's writes and its outcome are one transaction; set by `@ledger.transactional`.

    Raises:
        ConfigurationError: If two of them don't go together.
    """

    key: KeyFunction | None = None
    on_error: Literal["raise", "retry"] = "raise"
    retry: Backoff = Backoff()
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
                raise ConfigurationError(f"{name}={getattr(self, name)!r}: it is one of {', '.join(allowed)}")
        if (self.on_unknown == "check") != (self.check is not None):
            raise ConfigurationError('on_unknown="check" and check=... go together')
        if self.key is not None and not callable(self.key):
            raise ArgumentTypeError("key is a function of the arguments")
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigurationError(f"timeout={self.timeout!r}: it is a positive number of seconds")
        if self.retry.attempts < 1:
            raise ConfigurationError(f"retry attempts={self.retry.attempts}: at least one")


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """What holds for all tools of a ledger.

    Attributes:
        ttl_seconds: How long a process that said nothing more is taken for alive; it renews this every third of it.
        wait_seconds: How long a call waits while another live process runs the same action, before `ToolBusyError`.
        result_limit: Bytes above which the state gets a summary with a reference, artifact included; `None` keeps
            results whole.
        preview_length: Characters kept of a result as readable text, and in a summary.
        redact: Called with `arguments` or `preview` and the value before it is stored as readable JSON or text; answers
            what to store instead. The exact result, which is needed to answer again, is never redacted.
    """

    ttl_seconds: float = 15.0
    wait_seconds: float = 60.0
    result_limit: int | None = None
    preview_length: int = 500
    redact: Callable[[str, Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.ttl_seconds <= 0 or self.wait_seconds < 0:
            raise ConfigurationError("ttl_seconds is positive, wait_seconds not negative")
        if self.preview_length < 0 or (self.result_limit is not None and self.result_limit < 0):
            raise ConfigurationError("result_limit and preview_length are not negative")
