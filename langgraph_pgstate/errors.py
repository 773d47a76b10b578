"""Everything this package raises on purpose.

    PGStateError
    ├── ConfigurationError (ValueError)      an argument or a setting is wrong; nothing was written
    │   ├── ArgumentTypeError (TypeError)    an argument is of the wrong type
    │   ├── MissingKeyError (KeyError)       a config or a checkpoint lacks a key that the call needs
    │   ├── BlockingCallError (asyncio.InvalidStateError)
    │   │                                    a blocking call that would wait for its own event loop
    │   └── ToolSetupError                   a tool, its ledger and its graph do not fit together
    ├── SerializationError (TypeError, ValueError)
    │                                        a value cannot be stored; nothing was written
    ├── UnsafeTypeError                      the database names a type that may not be built
    ├── SchemaError
    │   ├── SchemaMissingError               `setup()` was never run in this schema
    │   │   └── SourceMissingError           a schema to import from has none of LangGraph's own tables
    │   ├── SchemaOutdatedError              the schema is older or newer than this package
    │   └── MigrationConflictError           an applied migration differs from the one shipped
    ├── NotFoundError (LookupError)          what was named does not exist
    ├── StaleVersionError                    somebody else has changed the thread in the meantime
    ├── StaleHeadError                       another run has advanced the branch; this one's checkpoint is refused
    ├── CheckpointOrderError                 a checkpoint's id does not sort after its parent's; it would be lost
    ├── LeaseError
    │   ├── LeaseHeldError                   somebody else holds the thread's lease
    │   └── LeaseLostError                   the lease expired or was taken over; nothing more can be written with it
    ├── ThreadDeletedError                   the thread was deleted while a run was still going
    ├── AlreadyAnsweredError                 somebody has answered the interrupt already
    ├── StateVersionError                    a checkpoint of a version of the state that this program does not know
    ├── UpcastError                          an upcaster failed on a checkpoint
    ├── CorruptStateError                    stored bytes are damaged or a reference leads nowhere
    ├── UnreadableFormatError                stored bytes are whole, but of a format that this installation cannot read
    ├── ToolError
    │   ├── ToolOutcomeUnknownError          nobody knows whether a tool took effect; somebody has to decide
    │   ├── ToolFailedError                  it failed before, and is not to be run again
    │   ├── ToolTimeoutError (TimeoutError)  it took too long; whether it took effect is unknown
    │   ├── ToolBusyError                    another live process runs the same action
    │   └── ToolOvertakenError               another process took the action over; this outcome was not recorded
    ├── RunBudgetExceededError               a run used up the steps or tokens it was given
    └── DatabaseError
        ├── UnavailableError                 no connection could be had or kept
        └── ConflictError                    the database gave up on a transaction that ran into another

In parentheses stands the builtin class that each one is as well: the one that LangGraph's own savers raise there.
`retryable` says whether the same call may succeed when it is made again. An absent checkpoint is
not an error: LangGraph expects `None`.
"""

from __future__ import annotations

from asyncio import InvalidStateError
from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest


class PGStateError(Exception):
    """Root of the hierarchy.

    Attributes:
        retryable: Whether the same call may succeed when it is repeated.
        is_final: Whether it stops the run even where a `ToolNode` hands errors to the model: a model that tried again
            would do so as a new action, under a new tool-call id.
    """

    retryable: bool = False
    is_final: bool = False

    @property
    def _langgraph_invalid_resume(self) -> bool:
        # What LangGraph goes by to let an error past every `handle_tool_errors`; sibling tasks run to their end.
        return self.is_final


class ConfigurationError(PGStateError, ValueError):
    """An argument or a setting is wrong. Nothing was written."""


class ArgumentTypeError(ConfigurationError, TypeError):
    """An argument of the wrong type, such as one string for a list of ids. Nothing was written."""


class MissingKeyError(ConfigurationError, KeyError):
    """A config or a checkpoint without a key that the call needs. Nothing was written."""

    # A KeyError prints its message as a key, in quotes.
    __str__ = Exception.__str__


class BlockingCallError(ConfigurationError, InvalidStateError):
    """A blocking call on an asynchronous saver that would wait for its own event loop, or for one that has stopped."""


class SerializationError(PGStateError, TypeError, ValueError):
    """A value cannot be stored. Nothing was written.

    Attributes:
        channel: The channel (or other place) the value was meant for.
        type_name: Fully qualified name of the value's type.
    """

    def __init__(self, channel: str, value: object, cause: BaseException) -> None:
        kind = type(value)
        self.channel = channel
        self.type_name = f"{kind.__module__}.{kind.__qualname__}"
        super().__init__(
            f"cannot store {channel!r}: its value of type {self.type_name} is not serializable ({cause}). "
            "Keep plain data, messages, dataclasses or pydantic models in the state, or pass a serializer "
            "that knows this type (serde=...)."
        )


