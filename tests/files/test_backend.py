"""Deep agents on files in PostgreSQL: real agents with a fake model, beside deepagents' own backend."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from support import examples, run_children

from langgraph_pgstate import AsyncPGState, PGState
from langgraph_pgstate.errors import BlockingCallError, ConfigurationError
from langgraph_pgstate.files import PGFiles

deepagents: Any = pytest.importorskip("deepagents")
backends: Any = pytest.importorskip("deepagents.backends")

ADA = ("ada",)
LINES = 12


class Model(GenericFakeChatModel):
    """A model that says what it was given."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def says(*steps: Any) -> Model:
    """A model that calls tools, several at once in a list, and then ends."""
    messages = []
    for number, step in enumerate(steps):
        calls = [step] if isinstance(step, tuple) else step
        made = [{"name": name, "args": args, "id": f"{number}-{n}"} for n, (name, args) in enumerate(calls)]
        messages.append(AIMessage("", tool_calls=made))
    return Model(messages=iter([*messages, AIMessage("done")]))


def write(path: str, content: str) -> tuple[str, dict[str, Any]]:
    return "write_file", {"file_path": path, "content": content}


def edit(path: str, old: str, new: str) -> tuple[str, dict[str, Any]]:
    return "edit_file", {"file_path": path, "old_string": old, "new_string": new}


def read(path: str) -> tuple[str, dict[str, Any]]:
    return "read_file", {"file_path": path}


