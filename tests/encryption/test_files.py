"""Encrypted files: read, listed and searched as others, and in no table as they are."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from langgraph_pgstate import Encryption, LocalMasterKey, PGState
from langgraph_pgstate.errors import ConfigurationError, DecryptionError

MASTER = LocalMasterKey(bytes(range(32)))
SECRET = "planted-in-a-file"  # pragma: allowlist secret


def stored(connection: psycopg.Connection, schema: str) -> str:
    return "".join(
        str(connection.execute(f'SELECT t.*::text FROM "{schema}".{table} t').fetchall())
        for table in ("file_versions", "file_texts")
    )


def test_files_are_encrypted(dsn: str, schema: str, connection: psycopg.Connection) -> None:
    with PGState.open(dsn, schema=schema, encryption=Encryption(MASTER)) as state:
        state.setup()
        files: Any = state.files
        files.write(("a",), "/notes.txt", f"first\n{SECRET}\n")
        files.write(("a",), "/data.bin", b"\xff" + SECRET.encode())
        files.write(("a",), "/notes.txt", f"first\n{SECRET} again\n")
        assert files.read(("a",), "/notes.txt").content == f"first\n{SECRET} again\n"
        assert files.read(("a",), "/data.bin").content == b"\xff" + SECRET.encode()
        assert [(one.path, one.number) for one in files.grep(("a",), SECRET, regex=False).lines] == [("/notes.txt", 2)]
        with pytest.raises(ConfigurationError, match="are encrypted"):
            files.grep(("a",), "f.rst", regex=True)
    shown = stored(connection, schema)
    assert SECRET not in shown
    assert SECRET.encode().hex() not in shown
    connection.execute(
        f"""UPDATE "{schema}".file_versions v SET data = o.data FROM "{schema}".file_versions o
        WHERE v.path = '/notes.txt' AND o.path = '/data.bin'"""
    )
    with PGState.open(dsn, schema=schema, encryption=Encryption(MASTER)) as state:
        files = state.files
        with pytest.raises(DecryptionError, match=r"file_versions\.data"):
            files.read(("a",), "/notes.txt")
