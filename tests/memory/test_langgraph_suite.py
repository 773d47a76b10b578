"""LangGraph's own tests of its PostgreSQL store, run on ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

# Sixty thousand operations at once.
_SELECTED = "not large_batches_async"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The source distribution of langgraph-checkpoint-postgres, with its tests."""
    number = version("langgraph-checkpoint-postgres")
    wanted = f"langgraph-checkpoint-postgres=={number}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", wanted]
    if subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, timeout=300).returncode:
        pytest.skip(f"the source distribution of {wanted} cannot be downloaded")
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    return next(path for path in tmp_path.iterdir() if path.is_dir())


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_langgraphs_own_tests_pass(suite: Path, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
            pytest.skip("the server has no pgvector")
    given = conninfo_to_dict(dsn)
    host = str(given.get("host", "localhost")).replace("/", "%2F")
    place = f"postgresql://{given.get('user', 'postgres')}@{host}:{given.get('port', 5432)}/{given['dbname']}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "langgraph_suite", "-p", "no:cacheprovider", "-k", _SELECTED]
    options = ["-o", "asyncio_mode=auto", "tests/test_store.py", "tests/test_async_store.py"]
    environment = {**os.environ, "PGSTATE_SUITE_DSN": place, "PYTHONPATH": f"{Path(__file__).parent}:{suite}"}
    done = subprocess.run(
        [*command, *options], check=False, cwd=suite, env=environment, capture_output=True, text=True, timeout=1700
    )
    assert done.returncode == 0, done.stdout[-3000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None
    assert int(found[1]) > 150
