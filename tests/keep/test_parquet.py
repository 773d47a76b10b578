"""Parquet files for analysts, opened by DuckDB."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from support.keep import make_rich_thread
from support.record import Record
from support.tenants import open_walled

from langgraph_pgstate import PGState
from langgraph_pgstate.errors import ArchiveError, ConfigurationError, TenantError
from langgraph_pgstate.keep import objects, parquet

duckdb = pytest.importorskip("duckdb", reason="DuckDB, which opens the files, is not installed")
pytest.importorskip("pyarrow", reason="the extra `parquet` is not installed")

MONTH = """
CREATE TABLE "{0}".spans_2025_01 PARTITION OF "{0}".spans
    FOR VALUES FROM ('2025-01-01 00:00+00') TO ('2025-02-01 00:00+00')
"""


@pytest.fixture
def state(dsn: str, schema: str) -> Iterator[PGState]:
    with PGState.open(dsn, schema=schema) as state:
        yield state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def ask(folder: Path, query: str) -> list[Any]:
    found: list[Any] = duckdb.connect().execute(re.sub(r"\{(\w+)\}", rf"'{folder}/\1/*.parquet'", query)).fetchall()
    return found


@pytest.mark.slow
def test_duckdb_finds_what_the_database_has(
    state: PGState, connection: psycopg.Connection, schema: str, folder: Path
) -> None:
    make_rich_thread(state, "t")
    record = Record(connection, schema)
    record.thread("u", user_id="bob")
    connection.execute(
        f'INSERT INTO "{schema}".spans (thread_id, run_id, span_id, started_at, ended_at, kind, name, status, model,'
        " input_tokens, output_tokens, cost, semconv_version) VALUES"
        " ('t', 'r', 's', '2026-03-31 23:59:59.999999Z', '2026-04-01Z', 'llm', 'model', 'success', 'm', 10, 20,"
        " 0.0012345678, '1')".encode()
    )
    files = state.parquet.export(f"file://{folder}", content=True)
    assert {file.kind for file in files} == {"runs", "spans", "messages", "tool_executions", "usage"}
    assert (
        sum(file.rows for file in files if file.kind == "spans")
        == connection.execute(f'SELECT count(*) FROM "{schema}".spans'.encode()).fetchone()[0]
    )  # type: ignore[index]
    assert (folder / "spans" / "2026-03.parquet").exists()
    assert ask(folder, "SELECT day, model, calls, input_tokens, cost FROM {usage} WHERE model = 'm'")[0][1:4] == (
        "m",
        1,
        10,
    )
    (cost,) = ask(folder, "SELECT cost FROM {spans} WHERE span_id = 's'")
    assert str(cost[0]) == "0.001234567800"
    assert ask(folder, "SELECT DISTINCT tool, status FROM {tool_executions}") == [("book", "success")]
    assert ("Book the Astoria.",) in ask(folder, "SELECT content FROM {messages} WHERE role = 'human'")
    assert ask(folder, "SELECT count(*) FROM {runs} r JOIN {spans} s USING (thread_id, run_id) WHERE s.kind = 'tool'")[
        0
    ][0]
    for name, dataset in parquet.DATASETS.items():
        assert [row[0] for row in ask(folder, f"DESCRIBE SELECT * FROM {{{name}}}")] == [
            one for one, _ in dataset.columns
        ]


@pytest.mark.slow
def test_each_column_has_its_own_values(
    state: PGState, connection: psycopg.Connection, schema: str, folder: Path
) -> None:
    """Of rows with another value in each column."""
    for table in parquet.DATASETS.keys() - {"usage"}:
        columns = connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0",
            [f"{schema}.{table}"],
        ).fetchall()
        row = {
            column: {"text": column, "jsonb": {column: 1}, "boolean": column == "is_copy", "bytea": None}.get(
                type_, f"2026-03-{number % 28 + 1}Z" if type_.startswith("time") else number
            )
            for number, (column, type_) in enumerate(columns, 1)
        }
        query = f"INSERT INTO {schema}.{table} SELECT * FROM jsonb_populate_record(NULL::{schema}.{table}, %s)"
        connection.execute(query.encode(), [json.dumps({**row, "kind": "llm"})])
    state.parquet.export(f"file://{folder}", content=True)
    for name, dataset in parquet.DATASETS.items():
        listed = ", ".join(column for column, _ in dataset.columns)
        table = "usage_by_day" if name == "usage" else name
        (stored,) = connection.execute(f"SELECT {listed} FROM {schema}.{table}".encode()).fetchall()
        (exported,) = ask(folder, f"SELECT {listed} FROM {{{name}}}")
        found = [
            json.loads(one) if isinstance(known, dict) else one for known, one in zip(stored, exported, strict=True)
        ]
        assert found == [*stored]


@pytest.mark.slow
def test_contents_are_left_out_by_default(state: PGState, folder: Path) -> None:
    make_rich_thread(state, "t")
    state.parquet.export(f"file://{folder}")
    for name, dataset in parquet.DATASETS.items():
        for column in dataset.content:
            assert ask(folder, f"SELECT count({column}), count(*) > 0 FROM {{{name}}}") == [(0, True)]
    assert not [path for path in folder.rglob("*.parquet") if b"Astoria" in path.read_bytes()]


@pytest.mark.slow
def test_pages_have_all_rows(state: PGState, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_PAGE", 2)
    for name in ("t", "u"):
        make_rich_thread(state, name)
    for file in state.parquet.export(f"file://{folder}"):
        assert (
            ask(folder, f"SELECT count(*), count(DISTINCT thread_id) FROM {{{file.kind}}}") == [(file.rows, 2)]
            or file.kind == "usage"
        )


@pytest.mark.slow
def test_spans_of_old_months_are_dropped_when_they_are_in_a_file(
    state: PGState, connection: psycopg.Connection, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.execute(MONTH.format(schema).encode())
    insert = (
        f'INSERT INTO "{schema}".spans (thread_id, run_id, span_id, started_at, kind, name, status, semconv_version,'
        " input) SELECT 't', 'r', g::text, '2025-01-15Z', 'tool', 'book', 'success', '1', to_jsonb(g)"
        " FROM generate_series({}, {}) g"
    )
    connection.execute(insert.format(1, 100).encode())
    count = f"SELECT count(*) FROM \"{schema}\".spans WHERE started_at < '2025-02-01'".encode()
    get = objects._Folder.get

    def damaged(self: Any, name: str) -> bytes:
        return get(self, name)[:-1]

    with monkeypatch.context() as patch:
        patch.setattr(objects._Folder, "get", damaged)
        with pytest.raises(ArchiveError, match="damaged"):
            state.parquet.drop_spans(f"file://{folder}", older_than=3)
    assert connection.execute(count).fetchone() == (100,)
    export = parquet.export_month

    async def late(*args: Any, **options: Any) -> Any:
        found = await export(*args, **options)
        connection.execute(insert.format(101, 101).encode())
        return found

    with monkeypatch.context() as patch:
        patch.setattr(parquet, "export_month", late)
        assert state.parquet.drop_spans(f"file://{folder}", older_than=3) == ()
    assert connection.execute(count).fetchone() == (101,)

    async def changed(*args: Any, **options: Any) -> Any:
        found = await export(*args, **options)
        connection.execute(f"UPDATE \"{schema}\".spans SET status = 'error' WHERE span_id = '7'".encode())
        return found

    with monkeypatch.context() as patch:
        patch.setattr(parquet, "export_month", changed)
        assert state.parquet.drop_spans(f"file://{folder}", older_than=3) == ()
    assert connection.execute(count).fetchone() == (101,)
    (file,) = state.parquet.drop_spans(f"file://{folder}", older_than=3)
    assert (file.month, file.rows) == ("2025-01", 101)
    assert connection.execute(count).fetchone() == (0,)
    assert connection.execute("SELECT to_regclass(%s)", [f"{schema}.spans_2025_01"]).fetchone() == (None,)
    assert ask(folder, "SELECT count(*), min(input) FROM {spans}") == [(101, "1")]
    assert state.parquet.drop_spans(f"file://{folder}", older_than=3) == ()
    # Spans that come later, as with a restored thread, do not replace those that are in the file alone.
    connection.execute(MONTH.format(schema).encode())
    connection.execute(insert.format(101, 103).encode())
    state.parquet.export(f"file://{folder}")
    assert ask(folder, "SELECT count(*), count(DISTINCT span_id), count(input) FROM {spans}") == [(103, 103, 100)]
    (file,) = state.parquet.drop_spans(f"file://{folder}", older_than=3)
    assert file.rows == 103
    assert ask(folder, "SELECT count(*), count(DISTINCT span_id), count(input) FROM {spans}") == [(103, 103, 103)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"", lambda data: data.replace(b"input", b"other")]
)
def test_a_damaged_file_with_dropped_spans_is_named_and_kept(
    damage: Any, state: PGState, connection: psycopg.Connection, schema: str, folder: Path
) -> None:
    connection.execute(MONTH.format(schema).encode())
    insert = (
        f'INSERT INTO "{schema}".spans (thread_id, run_id, span_id, started_at, kind, name, status, semconv_version)'
        " VALUES ('t', 'r', %s, '2025-01-15Z', 'tool', 'book', 'success', '1')"
    )
    connection.execute(insert.encode(), ["first"])
    assert len(state.parquet.drop_spans(f"file://{folder}", older_than=3)) == 1
    connection.execute(insert.encode(), ["later"])
    path = folder / "spans" / "2025-01.parquet"
    data = damage(path.read_bytes())
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"spans/2025-01\.parquet is damaged"):
        state.parquet.export(f"file://{folder}")
    assert path.read_bytes() == data


@pytest.mark.slow
def test_what_is_erased_comes_back_from_no_earlier_file(
    state: PGState, connection: psycopg.Connection, schema: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month was exported to be dropped, but stays. Of an erased thread the next file has nothing."""
    connection.execute(MONTH.format(schema).encode())
    insert = (
        f'INSERT INTO "{schema}".spans (thread_id, run_id, span_id, started_at, kind, name, status, semconv_version)'
        " VALUES (%s, 'r', 's', '2025-01-15Z', 'tool', 'book', 'success', '1')"
    )
    connection.execute(insert.encode(), ["first"])
    assert len(state.parquet.drop_spans(f"file://{folder}", older_than=3)) == 1
    # The month is made again for spans that are stored later.
    connection.execute(MONTH.format(schema).encode())
    for thread_id in ("second", "hers"):
        connection.execute(insert.encode(), [thread_id])

    async def keep(*args: Any) -> list[str]:
        return []

    with monkeypatch.context() as patch:
        patch.setattr(parquet.partitions, "drop_months", keep)
        assert state.parquet.drop_spans(f"file://{folder}", older_than=3) == ()
    assert ask(folder, "SELECT thread_id FROM {spans} ORDER BY 1") == [("first",), ("hers",), ("second",)]
    connection.execute(f"DELETE FROM \"{schema}\".spans WHERE thread_id = 'hers'".encode())
    state.parquet.export(f"file://{folder}", content=True)
    assert ask(folder, "SELECT thread_id FROM {spans} ORDER BY 1") == [("first",), ("second",)]
    assert len(state.parquet.drop_spans(f"file://{folder}", older_than=3)) == 1
    assert ask(folder, "SELECT thread_id FROM {spans} ORDER BY 1") == [("first",), ("second",)]