def thread(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def answers(state: PGState, backend: Any, thread_id: str, *steps: Any, **options: Any) -> list[ToolMessage]:
    """Run an agent, and return what its tools have answered in this run."""
    agent = deepagents.create_deep_agent(says(*steps), backend=backend, checkpointer=state.saver, **options)
    before = len(agent.get_state(thread(thread_id)).values.get("messages", ()))
    found = state.record(agent).invoke({"messages": [("user", "go")]}, thread(thread_id))["messages"]
    return [message for message in found[before:] if isinstance(message, ToolMessage)]


def read_elsewhere(dsn: str, schema: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        backend = PGFiles(state, namespace=ADA)
        assert backend.read("/plan.md").file_data["content"] == "one\n2\n"
        assert [match["text"] for match in backend.grep("2").matches] == ["2"]


@pytest.mark.slow
def test_an_agent_writes_edits_and_greps_files_that_outlive_its_process(dsn: str, schema: str, state: PGState) -> None:
    backend = PGFiles(state, namespace=ADA)
    searches = ("grep", {"pattern": "2"}), ("ls", {"path": "/"}), ("glob", {"pattern": "**/*.md", "path": "/"})
    told = answers(state, backend, "t", write("/plan.md", "one\ntwo\n"), edit("/plan.md", "two", "2"), *searches)
    assert {message.status for message in told} == {"success"}
    assert all("/plan.md" in str(message.content) for message in told)
    assert run_children(read_elsewhere, [(dsn, schema)]) == [""]
    [run] = state.runs.list(thread_id="t").items
    changes = state.files.changes("t", run_id=run.run_id).items
    assert [(one.operation, one.version, one.checkpoint_ns) for one in changes] == [("write", 1, ""), ("edit", 2, "")]
    assert len({one.checkpoint_id for one in changes} - {None}) == 2


@pytest.mark.slow
def test_a_function_of_the_runtime_gives_each_user_files_of_her_own(state: PGState) -> None:
    @dataclass
    class Context:
        user: str

    backend = PGFiles(state, namespace=lambda runtime: ("user", runtime.context.user))
    for user in ("1", "10"):
        agent = deepagents.create_deep_agent(
            says(write("/a", f"of {user}")), backend=backend, checkpointer=state.saver, context_schema=Context
        )
        agent.invoke({"messages": [("user", "go")]}, thread(user), context=Context(user))
    for user in ("1", "10"):
        found = state.files.read(("user", user), "/a")
        assert found is not None
        assert found.content == f"of {user}"
    with pytest.raises(ConfigurationError, match="runtime"):
        backend.ls("/")


@pytest.mark.slow
def test_a_write_does_not_lose_what_another_agent_has_written(state: PGState) -> None:
    backend = PGFiles(state, namespace=ADA)
    answers(state, backend, "one", write("/a", "mine\n"))
    [refused] = answers(state, backend, "two", write("/a", "theirs\n"))
    assert (refused.status, "you have not read it" in str(refused.content)) == ("error", True)
    told = answers(state, backend, "two", read("/a"), edit("/a", "mine\n", "mine\ntheirs\n"))
    assert [message.status for message in told] == ["success"] * 2
    [refused] = answers(state, backend, "one", write("/a", "mine 2\n"))
    assert "was changed by another" in str(refused.content)
    told = answers(state, backend, "one", read("/a"), write("/a", "mine 2\ntheirs\n"), write("/a", "mine 3\ntheirs\n"))
    assert [message.status for message in told] == ["success"] * 3
    # Another process of the same thread has read nothing, but written the newest version.
    told = answers(state, PGFiles(state, namespace=ADA), "one", write("/a", "mine 4\ntheirs\n"))
    assert [message.status for message in told] == ["success"]
    told = answers(state, PGFiles(state, namespace=ADA), "two", edit("/a", "theirs", "ours"))
    assert [message.status for message in told] == ["success"]
    assert backend.read("/a").file_data["content"] == "mine 4\nours\n"


@pytest.mark.slow
def test_a_subagent_is_another_agent(state: PGState) -> None:
    backend = PGFiles(state, namespace=ADA)
    child = {
        "name": "child",
        "description": "Writes.",
        "system_prompt": "Write.",
        "model": says(write("/a", "the child's"), read("/a"), write("/a", "both")),
    }
    task = "task", {"description": "Write.", "subagent_type": "child"}
    told = answers(state, backend, "t", write("/a", "the parent's"), task, write("/a", "lost"), subagents=[child])
    assert [message.status for message in told] == ["success", "success", "error"]
    changes = state.files.changes("t").items
    assert [one.checkpoint_ns == "" for one in changes] == [True, False]
    assert backend.read("/a").file_data["content"] == "both"


def append_lines(backend: Any, name: str) -> None:
    """Add lines at the top of one file, each by an edit of what is there."""
    for number in range(LINES):
        result = backend.edit("/log", "end\n", f"{name} {number}\nend\n")
        assert result.error is None, result.error


def append_in_a_process(dsn: str, schema: str, name: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        append_lines(PGFiles(state, namespace=ADA), name)


def check_log(backend: Any, writers: int) -> None:
    lines = backend.read("/log").file_data["content"].splitlines()
    assert sorted(lines[:-1]) == sorted(f"w{writer} {number}" for writer in range(writers) for number in range(LINES))
    assert lines[-1] == "end"


def test_threads_that_edit_one_file_lose_no_line(state: PGState) -> None:
    backend = PGFiles(state, namespace=ADA)
    backend.write("/log", "end\n")
    with ThreadPoolExecutor(4) as executor:
        for done in [executor.submit(append_lines, backend, f"w{writer}") for writer in range(4)]:
            done.result()
    check_log(backend, 4)
    assert state.files.history(ADA, "/log", limit=1).items[0].version == 4 * LINES + 1


def test_processes_that_edit_one_file_lose_no_line(dsn: str, schema: str, state: PGState) -> None:
    backend = PGFiles(state, namespace=ADA)
    backend.write("/log", "end\n")
    assert run_children(append_in_a_process, [(dsn, schema, f"w{writer}") for writer in range(3)]) == [""] * 3
    check_log(backend, 3)


def write_first(dsn: str, schema: str, name: str) -> None:
    with PGState.open(dsn, schema=schema) as state:
        for number in range(LINES):
            state.files.write(ADA, f"/{number}", name)


def test_writers_that_create_the_same_files_store_a_version_each(dsn: str, schema: str, state: PGState) -> None:
    assert run_children(write_first, [(dsn, schema, f"w{writer}") for writer in range(3)]) == [""] * 3
    for number in range(LINES):
        found = state.files.history(ADA, f"/{number}").items
        assert [one.version for one in found] == [3, 2, 1]


def test_deletions_beside_edits_end(state: PGState) -> None:
    """They lock rows in one order: a deadlock would be broken by PostgreSQL after a second, and be tried again."""
    backend = PGFiles(state, namespace=ADA)

    def work(number: int) -> None:
        for turn in range(15):
            if number % 2:
                backend.delete("/d")
            else:
                backend.upload_files([(f"/d/{one}", f"{turn} {number}".encode()) for one in range(5)])

    with ThreadPoolExecutor(4) as executor:
        for done in [executor.submit(work, number) for number in range(4)]:
            done.result()
    backend.delete("/d")
    for one in range(5):
        numbers = [version.version for version in state.files.history(ADA, f"/d/{one}", limit=1000).items]
        assert numbers == [*range(len(numbers), 0, -1)]


def test_a_route_of_a_composite_backend(state: PGState) -> None:
    routes = {"/memories/": PGFiles(state, namespace=ADA)}
    composite = backends.CompositeBackend(default=PGFiles(state, namespace=("default",)), routes=routes)
    told = answers(state, composite, "t", write("/memories/me.md", "likes tea"), write("/b.md", "tea"))
    assert [message.status for message in told] == ["success"] * 2
    found = state.files.read(ADA, "/me.md")
    assert found is not None
    assert [match["path"] for match in composite.grep("tea", "/").matches] == ["/b.md", "/memories/me.md"]
    assert [one["path"] for one in composite.glob("**/*.md", "/").matches] == ["/b.md", "/memories/me.md"]


PATHS = ["/a", "/a/b", "/a/b.md", "/a/c.py", "/d/.x", "/.d/e.md", "/a-b", "/%"]
TEXTS = ["", "one", "one\ntwo\n", "one\r\ntwo", "two\none\none", "\n\n", "ü%_\\\n"]
SEARCHED = ["/", "/a", "/a/", "/d", "a", "/none", "/a/b.md", "/.d", ""]
GLOBS = [
    "*",
    "**",
    "*.md",
    "**/*.md",
    "a/*",
    "/a*",
    "[a-c]*",
    "{a,d}/*",
    "\\a",
    "[[:alpha:]]",
    "..",
    "*[",
    ".*",
    "b{,.md}",
]
SOUGHT = ["one", "o", "", "%", "_", "\\", "one\n", "\r", "none"]


def calls(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(name), *arguments)


def some(items: list[Any]) -> st.SearchStrategy[Any]:
    return st.sampled_from(items)


OPERATIONS = st.lists(
    st.one_of(
        calls("write", some(PATHS), some(TEXTS)),
        calls("edit", some(PATHS), some(["one", "two", "", "one\n"]), some(["", "x", "one"]), st.booleans()),
        calls("delete", some([*PATHS, "/", "/a/", "/d"])),
        calls("read", some(PATHS), st.integers(-1, 4), st.integers(-1, 3)),
        calls("ls", some(SEARCHED)),
        calls("glob", some(GLOBS), some(SEARCHED)),
        calls("grep", some(SOUGHT), some(SEARCHED), some([None, *GLOBS])),
        calls("download_files", st.lists(some(PATHS), max_size=3)),
        calls("upload_files", st.lists(st.tuples(some(PATHS), some([b"one", b"\xff\0", b""])), max_size=3)),
    ),
    max_size=12,
)
# StoreBackend counts the characters of base64.
SIZES = {4: 2}


def plain(result: Any) -> Any:
    """A result without times, and without an order that times decide."""
    if isinstance(result, list):
        return result
    found = {name: value for name, value in vars(result).items() if value is not None}
    if "file_data" in found:
        found["file_data"] = {key: found["file_data"][key] for key in ("content", "encoding")}
    for name in ("entries", "matches"):
        if name in found:
            items = [{key: value for key, value in one.items() if key != "modified_at"} for one in found[name]]
            for one in items:
                if "size" in one:
                    one["size"] = SIZES.get(one["size"], one["size"])
            found[name] = sorted(items, key=lambda one: (one["path"], one.get("line", 0)))
    return found


@pytest.mark.slow
def test_every_result_is_that_of_deepagents_own_backend(state: PGState) -> None:
    """Of `StoreBackend` on a store in memory, for any sequence of calls."""
    from langgraph.store.memory import InMemoryStore

    count = iter(range(10_000_000))

    @settings(max_examples=examples(600))
    @given(OPERATIONS)
    def check(operations: list[tuple[Any, ...]]) -> None:
        label = f"example {next(count)}"
        ours = PGFiles(state, namespace=(label,))
        theirs = backends.StoreBackend(store=InMemoryStore(), namespace=lambda runtime: ("files",))
        for name, *arguments in operations:
            mine, other = (getattr(one, name)(*arguments) for one in (ours, theirs))
            assert plain(mine) == plain(other), (name, arguments)

    check()


def test_a_hostile_argument_is_an_error_that_the_model_sees(state: PGState) -> None:
    backend = PGFiles(state, namespace=ADA)
    for path in ("/a\0b", "/../x", "/a//b", "/\ud800", "/" + "x" * 3000):
        assert "path" in str(backend.write(path, "x").error)
        assert backend.read(path).error
        assert backend.edit(path, "a", "b").error
        assert backend.download_files([path])[0].error == "invalid_path"
        assert backend.upload_files([(path, b"")])[0].error == "invalid_path"
    for path in ("/a\0b", "/../x", "/a//b", "/\ud800"):
        assert backend.ls(path).error
        assert backend.grep("x", path).error
        assert backend.glob("*", path).error
        assert backend.delete(path).error
    assert backend.write("/a", "\ud800").error
    assert backend.write("/a", "a\0b").error is None
    assert backend.glob("*\0").error
    assert backend.glob("{a,b}" * 12).error
    assert backend.glob("../*").error
    assert backend.grep("a\0").matches == []
    assert backend.grep("\ud800").matches == []
    assert backend.edit("/a", "\0", "\n").occurrences == 1
    for bad in ("ada", (), ("",)):
        with pytest.raises(ConfigurationError, match="namespace"):
            PGFiles(state, namespace=bad)


async def test_an_async_state_serves_both_apis(dsn: str, schema: str) -> None:
    async with AsyncPGState.open(dsn, schema=schema) as state:
        backend = PGFiles(state, namespace=ADA)
        agent = deepagents.create_deep_agent(
            says(write("/a", "one\n"), edit("/a", "one", "two"), ("grep", {"pattern": "two"})),
            backend=backend,
            checkpointer=state.saver,
        )
        found = (await agent.ainvoke({"messages": [("user", "go")]}, thread("t")))["messages"]
        assert {one.status for one in found if isinstance(one, ToolMessage)} == {"success"}
        assert [one.version for one in (await state.files.changes("t")).items] == [1, 2]
        assert (await asyncio.to_thread(backend.read, "/a")).file_data["content"] == "two\n"
        assert (await backend.als("/")).entries == (await asyncio.to_thread(backend.ls, "/")).entries
        assert (await backend.adelete("/a")).path == "/a"
        assert (await backend.aupload_files([("/b", b"\xff")]))[0].error is None
        assert (await backend.adownload_files(["/b"]))[0].content == b"\xff"
        assert len((await backend.aglob("*")).matches) == 1
        with pytest.raises(BlockingCallError, match=r"backend\.aread"):
            backend.read("/a")


async def test_a_blocking_state_serves_async_calls(state: PGState) -> None:
    backend = PGFiles(state, namespace=ADA)
    assert (await backend.awrite("/a", "one\n")).path == "/a"
    assert (await backend.aedit("/a", "one", "two")).occurrences == 1
    assert (await backend.agrep("two")).matches == [{"path": "/a", "line": 1, "text": "two"}]
    assert (await backend.aread("/a")).file_data["content"] == "two\n"


@pytest.mark.slow
def test_without_deepagents_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['deepagents'] = None\n"
        "from langgraph_pgstate.errors import ConfigurationError\n"
        "from langgraph_pgstate.files import PGFiles\n"
        "try: PGFiles(None, namespace=('a',))\n"
        "except ConfigurationError as error: assert 'langgraph-pgstate[deepagents]' in str(error)\n"
        "else: raise SystemExit(1)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
