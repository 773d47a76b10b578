"""Exceptions raised by this package.

    PGStateError
    ├── ConfigurationError (ValueError)      an argument or a setting is wrong; nothing was written
    │   ├── ArgumentTypeError (TypeError)    an argument is of the wrong type
    │   ├── MissingKeyError (KeyError)       a config or a checkpoint lacks a required key
    │   ├── BlockingCallError (asyncio.InvalidStateError)
    │   │                                    a blocking call that would wait for its own event loop
    │   ├── ToolSetupError                   the setup of a tool does not match its ledger or graph
    │   └── AlreadySettledError              the action has an outcome, or has changed since it was read
    ├── SerializationError (TypeError, ValueError)
    │                                        a value cannot be stored; nothing was written
    ├── UnsafeTypeError                      stored data names a type that may not be built
    ├── SchemaError
    │   ├── SchemaMissingError               `setup()` was never run in this schema
    │   │   └── SourceMissingError           a schema to import from lacks LangGraph's own tables
    │   ├── SchemaOutdatedError              the schema is older or newer than this package
    │   ├── MigrationConflictError           an applied migration differs from the one shipped
    │   └── TenantError                      the tables keep tenants apart but no tenant is named, or the reverse
    ├── NotFoundError (LookupError)          the named object does not exist
    ├── StaleVersionError                    another process changed the thread in the meantime
    ├── FileChangedError                     another agent or process changed the file in the meantime
    ├── StaleMemoryError                     another writer changed the item of the store in the meantime
    ├── StalePolicyError                     the policy of retention was changed in the meantime
    ├── StaleHeadError                       another run advanced the branch; this run's checkpoint is refused
    ├── CheckpointOrderError                 a checkpoint's id does not sort after its parent's
    ├── LeaseError
    │   ├── LeaseHeldError                   the thread's lease is held by another process or run
    │   └── LeaseLostError                   the lease expired or was taken over; further writes are refused
    ├── ThreadDeletedError                   the thread was deleted during a run
    ├── ThreadHeldError                      a legal hold protects the thread's rows from deletion
    ├── ThreadArchivedError                  the thread is in an archive, and must be restored first
    ├── ArchiveError                         an archive is missing or damaged
    │   └── ArchiveUnavailableError          the objects of an archive cannot be reached
    ├── ThreadInUseError                     a process runs the thread, so messages cannot be redacted
    ├── ThreadExistsError                    the id of a new thread belongs to an existing thread
    ├── AssistantExistsError                 the id of a new assistant belongs to an existing assistant
    ├── AssistantInUseError                  an assistant has schedules that the caller may not delete
    ├── ThreadBusyError                      the thread has another run, and the new run must not wait
    ├── RunFailedError                       an enqueued run ended with an error or took too long
    ├── RunCancelledError                    an enqueued run was cancelled, or deleted
    ├── RunTimeoutError (TimeoutError)       an enqueued run did not end while the caller waited
    ├── AlreadyAnsweredError                 the interrupt is answered already
    ├── AlreadyDoneError                     another person did the same action first
    ├── StateVersionError                    a checkpoint has a state version that this program does not know
    ├── UpcastError                          an upcaster failed on a checkpoint
    ├── CorruptStateError                    stored bytes are damaged or a reference has no target
    ├── UnreadableFormatError                this installation cannot read the format of intact stored bytes
    ├── EncryptionError
    │   ├── EncryptedError                   stored content is encrypted, and no key is given
    │   ├── NotEncryptedError                stored content is not encrypted where only encrypted content is accepted
    │   ├── DecryptionError                  stored content was changed, truncated, or moved from another row
    │   ├── DataKeyError                     the data key of stored content, or its master key, is missing
    │   ├── DataKeyDestroyedError            the data key of stored content was destroyed, and its content with it
    │   ├── KeyUnavailableError              the master key does not respond; cached data keys stay in use
    │   └── MissingKeysError                 data keys are not in memory; callers do not see this error
    ├── ToolError
    │   ├── ToolOutcomeUnknownError          the outcome of a tool is unknown and must be settled
    │   ├── ToolFailedError                  the tool failed before and is not run again
    │   ├── ToolTimeoutError (TimeoutError)  the tool took too long
    │   ├── ToolBusyError                    the same action is running
    │   └── ToolOvertakenError               another process took over the action; this outcome was not recorded
    ├── RunBudgetExceededError               a run used up its budget of steps or tokens
    ├── BudgetExceededError (RuntimeError)   a tenant, user, agent or key used up its budget of money for the day
    └── DatabaseError
        ├── UnavailableError                 no connection is available, or the connection was lost
        └── ConflictError                    a transaction failed because of a concurrent one

Parentheses name additional base classes: the errors of LangGraph's own savers, or of Python. A call that raised an
error with `retryable` may succeed when it is repeated. A missing checkpoint is not an error: LangGraph expects `None`.
"""

