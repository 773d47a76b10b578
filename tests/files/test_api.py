"""Files in versions: read, written, compared, restored, purged, and kept apart by their namespaces."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from support import spread

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import ArgumentTypeError, ConfigurationError, FileChangedError, NotFoundError
from langgraph_pgstate.files import Files

ADA = ("ada",)
PATH = "/notes/plan.md"
LONG = ("x" * 3000,)


class Cipher:
    """Encrypts a little."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 85 for byte in plaintext)

    def decrypt(self, name: str, ciphertext: bytes) -> bytes:
        return bytes(byte ^ 85 for byte in ciphertext)


def versions(files: Files, path: str = PATH) -> list[tuple[int, str]]:
    return [(one.version, one.operation) for one in files.history(ADA, path).items]


def test_each_write_is_a_version(files: Files) -> None:
    first = files.write(ADA, PATH, "one\ntwo\n")
    second = files.write(ADA, PATH, "one\n2\n", by="eve")
    assert (first.version, first.size, first.line_count, first.is_text) == (1, 8, 2, True)
    assert (second.version, second.changed_by) == (2, "eve")
    newest = files.read(ADA, PATH)
    assert newest is not None
    assert (newest.content, newest.version, newest.created_at) == ("one\n2\n", 2, first.created_at)
    old = files.read(ADA, PATH, version=1)
    assert old is not None
    assert (old.content, old.modified_at) == ("one\ntwo\n", first.created_at)
    assert files.history(ADA, PATH).items == (second, first)
    assert files.read(ADA, PATH, version=3) is None
    assert files.read(ADA, "/other") is None


def test_a_write_that_changes_nothing_makes_no_version(files: Files) -> None:
    """A task that is run again after a crash writes the same."""
    first = files.write(ADA, PATH, "text")
    assert files.write(ADA, PATH, b"text") == first
    files.write(ADA, PATH, "next")
    assert versions(files) == [(2, "write"), (1, "write")]


def test_a_write_on_an_old_version_is_refused(files: Files) -> None:
    files.write(ADA, PATH, "one")
    files.write(ADA, PATH, "two", expected_version=1)
    with pytest.raises(FileChangedError, match="at version 2, not 1") as refused:
        files.write(ADA, PATH, "three", expected_version=1)
    assert (refused.value.path, refused.value.expected, refused.value.found) == (PATH, 1, 2)
    with pytest.raises(FileChangedError):
        files.write(ADA, PATH, "three", expected_version=0)
    with pytest.raises(FileChangedError):
        files.write(ADA, "/new", "x", expected_version=4)
    assert files.write(ADA, "/new", "x", expected_version=0).version == 1
    files.delete(ADA, "/new")
    assert files.write(ADA, "/new", "x", expected_version=0).version == 3
    assert versions(files) == [(2, "write"), (1, "write")]


def test_a_deleted_file_can_be_restored(files: Files) -> None:
    files.write(ADA, PATH, "one")
    files.write(ADA, "/notes/more/a", "two")
    files.write(ADA, "/notes.txt", "beside")
    assert files.delete(ADA, "/notes", by="eve") == ("/notes/more/a", PATH)
    assert files.delete(ADA, "/notes") == ()
    assert files.read(ADA, PATH) is None
    assert files.read(ADA, PATH, version=2) is None
    assert [entry.path for entry in files.ls(ADA)] == ["/notes.txt"]
    assert files.grep(ADA, "one").lines == ()
    restored = files.restore(ADA, PATH, 1, by="eve")
    assert (restored.version, restored.operation, restored.restored_version) == (3, "restore", 1)
    assert [entry.path for entry in files.ls(ADA)] == ["/notes.txt", "/notes/"]
    assert [line.path for line in files.grep(ADA, "one").lines] == [PATH]
    assert versions(files) == [(3, "restore"), (2, "delete"), (1, "write")]
    for version in (2, 9):
        with pytest.raises(NotFoundError, match=f"no version {version}"):
            files.restore(ADA, PATH, version)


