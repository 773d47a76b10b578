"""The format of an archive: two objects, `ID.pack` and `ID.json`.

`ID.pack` has one zstd frame for each thread. A frame has the rows of the thread, table by table. Each row follows its
length (4 bytes, big-endian), and has the binary format of PostgreSQL's records (`record_send`): the number of columns,
and for each column the number of its type, its length and its value.

`ID.json` is the manifest. It has the columns of each table, the position of each frame, and SHA-256 digests of the
pack, of each frame, and of each *part*: the rows of one thread in one table. The digest of a part is the SHA-256 of the
sorted digests of its rows, so that the server can compute it, too. `root` is the digest of the manifest without `root`.
`key_ids` name the data keys that encrypt values. The keys themselves are not in an archive, so destroying them makes
the values unreadable.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson
import zstandard

from langgraph_pgstate.encryption.cipher import MAGIC, TEXT_MAGIC, key_id_at
from langgraph_pgstate.encryption.columns import CONTENTS, SEALED_KEY
from langgraph_pgstate.errors import ArchiveError, ConfigurationError

FORMAT: Final = 1
MANIFEST, PACK = ".json", ".pack"

_LENGTH: Final = struct.Struct("!I")
# The length of a null value in PostgreSQL's binary format: -1.
_NULL: Final = b"\xff" * 4
_COLUMNS: Final = struct.Struct("!i")
_FIELD: Final = struct.Struct("!Ii")
_ARRAY: Final = struct.Struct("!iiIii")
_LEVEL: Final = 3
_TEXT_MAGIC: Final = TEXT_MAGIC.encode()
_PEOPLE: Final = ("runs.user_id", "answers.answered_by", "feedback.created_by")
# Kinds of events that name the acting person.
_ACTS: Final = frozenset({"action", "answer"})
# Maximum size of a frame's content, in bytes. Otherwise a wrong size in a manifest could exhaust the memory.
_MOST_BYTES: Final = 2**31

Columns = Mapping[str, Sequence[tuple[str, str]]]
"""Name and type of the columns of each table."""
Rows = Mapping[str, Sequence[bytes]]
"""The rows of one thread, by table."""


class People(NamedTuple):
    """The users whom the rows of a thread concern.

    Attributes:
        user_id: Owner of the thread.
        users: Other users with runs, answers, feedback or actions in the thread.
        origins: Threads from which the thread was forked or copied, as an array literal; empty if there are none.
    """

    user_id: str | None = None
    users: tuple[str, ...] = ()
    origins: str = ""


class Part(NamedTuple):
    """The rows of one thread in one table: their number, their size in bytes, and their hexadecimal digest."""

    table: str
    rows: int
    bytes: int
    sha256: str


class Frame(NamedTuple):
    """The frame of one thread in a pack.

    Attributes:
        offset: Position of the frame in the pack.
        bytes: Length of the compressed frame.
        sha256: Hexadecimal digest of the compressed frame.
        parts: The rows of the thread, by table.
        key_ids: Data keys that the encrypted values need.
    """

    thread_id: str
    offset: int
    bytes: int
    sha256: str
    parts: tuple[Part, ...]
    key_ids: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows that the archiving deleted from the database."""
        return sum(part.rows for part in self.parts if part.table != "threads")

    @property
    def size(self) -> int:
        """Bytes of the rows before compression."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of an archive: its threads, with their positions and digests.

    Attributes:
        created_at: Time at which the threads were read, by the clock of the database, as text.
        schema_version: Version of the rows' schema.
        tenant: Tenant of the threads; `None` if tenants are not kept apart.
        frames: The threads, by id.
    """

    archive_id: str
    created_at: str
    schema_version: int
    tenant: str | None
    columns: Columns
    pack_bytes: int
    pack_sha256: str
    frames: Mapping[str, Frame]

    @property
    def time(self) -> datetime:
        """`created_at` as a time."""
        found = datetime.fromisoformat(self.created_at)
        return found if found.tzinfo else found.replace(tzinfo=UTC)

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Ids of the data keys that its encrypted values need."""
        return tuple(sorted({key_id for frame in self.frames.values() for key_id in frame.key_ids}))

    def _plain(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "archive_id": self.archive_id,
            "created_at": self.created_at,
            "schema_version": self.schema_version,
            "tenant": self.tenant,
            "key_ids": [*self.key_ids],
            "tables": {table: [[*column] for column in columns] for table, columns in self.columns.items()},
            "pack": {"bytes": self.pack_bytes, "sha256": self.pack_sha256},
            "counts": {
                "threads": len(self.frames),
                "rows": sum(part.rows for frame in self.frames.values() for part in frame.parts),
            },
            "threads": [
                {
                    "thread_id": frame.thread_id,
                    "offset": frame.offset,
                    "bytes": frame.bytes,
                    "sha256": frame.sha256,
                    "parts": [[*part] for part in frame.parts],
                    "key_ids": [*frame.key_ids],
                }
                for frame in self.frames.values()
            ],
        }

    @property
    def root(self) -> bytes:
        """Return the SHA-256 of the manifest without `root`."""
        return _root(self._plain())

    def dump(self) -> bytes:
        """Return the manifest as JSON, with its `root`."""
        plain = self._plain()
        return orjson.dumps({**plain, "root": _root(plain).hex()}, option=orjson.OPT_SORT_KEYS)


def _root(plain: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)).digest()


def load_manifest(data: bytes, where: str, root: bytes | None = None) -> Manifest:
    """Return a verified manifest. If `root` is given, the manifest must have this digest.

    Raises:
        ArchiveError: If the manifest is damaged, or has another digest.
        ConfigurationError: If the manifest has a newer format than this version of the package reads.
    """
    try:
        plain = orjson.loads(data)
        told = plain.pop("root")
        version = plain["format"]
        found = _root(plain)
        if found.hex() != told:
            raise ArchiveError(where, "is damaged: its `root` must be the SHA-256 of its content")
        if root is not None and found != root:
            raise ArchiveError(where, "is not the manifest that the database names")
        if version != FORMAT:
            raise ConfigurationError(
                f"{where} has format {version}, but this version of langgraph-pgstate reads format {FORMAT}: "
                "install a newer version"
            )
        manifest = Manifest(
            plain["archive_id"],
            plain["created_at"],
            plain["schema_version"],
            plain["tenant"],
            {table: [(name, type) for name, type in columns] for table, columns in plain["tables"].items()},
            plain["pack"]["bytes"],
            plain["pack"]["sha256"],
            {
                one["thread_id"]: Frame(
                    one["thread_id"],
                    one["offset"],
                    one["bytes"],
                    one["sha256"],
                    tuple(Part(*part) for part in one["parts"]),
                    tuple(one["key_ids"]),
                )
                for one in plain["threads"]
            },
        )
        _check_types(manifest)
        if manifest.dump() != data:
            raise ArchiveError(where, "is damaged: its JSON must have the form in which this package writes manifests")
        return manifest
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ArchiveError(where, "is damaged: it is no manifest") from error


def _check_types(manifest: Manifest) -> None:
    """Check the types of the values in a manifest."""
    texts = [manifest.archive_id, manifest.created_at, manifest.pack_sha256]
    texts += [text for columns in manifest.columns.values() for column in columns for text in column]
    numbers = [manifest.schema_version, manifest.pack_bytes]
    for frame in manifest.frames.values():
        texts += [frame.thread_id, frame.sha256, *frame.key_ids]
        numbers += [frame.offset, frame.bytes]
        for part in frame.parts:
            texts += [part.table, part.sha256]
            numbers += [part.rows, part.bytes]
    if not all(type(text) is str for text in texts) or not isinstance(manifest.tenant, str | None):
        raise TypeError("names and digests must be strings")
    datetime.fromisoformat(manifest.created_at)
    if not all(type(number) is int for number in numbers):
        raise TypeError("sizes and positions must be integers")
    if any(number < 0 for number in numbers):
        raise ValueError("sizes and positions must not be negative")


def digest(rows: Iterable[bytes]) -> str:
    """Return the SHA-256 of rows, as the statements of `list_thread_tables` compute it."""
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(row).digest() for row in rows))).hexdigest()


def pack(
    threads: Mapping[str, Rows],
    columns: Columns,
    *,
    archive_id: str,
    created_at: str,
    schema_version: int,
    tenant: str | None,
) -> tuple[bytes, Manifest]:
    """Return the pack of some threads, and its manifest."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    found: list[bytes] = []
    frames: dict[str, Frame] = {}
    offset = 0
    for thread_id, tables in threads.items():
        pieces: list[bytes] = []
        parts = []
        key_ids: set[str] = set()
        for table, rows in sorted(tables.items()):
            for row in rows:
                pieces += (_LENGTH.pack(len(row)), row)
            parts.append(Part(table, len(rows), sum(map(len, rows)), digest(rows)))
            key_ids |= _key_ids(table, columns[table], rows)
        frame = compressor.compress(b"".join(pieces))
        sha256 = hashlib.sha256(frame).hexdigest()
        frames[thread_id] = Frame(thread_id, offset, len(frame), sha256, tuple(parts), tuple(sorted(key_ids)))
        found.append(frame)
        offset += len(frame)
    data = b"".join(found)
    return data, Manifest(
        archive_id,
        created_at,
        schema_version,
        tenant,
        {table: columns[table] for table in sorted({part.table for one in frames.values() for part in one.parts})},
        len(data),
        hashlib.sha256(data).hexdigest(),
        frames,
    )