from __future__ import annotations

import shlex
from asyncio import InvalidStateError
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import zip_longest
from typing import Any


class PGStateError(Exception):
    """Base class of all exceptions of this package.

    Attributes:
        retryable: Whether the same call may succeed when it is repeated.
        is_final: Whether the error ends the run, even if a `ToolNode` reports errors to the model. A model that sees
            the error could repeat the action under a new id.
    """

    retryable: bool = False
    is_final: bool = False

    @property
    def _langgraph_invalid_resume(self) -> bool:
        # If true, LangGraph raises the error even with `handle_tool_errors`. Other tasks of the superstep run to their
        # end.
        return self.is_final


class ConfigurationError(PGStateError, ValueError):
    """An argument or a setting is wrong. Nothing was written."""


class ArgumentTypeError(ConfigurationError, TypeError):
    """An argument of the wrong type, such as one string for a list of ids. Nothing was written."""


class MissingKeyError(ConfigurationError, KeyError):
    """A config or a checkpoint lacks a required key. Nothing was written."""

    # Without this, the message would be printed in quotes, as a key is.
    __str__ = Exception.__str__


class BlockingCallError(ConfigurationError, InvalidStateError):
    """A blocking call on an asynchronous saver that would wait for its own event loop or for a stopped event loop."""


class SerializationError(PGStateError, TypeError, ValueError):
    """A value cannot be stored. Nothing was written.

    Attributes:
        channel: The channel, or the other place, of the value.
        type_name: Qualified name of the value's type.
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
    """Stored data names a type that may not be built.

    Attributes:
        types: `(module, name)` of every refused type.
        where: The place of the data.
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
    """The tables do not fit this version of the package."""


class SchemaMissingError(SchemaError):
    """`setup()` was never run in this schema.

    Attributes:
        schema: The PostgreSQL schema that was searched.
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema
        super().__init__(
            f"the tables of langgraph_pgstate are not in schema {schema!r}: "
            f"run `pgstate --schema {shlex.quote(schema)} setup` once, or call saver.setup()."
        )


class SourceMissingError(SchemaMissingError):
    """A schema to import from lacks the tables of LangGraph's own PostgreSQL saver or store. Nothing was imported."""

    def __init__(
        self, schema: str, tables: Sequence[str] = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
    ) -> None:
        super().__init__(schema)
        self.args = (
            f"there are no LangGraph tables ({', '.join(tables)}) in schema {schema!r} of "
            "the source database: name the old application's database, and the schema of its tables with "
            "--from-schema or source_schema=...",
        )


class SchemaOutdatedError(SchemaError):
    """The schema is older than this package, or newer by a migration that is not additive.

    Attributes:
        schema: The PostgreSQL schema.
        found: The version of the schema.
        expected: The version of this package.
    """

    def __init__(self, schema: str, found: int, expected: int) -> None:
        self.schema, self.found, self.expected = schema, found, expected
        remedy = (
            f"run `pgstate --schema {shlex.quote(schema)} migrate` (or saver.setup())"
            if found < expected
            else "upgrade langgraph_pgstate in this process"
        )
        super().__init__(
            f"schema {schema!r} is at version {found}, but this langgraph_pgstate requires {expected}: {remedy}."
        )