def test_a_diff_shows_what_changed(files: Files) -> None:
    files.write(ADA, PATH, "one\ntwo\nthree\n")
    files.write(ADA, PATH, "one\n2\nthree")
    assert files.diff(ADA, PATH, 1, 2).splitlines() == [
        f"--- {PATH} (version 1)",
        f"+++ {PATH} (version 2)",
        "@@ -1,3 +1,3 @@",
        " one",
        "-two",
        "-three",
        "+2",
        "+three",
        "\\ No newline at end of file",
    ]
    assert files.diff(ADA, PATH, 2, 1) != files.diff(ADA, PATH, 1, 2) == files.diff(ADA, PATH, 1)
    assert "+one" in files.diff(ADA, PATH, 0, 1)
    files.delete(ADA, PATH)
    assert "-three" in files.diff(ADA, PATH, 1)
    with pytest.raises(NotFoundError, match="no version 9"):
        files.diff(ADA, PATH, 1, 9)
    files.write(ADA, PATH, b"\xff")
    with pytest.raises(ConfigurationError, match="binary"):
        files.diff(ADA, PATH, 1)


def test_a_namespace_is_compared_as_a_whole(files: Files) -> None:
    """No label is a prefix, a pattern, or parted by a dot."""
    namespaces = [
        *[("user", "1"), ("user", "10"), ("user",), ("user", "1", "x"), ("user.1",), ("user%", "1"), ("*",)],
        *[("%",), ("_ser", "1"), ("a,b",), ('"a"',), ("{a}",), ("\\",), ("NULL",), (" ",), ("x",) * 100],
    ]
    for number, namespace in enumerate(namespaces):
        files.write(namespace, "/a", f"text {number}")
    for number, namespace in enumerate(namespaces):
        found = files.read(namespace, "/a")
        assert found is not None
        assert found.content == f"text {number}"
        assert len(files.ls(namespace)) == len(files.glob(namespace, "*")) == 1
        assert [line.text for line in files.grep(namespace, "text").lines] == [f"text {number}"]
        assert len(files.history(namespace, "/a").items) == 1
    assert files.delete(("user",), "/") == ("/a",)
    assert files.read(("user", "1"), "/a") is not None
    assert files.purge(("user", "1")) == 1
    assert files.read(("user", "10"), "/a") is not None


@pytest.mark.parametrize("namespace", ["ada", (), ("",), ("a", ""), ("a\0b",), ("\ud800",), (1,), None, LONG])
def test_a_bad_namespace_is_refused(files: Files, namespace: Any) -> None:
    with pytest.raises(ConfigurationError):
        files.write(namespace, "/a", "")
    with pytest.raises(ConfigurationError):
        files.read(namespace, "/a")
    if namespace != LONG:
        with pytest.raises(ConfigurationError):
            files.ls(namespace)


@pytest.mark.parametrize(
    "path",
    ["", "/", "a", "a/b", "//a", "/a//b", "/a/", "/.", "/..", "/a/../b", "/a\0b", "/\ud800", "/" + "x" * 3000, 1],
)
def test_a_bad_path_is_refused(files: Files, path: Any) -> None:
    with pytest.raises(ConfigurationError):
        files.write(ADA, path, "x")
    with pytest.raises(ConfigurationError):
        files.read(ADA, path)
    assert files.glob(ADA, "*") == ()