def unpack(frame: Frame, data: bytes, where: str) -> dict[str, list[bytes]]:
    """Return the rows of a frame by table, after a check of all digests.

    Raises:
        ArchiveError: If the frame is damaged.
    """
    where = f"{where}: thread {frame.thread_id!r}"
    if len(data) != frame.bytes or hashlib.sha256(data).hexdigest() != frame.sha256:
        raise ArchiveError(where, "is damaged: its SHA-256 differs from the manifest")
    size = sum(part.bytes + part.rows * _LENGTH.size for part in frame.parts)
    try:
        if zstandard.frame_content_size(data) != size or size > _MOST_BYTES:
            raise ArchiveError(where, "is damaged: its size differs from the manifest")
        content = zstandard.ZstdDecompressor().decompress(data) if size else b""
    except zstandard.ZstdError as error:
        raise ArchiveError(where, f"is damaged: {error}") from error
    rows: dict[str, list[bytes]] = {}
    position = 0
    for part in frame.parts:
        found = rows[part.table] = []
        for _ in range(part.rows):
            if position + _LENGTH.size > len(content):
                raise ArchiveError(where, f"is damaged: rows of {part.table} are missing")
            (length,) = _LENGTH.unpack_from(content, position)
            position += _LENGTH.size
            found.append(content[position : position + length])
            position += length
        if digest(found) != part.sha256:
            raise ArchiveError(where, f"is damaged: the SHA-256 of its {part.table} differs from the manifest")
    return rows


