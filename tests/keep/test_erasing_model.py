"""Erasures after sequences of turns, forks, copies, prunes and archives that nobody thought of."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Command

from langgraph_pgstate import Encryption, LocalMasterKey, PGState
from langgraph_pgstate.admin.api import Admin
from langgraph_pgstate.codec import frames
from langgraph_pgstate.errors import (
    CorruptStateError,
    EncryptedError,
    NotFoundError,
    ThreadArchivedError,
    ThreadInUseError,
    UnreadableFormatError,
)
from tests.keep.test_erasing import own, talk

STEPS = ["new", "new", "say", "say", "resume", "resume", "fork", "fork", "copy", "prune", "archive", "restore"]
STEPS += ["comment", "file"]
USERS = ("evelyn", "bob", "zoe")


class Story:
    """Random actions of three users on threads. Each says only what names the user."""

    def __init__(self, state: PGState, folder: Path, seed: int) -> None:
        self.state, self.folder, self.random = state, folder, random.Random(seed)
        self.graph = state.record(talk().compile(checkpointer=state.saver))
        self.threads: list[str] = []
        self.told: list[Any] = []

    def act(self) -> None:
        user, step = self.random.choice(USERS), self.random.choice(STEPS) if self.threads else "new"
        thread_id = self.new_id if step == "new" else self.random.choice(self.threads)
        self.told.append((step, thread_id, user))
        text = f"what {user} has said {len(self.told)}"
        with suppress(NotFoundError, ThreadArchivedError, ThreadInUseError):
            getattr(self, f"on_{step}")(thread_id, user, text)

    @property
    def new_id(self) -> str:
        return f"t{len(self.threads)}"

    def on_new(self, thread_id: str, user: str, text: str) -> None:
        self.on_say(thread_id, user, text)
        self.threads.append(thread_id)

    def on_say(self, thread_id: str, user: str, text: str) -> None:
        self.graph.invoke({"messages": [HumanMessage(text, name=user)]}, own(thread_id, user))

    def on_resume(self, thread_id: str, user: str, text: str) -> None:
        self.graph.invoke(Command(resume=text), own(thread_id, user))

    def on_fork(self, thread_id: str, user: str, text: str) -> None:
        self.state.threads.fork(thread_id, to=self.new_id, owner={"user_id": user, "metadata": {}})
        self.threads.append(self.new_id)

    def on_copy(self, thread_id: str, user: str, text: str) -> None:
        self.state.saver.copy_thread(thread_id, self.new_id, owner={"user_id": user, "metadata": {}})
        self.threads.append(self.new_id)

    def on_prune(self, thread_id: str, user: str, text: str) -> None:
        self.state.saver.prune([thread_id])

    def on_archive(self, thread_id: str, user: str, text: str) -> None:
        self.state.archive.put([thread_id], to=self.folder.as_uri(), idle_for=timedelta(0))

    def on_restore(self, thread_id: str, user: str, text: str) -> None:
        thread = self.state.threads.get(thread_id)
        if thread is not None and thread.archived_at is not None:
            self.state.archive.restore([thread_id])

    def on_comment(self, thread_id: str, user: str, text: str) -> None:
        for run in self.state.runs.list(thread_id=thread_id).items[:1]:
            self.state.runs.feedback.add(thread_id, run.run_id, comment=text, by=user)

    def on_file(self, thread_id: str, user: str, text: str) -> None:
        self.state.files.write((user,), "/diary.txt", text)


def everything(connection: psycopg.Connection, schema: str) -> dict[str, str]:
    """All rows as text, by table, with the content of compressed values."""
    found = {}
    tables = "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
    for (table,) in connection.execute(tables, [schema]).fetchall():
        texts = []
        for row in connection.execute(f"SELECT * FROM {schema}.{table}".encode()):
            texts.append(str(row))
            for value in row:
                if isinstance(value, bytes):
                    with suppress(CorruptStateError, EncryptedError, UnreadableFormatError):
                        texts.append(str(frames.unpack(value, "it")))
        found[table] = "\n".join(texts)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("seed", [3, 26, 53, 80, 101, 149])
def test_nothing_of_a_user_is_left_and_the_threads_of_others_go_on(
    seed: int, is_encrypted: bool, dsn: str, schema: str, connection: psycopg.Connection, tmp_path: Path
) -> None:
    encryption = Encryption(LocalMasterKey(bytes(range(32))), scope="user") if is_encrypted else None
    with PGState.open(dsn, schema=schema, project=("note",), encryption=encryption) as state:
        story = Story(state, tmp_path, seed)
        for _ in range(16):
            story.act()
        state.flush()
        threads = f"SELECT thread_id, user_id FROM {schema}.threads".encode()
        owners = dict(connection.execute(threads).fetchall())
        done = state.privacy.erase(user_id="evelyn")
        assert done.is_complete, (story.told, done.kept)
        left = dict(connection.execute(threads).fetchall())
        assert left == {thread_id: user for thread_id, user in owners.items() if user != "evelyn"}, story.told
        for one in state.archive.list(limit=100).items:
            state.archive.restore([one.thread_id])
        named = {table for table, text in everything(connection, schema).items() if "evelyn" in text}
        assert named == set(), story.told
    with Admin.open(dsn, schema=schema, encryption=encryption) as admin:
        assert admin.check(deep=True).problems == [], story.told