class MigrationConflictError(SchemaError):
    """An applied migration differs from this package's.

    Attributes:
        version: The migration's number.
    """

    def __init__(self, version: int, name: str, expected: str) -> None:
        self.version = version
        found = f"migration {version:04d}_{name}"
        super().__init__(
            f"{found} was applied with a different text than this package's; the schema was changed by hand or by a "
            "different build. Compare with `pgstate setup --sql`."
            if name == expected
            else f"{found} was applied by a version before 0.1.0, whose migrations this package cannot continue: "
            "export the threads with that version (`pgstate export-langgraph`), and import them into a new schema "
            "(`pgstate import-langgraph`)."
        )


class TenantError(SchemaError):
    """The tables keep tenants apart but no tenant is named, or the reverse. Nothing was written.

    Also raised if the server, the role or the rows do not allow tenants to be kept apart.
    """


class NotFoundError(PGStateError, LookupError):
    """The named object does not exist."""


class StaleVersionError(PGStateError):
    """The thread's title or metadata changed since they were read. Nothing was written.

    Attributes:
        thread_id: The thread.
        expected: The version that the caller had read.
        found: The current version.
    """

    def __init__(self, thread_id: str, expected: int, found: int) -> None:
        self.thread_id, self.expected, self.found = thread_id, expected, found
        super().__init__(
            f"thread {thread_id!r} is at version {found}, not {expected}: it was changed concurrently; read it again"
        )


class FileChangedError(PGStateError):
    """The file changed since it was read. Nothing was written.

    Attributes:
        namespace: Namespace of the file.
        path: The file.
        expected: The version that the caller had read; 0 for none.
        found: The newest version; 0 for none.
    """

    def __init__(self, namespace: tuple[str, ...], path: str, expected: int, found: int) -> None:
        self.namespace, self.path, self.expected, self.found = namespace, path, expected, found
        super().__init__(
            f"file {path!r} of {namespace!r} is at version {found}, not {expected}: it was changed concurrently; read "
            "it again"
        )


class StalePolicyError(PGStateError):
    """The policy of retention was changed since the caller read it. Nothing was written.

    Attributes:
        name: The policy.
        expected: The version that the caller had read; 0 for none.
        found: The current version; 0 for none.
    """

    def __init__(self, name: str, expected: int, found: int) -> None:
        self.name, self.expected, self.found = name, expected, found
        what = f"is at version {found}" if found else "does not exist"
        wanted = f"version {expected}" if expected else "no policy"
        super().__init__(f"policy {name!r} {what}, but the caller expected {wanted}: read it again")


class StaleMemoryError(PGStateError):
    """The item of the store was changed since it was read. Nothing was written.

    Attributes:
        namespace: Namespace of the item.
        key: Key of the item.
        expected: The version that the caller had read; 0 for none.
        found: The current version; 0 for none.
        changed_by: User or service that stored the current version, or deleted the item.
        changed_at: Time of that change.
    """

    def __init__(
        self,
        namespace: Sequence[str],
        key: str,
        expected: int,
        found: int,
        changed_by: str | None,
        changed_at: datetime | None,
    ) -> None:
        self.namespace, self.key, self.expected, self.found = tuple(namespace), key, expected, found
        self.changed_by, self.changed_at = changed_by, changed_at
        did = "changed" if found else "deleted"
        happened = (
            "it was deleted"
            if changed_at is None
            else f"{changed_by or 'another writer'} {did} it at {changed_at.isoformat(timespec='seconds')}"
        )
        super().__init__(
            f"{key!r} in namespace {self.namespace} is at version {found}, not {expected}: {happened}; read it again"
        )