class UnsafeTypeError(PGStateError):
    """The stored bytes name a type that may not be built.

    Attributes:
        types: `(module, name)` of every refused type.
        where: What was being read.
    """

    def __init__(self, where: str, types: list[tuple[str, str]], reasons: Sequence[str] = ()) -> None:
        self.types = types
        self.where = where
        names = [f"{module}.{name}" for module, name in types]
        told = ", ".join(f"{name} ({why})" for name, why in zip_longest(names, reasons, fillvalue="it is not allowed"))
        allowed = [f"{module}:{name}" for module, name in types]
        super().__init__(
            f"refused to build {told} while reading {where}. A data type is built once this process has imported its "
            f"module. Import it before reading, or allow the type: allowed_types={allowed} of a saver or PGState, "
            f"PGSTATE_ALLOWED_TYPES={','.join(allowed)} on LangGraph's server."
        )


class SchemaError(PGStateError):
    """The tables are not what this version of the package works with."""


class SchemaMissingError(SchemaError):
    """`setup()` was never run in this schema.

    Attributes:
        schema: The PostgreSQL schema that was looked in.
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema
        super().__init__(
            f"the tables of langgraph_pgstate are not in schema {schema!r}: "
            f"run `pgstate --schema {schema} setup` once, or call saver.setup()."
        )


class SourceMissingError(SchemaMissingError):
    """A schema to import from has none of the tables of LangGraph's own PostgreSQL saver. Nothing was imported."""

    def __init__(self, schema: str) -> None:
        super().__init__(schema)
        self.args = (
            f"there are no LangGraph tables (checkpoints, checkpoint_blobs, checkpoint_writes) in schema {schema!r} of "
            "the database to import from: name the old application's database, and the schema of its tables with "
            "--from-schema or source_schema=...",
        )


class SchemaOutdatedError(SchemaError):
    """The schema is older or newer than this package.

    Attributes:
        schema: The PostgreSQL schema.
        found: The version the database is at.
        expected: The version this package works with.
    """

    def __init__(self, schema: str, found: int, expected: int) -> None:
        self.schema, self.found, self.expected = schema, found, expected
        remedy = (
            f"run `pgstate --schema {schema} migrate` (or saver.setup())"
            if found < expected
            else "upgrade langgraph_pgstate in this process"
        )
        super().__init__(
            f"schema {schema!r} is at version {found}, this langgraph_pgstate works with {expected}: {remedy}."
        )


class MigrationConflictError(SchemaError):
    """An applied migration differs from the one this package ships.

    Attributes:
        version: The migration's number.
    """

    def __init__(self, version: int, name: str) -> None:
        self.version = version
        super().__init__(
            f"migration {version:04d}_{name} was applied with another text than this package ships; "
            "the schema was changed by hand or by a different build. Compare with `pgstate setup --sql`."
        )


class NotFoundError(PGStateError, LookupError):
    """What was named does not exist."""


class StaleVersionError(PGStateError):
    """Somebody else has changed the thread's title or metadata since it was read. Nothing was written.

    Attributes:
        thread_id: The thread.
        expected: The version the caller had read.
        found: The version it has.
    """

    def __init__(self, thread_id: str, expected: int, found: int) -> None:
        self.thread_id, self.expected, self.found = thread_id, expected, found
        super().__init__(
            f"thread {thread_id!r} is at version {found}, not {expected}: somebody else has changed it; "
            "read it again and decide anew"
        )


class StaleHeadError(PGStateError):
    """The branch was advanced by somebody else since it was read. Nothing was written.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint that is no longer the head of its branch; empty where none was.
        winner_id: The checkpoint that advanced it; `None` if the head was removed.
    """

    def __init__(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, winner_id: str | None) -> None:
        where = f"thread {thread_id!r}" + (f" namespace {checkpoint_ns!r}" if checkpoint_ns else "")
        if winner_id is None:
            happened = f"checkpoint {checkpoint_id} of {where} is no longer there"
        elif checkpoint_id:
            happened = f"{where} has moved on from checkpoint {checkpoint_id} to {winner_id}"
        else:
            happened = f"{where} was begun with checkpoint {winner_id}"
        super().__init__(
            f"{happened}: another run was faster. Run again from the thread's head, or name the past checkpoint to "
            "fork on purpose"
        )
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.checkpoint_id = checkpoint_id
        self.winner_id = winner_id