@pytest.mark.slow
def test_a_month_of_a_held_thread_stays(
    state: PGState, connection: psycopg.Connection, schema: str, folder: Path
) -> None:
    make_rich_thread(state, "t")
    connection.execute(MONTH.format(schema).encode())
    connection.execute(f"UPDATE \"{schema}\".spans SET started_at = '2025-01-15Z'".encode())
    state.threads.hold("t", "case", by="eve")
    assert state.parquet.drop_spans(f"file://{folder}", older_than=3) == ()
    assert not folder.exists()
    state.threads.release("t", "case", by="eve")
    assert len(state.parquet.drop_spans(f"file://{folder}", older_than=3)) == 1


@pytest.mark.slow
def test_a_month_is_dropped_once_the_spans_of_all_tenants_are_in_files(
    dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, old = f"file://{folder}", "SELECT count(*) FROM {}.spans WHERE started_at < '2025-02-01'"
    with open_walled(dsn) as walled, walled.open() as app, PGState.open(walled.owner, schema=walled.schema) as owner:
        for name in ("acme", "b/c"):
            make_rich_thread(app.for_tenant(name), "t")
        walled.rows("UPDATE {}.spans SET started_at = '2025-01-15Z'")
        owner.maintain()
        ((count,),) = walled.rows(old)
        with pytest.raises(ConfigurationError, match="all tenants"):
            app.for_tenant("acme").parquet.drop_spans(url, older_than=3)
        export = parquet.export_month

        async def late(*args: Any, **options: Any) -> Any:
            found = await export(*args, **options)
            make_rich_thread(app.for_tenant("newcomer"), "t")
            walled.rows("UPDATE {}.spans SET started_at = '2025-01-15Z'")
            return found

        with monkeypatch.context() as patch:
            patch.setattr(parquet, "export_month", late)
            assert owner.parquet.drop_spans(url, older_than=3) == ()
        app.for_tenant("newcomer").threads.hold("t", "case", by="eve")
        assert owner.parquet.drop_spans(url, older_than=3) == ()
        app.for_tenant("newcomer").threads.release("t", "case", by="eve")
        files = owner.parquet.drop_spans(url, older_than=3)
        assert [file.url for file in files] == [
            f"{url}/{name}/spans/2025-01.parquet" for name in ("acme", "b%252Fc", "newcomer")
        ]
        assert sum(file.rows for file in files) > count
        assert walled.rows(old) == [(0,)]
        assert [row[0] for row in ask(folder / "*", "SELECT count(*) FROM {spans} GROUP BY thread_id, run_id")]
        with pytest.raises(TenantError):
            owner.threads.list()


@pytest.mark.slow
def test_tenants_do_not_overwrite_files_of_each_other(dsn: str, folder: Path) -> None:
    folders = {
        "bolt-1_A": "bolt-1_A",
        "x/../bolt-1_A": "x%2F..%2Fbolt-1_A",
        "..": "%2E.",
        ".": "%2E",
        "../evil": "%2E.%2Fevil",
        "%2E": "%252E",
        "acme.com": "acme.com",
    }
    with open_walled(dsn) as walled, walled.open() as app, PGState.open(walled.owner, schema=walled.schema) as owner:
        for name, place in folders.items():
            make_rich_thread(app.for_tenant(name), "t")
            files = app.for_tenant(name).parquet.export(f"file://{folder}")
            assert all(Path(unquote(urlsplit(file.url).path)).is_relative_to(folder / place) for file in files)
        assert {path.relative_to(folder).parts[0] for path in folder.rglob("*.parquet")} == {*folders.values()}
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]
        walled.rows("UPDATE {}.spans SET started_at = '2025-01-15Z'")
        owner.maintain()
        spans = walled.rows("SELECT count(*) FROM {}.spans")
        assert sum(file.rows for file in owner.parquet.drop_spans(f"file://{folder}", older_than=3)) == spans[0][0]
        assert walled.rows("SELECT count(*) FROM {}.spans") == [(0,)]
    assert duckdb.sql(f"SELECT count(*) FROM '{folder}/*/spans/2025-01.parquet'").fetchall() == spans


def test_what_cannot_be_exported_is_refused(state: PGState, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="2026-01"):
        state.parquet.export(f"file://{folder}", months=["2026-13"])
    make_rich_thread(state, "t")
    with pytest.raises(ConfigurationError, match="form"):
        state.parquet.export("nowhere")
    assert state.parquet.export(f"file://{folder}", months=["2020-01"]) == ()