def check_pack(manifest: Manifest, data: bytes, where: str) -> None:
    """Check the digests of a pack, and of all its frames and parts.

    Raises:
        ArchiveError: If the pack is damaged.
    """
    if len(data) != manifest.pack_bytes or hashlib.sha256(data).hexdigest() != manifest.pack_sha256:
        raise ArchiveError(where, "is damaged: its SHA-256 differs from the manifest")
    for frame in manifest.frames.values():
        unpack(frame, data[frame.offset : frame.offset + frame.bytes], where)


def _key_ids(table: str, columns: Sequence[tuple[str, str]], rows: Iterable[bytes]) -> set[str]:
    """Return the ids of the data keys under which values of rows are encrypted."""
    found: set[str] = set()
    contents = [(number, CONTENTS.get(f"{table}.{name}")) for number, (name, _) in enumerate(columns)]
    for row in rows:
        if MAGIC not in row and _TEXT_MAGIC not in row:
            continue
        values = [value for _, value in _fields(row)]
        for number, content in contents:
            value = values[number][4:]
            if content is None or not value:
                continue
            if content.kind == "bytes":
                key_id = key_id_at(value[:12], is_bytes=True)
            else:
                # Skip the first byte: the binary format of `jsonb` begins with a version number.
                told = value.decode() if content.kind == "text" else json.loads(value[1:])
                told = told.get(SEALED_KEY) if isinstance(told, dict) else told
                key_id = key_id_at(told[:17], is_bytes=False) if isinstance(told, str) else None
            found |= {key_id} if key_id else set()
    return found