class CheckpointOrderError(PGStateError):
    """A checkpoint's id does not sort after its parent's: the thread would go on without it. Nothing was written.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        parent_id: Its parent.
    """

    def __init__(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, parent_id: str) -> None:
        where = f"thread {thread_id!r}" + (f" namespace {checkpoint_ns!r}" if checkpoint_ns else "")
        super().__init__(
            f"checkpoint {checkpoint_id} of {where} does not sort after its parent {parent_id}. A thread goes on from "
            "its greatest id, so what this one holds is not found there. Either its id was drawn before the parent was "
            "read, by a process whose clock is behind, or one of the two ids is not LangGraph's. Run again"
        )
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.checkpoint_id = checkpoint_id
        self.parent_id = parent_id


class LeaseError(PGStateError):
    """Something about the right to advance a thread.

    Attributes:
        thread_id: The thread.
    """

    def __init__(self, thread_id: str, message: str) -> None:
        super().__init__(message)
        self.thread_id = thread_id


class LeaseHeldError(LeaseError):
    """Somebody else holds the thread's lease. Nothing was written.

    Attributes:
        holder_id: Who.
        expires_at: Until when, unless it is renewed.
        fencing_token: The number of their lease.
        acquired_at: Since when, by the database's clock.
        run_id: The run that holds it, where its checkpoints or the record tell.
    """

    retryable = True

    def __init__(
        self,
        thread_id: str,
        holder_id: str | None,
        expires_at: datetime | None,
        fencing_token: int | None = None,
        acquired_at: datetime | None = None,
        run_id: str | None = None,
    ) -> None:
        self.holder_id = holder_id
        self.expires_at = expires_at
        self.fencing_token = fencing_token
        self.acquired_at = acquired_at
        self.run_id = run_id
        whose = f"{holder_id} (run {run_id!r})" if run_id else holder_id
        super().__init__(thread_id, f"the lease of thread {thread_id!r} is held by {whose}{self._times}")

    @property
    def _times(self) -> str:
        since = f" since {self.acquired_at}" if self.acquired_at else ""
        return f"{since} until {self.expires_at}"

    def of_own_run(self, is_same_starter: bool) -> LeaseHeldError:
        """The same error, saying that it is a run of the caller's own process that has not ended.

        Args:
            is_same_starter: Whether the thread or task that asks has started it.
        """
        starter = ", started by this same thread or task," if is_same_starter else ""
        whose = f"run {self.run_id!r}" if self.run_id else "a run"
        self.args = (
            f"the lease of thread {self.thread_id!r} is held by {whose} of this same process{starter} that has not "
            f"ended,{self._times}: read its stream to the end or close it; nothing else can write to its thread inside "
            "of it",
        )
        return self


class LeaseLostError(LeaseError):
    """The lease expired or was taken over while it was thought to be held. Nothing was written.

    Attributes:
        fencing_token: The number of the lease that was lost.
    """

    def __init__(self, thread_id: str, fencing_token: int) -> None:
        super().__init__(
            thread_id,
            f"lease {fencing_token} of thread {thread_id!r} was lost: it expired or was taken over. "
            "What this run still wants to write is refused",
        )
        self.fencing_token = fencing_token


class ThreadDeletedError(PGStateError):
    """The thread was deleted while a run on it was still going. Nothing was written.

    Attributes:
        thread_id: The thread.
        deleted_at: When it was deleted.
    """

    def __init__(self, thread_id: str, deleted_at: datetime | None) -> None:
        super().__init__(f"thread {thread_id!r} was deleted at {deleted_at}; revive it to use its id for a new one")
        self.thread_id = thread_id
        self.deleted_at = deleted_at


class AlreadyAnsweredError(PGStateError):
    """An interrupt was answered before. Nothing was written.

    Attributes:
        thread_id: The thread.
        interrupt_id: The interrupt.
        answered_by: Who answered it, if they said so.
        answered_at: When.
    """

    def __init__(
        self, thread_id: str, interrupt_id: str, answered_by: str | None, answered_at: datetime | None
    ) -> None:
        super().__init__(
            f"interrupt {interrupt_id} of thread {thread_id!r} was answered at {answered_at} "
            f"by {answered_by or 'somebody'}"
        )
        self.thread_id = thread_id
        self.interrupt_id = interrupt_id
        self.answered_by = answered_by
        self.answered_at = answered_at


class StateVersionError(PGStateError):
    """A checkpoint holds a version of the user's state that this program does not know.

    Attributes:
        where: The checkpoint.
        found: Its version.
        expected: The newest version this program knows; `None` if it was given none, which counts as 1.
        oldest: The oldest it knows.
    """

    def __init__(self, where: str, found: int, expected: int | None, oldest: int = 1) -> None:
        known = f"versions {oldest} to {expected}" if expected is not None else "no versions but the first"
        remedy = (
            f"Give the saver the upcasters from version {found + 1} on"
            if found < oldest
            else "Run the newer program, or give the saver the newer state_version and its upcasters"
        )
        super().__init__(f"{where} was written with state version {found}; this program knows {known}. {remedy}")
        self.oldest = oldest
        self.where = where
        self.found = found
        self.expected = expected