class StaleHeadError(PGStateError):
    """The branch was advanced by another run since it was read. Nothing was written.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint that is no longer the head of the branch; empty if there was none.
        winner_id: The checkpoint that advanced the branch; `None` if the head was removed.
    """

    def __init__(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, winner_id: str | None) -> None:
        where = f"thread {thread_id!r}" + (f" namespace {checkpoint_ns!r}" if checkpoint_ns else "")
        if winner_id is None:
            happened = f"checkpoint {checkpoint_id} of {where} no longer exists"
        elif checkpoint_id:
            happened = f"{where} has advanced from checkpoint {checkpoint_id} to {winner_id}"
        else:
            happened = f"{where} was started by checkpoint {winner_id}"
        super().__init__(
            f"{happened}: another run was first. Run again from the thread's head, or name the past checkpoint to "
            "fork it deliberately"
        )
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.checkpoint_id = checkpoint_id
        self.winner_id = winner_id


class CheckpointOrderError(PGStateError):
    """The id of a checkpoint does not sort after its parent's. Nothing was written.

    A run continues from the greatest checkpoint id, so later runs would not find such a checkpoint.

    Attributes:
        thread_id: The thread.
        checkpoint_ns: The namespace.
        checkpoint_id: The checkpoint.
        parent_id: The parent.
    """

    def __init__(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, parent_id: str) -> None:
        where = f"thread {thread_id!r}" + (f" namespace {checkpoint_ns!r}" if checkpoint_ns else "")
        super().__init__(
            f"checkpoint {checkpoint_id} of {where} does not sort after its parent {parent_id}, so later runs would "
            "not find this checkpoint. Either the clock of the process is behind, and the id was made before the "
            "parent was read, or LangGraph did not make one of the ids. Run again"
        )
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.checkpoint_id = checkpoint_id
        self.parent_id = parent_id


class LeaseError(PGStateError):
    """Base class of errors about the lease of a thread.

    Attributes:
        thread_id: The thread.
    """

    def __init__(self, thread_id: str, message: str) -> None:
        super().__init__(message)
        self.thread_id = thread_id


class LeaseHeldError(LeaseError):
    """The thread's lease is held by another process or run. Nothing was written.

    Attributes:
        holder_id: The holder.
        expires_at: End of the lease, unless it is renewed.
        fencing_token: Number of the lease.
        acquired_at: Start of the lease, by the database's clock.
        run_id: The run that holds the lease; `None` if the run is not known yet.
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
        """Return this error with a message about an unfinished run of this process that holds the lease.

        Args:
            is_same_starter: Whether the calling thread or task started the run.
        """
        starter = ", started by this same thread or task," if is_same_starter else ""
        whose = f"run {self.run_id!r}" if self.run_id else "a run"
        self.args = (
            f"the lease of thread {self.thread_id!r} is held by {whose} of this same process{starter} that has not "
            f"ended,{self._times}: read the run's stream to the end, or close the stream; until then, no other call "
            "can write to the thread",
        )
        return self


class LeaseLostError(LeaseError):
    """The lease expired, was taken over, or could not be renewed in time. Nothing was written.

    Attributes:
        fencing_token: Number of the lost lease.
    """

    is_final = True

    def __init__(self, thread_id: str, fencing_token: int) -> None:
        super().__init__(
            thread_id,
            f"lease {fencing_token} of thread {thread_id!r} was lost: it expired, was taken over, or could not be "
            "renewed in time. Further writes of this run are refused",
        )
        self.fencing_token = fencing_token


class ThreadDeletedError(PGStateError):
    """The thread was deleted during a run. Nothing was written.

    Attributes:
        thread_id: The thread.
        deleted_at: Time of the deletion.
    """

    def __init__(self, thread_id: str, deleted_at: datetime | None) -> None:
        super().__init__(f"thread {thread_id!r} was deleted at {deleted_at}; revive it to use its id for a new thread")
        self.thread_id = thread_id
        self.deleted_at = deleted_at


class ThreadHeldError(PGStateError):
    """A legal hold protects the thread's rows from deletion. Nothing was written.

    Attributes:
        thread_id: The thread.
        held_by: Name of the person who holds the thread; for several holds, the first person.
        reason: The reason of the hold.
        since: Start of the hold.
    """

    def __init__(self, thread_id: str, held_by: str, reason: str, since: datetime) -> None:
        super().__init__(
            f"thread {thread_id!r} is held by {held_by} since {since} ({reason}), so none of its rows are deleted"
        )
        self.thread_id = thread_id
        self.held_by = held_by
        self.reason = reason
        self.since = since


class ThreadArchivedError(PGStateError):
    """The thread is archived, and must be restored first. Nothing was written.

    Attributes:
        thread_id: The thread.
        archive_id: The archive that has the thread's rows.
        archived_at: Time of the archiving; `None` if it is unknown.
    """

    def __init__(self, thread_id: str, archive_id: str, archived_at: datetime | None = None) -> None:
        since = "" if archived_at is None else f" since {archived_at}"
        super().__init__(
            f"thread {thread_id!r} is archived{since}: restore it by `pgstate archive restore "
            f"{shlex.quote(thread_id)}` or state.archive.restore, and repeat the call; "
            "state.archive.delete deletes it for good"
        )
        self.thread_id, self.archive_id, self.archived_at = thread_id, archive_id, archived_at


class ArchiveError(PGStateError):
    """An object of an archive is missing or damaged. The database was not changed.

    Attributes:
        where: The object, and the damaged part.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where} {why}")
        self.where = where