def people_of(rows: Rows, columns: Columns) -> People:
    """Return the users whom the rows of a thread concern."""
    owner = next((user for user in _texts(rows, columns, "threads.user_id") if user), None)
    users = {user for column in _PEOPLE for user in _texts(rows, columns, column)}
    for kind, payload in zip(
        _texts(rows, columns, "events.kind"), _texts(rows, columns, "events.payload"), strict=True
    ):
        if kind in _ACTS:
            # Skip the version number at the beginning of `jsonb`. `json` also reads numbers that orjson refuses.
            facts = json.loads(payload[1:])
            by = facts.get("by") if isinstance(facts, dict) else None
            if isinstance(by, str):
                users.add(by)
    origins = "".join(_texts(rows, columns, "threads.origin_thread_ids"))
    return People(owner, tuple(sorted(users - {owner, ""})), origins)


def _texts(rows: Rows, columns: Columns, column: str) -> Iterator[str]:
    """Yield the values of a column as text. Null becomes an empty text."""
    table, _, name = column.partition(".")
    place = [known for known, _ in columns[table]].index(name) if table in rows else 0
    for row in rows.get(table, ()):
        yield [value for _, value in _fields(row)][place][_LENGTH.size :].decode()


def values_of(rows: Iterable[bytes], columns: Sequence[tuple[str, str]]) -> Iterator[dict[str, bytes | None]]:
    """Yield the values of rows by column, in PostgreSQL's binary format."""
    for row in rows:
        named = zip(columns, _fields(row), strict=True)
        yield {
            name: None if value[: _LENGTH.size] == _NULL else value[_LENGTH.size :] for (name, _), (_, value) in named
        }


def _fields(row: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield, for each column of a row, the number of its type, and the bytes of its length and value."""
    position = _COLUMNS.size
    while position < len(row):
        type_number, length = _FIELD.unpack_from(row, position)
        end = position + _FIELD.size + max(0, length)
        if end > len(row):
            raise struct.error(f"a value of {length} bytes is cut off")
        yield type_number, row[position + 4 : end]
        position = end


def is_of_thread(row: bytes, place: int, thread_id: str) -> bool:
    """Return whether the column at `place`, counted from 0, has a thread's id as its value."""
    id = thread_id.encode()
    value = _LENGTH.pack(len(id)) + id
    if place == 0:
        return row.startswith(value, _COLUMNS.size + _LENGTH.size)
    try:
        return [found for _, found in _fields(row)][place : place + 1] == [value]
    except struct.error:
        return False


def transpose(rows: Sequence[bytes], columns: int) -> list[bytes]:
    """Return the columns of rows, each as an array in PostgreSQL's binary format.

    Raises:
        ArchiveError: If a row is damaged, or has another number of columns.
    """
    values: list[list[bytes]] = [[] for _ in range(columns)]
    types = [0] * columns
    for row in rows:
        try:
            fields = [*_fields(row)]
        except struct.error as error:
            raise ArchiveError("a row", f"is damaged: {error}") from error
        if row[: _COLUMNS.size] != _COLUMNS.pack(columns) or len(fields) != columns:
            raise ArchiveError("a row", f"is damaged: it does not have {columns} columns")
        for number, (type_number, value) in enumerate(fields):
            types[number] = type_number
            values[number].append(value)
    return [
        _ARRAY.pack(1, 1, type_number, len(rows), 1) + b"".join(found)
        for type_number, found in zip(types, values, strict=True)
    ]