class UpcastError(PGStateError):
    """An upcaster failed on a checkpoint, which stays as it is.

    Attributes:
        where: The checkpoint.
        version: The version the upcaster leads to.
        why: What went wrong.
    """

    def __init__(self, where: str, version: int, why: str) -> None:
        super().__init__(
            f"the upcaster to state version {version} failed on {where}: {why}. Not every checkpoint holds every "
            "channel: an upcaster has to look before it takes"
        )
        self.where = where
        self.version = version
        self.why = why


class CorruptStateError(PGStateError):
    """Stored bytes are damaged, or a reference leads nowhere.

    Attributes:
        where: The checkpoint, segment or write that is damaged.
        why: What is wrong with it.
    """

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"{where} is damaged: {why}. `pgstate check` names everything that is broken.")


class UnreadableFormatError(PGStateError):
    """Stored bytes are of a format that this installation cannot read. They are not damaged, and nothing was changed.

    Attributes:
        where: The checkpoint, segment or write.
        why: Which package, in which version, or which serializer it takes.
    """

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"{where} cannot be read here: {why}")


class ToolSetupError(ConfigurationError):
    """A tool, its ledger and its graph do not fit together. It stops the run: no model can do anything about it."""

    is_final = True


class ToolError(PGStateError):
    """Something about a recorded tool execution.

    Attributes:
        tool: The tool.
        thread_id: The thread.
        idempotency_key: The action.
    """

    def __init__(self, tool: str, thread_id: str, idempotency_key: str, why: str) -> None:
        self.tool, self.thread_id, self.idempotency_key = tool, thread_id, idempotency_key
        super().__init__(f"{tool} ({idempotency_key!r} on thread {thread_id!r}) {why}")


class ToolOutcomeUnknownError(ToolError):
    """Whoever ran a tool is gone before its outcome was recorded: nobody knows whether it took effect."""

    is_final = True

    def __init__(self, tool: str, thread_id: str, idempotency_key: str, why: str = "") -> None:
        super().__init__(
            tool,
            thread_id,
            idempotency_key,
            f"was begun and never finished{why}: its effect may or may not have happened. Find out, and say so with "
            'settle(thread_id, key, "done" | "retry" | "fail"), or give the tool a policy: on_unknown="retry" if it '
            'may be repeated, "check" if the outside world can be asked, "ask" to let a person decide.',
        )


class ToolFailedError(ToolError):
    """A tool failed before under the same key, and its policy does not run it again.

    Attributes:
        error_type: Qualified name of the recorded exception.
        error_message: Its message.
    """

    def __init__(
        self, tool: str, thread_id: str, idempotency_key: str, error_type: str | None, error_message: str | None
    ) -> None:
        self.error_type, self.error_message = error_type, error_message
        super().__init__(
            tool,
            thread_id,
            idempotency_key,
            f'failed with {error_type}: {error_message}. It is not run again: give it on_error="retry", or call '
            'settle(thread_id, key, "retry").',
        )


class ToolTimeoutError(ToolError, TimeoutError):
    """A tool took longer than its policy allows. Unless it is transactional, whether it took effect is unknown."""

    def __init__(self, tool: str, thread_id: str, idempotency_key: str, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(tool, thread_id, idempotency_key, f"took longer than {seconds:g} s")


class ToolBusyError(ToolError):
    """Another live process runs the same action, and did not finish while this one waited."""

    retryable = True
    is_final = True


class ToolOvertakenError(ToolError):
    """Another process took this action over while it ran here; what it answered here was not recorded."""

    is_final = True


class RunBudgetExceededError(PGStateError):
    """A run used up the steps or tokens it was given.

    Attributes:
        kind: `steps` or `tokens`.
        used: How many it used.
        limit: How many it was given.
    """

    def __init__(self, kind: str, used: int, limit: int) -> None:
        self.kind, self.used, self.limit = kind, used, limit
        super().__init__(f"the run has used {used} {kind}; its budget is {limit}")


class DatabaseError(PGStateError):
    """PostgreSQL refused or failed. The driver's error is the `__cause__`.

    Attributes:
        sqlstate: PostgreSQL's five-character code, if it sent one.
    """

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        self.sqlstate = sqlstate
        super().__init__(message)


class UnavailableError(DatabaseError):
    """No connection could be had or kept."""

    retryable = True


class ConflictError(DatabaseError):
    """The database gave up on a transaction that ran into another (40001, 40P01, 23505)."""

    retryable = True