class ArchiveUnavailableError(ArchiveError):
    """The objects of an archive cannot be read or written."""

    retryable = True


class ThreadInUseError(PGStateError):
    """A process runs the thread, so nothing is redacted: the process would store the content again from memory.

    Attributes:
        thread_id: The thread.
        why: How the thread is in use.
    """

    retryable = True

    def __init__(self, thread_id: str, why: str) -> None:
        super().__init__(
            f"nothing is redacted in thread {thread_id!r}: {why}. End the run, or wait for its end, and repeat the call"
        )
        self.thread_id = thread_id
        self.why = why


class ThreadExistsError(PGStateError):
    """The id of a new thread belongs to an existing thread. Nothing was written.

    Attributes:
        thread_id: The thread.
    """

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        super().__init__(f"there is a thread {thread_id!r} already")


class AssistantExistsError(PGStateError):
    """The id of a new assistant belongs to an existing assistant. Nothing was written.

    Attributes:
        assistant_id: The assistant.
    """

    def __init__(self, assistant_id: str) -> None:
        self.assistant_id = assistant_id
        super().__init__(f"there is an assistant {assistant_id!r} already")


class AssistantInUseError(PGStateError):
    """An assistant has schedules that the caller may not delete. Nothing was written.

    Attributes:
        assistant_id: The assistant.
    """

    def __init__(self, assistant_id: str) -> None:
        self.assistant_id = assistant_id
        super().__init__(f"assistant {assistant_id!r} has schedules of others, which must be deleted first")


class ThreadBusyError(PGStateError):
    """The thread has a pending or running run, so that a run with the strategy `reject`, or an answer, is refused.

    Nothing was written.

    Attributes:
        thread_id: The thread.
        run_id: The other run; `None` if the other run was not enqueued.
        since: Time of the other run's claim; for a pending run, time of the enqueueing.
    """

    retryable = True

    def __init__(self, thread_id: str, run_id: str | None, since: datetime | None) -> None:
        whose = f"run {run_id!r}" if run_id else "a run that was not enqueued"
        super().__init__(f"thread {thread_id!r} is busy with {whose} since {since}")
        self.thread_id = thread_id
        self.run_id = run_id
        self.since = since


class RunFailedError(PGStateError):
    """An enqueued run ended with an error, or took too long.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        status: `error` or `timeout`.
        error_type: Qualified name of the run's exception.
        error_message: Message of the run's exception.
    """

    def __init__(
        self, thread_id: str, run_id: str, status: str, error_type: str | None, error_message: str | None
    ) -> None:
        why = ": ".join(part for part in (error_type, error_message) if part) or "no error was recorded"
        super().__init__(f"run {run_id!r} of thread {thread_id!r} ended with status {status!r}: {why}")
        self.thread_id = thread_id
        self.run_id = run_id
        self.status = status
        self.error_type = error_type
        self.error_message = error_message


