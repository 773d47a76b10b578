"""deepagents' own tests of `StoreBackend`, with `PGFiles` in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.server import ROOT

from langgraph_pgstate import PGStateSaver

pytest.importorskip("deepagents")

# Of StoreBackend only: how it stores files in a store, and which labels it refuses.
NOT_OURS = (
    *("legacy", "single_batch_call", "TestValidateNamespace", "rejects_wildcard_namespace"),
    # They look into the store.
    *("namespace_user_scoped", "namespace_multi_level", "namespace_with_context", "namespace_error_handling"),
    *(
        "intercept_large_tool_result",
        "namespace_is_required",
        "runtime_reading_factory_outside_graph",
        "arg_ignoring_factory",
        "namespace_isolation",
    ),
)
FILES = (
    *("test_store_backend.py", "test_store_backend_async.py", "test_glob_semantics.py"),
    *("test_composite_backend.py", "test_composite_backend_async.py"),
)


def test_deepagents_own_tests_pass(dsn: str, saver: PGStateSaver) -> None:
    """Its source distribution has no tests: `PGSTATE_TEST_DEEPAGENTS` names a checkout of its repository."""
    checkout = os.environ.get("PGSTATE_TEST_DEEPAGENTS")
    if checkout is None:
        pytest.skip("PGSTATE_TEST_DEEPAGENTS names no checkout of deepagents' repository; its sdist has no tests")
    saver.setup()
    folder = Path(checkout, "libs", "deepagents")
    selected = [str(folder / "tests" / "unit_tests" / "backends" / name) for name in FILES]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "support.deepagents_plugin", "-p", "no:cacheprovider"),
            *("-o", "addopts=", "-o", "asyncio_mode=auto", "-c", os.devnull, "--rootdir", str(folder)),
            *("-k", f"not ({' or '.join(NOT_OURS)})", *selected),
        ],
        cwd=folder,
        env={
            **os.environ,
            "PGSTATE_TEST_DSN": dsn,
            "PGSTATE_TEST_SCHEMA": saver.schema,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", folder))),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    assert " passed" in done.stdout