@pytest.mark.parametrize(
    "path",
    spread(
        [
            *[
                "/a" * 200,
                "/%",
                "/_",
                "/*",
                "/[a]",
                "/a b\n",
                "/\\",
                "/'",
                '/"',
                "/ü",
                "/\U0001f600",
                "/~",
                "/...",
                "/a\r\n",
            ],
            *["/-", "/a0", "/a.", "/a" + "\x01"],
        ]
    ),
)
def test_an_odd_path_is_a_path(files: Files, path: str) -> None:
    files.write(ADA, "/a/b/c/d", "other")
    files.write(ADA, path, "mine")
    found = files.read(ADA, path)
    assert found is not None
    assert found.content == "mine"
    assert [line.path for line in files.grep(ADA, "mine").lines] == [path]
    assert [line.path for line in files.grep(ADA, "mine", directory=path).lines] == [path]
    directory = path[: path.rindex("/") + 1]
    assert path in [entry.path for entry in files.ls(ADA, directory)]
    assert path in [entry.path for entry in files.glob(ADA, "**", path)] or path.rpartition("/")[2][0] == "."
    assert files.delete(ADA, path) == (path,)
    assert files.read(ADA, "/a/b/c/d") is not None


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        *[("", 0), ("\n", 1), ("a\r\nb\r\n", 2), ("a\0b\nc", 2), ("x" * 3_000_000, 1), ("line\n" * 200_000, 200_000)],
        *[(b"\xff\xfe\0", 0), (bytes(range(256)) * 4000, 0), ("ü\U0001f600\n" * 9, 9), (b"PNG\0text", 1)],
    ],
    ids=range(10),
)
def test_every_content_comes_back(files: Files, content: str | bytes, lines: int) -> None:
    made = files.write(ADA, PATH, content)
    found = files.read(ADA, PATH)
    assert found is not None
    same = content.decode() if isinstance(content, bytes) and made.is_text else content
    assert found.content == same
    assert type(found.content) is type(same)
    assert made.line_count == found.line_count == lines
    assert (
        made.size
        == found.size
        == files.ls(ADA, "/notes")[0].size
        == len(content.encode() if isinstance(content, str) else content)
    )


@pytest.mark.slow
def test_ten_megabytes_are_stored_and_more_than_64_refused(files: Files) -> None:
    text = "".join(f"{number} {'x' * 90}\n" for number in range(100_000))
    files.write(ADA, PATH, text)
    found = files.read(ADA, PATH)
    assert found is not None
    assert found.content == text
    assert [line.number for line in files.grep(ADA, "99999 x").lines] == [100_000]
    with pytest.raises(ConfigurationError, match="at most"):
        files.write(ADA, PATH, b"x" * (64 * 1024 * 1024 + 1))
    for bad in ("\ud800", 1, None):
        with pytest.raises(ConfigurationError):
            files.write(ADA, PATH, bad)  # type: ignore[arg-type]


def test_pages_of_versions_follow_each_other(files: Files) -> None:
    for number in range(5):
        files.write(ADA, PATH, str(number))
    first = files.history(ADA, PATH, limit=2)
    second = files.history(ADA, PATH, limit=2, cursor=first.next)
    third = files.history(ADA, PATH, limit=2, cursor=second.next)
    assert [one.version for page in (first, second, third) for one in page.items] == [5, 4, 3, 2, 1]
    assert third.next is None
    with pytest.raises(ConfigurationError, match="cursor"):
        files.history(ADA, PATH, cursor="x")


class Notes(MessagesState):
    """A state without more."""


def graph_that_writes(state: PGState, *writes: tuple[str, str]) -> Any:
    def write(_: Notes) -> dict[str, Any]:
        for path, content in writes:
            state.files.write(ADA, path, content)
        return {}

    builder = StateGraph(Notes)
    builder.add_node("write", write)
    builder.add_edge(START, "write")
    builder.add_edge("write", END)
    return state.record(builder.compile(checkpointer=state.saver))


def test_what_a_run_has_changed_is_found_by_run_and_checkpoint(state: PGState) -> None:
    files = state.files
    files.write(ADA, "/a", "by nobody")
    graph_that_writes(state, ("/a", "first"), ("/b", "first")).invoke({"messages": []}, thread("t"))
    graph_that_writes(state, ("/a", "second")).invoke({"messages": []}, thread("t"))
    graph_that_writes(state, ("/c", "elsewhere")).invoke({"messages": []}, thread("u"))
    changes = files.changes("t").items
    assert [(one.path, one.version) for one in changes] == [("/a", 2), ("/b", 1), ("/a", 3)]
    runs = [run.run_id for run in reversed(state.runs.list(thread_id="t").items)]
    assert [one.run_id for one in changes] == [runs[0], runs[0], runs[1]]
    assert [one.path for one in files.changes("t", run_id=runs[1]).items] == ["/a"]
    checkpoint_id = changes[2].checkpoint_id
    assert [one.version for one in files.changes("t", checkpoint_id=checkpoint_id).items] == [3]
    assert state.saver.get_tuple(config(("t"), checkpoint_id)) is not None
    first = files.changes("t", limit=2)
    assert (*first.items, *files.changes("t", limit=2, cursor=first.next).items) == changes
    assert "-first\n" in files.diff(ADA, "/a", changes[2].version - 1, changes[2].version)
    state.saver.delete_thread("t")
    assert files.read(ADA, "/b") is not None