class RunCancelledError(PGStateError):
    """An enqueued run was cancelled, rolled back, or deleted.

    Attributes:
        thread_id: The thread.
        run_id: The run.
    """

    def __init__(self, thread_id: str, run_id: str) -> None:
        super().__init__(
            f"run {run_id!r} of thread {thread_id!r} was cancelled or deleted, or its enqueueing is not committed"
        )
        self.thread_id = thread_id
        self.run_id = run_id


class RunTimeoutError(PGStateError, TimeoutError):
    """An enqueued run did not end while the caller waited. The run is still pending or running.

    Attributes:
        thread_id: The thread.
        run_id: The run.
        status: `pending` or `running`.
    """

    retryable = True

    def __init__(self, thread_id: str, run_id: str, status: str, seconds: float) -> None:
        hint = "; `pgstate runs` shows whether a worker accepts it" if status == "pending" else ""
        super().__init__(f"run {run_id!r} of thread {thread_id!r} is still {status} after {seconds:g} s{hint}")
        self.thread_id = thread_id
        self.run_id = run_id
        self.status = status


class AlreadyDoneError(PGStateError):
    """Another person did the same action first. Nothing was written.

    Attributes:
        thread_id: The thread; `schedule:NAME` for a schedule.
        action: The action.
        done_by: Name of the person.
        done_at: Time of the action.
        details: The payload of the event that records the action.
    """

    def __init__(self, thread_id: str, done_at: datetime, details: Mapping[str, Any]) -> None:
        self.thread_id = thread_id
        self.action = str(details.get("action"))
        self.done_by = str(details.get("by"))
        self.done_at = done_at
        self.details = details
        super().__init__(f"{thread_id!r}: {self.action} was done at {done_at} by {self.done_by}")


class AlreadyAnsweredError(PGStateError):
    """The interrupt is answered already. Nothing was written.

    Attributes:
        thread_id: The thread.
        interrupt_id: The interrupt.
        answered_by: Name of the answerer, if known.
        answered_at: Time of the answer.
        is_default: Whether this is the default answer of the run.
    """

    def __init__(
        self,
        thread_id: str,
        interrupt_id: str,
        answered_by: str | None,
        answered_at: datetime | None,
        is_default: bool = False,
    ) -> None:
        answerer = "default" if is_default else answered_by or "an unnamed user"
        super().__init__(
            f"interrupt {interrupt_id} of thread {thread_id!r} was answered at {answered_at} by {answerer}"
        )
        self.thread_id = thread_id
        self.interrupt_id = interrupt_id
        self.answered_by = answered_by
        self.answered_at = answered_at
        self.is_default = is_default


class AlreadySettledError(ConfigurationError):
    """The action runs, has an outcome, or has changed since it was read. Nothing was written.

    Attributes:
        thread_id: The thread.
        key: Idempotency key of the action.
    """

    def __init__(self, thread_id: str, key: str, tool: str, reason: str) -> None:
        super().__init__(f"{tool} ({key!r}) {reason}")
        self.thread_id = thread_id
        self.key = key


class StateVersionError(PGStateError):
    """A checkpoint has a version of the user's state that this program does not know.

    Attributes:
        where: The checkpoint.
        found: The checkpoint's version.
        expected: The newest known version; `None` if no version was configured, so that only version 1 is known.
        oldest: The oldest known version.
    """

    def __init__(self, where: str, found: int, expected: int | None, oldest: int = 1) -> None:
        known = f"versions {oldest} to {expected}" if expected is not None else "only version 1"
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
    """An upcaster failed on a checkpoint. The checkpoint is left unchanged.

    Attributes:
        where: The checkpoint.
        version: The target version of the upcaster.
        why: The cause.
    """

    def __init__(self, where: str, version: int, why: str) -> None:
        super().__init__(
            f"the upcaster to state version {version} failed on {where}: {why}. A checkpoint may lack channels, so an "
            "upcaster must check that a channel is present"
        )
        self.where = where
        self.version = version
        self.why = why


