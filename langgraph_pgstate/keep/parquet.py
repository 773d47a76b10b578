"""Parquet files of runs, spans, messages, tool executions and usage, a file for each month, for analysts.

A file is written, read back and compared. Then the spans of an old month can be dropped, if they have not changed since
the export. A lock blocks the storing of spans during the comparison and the drop. The metadata of the file say that its
spans were dropped, so that a later export of the month keeps these spans in the file.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from types import ModuleType
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from langgraph_pgstate.db.database import AsyncDatabase, Database
from langgraph_pgstate.db.protocol import Connection, Rows
from langgraph_pgstate.db.runners import AsyncRunner, BlockingRunner, Runner, blocking
from langgraph_pgstate.errors import ArchiveError, ArchiveUnavailableError, ConfigurationError
from langgraph_pgstate.keep.objects import Objects, check_url, open_objects
from langgraph_pgstate.keep.types import ExportedFile
from langgraph_pgstate.schema import partitions
from langgraph_pgstate.schema.queries import Queries
from langgraph_pgstate.schema.tenancy import has_walls, list_tenants, of_tenant

_PAGE: Final = 5000
_SPANS: Final = "spans"
# Key in the metadata of a file. The key says that the file's spans were dropped, or are about to be dropped.
_DROPPED: Final = b"pgstate.dropped"
_MONTH: Final = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_MONEY: Final = Decimal("1e-12")

_TIME, _TEXT, _NUMBER, _MONEY_TYPE, _FLAG, _DAY = "time", "text", "number", "money", "flag", "day"


class Dataset(NamedTuple):
    """A kind of exported files, such as `runs`.

    Attributes:
        query: Name of the statement that reads a page of the rows of a month.
        columns: Names and types of the columns.
        cursor: The parameters of the cursor, each with the column whose value it takes.
        content: Columns that are null unless contents are exported.
    """

    query: str
    columns: tuple[tuple[str, str], ...]
    cursor: tuple[tuple[str, str], ...]
    content: tuple[str, ...]


def _columns(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, kind or _TEXT) for name, _, kind in (word.partition(":") for word in text.split()))


DATASETS: Final[dict[str, Dataset]] = {
    "runs": Dataset(
        "export_runs",
        _columns(
            "thread_id run_id attempt:number status agent tenant_id user_id started_at:time ended_at:time steps:number "
            "input_tokens:number output_tokens:number cost:money error_type queue enqueued_at:time release metadata "
            "error_message input output"
        ),
        (("cursor_thread", "thread_id"), ("cursor_id", "run_id")),
        ("error_message", "input", "output"),
    ),
    _SPANS: Dataset(
        "export_spans",
        _columns(
            "thread_id span_id run_id parent_span_id kind name status started_at:time ended_at:time agent node "
            "step:number checkpoint_ns checkpoint_id provider model input_tokens:number output_tokens:number "
            "cache_read_tokens:number reasoning_tokens:number cost:money tool_call_id error_type error_message input "
            "output attributes"
        ),
        (("cursor_thread", "thread_id"), ("cursor_run", "run_id"), ("cursor_id", "span_id")),
        ("error_message", "input", "output", "attributes"),
    ),
    "messages": Dataset(
        "export_messages",
        _columns(
            "thread_id message_id checkpoint_id channel checkpoint_ns position:number change created_at:time run_id "
            "role agent tool_call_id input_tokens:number output_tokens:number content tool_calls"
        ),
        (
            ("cursor_thread", "thread_id"),
            ("cursor_id", "message_id"),
            ("cursor_checkpoint", "checkpoint_id"),
            ("cursor_channel", "channel"),
        ),
        ("content", "tool_calls"),
    ),
    "tool_executions": Dataset(
        "export_tool_executions",
        _columns(
            "thread_id idempotency_key tool status attempt:number agent tool_call_id run_id checkpoint_ns "
            "checkpoint_id step:number started_at:time ended_at:time error_type compensates compensated_at:time "
            "is_copy:flag error_message arguments preview"
        ),
        (("cursor_thread", "thread_id"), ("cursor_id", "idempotency_key")),
        ("error_message", "arguments", "preview"),
    ),
    "usage": Dataset(
        "export_usage",
        _columns(
            "day:day agent provider model tenant_id user_id calls:number input_tokens:number output_tokens:number "
            "cache_read_tokens:number reasoning_tokens:number cost:money unpriced:number"
        ),
        (),
        (),
    ),
}
"""The kinds of exported files, by name. The name is also the folder of the files."""


class AsyncParquet:
    """Exports to Parquet files, for analysts; `AsyncPGState.parquet` returns it. Requires the extra `parquet`."""

    def __init__(self, database: AsyncDatabase, queries: Queries) -> None:
        self._runner: Any = AsyncRunner(database)
        self._queries = queries

    async def export(
        self,
        to: str,
        *,
        months: Sequence[str] | None = None,
        content: bool = False,
        progress: Callable[[ExportedFile], None] | None = None,
    ) -> tuple[ExportedFile, ...]:
        """Write a file for each month and kind of rows, like `spans/2026-01.parquet`. Safe to repeat.

        The kinds are runs, spans, messages, tool executions and usage. Archived threads are left out. Each file is made
        in memory, stored, read back and compared. Files of a tenant are stored in a folder of the tenant's name.

        Args:
            to: URL below which to store the files, as for `archive.put`.
            months: Only these months, like `2026-01`; all by default.
            content: Whether to export inputs, outputs, texts, arguments and messages of errors, too.
            progress: Called with each file.

        Raises:
            ArchiveError: If a file differs when it is read back, or an earlier file with dropped spans is damaged.
            ArchiveUnavailableError: If a file cannot be stored.
            ConfigurationError: If an argument is invalid, or the extra is missing.
        """
        _modules()
        wanted = None if months is None else [_month_of(one) for one in months]
        folder = "" if self._runner.tenant is None else _folder_of(self._runner.tenant)
        found = []
        for month in await self._runner.run(list_months, self._queries):
            for name in DATASETS:
                if wanted is None or month in wanted:
                    file = await export_month(self._runner, self._queries, to, name, month, content, folder=folder)
                    found += [] if file is None else [file]
                    if progress is not None and file is not None:
                        progress(file)
        return tuple(found)

    async def drop_spans(self, to: str, older_than: int) -> tuple[ExportedFile, ...]:
        """Export the spans of old months with all contents, verify the files, and drop the spans. Safe to repeat.

        A month is not dropped if it has spans of a thread under a hold, or if spans were stored or changed meanwhile.
        If tenants are kept apart, each tenant has its own files, in a folder of the tenant's name. A month is dropped
        when the spans of all tenants are in files.

        Run no other export to the same URL meanwhile: it could replace a file after the drop, without contents.

        Args:
            to: URL below which to store the files, as for `archive.put`.
            older_than: Number of months before the current month whose spans are kept, at least 1.

        Returns:
            The files of the months that were dropped.

        Raises:
            ArchiveError: If a file differs when it is read back. Spans of its month were not dropped.
            ArchiveUnavailableError: If a file cannot be stored.
            ConfigurationError: If an argument is invalid, the extra is missing, or the state is opened for one tenant.
        """
        _modules()
        check_url(to)
        owners = await _owners(self._runner, self._queries)
        months_of = [{*await one.run(partitions.list_old_months, self._queries, older_than)} for one, _ in owners]
        dropped: list[ExportedFile] = []
        # Drop a month only after the export of all tenants, because a partition has the spans of all tenants.
        for month in sorted(set.intersection(*months_of)) if months_of else ():
            digests, files = [], []
            for one, folder in owners:
                digests.append(await one.run(partitions.digest_month, self._queries, month))
                named = month.replace("_", "-")
                file = await export_month(
                    one, self._queries, to, _SPANS, named, content=True, folder=folder, is_dropped=True
                )
                files += [] if file is None else [file]
            expected = {month: (sum(count for count, _ in digests), sum(total for _, total in digests))}
            if await self._runner.run(partitions.drop_months, self._queries, [month], expected):
                dropped += files
        return tuple(dropped)


class Parquet:
    """Blocking twin of `AsyncParquet`."""

    def __init__(self, database: Database, queries: Queries) -> None:
        self._runner = BlockingRunner(database)
        self._queries = queries

    export = blocking(AsyncParquet.export)
    drop_spans = blocking(AsyncParquet.drop_spans)


async def _owners(runner: Any, queries: Queries) -> list[tuple[Any, str]]:
    """Return the runners that export spans, each with its folder: one for each tenant if tenants are kept apart."""
    if runner.tenant is not None:
        raise ConfigurationError(
            "months of spans must be dropped by a state without a tenant, because a month has the spans of all tenants"
        )
    if not await runner.run(has_walls, queries):
        return [(runner, "")]
    names = await runner.run(list_tenants, queries)
    return [(type(runner)(of_tenant(runner.database, name, queries)), _folder_of(name)) for name in names]


def _folder_of(tenant: str) -> str:
    """Return the folder of a tenant, with a slash. It has one segment, and no other tenant has the same folder."""
    name = quote(tenant, safe="")
    # `quote` does not escape dots, but the segments `.` and `..` would name other folders.
    return f"%2E{name[1:]}/" if name.startswith(".") else f"{name}/"


async def list_months(db: Connection, queries: Queries) -> list[str]:
    """Return the months that may have rows, as `2026-01`. One round trip."""
    return [row[0].replace("_", "-") for row in await db.fetch(queries.list_months, {})]


async def export_month(
    runner: Runner,
    queries: Queries,
    to: str,
    name: str,
    month: str,
    content: bool,
    *,
    folder: str = "",
    is_dropped: bool = False,
) -> ExportedFile | None:
    """Write one file, read it back and compare it. Return `None` if there are no rows.

    The new file keeps those spans of the earlier file that were dropped from the database, but not spans that were
    deleted in another way. The file is stored in `folder`, such as `acme/`, below `to`. With `is_dropped`, the caller
    may drop the spans afterwards.
    """
    arrow, parquet = _modules()
    dataset = DATASETS[name]
    schema = arrow.schema([(column, _type(arrow, kind)) for column, kind in dataset.columns])
    partition = await runner.run(partitions.find_partition, queries, _SPANS, month.replace("-", "_"))
    first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    following = (first.replace(day=28).timestamp() + 7 * 86_400) // 1
    last = datetime.fromtimestamp(following, UTC).replace(day=1, hour=0, minute=0, second=0)
    parameters: dict[str, Any] = {"first_at": first, "last_at": last, "content": content, "page_size": _PAGE}
    parameters |= {cursor: "" for cursor, _ in dataset.cursor}
    places = [[column for column, _ in dataset.columns].index(column) for _, column in dataset.cursor]
    objects, path = open_objects(to), f"{folder}{name}/{month}.parquet"
    earlier = await _earlier(runner, objects, path, partition, schema) if name == _SPANS else None
    left = {} if earlier is None else {key: number for number, key in enumerate(_keys(earlier))}
    buffer, count = io.BytesIO(), 0
    with parquet.ParquetWriter(buffer, schema, compression="zstd") as writer:
        while rows := await runner.run(fetch_page, queries, dataset.query, parameters):
            writer.write_table(await runner.compute(rows, _table, arrow, schema, dataset, rows))
            count += len(rows)
            for row in rows if left else ():
                left.pop(tuple(row[place] for place in places), None)
            if not dataset.cursor or len(rows) < _PAGE:
                break
            parameters |= {cursor: rows[-1][place] for (cursor, _), place in zip(dataset.cursor, places, strict=True)}
        if is_dropped or earlier is not None:
            writer.add_key_value_metadata({_DROPPED: f"{partition} {count}"})
        if left and count and earlier is not None:
            writer.write_table(earlier.take([*left.values()]))
            count += len(left)
    if not count:
        return None
    data = buffer.getvalue()
    await runner.wait_for(objects.put, path, data)
    read = await runner.wait_for(objects.get, path)
    if read != data or parquet.ParquetFile(io.BytesIO(read)).read().num_rows != count:
        raise ArchiveError(f"{objects.url}/{quote(path)}", "is damaged: it must have the content that was stored")
    return ExportedFile(name, month, f"{objects.url}/{quote(path)}", count, len(data))


async def _earlier(runner: Runner, objects: Objects, path: str, partition: int | None, schema: Any) -> Any:
    """Return the spans of an earlier file that were dropped from the database; `None` if none were.

    If the partition that the file was made from is gone, all spans of the file were dropped. If the partition still
    exists, its missing spans were erased or deleted. Then only the spans that the file had kept from a still earlier
    file were dropped.

    Raises:
        ArchiveError: If the file is damaged.
    """
    _, parquet = _modules()
    try:
        data = await runner.wait_for(objects.get, path)
    except ArchiveUnavailableError:
        raise
    except ArchiveError:
        return None
    try:
        file = parquet.ParquetFile(io.BytesIO(data))
        mark = (file.metadata.metadata or {}).get(_DROPPED)
        if mark is None:
            return None
        number, count = mark.decode().split()
        return file.read().slice(int(count) if number == str(partition) else 0).cast(schema)
    except Exception as error:
        raise ArchiveError(f"{objects.url}/{quote(path)}", f"is damaged: {error}") from error


def _keys(spans: Any) -> Iterator[tuple[str, ...]]:
    columns = [spans.column(column).to_pylist() for _, column in DATASETS[_SPANS].cursor]
    return zip(*columns, strict=True)


async def fetch_page(db: Connection, queries: Queries, query: str, parameters: dict[str, Any]) -> Rows:
    """Return a page of rows. One round trip."""
    statement = getattr(queries, query)
    return await db.fetch(statement, {name: parameters[name] for name in statement.parameters})


def _table(arrow: ModuleType, schema: Any, dataset: Dataset, rows: Rows) -> Any:
    columns = [
        arrow.array([_value(kind, row[number]) for row in rows], schema.field(number).type)
        for number, (_, kind) in enumerate(dataset.columns)
    ]
    return arrow.Table.from_arrays(columns, schema=schema)


def _value(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == _MONEY_TYPE:
        return Decimal(value).quantize(_MONEY)
    if kind == _DAY and not isinstance(value, date):
        return date.fromisoformat(str(value))
    if kind == _TEXT:
        return value if isinstance(value, str) else str(value)
    return value


def _type(arrow: ModuleType, kind: str) -> Any:
    types = {
        _TIME: arrow.timestamp("us", tz="UTC"),
        _NUMBER: arrow.int64(),
        _MONEY_TYPE: arrow.decimal128(38, 12),
        _FLAG: arrow.bool_(),
        _DAY: arrow.date32(),
    }
    return types.get(kind, arrow.string())


def _month_of(text: str) -> str:
    if not isinstance(text, str) or not _MONTH.fullmatch(text):
        raise ConfigurationError(f"a month must have the form 2026-01, got {text!r}")
    return text


def _modules() -> tuple[Any, Any]:
    """Return pyarrow and its module of Parquet."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigurationError(
            f"Parquet requires the extra `parquet`: pip install 'langgraph-pgstate[parquet]' ({error})"
        ) from error
    return pyarrow, parquet
