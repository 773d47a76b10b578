"""Everything this package raises on purpose.

    PGStateError
    ├── ConfigurationError (ValueError)      an argument or a setting is wrong; nothing was written
    ├── SerializationError (TypeError)       a value cannot be stored; nothing was written
    ├── UnsafeTypeError                      the database names a type that is not allowed to be built
    ├── SchemaError
    │   ├── SchemaMissingError               `setup()` was never run in this schema
    │   ├── SchemaOutdatedError              the schema is older or newer than this package
    │   └── MigrationConflictError           an applied migration differs from the one shipped
    ├── NotFoundError (LookupError)          what was named does not exist
    ├── CorruptStateError                    stored bytes are damaged or a reference leads nowhere
    └── DatabaseError
        ├── UnavailableError                 no connection could be had or kept
        └── ConflictError                    the database gave up on a transaction that ran into another

`retryable` says whether the same call may succeed when it is made again. An absent checkpoint is
not an error: LangGraph expects `None`.
"""

from __future__ import annotations


class PGStateError(Exception):
    """Root of the hierarchy.

    Attributes:
        retryable: Whether the same call may succeed when it is repeated.
    """

    retryable: bool = False


class ConfigurationError(PGStateError, ValueError):
    """An argument or a setting is wrong. Nothing was written."""


class SerializationError(PGStateError, TypeError):
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
    """The stored bytes name a type that the serializer is not allowed to build.

    Attributes:
        types: `(module, name)` of every refused type.
        where: What was being read.
    """

    def __init__(self, where: str, types: list[tuple[str, str]]) -> None:
        self.types = types
        self.where = where
        names = ", ".join(f"{module}.{name}" for module, name in types)
        super().__init__(
            f"refused to build {names} while reading {where}. If these types are yours, allow them: "
            f"saver.with_allowlist({types!r}), or pass serde=JsonPlusSerializer(allowed_msgpack_modules={types!r}); "
            "allowed_msgpack_modules=True allows every type and trusts whoever can write to the database."
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


class CorruptStateError(PGStateError):
    """Stored bytes are damaged, or a reference leads nowhere.

    Attributes:
        where: The checkpoint, segment or write that is damaged.
        why: What is wrong with it.
    """

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"{where} is damaged: {why}. `pgstate check` names everything that is broken.")


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