class CorruptStateError(PGStateError):
    """Stored bytes are damaged, or a reference has no target.

    Attributes:
        where: The checkpoint, segment or write that is damaged.
        why: The defect.
    """

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"{where} is damaged: {why}. `pgstate check` lists all defects.")


class UnreadableFormatError(PGStateError):
    """This installation cannot read the format of intact stored bytes.

    Attributes:
        where: The checkpoint, segment or write.
        why: The required package and version, or the required serializer.
    """

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"{where} cannot be read here: {why}")


class ToolSetupError(ConfigurationError):
    """The setup of a tool does not match its ledger or graph. The error ends the run."""

    is_final = True


class ToolError(PGStateError):
    """Base class of errors about a recorded tool execution.

    Attributes:
        tool: The tool.
        thread_id: The thread.
        idempotency_key: The action's key.
    """

    def __init__(self, tool: str, thread_id: str, idempotency_key: str, why: str) -> None:
        self.tool, self.thread_id, self.idempotency_key = tool, thread_id, idempotency_key
        super().__init__(f"{tool} ({idempotency_key!r} on thread {thread_id!r}) {why}")


class ToolOutcomeUnknownError(ToolError):
    """The process of a tool call ended before the outcome was recorded. The effect is unknown."""

    is_final = True

    def __init__(self, tool: str, thread_id: str, idempotency_key: str, why: str = "") -> None:
        super().__init__(
            tool,
            thread_id,
            idempotency_key,
            f"was started and has no recorded outcome{why}: it may or may not have taken effect. Find out, and "
            'record the outcome with settle(thread_id, key, "done" | "retry" | "fail"), or give the tool a policy: '
            'on_unknown="retry" if it may be repeated, "check" if the external system can be queried, "ask" to let a '
            "person decide.",
        )


class ToolFailedError(ToolError):
    """The tool failed before under the same key, and its policy does not run it again.

    Attributes:
        error_type: Qualified name of the recorded exception.
        error_message: Message of the recorded exception.
    """

    def __init__(
        self, tool: str, thread_id: str, idempotency_key: str, error_type: str | None, error_message: str | None
    ) -> None:
        self.error_type, self.error_message = error_type, error_message
        super().__init__(
            tool,
            thread_id,
            idempotency_key,
            f'failed with {error_type}: {error_message}. To run it again, call settle(thread_id, key, "retry"). A tool '
            'with on_error="retry" is run again by itself, unless a person has settled it as failed.',
        )