def thread(thread_id: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread_id}}


def config(thread_id: str, checkpoint_id: str | None) -> Any:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}


def test_what_is_purged_is_gone(files: Files, connection: psycopg.Connection, schema: str) -> None:
    for number in range(3):
        files.write(ADA, PATH, str(number))
        files.write(ADA, "/deleted", str(number))
    files.write(ADA, "/notes2", "beside")
    files.delete(ADA, "/deleted")
    assert files.purge(ADA, PATH, versions_before=timedelta(hours=1)) == 0
    assert files.purge(ADA, "/notes", versions_before=timedelta(0)) == 2
    assert versions(files) == [(3, "write")]
    assert files.write(ADA, PATH, "next", expected_version=3).version == 4
    assert files.purge(ADA, "/notes") == 1
    assert files.purge(ADA, "/notes") == 0
    with pytest.raises(FileChangedError):
        files.write(ADA, PATH, "late", expected_version=4)
    assert files.purge(ADA) == 2
    for table in ("files", "file_versions", "file_texts"):
        assert connection.execute(f"SELECT count(*) FROM {schema}.{table}".encode()).fetchone() == (0,)


def test_a_serializer_of_the_application_encodes_contents(
    dsn: str, schema: str, connection: psycopg.Connection
) -> None:
    """Nothing is stored in clear text beside what it encrypts; searches decode."""
    with PGState.open(dsn, schema=schema, serde=EncryptedSerializer(Cipher())) as state:
        files = state.files
        files.write(ADA, PATH, "a secret\nmore\n")
        files.write(ADA, "/x.bin", b"\xffsecret")
        files.write(ADA, "/nul", "a\0secret")
        for number in range(250):
            files.write(ADA, f"/many/{number:03}", f"line\nsecret {number}")
        found = files.read(ADA, PATH)
        assert found is not None
        assert found.content == "a secret\nmore\n"
        lines = files.grep(ADA, "secret")
        assert len(lines.lines) == 251
        assert not lines.is_truncated
        assert [(line.path, line.number) for line in files.grep(ADA, "secret 24", limit=2).lines] == [
            *[("/many/024", 2), ("/many/240", 2)]
        ]
        assert files.grep(ADA, "secret", limit=2).is_truncated
        assert len(files.grep(ADA, "secret", glob="*.md").lines) == 1
        with pytest.raises(ConfigurationError, match="regex must be False"):
            files.grep(ADA, "s.cret", regex=True)
        assert "+more" in files.diff(ADA, PATH, 0)
    for table in ("files", "file_texts", "file_versions"):
        rows = connection.execute(f"SELECT t::text FROM {schema}.{table} t".encode()).fetchall()
        assert not [row for (row,) in rows if "secret" in row or b"secret".hex() in row]


async def test_the_async_files_do_the_same(dsn: str, schema: str) -> None:
    async with AsyncPGState.open(dsn, schema=schema) as state:
        files = state.files
        await files.write(ADA, PATH, "one")
        await files.write(ADA, PATH, "two")
        assert [entry.path for entry in await files.glob(ADA, "*.md")] == [PATH]
        assert [line.text for line in (await files.grep(ADA, "tw")).lines] == ["two"]
        assert (await files.restore(ADA, PATH, 1)).version == 3
        assert "+one" in await files.diff(ADA, PATH, 2)
        assert await files.delete(ADA, "/") == (PATH,)
        assert await files.purge(ADA) == 1


def test_a_limit_and_a_version_must_be_numbers(files: Files) -> None:
    with pytest.raises(ConfigurationError, match="limit"):
        files.grep(ADA, "x", limit=-1)
    with pytest.raises(ArgumentTypeError, match="version"):
        files.read(ADA, PATH, version=0)
    with pytest.raises(ArgumentTypeError, match="expected_version"):
        files.write(ADA, PATH, "x", expected_version=-1)
    with pytest.raises(ArgumentTypeError, match="pattern"):
        files.grep(ADA, b"x")  # type: ignore[arg-type]