class ToolTimeoutError(ToolError, TimeoutError):
    """A tool took longer than its policy allows. The outcome is unknown until the tool's code ends.

    When the code ends, the outcome is recorded. The transaction of a transactional tool was rolled back.
    """

    def __init__(self, tool: str, thread_id: str, idempotency_key: str, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(tool, thread_id, idempotency_key, f"took longer than {seconds:g} s")


class ToolBusyError(ToolError):
    """The same action is running, in this or another process, and did not end while this call waited."""

    retryable = True
    is_final = True


class ToolOvertakenError(ToolError):
    """Another process took over an action that ran in this process. This process's outcome was not recorded."""

    is_final = True


class RunBudgetExceededError(PGStateError):
    """A run used up its budget of steps or tokens.

    Attributes:
        kind: `steps` or `tokens`.
        used: Amount used.
        limit: The budget.
    """

    is_final = True

    def __init__(self, kind: str, used: int, limit: int) -> None:
        self.kind, self.used, self.limit = kind, used, limit
        super().__init__(f"the run has used {used} {kind}; its budget is {limit}")


class BudgetExceededError(PGStateError, RuntimeError):
    """A model call was refused because the budget of money for the day is used up.

    Attributes:
        scope: Owner of the budget: `tenant`, `user`, `agent` or `key`.
        name: Name of the owner.
        spent: Cost of today's calls (UTC), in the currency of prices.
        amount: The budget.
        reserved: Expected cost of calls in progress.
    """

    is_final = True

    def __init__(self, scope: str, name: str, spent: Decimal, amount: Decimal, reserved: Decimal | None = None) -> None:
        self.scope, self.name, self.spent, self.amount, self.reserved = scope, name, spent, amount, reserved
        expected = f", and calls in progress are expected to cost {reserved.normalize():f}" if reserved else ""
        used, given = spent.normalize(), amount.normalize()
        super().__init__(f"{scope} {name!r} has spent {used:f} today (UTC){expected}; the budget is {given:f}")


class EncryptionError(PGStateError):
    """Stored content cannot be encrypted or decrypted."""


class EncryptedError(EncryptionError):
    """Stored content is encrypted, and this program has no keys.

    Attributes:
        where: The place of the content.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        how = "open it with encryption=Encryption(keys=...), or set PGSTATE_ENCRYPTION_KEYS for a command"
        super().__init__(f"{where} is encrypted: {how}")


class NotEncryptedError(EncryptionError):
    """Stored content is not encrypted where only encrypted content is accepted.

    Attributes:
        where: The place of the content.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        super().__init__(
            f"{where} is not encrypted: it was stored without encryption, or by another program; "
            "Encryption(..., accept_plain=True) accepts it while a schema is moved to encryption"
        )


class DecryptionError(EncryptionError):
    """Stored content was changed, truncated, or moved from another row, column or table.

    Attributes:
        where: The place of the content.
    """

    def __init__(self, where: str, why: str = "it was changed, truncated, or moved from another row") -> None:
        self.where, self.why = where, why
        super().__init__(f"{where} does not decrypt: {why}")


class DataKeyError(EncryptionError):
    """The data key of stored content is missing, or the encryption does not have its master key.

    Attributes:
        key_id: The data key.
        why: The reason why the key cannot be used.
    """

    def __init__(self, key_id: str, why: str) -> None:
        self.key_id, self.why = key_id, why
        super().__init__(f"data key {key_id} cannot be used: {why}")


class DataKeyDestroyedError(EncryptionError):
    """The data key of stored content was destroyed, so the content cannot be read.

    Attributes:
        key_id: The data key.
    """

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(f"data key {key_id} was destroyed, so the content that it encrypts cannot be read")


class KeyUnavailableError(EncryptionError):
    """The master key does not respond. Cached data keys stay in use. Nothing was written.

    Attributes:
        master_id: The master key.
        retryable: Whether a later call may succeed; false if access is denied or the key is disabled.
    """

    retryable = True

    def __init__(self, master_id: str, why: str, *, retryable: bool = True) -> None:
        self.master_id, self.retryable = master_id, retryable
        super().__init__(f"master key {master_id!r} does not respond: {why}")


class MissingKeysError(EncryptionError):
    """Data keys are not in memory. The package loads them and repeats the operation, so callers do not see this error.

    Attributes:
        wanted: Kind (`key`, `scope` or `thread`) and name of each missing key.
    """

    retryable = True

    def __init__(self, wanted: Collection[tuple[str, str]]) -> None:
        self.wanted = frozenset(wanted)
        super().__init__(f"{len(self.wanted)} data keys are not loaded")


class DatabaseError(PGStateError):
    """PostgreSQL refused a statement or failed. The driver's error is the `__cause__`.

    Attributes:
        sqlstate: PostgreSQL's five-character code, if it sent one.
    """

    def __init__(self, message: str, sqlstate: str | None = None) -> None:
        self.sqlstate = sqlstate
        super().__init__(message)


class UnavailableError(DatabaseError):
    """No connection is available, the connection was lost, or no thread can be started."""

    retryable = True


class ConflictError(DatabaseError):
    """A transaction failed because of a concurrent one (40001, 40P01, 23505)."""

    retryable = True
